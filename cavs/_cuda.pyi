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
    def write(self, parameters: Sequence[int]) -> None: ...
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
        scale: float = 1.0,
        totals: Sequence[float] = (),
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
    def arm_gradients(self) -> None: ...
    def give_up_gradients(self) -> None: ...
    def wait_gradient(self, parameter: int, begin: int = 0, end: int | None = None) -> bool: ...
    def gradient_slab(self, parameter: int) -> int: ...
    def gradient_view(self, parameter: int) -> tuple[_Indices | None, NDArray[Any]]: ...
    def gradient_block(self) -> NDArray[Any]: ...
    def gradient_order(self) -> list[int]: ...
    def set_factored(self, parameter: int) -> bool: ...
    def factors(self, parameter: int) -> tuple[NDArray[Any], NDArray[Any]]: ...
    def apply(
        self,
        pieces: list[tuple[Any, ...]],
        optimizer: dict[str, Any],
        states: list[list[NDArray[Any]]],
        trainable: Sequence[bool],
        scale: float = 1.0,
    ) -> None: ...
    def gradient(self, parameter: int) -> NDArray[Any]: ...
    def gradient_rows(self, parameter: int) -> tuple[_Indices, NDArray[Any]] | None: ...
    def output(self, buffer: int) -> NDArray[Any]: ...
    def report(self) -> dict[str, Any]: ...
    def set_profiling(self, on: bool) -> None: ...
    def invalidate_parameters(self) -> None: ...
