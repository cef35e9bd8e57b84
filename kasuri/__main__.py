"""The command `kasuri`: experiments, sweeps and reports, which come with a clone of the repository."""

import sys


def main() -> int:
    """Run the command line of the experiments, or say where it is."""
    try:
        from experiments.cli import main as run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "experiments":
            raise
        print(
            "The command kasuri runs the experiments of the repository, which this installation "
            "does not have. Clone it and write: pip install --editable .[cli]",
            file=sys.stderr,
        )
        return 2
    return run()


if __name__ == "__main__":
    sys.exit(main())
