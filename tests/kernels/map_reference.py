"""The fused elementwise kernel in NumPy: one line at a time, no blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .support import KERNELS, Case

CODE = KERNELS.MapOpcode
MODE = KERNELS.StoreMode


def mix(x: np.ndarray) -> np.ndarray:
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(0x7FEB352D)
    x = x ^ (x >> np.uint32(15))
    x = x * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def uniform(seed: int, step: int, stream: int, row: int, columns: np.ndarray) -> np.ndarray:
    """The numbers of kUniform: csrc/kernels/isa_uniform.h has the formula."""
    low = 2**32 - 1
    with np.errstate(over="ignore"):
        key = np.zeros(1, "u4")
        for word in (seed & low, seed >> 32, step & low, step >> 32, stream, row):
            key = mix((key ^ np.uint32(word)) + np.uint32(0x9E3779B9))
        salt = mix(key + np.uint32(0x85EBCA6B))
        return (mix(mix(key ^ columns.astype("u4")) + salt) >> np.uint32(8)) * 2.0**-24


FUNCTIONS: dict[Any, Any] = {
    CODE.COPY: lambda a: a,
    CODE.ADD: lambda a, b: a + b,
    CODE.SUB: lambda a, b: a - b,
    CODE.MUL: lambda a, b: a * b,
    CODE.DIV: lambda a, b: a / b,
    CODE.MAX: np.maximum,
    CODE.MIN: np.minimum,
    CODE.NEG: lambda a: -a,
    CODE.ABS: np.abs,
    CODE.EXP: np.exp,
    CODE.LOG: np.log,
    CODE.TANH: np.tanh,
    CODE.SIGMOID: lambda a: np.exp(-np.logaddexp(0, -a)),  # no overflow
    CODE.SIN: np.sin,
    CODE.COS: np.cos,
    CODE.SQRT: np.sqrt,
    CODE.GREATER: lambda a, b: (a > b) * 1.0,
    CODE.GREATER_EQUAL: lambda a, b: (a >= b) * 1.0,
    CODE.EQUAL: lambda a, b: (a == b) * 1.0,
    CODE.SELECT: lambda a, b, c: np.where(a != 0, b, c),
    CODE.FMA: lambda a, b, c: a * b + c,
}


@dataclass
class Load:
    """A source for the kernel and for the reference."""

    source: Any
    values: np.ndarray  # rows [r0, r1), float64
    outer_stride: int = 0
    scalar: bool = False


@dataclass
class Program:
    """A map kernel over rows [r0, r1)."""

    loads: list[Load]
    ops: list[tuple[Any, ...]]  # (code, dst, a, b, c, imm)
    outer: int
    inner: int
    r0: int
    r1: int
    registers: int
    seed: int = 0
    step: int = 0
    row_ids: np.ndarray | None = None

    def reference(self) -> np.ndarray:
        """Every register at the end: registers x rows x outer x inner, float64."""
        out = np.zeros((self.registers, self.r1 - self.r0, self.outer, self.inner))
        columns = np.arange(self.inner)
        for i in range(self.r1 - self.r0):
            for o in range(self.outer):
                reg: list[Any] = [np.zeros(self.inner)] * self.registers
                for j, load in enumerate(self.loads):
                    at = o * load.outer_stride + (columns * 0 if load.scalar else columns)
                    reg[j] = load.values[i][at]
                for code, dst, a, b, c, imm in self.ops:
                    if code == CODE.CONSTANT:
                        reg[dst] = np.full(self.inner, imm)
                    elif code == CODE.COLUMN:
                        reg[dst] = columns.astype("f8")
                    elif code == CODE.UNIFORM:
                        row = self.r0 + i
                        row = row if self.row_ids is None else int(self.row_ids[row])
                        reg[dst] = uniform(
                            self.seed, self.step, int(imm), row, o * self.inner + columns
                        )
                    else:
                        f = FUNCTIONS[code]
                        arity = 1 if code in UNARY else 3 if code in TERNARY else 2
                        reg[dst] = f(*(reg[x] for x in (a, b, c)[:arity]))
                out[:, i, o] = reg
        return out

    def run(self, case: Case, stores: list[Any]) -> None:
        case.table.map(
            [(load.source, load.outer_stride, load.scalar) for load in self.loads],
            self.ops,
            stores,
            self.registers,
            self.outer,
            self.inner,
            self.r0,
            self.r1,
            seed=self.seed,
            step=self.step,
            row_ids=self.row_ids,
        )


UNARY = {CODE.COPY, CODE.NEG, CODE.ABS, CODE.EXP, CODE.LOG, CODE.TANH, CODE.SIGMOID, CODE.SQRT}
UNARY |= {CODE.SIN, CODE.COS}
TERNARY = {CODE.SELECT, CODE.FMA}
