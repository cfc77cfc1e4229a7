"""Cases of `benchmarks.models` over texts: the PyTorch programs have the losses of `cavs`."""

from __future__ import annotations

import importlib
import json

import pytest

from benchmarks.model_case import Sizes, own_pass


@pytest.fixture
def one_thread():
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["char_tagger", "translator", "lattice_lstm"])
def test_losses_of_the_rival_are_those_of_cavs(name, training, treebank, monkeypatch):
    module = importlib.import_module(f"benchmarks.model_cases.{name}")
    monkeypatch.setattr(module, "HIDDEN", 6)
    case = module.case(Sizes(batches=2, batch_size=2, data=treebank))
    assert case.units > 0
    model = case.model()
    model.initialize(0)
    values = {key: p.value.copy() for key, p in model.parameters().items()}
    given = {"threads": 1, "lr": case.lr, "training": training, "batches": case.plain}
    rival = importlib.import_module(f"benchmarks.rivals.{case.rivals['torch']}")
    run = rival.prepare(values, json.loads(json.dumps(given)))
    own = own_pass(case, model, training, 1)
    losses = [(run(), own()[1]) for _ in range(3)]
    for found, expected in losses:
        assert found == pytest.approx(expected, rel=1e-4)
    assert (losses[2][1] < losses[0][1]) == training
