"""Types of the CUDA engine, the extension module that cuda/bindings.cc makes.

tests/test_engine_types.py compares it with the module.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavs import _engine

_Indices = NDArray[np.int32]

def sources() -> dict[str, str]: ...

class Device:
    def __init__(
        self,
        driver: str,
        ordinal: int = 0,
        allocate: Callable[[int], int] | None = None,
        release: Callable[[int], None] | None = None,
    ) -> None: ...
    @property
    def multiprocessors(self) -> int: ...

class Parameters:
    def __init__(
        self,
        device: Device,
        images: dict[str, bytes],
        arrays: Sequence[NDArray[Any]],
        precision: str = "float32",
        blas: str = "",
    ) -> None: ...
    def invalidate(self) -> None: ...
    def download(self) -> bool: ...

class Step:
    def wait(self) -> tuple[float, float, bool]: ...

class Executor:
    def __init__(
        self,
        program: _engine.Program,
        parameters: Parameters,
        image: bytes,
        maps: Sequence[tuple[int, str, int]],
        half: Sequence[int] = (),
    ) -> None: ...
    def run(
        self,
        schedule: _engine.Schedule,
        float_features: list[NDArray[Any]],
        int_features: list[_Indices],
        seed: int = 0,
        step: int = 0,
    ) -> float: ...
    def launch(
        self,
        schedule: _engine.Schedule,
        float_features: list[NDArray[Any]],
        int_features: list[_Indices],
        seed: int,
        step: int,
        optimizer: dict[str, Any],
        states: list[list[NDArray[Any]]],
        trainable: Sequence[bool],
        max_norm: float | None = None,
        after: Step | None = None,
    ) -> Step: ...
    def gradient(self, parameter: int) -> NDArray[Any]: ...
    def gradient_rows(self, parameter: int) -> tuple[_Indices, NDArray[Any]] | None: ...
    def output(self, buffer: int) -> NDArray[Any]: ...
    def report(self) -> dict[str, Any]: ...
    def set_profiling(self, on: bool) -> None: ...
    def invalidate_parameters(self) -> None: ...
