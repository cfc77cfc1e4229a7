"""The products of a workload alone, on the engine's packed kernels: the floor under cavs."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np

from benchmarks.products import Product, products_of
from benchmarks.runner import Timed
from benchmarks.samples import Sample
from benchmarks.workloads import Parameters
from cavs import _engine

Plan = list[Callable[[], None]]


class EngineFloor(Timed):
    """Weights are packed before; the kernels are called from Python one by one.

    Threads share every product as the engine does: by rows, or by columns where rows are few.
    """

    def load_parameters(self, parameters: Parameters) -> None:
        _engine.set_num_threads(self.case.threads)
        self.table = _engine.kernels.table_float32(_engine.isa())
        self.arrays: dict[tuple[str, int, int], Any] = {}

    def _array(self, use: str, rows: int, columns: int) -> Any:
        kept = self.arrays.get((use, rows, columns))
        if kept is None:
            random = np.random.default_rng(rows * 1009 + columns)
            kept = random.random((rows, columns), np.float32)
            if use == "weight":
                plain, kept = kept, self.table.packed(rows, columns)
                self.table.pack([(plain, 0, 0)], rows, columns, kept)
            self.arrays[use, rows, columns] = kept
        return kept

    def _bind(self, product: Product) -> Callable[[], None]:
        m, k, n = product.m, product.k, product.n
        source = _engine.kernels.Source_float32
        a = [source(self._array("a", m, k))]
        table, threads = self.table, self.case.threads
        if product.gradient:
            b, out = [source(self._array("b", m, n))], self._array("out", k, n)
            return lambda: table.matmul_tn(a, b, 0, m, out, threads=threads)
        weight, out = self._array("weight", k, n), self._array("out", m, n)
        return lambda: table.matmul(a, 0, m, weight, n, out, threads=threads)

    def prepare(self, samples: SequenceOf[Sample]) -> Plan:
        products = products_of(self.workload, samples, self.case.training)
        return [self._bind(product) for product in products]

    def train(self, plan: Plan) -> float:
        for product in plan:
            product()
        return 0.0

    def infer(self, plan: Plan) -> None:
        self.train(plan)
