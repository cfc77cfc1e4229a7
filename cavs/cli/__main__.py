"""``python -m cavs.cli`` is the ``cavs`` command."""

import sys

from cavs.cli import main

if __name__ == "__main__":
    sys.exit(main())
