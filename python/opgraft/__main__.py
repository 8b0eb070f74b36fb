"""`python -m opgraft` is the command opgraft."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
