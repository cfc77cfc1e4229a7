"""``python -m cavs`` is the ``cavs`` command."""

import sys

from cavs.cli.__main__ import run

if __name__ == "__main__":
    sys.exit(run())
