"""The threads that PyTorch and the engine share."""

from pathlib import Path

import torch

from cavs import _engine


def share_threads() -> bool:
    """Let the engine run on the threads of PyTorch's OpenMP runtime; True if it has one.

    They spin for milliseconds after each operator of PyTorch, so threads of the engine's own would
    wait for cores meanwhile. Steps with more threads than ``torch.get_num_threads()`` use threads
    of the engine.
    """
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    return _engine.use_openmp_of(str(library))
