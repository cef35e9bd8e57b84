"""The command `weft`."""

import os
import sys

from weft.errors import near_misses
from weft.version import __version__

USAGE = """weft: Bayesian neural networks with structured variational posteriors

  weft list                       experiments and their variants
  weft run NAME [options]         run one: data, training, evaluation, result file
  weft sweep NAME [options]       choose its settings on validation data
  weft report [PATHS] [options]   result files as one HTML page
  weft compare [PATHS]            result files as a table
  weft data [NAMES]               data sets: list them, or fetch some

weft COMMAND --help tells the options. Several processes:
  torchrun --nproc-per-node=2 -m weft run NAME [options]
"""
NAMES = ("list", "run", "sweep", "report", "compare", "data")


def main(words: list[str] | None = None) -> int:
    """Run a command line; the exit status."""
    words = sys.argv[1:] if words is None else words
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    if words[0] == "--version":
        print(f"weft {__version__}")
        return 0
    if words[0] not in NAMES:
        print(f"weft has no command {words[0]!r}: {near_misses(words[0], NAMES)}", file=sys.stderr)
        return 2
    return _run(words[0], words[1:])


def _run(name: str, words: list[str]) -> int:
    try:
        import tyro  # noqa: F401
    except ImportError:
        print("the command line needs tyro: pip install weft[cli]", file=sys.stderr)
        return 1
    from weft.cli import commands
    from weft.training.interrupts import Interrupted

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
        print(f"weft {name}: {error}", file=sys.stderr)
        return 1
    return 0
