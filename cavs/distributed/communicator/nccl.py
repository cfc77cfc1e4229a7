"""Ranks as GPUs, one each, through CuPy's NCCL.

Not run by the tests: they check, with a stand-in for CuPy, what is passed. Arrays are CuPy arrays
on the device of the rank. What NCCL has no operation for goes through the control communicator.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from cavs.distributed.communicator.collectives import bounds
from cavs.distributed.communicator.protocol import Communicator
from cavs.errors import ConfigError, DeviceError

_TYPES = {"float32": "NCCL_FLOAT32", "float64": "NCCL_FLOAT64", "float16": "NCCL_FLOAT16"}


def load_nccl() -> tuple[ModuleType, ModuleType]:
    """CuPy and its NCCL module. DeviceError, with the cure, if one is missing."""
    try:
        import cupy
        from cupy.cuda import nccl
    except ImportError as error:
        raise DeviceError(f"NCCL needs CuPy: {error}", hint='pip install "cavs[cuda12]"') from error
    if not nccl.available:
        raise DeviceError(
            "CuPy finds no NCCL library", hint="pip install nvidia-nccl-cu12, or pass device='cpu'"
        )
    return cupy, nccl


class NCCLCommunicator:
    """Sums, gathers and broadcasts of device arrays, on the current stream.

    control: a communicator of the same ranks on the host; it carries NCCL's unique id.
    """

    def __init__(self, control: Communicator) -> None:
        self._cupy, self._nccl = load_nccl()
        self.rank, self.size, self.control = control.rank, control.size, control
        own = list(self._nccl.get_unique_id()) if control.rank == 0 else None
        unique = tuple(control.share(own)[0])
        self._comm: Any = self._nccl.NcclCommunicator(control.size, unique, control.rank)

    def _type(self, array: Any) -> int:
        name = str(array.dtype)
        if name not in _TYPES:
            raise ConfigError(f"NCCL sums {', '.join(_TYPES)}, not {name}")
        return int(getattr(self._nccl, _TYPES[name]))

    def _stream(self) -> int:
        return int(self._cupy.cuda.get_current_stream().ptr)

    def all_reduce(self, array: Any) -> None:
        """Sum over the ranks, in place."""
        at = array.data.ptr
        kind, add = self._type(array), self._nccl.NCCL_SUM
        self._comm.allReduce(at, at, array.size, kind, add, self._stream())

    def reduce_scatter(self, array: Any, counts: Sequence[int]) -> Any:
        """Part `rank` of the sum, in place; `counts` are equal."""
        own = self._part(array, counts)
        kind, add = self._type(array), self._nccl.NCCL_SUM
        self._comm.reduceScatter(array.data.ptr, own.data.ptr, counts[0], kind, add, self._stream())
        return own

    def all_gather_into(self, array: Any, counts: Sequence[int]) -> None:
        """Every rank's part of `array` to all, in place; `counts` are equal."""
        own = self._part(array, counts)
        kind = self._type(array)
        self._comm.allGather(own.data.ptr, array.data.ptr, counts[0], kind, self._stream())

    def reduce(self, array: Any, root: int) -> None:
        """Sum, in place at `root`."""
        at = array.data.ptr
        kind, add = self._type(array), self._nccl.NCCL_SUM
        self._comm.reduce(at, at, array.size, kind, add, root, self._stream())

    def broadcast(self, array: Any, root: int) -> None:
        """The array of `root` to all, in place."""
        at = array.data.ptr
        self._comm.broadcast(at, at, array.size, self._type(array), root, self._stream())

    def close(self) -> None:
        """Free what NCCL holds."""
        self._comm.destroy()

    def _part(self, array: Any, counts: Sequence[int]) -> Any:
        if len(set(counts)) != 1 or sum(counts) != array.size:
            raise ConfigError(
                f"NCCL needs equal parts of {array.size} elements, not {list(counts)}",
                hint="pad the array",
            )
        begin, end = bounds(counts)[self.rank]
        return array.reshape(-1)[begin:end]
