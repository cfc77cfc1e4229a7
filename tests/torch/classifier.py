"""A module of torch with a module of cavs between two layers, for tests of training loops."""

from __future__ import annotations

import numpy as np
import torch

from cavs.torch import Module
from tests.oracle import drawn
from tests.runtime.test_input_gradients import CHAIN, ROOTS, SHARED, Encoder, graph_of

FORMS = (CHAIN, SHARED, ROOTS, [[]], CHAIN, ROOTS, SHARED, CHAIN)


class Classifier(torch.nn.Module):
    """A layer of torch before and after a module; equal parameters in every object."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.before, self.after = torch.nn.Linear(3, 3), torch.nn.Linear(3, 2)
        self.cell = Module(drawn(Encoder(3), 0.5))

    def forward(self, batch):
        x = self.before(torch.tensor(batch["x"]).to(self.after.weight.dtype))
        return self.after(self.cell(batch, x=x))


def graphs(count=None):
    """Return graphs with features, the same in every call. count: of them, the first ones."""
    rng = np.random.default_rng(0)
    return [graph_of(form, rng) for form in FORMS[:count]]
