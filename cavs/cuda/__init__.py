"""NVIDIA GPUs: libraries found at run time, kernels, memory, and the CUDA side of a session.

Importing this package needs no CUDA; `open_device` reports what is missing.
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
