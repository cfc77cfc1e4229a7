"""Modules as part of a ``LightningModule``."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.oracle import assert_close

torch = pytest.importorskip("torch", reason="cavs.torch needs the package torch")
from torch.utils.data import DataLoader  # noqa: E402

from cavs.torch import collate  # noqa: E402
from tests.torch.classifier import Classifier, graphs  # noqa: E402


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

    data = [(graph, float(i + 1)) for i, graph in enumerate(graphs(5))]
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
