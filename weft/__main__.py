"""`python -m weft`, also under torchrun."""

import sys

from weft.cli import main

if __name__ == "__main__":
    sys.exit(main())
