"""The network of query plans equals one in NumPy that runs operator by operator."""

from __future__ import annotations

import json

import numpy as np
import pytest

import cavs
from benchmarks import plan_cost
from benchmarks.plan_cost import OPERATORS, PlanCost, draw, graph


def loss_of(p, plans):
    """Return the mean squared error of the costs of all operators."""
    errors = []
    for plan in plans:
        h = []
        for name, below, row, cost in zip(
            plan.operators, plan.children, plan.rows, plan.costs, strict=True
        ):
            x = np.concatenate([row, *(h[c] for c in below)])
            for layer in ("inner", "outer"):
                of = f"units.{layer}.{list(OPERATORS).index(name)}"
                x = np.maximum(x @ p[f"{of}.weight"] + p[f"{of}.bias"], 0)
            h.append(x)
            errors.append((x[0] - cost) ** 2)
    return np.mean(errors)


def test_loss_equals_the_reference_and_falls():
    rng = np.random.default_rng(0)
    plans = [draw(rng, joins) for joins in (0, 1, 5, 9)]
    assert {name for plan in plans for name in plan.operators} == set(OPERATORS)
    model = PlanCost(3)
    model.initialize(0)
    session = cavs.Session(model, dtype=np.float64)
    batch = cavs.batch([graph(plan) for plan in plans])
    p = {name: x.value.astype(float) for name, x in model.parameters().items()}
    before = session.evaluate(batch).loss
    assert before == pytest.approx(loss_of(p, plans), rel=1e-12)
    trainer = cavs.Trainer(model, cavs.optim.SGD(lr=0.05), session=session)
    for _ in range(5):
        trainer.step(batch)
    assert session.evaluate(batch).loss < before


SMALL = ["--rounds", "1", "--batches", "1", "--batch-size", "3", "--threads", "1", "--hidden", "4"]


@pytest.mark.parametrize(("least", "status"), [(0.0, 0), (1e9, 1)])
def test_the_program_compares_losses_and_writes_ratios(
    tmp_path, monkeypatch, capsys, least, status
):
    pytest.importorskip("torch")
    monkeypatch.setattr(plan_cost, "LEAST", {"recursion": 0.0, "grouped": least})
    out = tmp_path / "out.json"
    assert plan_cost.main([*SMALL, "--out", str(out)]) == status
    shown = capsys.readouterr().out
    record = json.loads(out.read_text())
    assert record["text"].strip() == shown.strip()
    (result,) = record["results"]
    (case,) = result["cases"]
    assert (result["batch_size"], case["hidden"], case["plans"]) == (3, 4, 3)
    assert list(case["ratios"]) == list(case["seconds"]) == ["cavs", "recursion", "grouped"]
    assert case["seconds"]["cavs"]["median"] > 0 and case["loss"] > 0
    assert shown.count("yes") == 2 - status and shown.count("NO") == status


def test_differing_losses_end_the_program(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(plan_cost, "TOLERANCE", -1.0)
    out = tmp_path / "out.json"
    with pytest.raises(SystemExit, match="losses after the first pass differ"):
        plan_cost.main([*SMALL, "--out", str(out)])
    assert not out.exists()


def test_the_program_needs_torch(monkeypatch, capsys):
    monkeypatch.setattr(plan_cost, "find_spec", lambda name: None)
    assert plan_cost.main([]) == 2
    assert "need PyTorch" in capsys.readouterr().err
