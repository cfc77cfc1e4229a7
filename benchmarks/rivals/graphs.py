"""Programs batched by hand whose every step is one CUDA graph, captured for each batch.

Without a GPU they run as they are.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Any

import torch
from torch import Tensor

from benchmarks.rivals.base import TorchRunner
from benchmarks.rivals.device import Graphs
from benchmarks.rivals.hand_fc import HandTreeFC, ManualTreeFC
from benchmarks.rivals.hand_tree import HandTreeLSTM
from benchmarks.rivals.lstm import HandLSTM
from benchmarks.rivals.manual_lstm import ManualLSTM
from benchmarks.rivals.manual_tree import ManualTreeLSTM

TOLERANCE = 1e-3  # between the loss of a replayed and of an eager step, relative


class Graphed(TorchRunner):
    """Mix-in of a runner: ``settle`` captures its step, or its inference, for every plan."""

    graphs: Graphs | None = None

    def settle(self, plans: SequenceOf[Any]) -> None:
        if self.device.type == "cpu":
            return
        self.graphs = Graphs()
        self.graphs.capture(super().step if self.case.training else super().infer, plans)
        if self.case.training:
            self._compare(plans[0])

    def _compare(self, plan: Any) -> None:
        """Raise ArithmeticError if a replayed step has another loss than an eager one."""
        assert self.graphs is not None
        state = [*self.p.values(), *self.updates.states]
        before = [x.detach().clone() for x in state]
        losses = []
        for work in (super().step, self.graphs.replay):
            work(plan)  # the second step depends on the update of the first
            losses.append(float(work(plan)))
            with torch.no_grad():
                for x, kept in zip(state, before, strict=True):
                    x.copy_(kept)
        eager, replayed = losses
        if not abs(eager - replayed) <= TOLERANCE * max(abs(eager), 1e-3):
            raise ArithmeticError(f"a replayed step has loss {replayed}, an eager one {eager}")

    def step(self, plan: Any) -> Tensor:
        if self.graphs is None or plan not in self.graphs:
            return super().step(plan)
        return self.graphs.replay(plan)

    def infer(self, plan: Any) -> Any:
        if self.graphs is None or plan not in self.graphs:
            return super().infer(plan)
        return self.graphs.replay(plan)


class GraphedHandTreeLSTM(Graphed, HandTreeLSTM):
    pass


class GraphedManualTreeLSTM(Graphed, ManualTreeLSTM):
    pass


class GraphedHandTreeFC(Graphed, HandTreeFC):
    pass


class GraphedManualTreeFC(Graphed, ManualTreeFC):
    pass


class GraphedHandLSTM(Graphed, HandLSTM):
    pass


class GraphedManualLSTM(Graphed, ManualLSTM):
    pass
