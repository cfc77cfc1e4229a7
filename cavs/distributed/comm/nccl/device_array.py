"""Arrays in the memory of a device, of any library: addresses, shapes and types."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.lib.stride_tricks import as_strided

from cavs.distributed.comm.messages import not_contiguous
from cavs.errors import ConfigError

# Types that NCCL and the host can both add, as `__cuda_array_interface__` names them.
# NumPy has no bfloat16: ml_dtypes, CuPy and torch say V2.
_STRINGS = {
    name: "<V2" if name == "bfloat16" else np.dtype(name).str
    for name in ("float16", "bfloat16", "float32", "float64", "int32", "int64", "uint8")
}
SIZES = {name: int(string[2:]) for name, string in _STRINGS.items()}  # bytes
_NAMES = {string: name for name, string in _STRINGS.items()}
_LEGACY = 1  # CUDA's handle of the default stream, where an interface may not say 0


class OnDevice(Protocol):
    """CuPy's arrays, torch's CUDA tensors, `DeviceArray`: see Numba's CUDA array interface."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Address, shape, type and stream."""


@dataclass(frozen=True)
class DeviceArray:
    """C-contiguous memory of a device. `cupy.asarray` and `torch.as_tensor` take it as it is.

    dtype: a name of SIZES. stream: the driver's handle of the stream on which it is written; 0 for
    the default one. owner: keeps the memory; without one the caller does, as for the engine's.
    """

    address: int
    shape: tuple[int, ...]
    dtype: str
    stream: int = 0
    owner: Any = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.dtype not in SIZES:
            raise ConfigError(f"NCCL knows {', '.join(SIZES)}, not {self.dtype}")
        if min(self.shape, default=0) < 0 or self.address < 0:
            raise ConfigError(f"there is no array of shape {self.shape} at {self.address}")

    @staticmethod
    def of(array: OnDevice) -> DeviceArray:
        """Return the memory of any array on a device. ConfigError if it is none, or has gaps.

        The stream is that of the interface; torch's has none, and its default stream is taken.
        """
        if isinstance(array, DeviceArray):
            return array
        interface = getattr(array, "__cuda_array_interface__", None)
        if interface is None:
            raise ConfigError(
                f"a {type(array).__name__} is not in the memory of a device",
                hint="pass a CuPy array, a torch tensor on the GPU, or a DeviceArray",
            )
        shape, string = tuple(interface["shape"]), interface["typestr"]
        address, read_only = interface["data"]
        if string not in _NAMES:
            raise ConfigError(f"NCCL knows {', '.join(SIZES)}, not {string}")
        if read_only:
            raise ConfigError(f"an array of shape {shape} may not be written", hint="pass a copy")
        name = _NAMES[string]
        if (strides := interface.get("strides")) is not None:
            like = as_strided(np.empty(1, f"V{SIZES[name]}"), shape, strides)  # nothing is read
            if not like.flags.c_contiguous:
                raise not_contiguous(shape, strides)
        stream = interface.get("stream") or 0
        return DeviceArray(address, shape, name, 0 if stream == _LEGACY else stream, array)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its memory."""
        return self.size * SIZES[self.dtype]

    def cut(self, begin: int, end: int) -> DeviceArray:
        """Return the elements from `begin` to `end` as one row, the same memory."""
        at = self.address + begin * SIZES[self.dtype]
        return replace(self, address=at, shape=(end - begin,))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": _STRINGS[self.dtype],
            "data": (self.address, False),
            "strides": None,
            "stream": self.stream or _LEGACY,
            "version": 3,
        }
