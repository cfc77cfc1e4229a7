"""Generated kernels, launched on the host twin, in any order of blocks and threads, or on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cavs.codegen.cuda import BLOCK
from cavs.codegen.cuda_prelude import HALF_PRELUDE, PRELUDE
from tests.cuda import hardware
from tests.cuda.device import Device, gpu
from tests.cuda.kernel_signatures import headers
from tests.cuda.twin import Twin, missing
from tests.cuda.twin.launch import Context

SENTINEL = -12345.5


class Runner:
    """A device and what is launched on it. twin: if it is the twin."""

    def __init__(self, context: Context | Device, twin: Twin | None) -> None:
        self.context, self.twin = context, twin

    def module(self, text: str) -> Any:
        whole = text if PRELUDE in text else PRELUDE + HALF_PRELUDE + text
        return self.context.module("maps.cu", whole, headers())

    def drawing(self, seed: int, step: int, ids: np.ndarray | None) -> tuple[Any, ...]:
        """The last arguments of a kernel that draws random numbers."""
        draw = np.array([seed, step], np.uint64)
        return self.context.array(draw), None if ids is None else self.context.array(ids)

    def run(
        self,
        module: Any,
        name: str,
        threads: int,
        begin: int,
        end: int,
        arguments: list[Any],
        outs: list[np.ndarray],
        last: tuple[Any, ...] = (),
    ) -> list[np.ndarray]:
        """Return the contents of ``outs`` after a launch over rows [begin, end).

        The same launch on other grids, in another order, must give the same bits.
        """  # fmt: skip
        inputs = [self.context.array(x) if isinstance(x, np.ndarray) else x for x in arguments]
        blocks = -(-(end - begin) * threads // BLOCK)
        results = []
        for seed, grid in ((0, blocks), (1, 1), (2, blocks + 3)):
            if self.twin:
                self.twin.adversarial(seed)
            memory: list[Any] = [self.context.array(x) for x in outs]
            module.launch(name, max(grid, 1), BLOCK, begin, end, *inputs, *memory, *last)
            results.append([x.get() for x in memory])
        if self.twin:
            self.twin.adversarial(0)
            self.twin.check_guards()
        for other in results[1:]:
            for a, b in zip(results[0], other, strict=True):
                assert a.tobytes() == b.tobytes()
        return results[0]


@pytest.fixture(scope="session", params=["twin", pytest.param("cuda", marks=pytest.mark.cuda)])
def runner(request: pytest.FixtureRequest) -> Runner:
    if request.param == "cuda":
        found = gpu()
        if isinstance(found, str):
            hardware.skip(found)
        return Runner(found, None)
    reason = missing()
    if reason:
        pytest.skip(reason)
    twin = Twin()
    return Runner(Context(twin), twin)
