"""The PyTorch programs for models train as `cavs` does."""

from __future__ import annotations

import importlib
import json

import pytest

from benchmarks.model_case import Sizes, own_pass
from tests.models.sentiment_trees import write_treebank

DRAWN = ["circuit_rnn", "grid_lstm", "jets"]
OWN_DATA = ["astnn", "plan_cost"]
TREES = ["mv_rnn", "nested_rnn", "tree_gru", "typed_trees"]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", [*DRAWN, *OWN_DATA, *TREES])
def test_a_program_in_pytorch_gives_the_losses_of_cavs(name, training, tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "sst").mkdir()
    sizes = Sizes(2, 3, str(write_treebank(tmp_path / "sst").parent))
    case = importlib.import_module(f"benchmarks.model_cases.{name}").case(sizes)
    program = importlib.import_module(f"benchmarks.rivals.{case.rivals['torch']}")
    model = case.model()
    model.initialize(0)
    values = {key: p.value.copy() for key, p in model.parameters().items()}
    given = {"threads": 1, "lr": case.lr, "training": training, "batches": case.plain}
    run = program.prepare(values, json.loads(json.dumps(given)))
    own = own_pass(case, model, training, 1)
    for _ in range(3):  # the losses depend on the updates of the passes before
        assert run() == pytest.approx(own()[1], rel=1e-5)
