"""A session's part on a device: its parameters there, and the executors that run on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cavs import _cuda, _engine
from cavs.compiler.program import Program
from cavs.cuda.program import map_kernels

Array = NDArray[Any]


class Target(Protocol):
    """What the engine needs of a device, see cavs.cuda.device."""

    @property
    def native(self) -> _cuda.Device:
        """The engine's own device; one for all sessions."""
        ...

    def compile(self, name: str, source: str, headers: Mapping[str, str], real: str) -> bytes:
        """The text of kernels as an image the device loads; ``real``: "float" or "double"."""
        ...


def fixed_kernels(device: Target, real: str) -> dict[str, bytes]:
    """The kernels every program uses, by file."""
    texts = _cuda.sources()
    headers = {name: text for name, text in texts.items() if name.endswith(".cuh")}
    return {
        name: device.compile(name, text, headers, real)
        for name, text in texts.items()
        if name.endswith(".cu")
    }


class CudaEngine:
    """Parameters of one session on ``device``; ``arrays`` are those of the host, all of one dtype.

    The host's arrays fall behind with every step: ``download`` brings them up to date.
    """

    def __init__(self, device: Target, arrays: Sequence[Array]) -> None:
        self._device = device
        self._real = "double" if arrays[0].dtype == np.float64 else "float"
        images = fixed_kernels(device, self._real)
        self.parameters = _cuda.Parameters(device.native, images, list(arrays))

    def executor(self, program: Program, encoded: _engine.Program) -> _cuda.Executor:
        """An executor of ``program``, of which ``encoded`` is the engine's form."""
        maps = map_kernels(program, self._real)
        named = [(i, name, n) for i, (name, n) in enumerate(maps.kernels) if name]
        image = self._device.compile("maps.cu", maps.text, {}, self._real) if named else b""
        return _cuda.Executor(encoded, self.parameters, image, named)

    @property
    def download(self) -> Callable[[], None]:
        """Brings the arrays of the host up to date."""
        return self.parameters.download
