"""An NVIDIA GPU at run time: its libraries, its compiler, the cache of kernels, its memory.

Importing this needs nothing of CUDA; `open_device` says what is missing.
"""

from cavs.cuda.cache import CubinCache
from cavs.cuda.device import Compiler, Device, describe, open_device
from cavs.cuda.memory import CupyMemory, Memory

__all__ = ["Compiler", "CubinCache", "CupyMemory", "Device", "Memory", "describe", "open_device"]
