"""The programs of rivals for models train as `cavs` does."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path

import pytest

import cavs
from benchmarks.model_case import Sizes, own_pass
from benchmarks.rival_process import DYNET, RivalProcess
from tests.models.sentiment_trees import write_treebank

DRAWN = ["circuit_rnn", "grid_lstm", "jets"]
OWN_DATA = ["astnn", "plan_cost"]
TREES = ["mv_rnn", "nested_rnn", "tree_gru", "typed_trees"]
TEXTS = ["char_tagger", "translator", "lattice_lstm"]  # made small, for their lattices are long
NAMES = [*DRAWN, *OWN_DATA, *TREES, *TEXTS]


@pytest.fixture
def one_thread():
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def case_of(treebank, monkeypatch):
    """Return the small case of a name, whose data folder has both treebanks."""
    (Path(treebank) / "sst").mkdir()
    write_treebank(Path(treebank) / "sst")

    def case(name):
        module = importlib.import_module(f"benchmarks.model_cases.{name}")
        if name in TEXTS:
            monkeypatch.setattr(module, "HIDDEN", 6)
        return module.case(Sizes(2, 2 if name in TEXTS else 3, treebank))

    return case


def started(case, training):
    """Return the model of a case with its first parameters, and what the rivals get."""
    model = case.model()
    model.initialize(0)
    return model, {"threads": 1, "lr": case.lr, "training": training, "batches": case.plain}


def check(run, own, name, training):
    """The losses depend on the updates of the passes before."""
    losses = [(run(), own()) for _ in range(3)]
    for found, expected in losses:
        assert found == pytest.approx(expected, rel=1e-4 if name in TEXTS else 1e-5)
    if name in TEXTS:
        assert (losses[2][1] < losses[0][1]) == training


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_a_program_in_pytorch_gives_the_losses_of_cavs(name, training, case_of):
    case = case_of(name)
    program = importlib.import_module(f"benchmarks.rivals.{case.rivals['torch']}")
    model, given = started(case, training)
    values = {key: p.value.copy() for key, p in model.parameters().items()}
    run = program.prepare(values, json.loads(json.dumps(given)))
    check(run, own_pass(case, cavs.Session(model, threads=1), training), name, training)


@pytest.mark.skipif(not os.environ.get(DYNET), reason=f"${DYNET} names no Python")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_a_program_in_dynet_gives_the_losses_of_cavs(name, training, case_of, tmp_path):
    case = case_of(name)
    model, given = started(case, training)
    rival = RivalProcess(os.environ[DYNET], case.rivals["dynet"], model, given, str(tmp_path))
    with rival.process:
        own = own_pass(case, cavs.Session(model, threads=1), training)
        check(lambda: rival.run()[1], own, name, training)
