"""The kernels on the checked twin, which finds races and accesses outside of allocations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cavs.codegen.cuda import BLOCK, Load, Store, kernel_text
from cavs.codegen.cuda_prelude import PRELUDE
from cavs.codegen.map import MapOp
from tests.cuda.kernel_cases import Case
from tests.cuda.kernels import test_kernels, test_products, test_updates
from tests.cuda.twin import Twin, TwinCompiler
from tests.cuda.twin.launch import Context, Module

CASE, HALF = Case("checked", "float32"), Case("checked", "float32", half=True)


@pytest.mark.parametrize(
    ("test", "arguments"),
    [
        (test_kernels.test_copy_rows, ("segment_index", True)),
        (test_kernels.test_segment_folds, (False, "max")),
        (test_kernels.test_sum_rows, ("index",)),
        (test_kernels.test_cross_entropy, ("index", 33)),
        (test_kernels.test_cross_entropy, ("self", 5000)),
        (test_kernels.test_pack, ()),
        (test_kernels.test_lookup_grad, (True, False)),
        (test_products.test_several_sources, ("",)),
        (test_products.test_several_sources, ("_tf32",)),
        (test_products.test_several_sources, ("_bf16",)),
        (test_updates.test_square, ()),
        (test_updates.test_outcome, ()),
        (test_updates.test_update, ("ADAM",)),
    ],
    ids=lambda x: getattr(x, "__name__", "-".join(map(str, x)) if isinstance(x, tuple) else None),
)
def test_no_race(test: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    test(HALF if "_bf16" in arguments else CASE, *arguments)


@pytest.mark.parametrize(
    ("test", "arguments"),
    [
        (test_kernels.test_copy_rows, ("segment_index", True)),
        (test_kernels.test_sum_rows, ("index",)),
        (test_kernels.test_cross_entropy, ("index", 33)),
        (test_kernels.test_pack, ()),
        (test_kernels.test_lookup_grad, (True, False)),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_no_race_in_bfloat16(test: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    test(HALF, *arguments)


def test_lanes_without_a_row_do_not_race(twin: Twin, context: Context) -> None:
    """In a fused kernel that sums, and overwrites its operand."""
    stores = [Store(1, 8), Store(1, 1, mode="sum")]
    text = PRELUDE + kernel_text("k", [Load(8)], [MapOp("mul", 1, 0, 0, 0, 0.0)], stores, 1, 8)
    module = Module(context, TwinCompiler(True).compile("maps.cu", text, {}, []))
    x, sums = context.array(np.full((5, 8), 3, "f4")), context.array(np.zeros(5, "f4"))
    twin.adversarial(3)
    module.launch("k", 1, BLOCK, 0, 5, x, x, sums)
    assert (x.get() == 9).all()
    assert (sums.get() == 72).all()
