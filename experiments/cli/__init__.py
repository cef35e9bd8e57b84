"""The command `kasuri`."""

import os
import sys

from kasuri import __version__
from kasuri.checks import near_misses

USAGE = """kasuri: Bayesian neural networks with structured variational posteriors

  kasuri list                       experiments and their variants
  kasuri run NAME [options]         run one: data, training, evaluation, result file
  kasuri sweep NAME [options]       choose its settings on validation data
  kasuri report [PATHS] [options]   result files as one HTML page
  kasuri compare [PATHS]            result files as a table
  kasuri data [NAMES]               data sets: list them, or fetch some

kasuri COMMAND --help tells the options. Several processes:
  torchrun --nproc-per-node=2 -m kasuri run NAME [options]
"""
NAMES = ("list", "run", "sweep", "report", "compare", "data")


def main(words: list[str] | None = None) -> int:
    """Run a command line; the exit status."""
    words = sys.argv[1:] if words is None else words
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    if words[0] == "--version":
        print(f"kasuri {__version__}")
        return 0
    if words[0] not in NAMES:
        print(
            f"kasuri has no command {words[0]!r}: {near_misses(words[0], NAMES)}", file=sys.stderr
        )
        return 2
    return _run(words[0], words[1:])


def _run(name: str, words: list[str]) -> int:
    try:
        import tyro  # noqa: F401
    except ImportError:
        print("the command line needs tyro: pip install kasuri[cli]", file=sys.stderr)
        return 1
    from experiments.cli import commands
    from kasuri.training.interrupts import Interrupted

    known = {
        "list": commands.list_experiments,
        "run": commands.run,
        "sweep": commands.sweep,
        "report": commands.report,
        "compare": commands.compare,
        "data": commands.data,
    }
    try:
        known[name](words)
    except Interrupted as stop:
        print(f"\nstopped in {stop.where}; the same command goes on from there", file=sys.stderr)
        return 130
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, head or less, has seen enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - nothing is left to flush into it
        return 0
    except (ValueError, OSError, ArithmeticError, ImportError) as error:
        print(f"kasuri {name}: {error}", file=sys.stderr)
        return 1
    return 0
