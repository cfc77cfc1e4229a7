"""Imported first by programs that tests start: the engine is built already, do not rebuild it."""

import sys

for finder in sys.meta_path:
    if getattr(finder, "rebuild_flag", False):  # an editable installation by scikit-build-core
        finder.rebuild_flag = False
