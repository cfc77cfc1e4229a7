"""The generated kernel of a traced rule, on chunks of parameters and rows of tables."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from cavs import ops, optim
from cavs.codegen.update import KERNEL, UpdateProgram, update_text
from tests.cuda.device import Device
from tests.cuda.kernel_cases import Case, agree, every_case
from tests.cuda.kernel_signatures import (
    Address,
    Int,
    UpdateChunk,
    UpdateNumbers,
    definitions,
    headers,
)
from tests.cuda.kernels.test_updates import Grid, Problem, outcome, problem

DECAY, RATE, SCALE, STEP = 0.03, 0.1, 0.25, 3


@dataclass(frozen=True)
class Mixed(optim.Optimizer):
    """A rule with two states that reads numbers, functions and comparisons."""

    states = ("mean", "before")

    def rule(self, value: Any, gradient: Any, state: Any, rate: Any, step: Any) -> Any:
        mean = 0.9 * state.mean + 0.1 * gradient
        move = ops.where(mean > 0.25, ops.tanh(mean), mean) / (1.0 - 0.9**step)
        return value - rate * move - 0.01 * state.before, {"mean": mean, "before": value}


def expected(value: np.ndarray, gradient: np.ndarray, mean: np.ndarray, before: np.ndarray) -> Any:
    gradient = gradient * SCALE + DECAY * value
    mean = 0.9 * mean + 0.1 * gradient
    move = np.where(mean > 0.25, np.tanh(mean), mean) / (1 - 0.9**STEP)
    return value - RATE * move - 0.01 * before, mean, value


@functools.cache
def compiled(device: Device, text: str, dtype: str) -> ctypes.c_void_p:
    options = [*device.options, *definitions(dtype)]
    image = device.compiler("rule.cu", text, headers(), options)
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    device.call("cuModuleLoadData", ctypes.byref(module), image)
    device.call("cuModuleGetFunction", ctypes.byref(function), module, KERNEL.encode())
    return function


def update(case: Case, grid: Grid, work: Problem, program: UpdateProgram, result: Any) -> Any:
    """Return parameters and states after the update."""
    memory, chunks = [], []
    for values, grad, rows, offset in work:
        arrays = [case.array(x) for x in values]
        of_grad, where = case.array(grad), case.ints(rows) if rows is not None else None
        stride = values[0].shape[1] if len(values[0]) > 1 else grad.shape[1]
        chunks.append(
            UpdateChunk(
                arrays[0].address,
                of_grad.address,
                (Address * 8)(*(x.address for x in arrays[1:])),
                where.address if where else 0,
                *grad.shape,
                stride,
                offset,
            )
        )
        memory.append((arrays, of_grad, where))
    numbers = UpdateNumbers((ctypes.c_double * 32)(*program.scalars(RATE, DECAY, STEP)))
    types = (Address, Int, UpdateNumbers, Address)
    real = "double" if case.dtype == "float64" else "float"
    function = compiled(case.device, update_text(program, real), case.dtype)
    table = case.device.structures(chunks)
    case.device.launch_function(function, types, grid, table, len(chunks), numbers, result)
    return np.concatenate([x.get().reshape(-1) for arrays, *_ in memory for x in arrays])


@every_case
@pytest.mark.parametrize("ok", [1, 0])
def test_update_by_program(case: Case, ok: int) -> None:
    if case.half:
        pytest.skip("parameters and states are float32")
    rng = np.random.default_rng(0)
    work, program = problem(case, rng), Mixed(RATE, weight_decay=DECAY).program
    want = []
    for values, grad, rows, offset in work:
        exact = [x.astype("f8") for x in values]
        at = rows if rows is not None else slice(len(exact[0]))
        columns = slice(offset, offset + grad.shape[1])
        if ok:
            value, mean, before = (x[at, columns].copy() for x in exact)
            new = expected(value, grad.astype("f8"), mean, before)
            for x, result in zip(exact, new, strict=True):
                x[at, columns] = result
        want += exact
    result = outcome(case, scale=SCALE, ok=ok)
    got = agree(case, ((1,), (5,), (40,)), update, work, program, result)
    flat = np.concatenate([x.reshape(-1) for x in want])
    np.testing.assert_allclose(got, flat, rtol=50 * case.eps, atol=20 * case.eps)
    before = np.concatenate([x.reshape(-1) for values, *_ in work for x in values])
    same = flat == before
    np.testing.assert_array_equal(got[same], before[same].astype(got.dtype))
