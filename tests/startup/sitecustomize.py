"""Imported first by programs that tests start: the engine is built already, do not rebuild it."""

import gc
import sys

gc.set_threshold(200_000, 20, 50)  # imports create many objects, and no garbage

for finder in sys.meta_path:
    if getattr(finder, "rebuild_flag", False):  # an editable installation by scikit-build-core
        finder.rebuild_flag = False
