"""An NVIDIA GPU: what is found of it at run time, its kernels, its memory, and the engine's part.

Importing this needs nothing of CUDA; `open_device` says what is missing.
"""

from cavs.cuda.cache import CachedCompiler, CubinCache
from cavs.cuda.device import Compiler, Device, describe, open_device
from cavs.cuda.memory import CupyMemory, Memory

__all__ = [
    "CachedCompiler",
    "Compiler",
    "CubinCache",
    "CupyMemory",
    "Device",
    "Memory",
    "describe",
    "open_device",
]
