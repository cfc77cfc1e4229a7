"""``python -m cavs.cli`` is the ``cavs`` command."""

import gc
import sys


def run() -> int:
    """Run the command that a shell has started.

    Imports create many objects, and no garbage: `main` collects again once it has imported.
    """
    gc.disable()
    from cavs.cli.command import main

    return main()


if __name__ == "__main__":
    sys.exit(run())
