"""Imported first by programs that tests start: the engine is built already, do not rebuild it."""

import sys

for finder in sys.meta_path:
    if getattr(finder, "rebuild_flag", False):  # of an editable scikit-build-core installation
        finder.rebuild_flag = False
