"""Generated kernels on the host twin: launched with every order of blocks and threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cavs.codegen.cuda import BLOCK
from cavs.codegen.cuda_prelude import HALF_PRELUDE, PRELUDE
from tests.cuda.kernels import headers
from tests.cuda.twin import Twin, missing
from tests.cuda.twin.launch import Array, Context

SENTINEL = -12345.5


class Runner:
    """The twin and what is launched on it."""

    def __init__(self) -> None:
        self.twin = Twin()
        self.context = Context(self.twin)

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
        """What ``outs`` hold after a launch over rows [begin, end).

        The same launch on other grids, in another order, must give the same bits.
        """  # fmt: skip
        inputs = [self.context.array(x) if isinstance(x, np.ndarray) else x for x in arguments]
        blocks = -(-(end - begin) * threads // BLOCK)
        results = []
        for seed, grid in ((0, blocks), (1, 1), (2, blocks + 3)):
            self.twin.adversarial(seed)
            memory: list[Array] = [self.context.array(x) for x in outs]
            module.launch(name, max(grid, 1), BLOCK, begin, end, *inputs, *memory, *last)
            results.append([x.get() for x in memory])
        self.twin.adversarial(0)
        self.twin.check_guards()
        for other in results[1:]:
            for a, b in zip(results[0], other, strict=True):
                assert a.tobytes() == b.tobytes()
        return results[0]


@pytest.fixture(scope="session")
def runner() -> Runner:
    reason = missing()
    if reason:
        pytest.skip(reason)
    return Runner()
