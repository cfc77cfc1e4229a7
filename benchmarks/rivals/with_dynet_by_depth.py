"""The programs of `with_dynet` with batching by depth in place of DyNet's agenda.

DyNet takes its way of batching for the whole process, before it is imported.
"""

from __future__ import annotations

from benchmarks.rivals.dynet_memory import MEMORY
from benchmarks.runner import MissingLibrary

try:
    import dynet_config
except ImportError as error:
    raise MissingLibrary("dynet", str(error), "pip install numpy dyNET38 (Python 3.11)") from error

dynet_config.set(autobatch=2, random_seed=1, mem=MEMORY)

from benchmarks.rivals.with_dynet import DyNetLSTM, DyNetTreeFC, DyNetTreeLSTM  # noqa: E402

__all__ = ["DyNetLSTM", "DyNetTreeFC", "DyNetTreeLSTM"]
