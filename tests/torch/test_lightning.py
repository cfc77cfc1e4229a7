"""Modules as part of a ``LightningModule``."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest

from tests.oracle import assert_close, drawn
from tests.runtime.test_input_gradients import CHAIN, ROOTS, SHARED, Encoder, graph_of

torch = pytest.importorskip("torch", reason="cavs.torch needs the package torch")
from torch.utils.data import DataLoader  # noqa: E402

from cavs.torch import Module, collate  # noqa: E402

FORMS = (CHAIN, SHARED, ROOTS, [[]], CHAIN)


class Classifier(torch.nn.Module):
    """A layer of torch before and after a module."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.before, self.after = torch.nn.Linear(3, 3), torch.nn.Linear(3, 2)
        self.cell = Module(drawn(Encoder(3), 0.5))

    def forward(self, batch):
        x = self.before(torch.tensor(batch["x"]).to(self.after.weight.dtype))
        return self.after(self.cell(batch, x=x))


def graphs():
    rng = np.random.default_rng(0)
    return [graph_of(form, rng) for form in FORMS]


@pytest.mark.filterwarnings("ignore")
def test_a_lightning_module():
    """It trains as a loop of torch does."""
    lightning = pytest.importorskip("lightning", reason="needs the package lightning")

    class Task(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Classifier().double()

        def training_step(self, item, index):
            batch, weight = item
            return (self.model(batch) ** 2).mean() * weight.mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.05)

    data = [(graph, float(i + 1)) for i, graph in enumerate(graphs())]
    loader = DataLoader(data, batch_size=3, collate_fn=collate)
    task, expected = Task(), Classifier().double()
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_epochs=2,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        trainer.fit(task, loader)
        trainer.save_checkpoint(Path(folder) / "last.ckpt")
        found = torch.load(Path(folder) / "last.ckpt", weights_only=False)["state_dict"]
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.05)
    for _ in range(2):
        for batch, weight in loader:
            optimizer.zero_grad()
            ((expected(batch) ** 2).mean() * weight.mean()).backward()
            optimizer.step()
    for (name, ours), theirs in zip(
        task.model.named_parameters(), expected.parameters(), strict=True
    ):
        assert_close(ours.detach().numpy(), theirs.detach().numpy(), 1e-12, name)
        assert torch.equal(found[f"model.{name}"], ours)
