"""The products of a workload alone, by PyTorch: the floor under every PyTorch program."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

import torch
from torch import Tensor

from benchmarks.products import Product, products_of
from benchmarks.runner import Timed
from benchmarks.samples import Sample
from benchmarks.workloads import Parameters

Plan = list[Callable[[], Tensor]]


class TorchFloor(Timed):
    """torch.mm into a kept output, operands in memory already."""

    def load_parameters(self, parameters: Parameters) -> None:
        torch.set_num_threads(self.case.threads)
        self.matrices: dict[tuple[str, int, int], Tensor] = {}

    def _matrix(self, use: str, rows: int, columns: int) -> Tensor:
        kept = self.matrices.get((use, rows, columns))
        if kept is None:
            kept = self.matrices[use, rows, columns] = torch.rand(rows, columns)
        return kept

    def _bind(self, product: Product) -> Callable[[], Tensor]:
        m, k, n = product.m, product.k, product.n
        a = self._matrix("a", m, k)
        if product.gradient:
            turned, b, out = a.t(), self._matrix("b", m, n), self._matrix("out", k, n)
            return lambda: torch.mm(turned, b, out=out)
        weight, out = self._matrix("weight", k, n), self._matrix("out", m, n)
        return lambda: torch.mm(a, weight, out=out)

    def prepare(self, samples: SequenceOf[Sample]) -> Plan:
        products = products_of(self.workload, samples, self.case.training)
        return [self._bind(product) for product in products]

    def train(self, plan: Plan) -> float:
        for product in plan:
            product()
        return 0.0

    def infer(self, plan: Plan) -> None:
        self.train(plan)
