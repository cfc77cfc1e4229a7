"""What a program does first that tests start: it does not build the engine anew, they have."""

import sys

for finder in sys.meta_path:
    if getattr(finder, "rebuild_flag", False):  # of an editable installation by scikit-build-core
        finder.rebuild_flag = False
