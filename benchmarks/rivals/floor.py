"""The products of a workload alone, by PyTorch: the floor under every PyTorch program."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from typing import Any

import torch
from torch import Tensor

from benchmarks.products import Product, products_of
from benchmarks.rivals.device import Graphs, set_up, synchronize
from benchmarks.runner import Timed
from benchmarks.samples import Sample
from benchmarks.workloads import Parameters

Plan = list[Callable[[], Tensor]]


class TorchFloor(Timed):
    """torch.mm into a kept output, operands in memory already; on a GPU one CUDA graph a batch."""

    def load_parameters(self, parameters: Parameters) -> None:
        self.device = set_up(self.case)
        half = self.case.precision == "bf16"
        self.dtype = torch.bfloat16 if half else torch.float32
        self.graphs: Graphs | None = None
        self.matrices: dict[tuple[str, int, int], Tensor] = {}

    def _matrix(self, use: str, rows: int, columns: int) -> Tensor:
        kept = self.matrices.get((use, rows, columns))
        if kept is None:
            kept = self.matrices[use, rows, columns] = torch.rand(
                rows, columns, dtype=self.dtype, device=self.device
            )
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

    def settle(self, plans: SequenceOf[Any]) -> None:
        if self.device.type != "cpu":
            self.graphs = Graphs()
            self.graphs.capture(self._run, plans)

    @staticmethod
    def _run(plan: Plan) -> None:
        for product in plan:
            product()

    def train(self, plan: Plan) -> float:
        if self.graphs is None:
            self._run(plan)
        else:
            self.graphs.replay(plan)
        return 0.0

    def infer(self, plan: Plan) -> None:
        self.train(plan)

    def synchronize(self) -> None:
        synchronize(self.device)
