"""The network of PostgreSQL's plans equals one in NumPy that runs operator by operator."""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import pwd
import tempfile
from pathlib import Path

import numpy as np
import pytest

import cavs
from cavs.cli import main, registry
from cavs.errors import DataError
from models.data import record_plans
from models.data.plans import ARITIES, OPERATORS, RECORDING, plan_graphs, read_plans
from models.plan_cost import PlanCost
from tests.models.against_numpy import check, epoch_losses

RNG = np.random.default_rng(0)


def node(name, *below, loops=1, **more):
    """Return an operator with drawn estimates, as EXPLAIN prints it."""
    rows, width, start, cost, time = RNG.uniform(0, 50, 5).round(2).tolist()
    values = {"Node Type": name, "Plan Rows": int(rows), "Plan Width": int(width)}
    values |= {"Startup Cost": start, "Total Cost": start + cost}
    values |= {"Actual Total Time": time, "Actual Loops": loops}
    return {**values, **more, **({"Plans": list(below)} if below else {})}


def drawn():
    """Return plans of unequal depths, one operator among them, with every sort of operator."""
    scan = lambda: node("Seq Scan")  # noqa: E731
    join = node("Hash Join", node("Index Scan"), node("Hash", scan()))
    join = node("Merge Join", node("Sort", join), node("Materialize", scan(), loops=0))
    bits = [node("Bitmap Index Scan") for _ in range(3)]
    heap = node("Bitmap Heap Scan", node("BitmapAnd", *bits))
    several = node("Append", scan(), heap, node("Limit", node("Index Only Scan")))
    top = node("Aggregate", several, Strategy="Hashed")
    return [scan(), node("Limit", join), top, node("Result"), node("Result", scan())]


def text_of(plans):
    return "".join(json.dumps(plan) + "\n" for plan in plans)


def reference_of(plans):
    """Return the reference of `check`: the mean of squared errors over operators that ran."""
    graphs = plan_graphs(text_of(plans), "plans")

    def reference(p):
        outputs, errors = [], []
        for graph in graphs:
            h = []
            for v, name in enumerate(graph.types):
                below = [h[c] for c in graph.children(v)]
                if OPERATORS[name] is None:
                    below = [sum(below, np.zeros(SIZE))]
                x = np.concatenate([graph.features["estimates"][v], *below])
                for layer in ("inner", "outer"):
                    of = f"units.{layer}.{list(OPERATORS).index(name)}"
                    x = np.maximum(x @ p[f"{of}.weight"] + p[f"{of}.bias"], 0)
                h.append(x)
                outputs.append(x[:1])
                error = x[0] - graph.features["time"][v, 0]
                errors.append(graph.features["ran"][v, 0] * error**2)
        return np.mean(errors), np.array(outputs)

    return graphs, reference


SIZE = 3


def test_loss_outputs_and_gradients_equal_the_reference():
    graphs, reference = reference_of(drawn())
    assert {OPERATORS[name] for graph in graphs for name in graph.types} == set(ARITIES)
    check(PlanCost(SIZE), cavs.batch(graphs), reference)


def test_a_plan_becomes_a_graph_with_logarithms():
    plan = node("Hash Join", node("Seq Scan"), node("Hash", node("Seq Scan", loops=0)))
    plan["Actual Total Time"] = 2.5
    (graph,) = plan_graphs(json.dumps([{"Plan": plan, "Planning Time": 0.1}]), "text")
    assert graph.types == ("Seq Scan", "Seq Scan", "Hash", "Hash Join")
    assert list(graph.children(3)) == [0, 2]
    assert graph.features["time"][3, 0] == pytest.approx(np.log(2501))
    assert graph.features["ran"][:, 0].tolist() == [1, 0, 1, 1]


@pytest.mark.parametrize(
    "plan, told",
    [
        (node("Gather", node("Seq Scan")), "at the root is 'Gather', an operator without a unit"),
        (
            node("Hash Join", node("Seq Scan")),
            r"at the root, Hash Join, has 1 plans below; expected",
        ),
        (node("Seq Scan", **{"Plan Rows": -1}), "at the root has Plan Rows -1"),
        (node("Seq Scan", **{"Total Cost": "1"}), "Total Cost '1'"),
        (node("Seq Scan", **{"Actual Loops": None}), "Actual Loops None"),
        (node("Limit", node("Append", node("Result"), node("X"))), r"at Plans\[0\].Plans\[1\] is"),
        (node("X"), "hint: known operators: Seq Scan, "),
        ({"Plan": 3}, "no object"),
        ({"Plan": [node("Result"), node("Result")]}, "text:1: Plan is .*, no object"),
    ],
)
def test_a_plan_that_is_none_is_refused(plan, told):
    with pytest.raises(DataError, match=told):
        plan_graphs(json.dumps(plan), "text")


def test_a_recording_that_is_none_is_refused(tmp_path, capsys):
    for content in (b"{}", gzip.compress(b"\xff")):
        (tmp_path / RECORDING.name).write_bytes(content)
        assert main(["train", "plan-cost", "--data", str(tmp_path)]) == 1
        assert "no recording" in capsys.readouterr().err
    (tmp_path / RECORDING.name).write_bytes(gzip.compress(text_of(drawn()).encode()))
    assert main(["train", "plan-cost", "--data", str(tmp_path)]) == 1
    assert "has 5 plans, expected at least 10" in capsys.readouterr().err
    (tmp_path / RECORDING.name).unlink()
    assert main(["train", "plan-cost", "--data", str(tmp_path)]) == 1
    assert "there is no such file" in capsys.readouterr().err


def test_the_loss_of_a_training_falls_and_new_plans_are_read(tmp_path, capsys):
    plans = [plan for _ in range(20) for plan in drawn()]
    (tmp_path / RECORDING.name).write_bytes(gzip.compress(text_of(plans).encode()))
    out = str(tmp_path / "run")
    words = ["--hidden-size=4", "--epochs=8", "--lr=0.01", "--quiet"]
    assert main(["train", "plan-cost", *words, "--data", str(tmp_path), "--out", out]) == 0
    losses = epoch_losses(tmp_path / "run")
    assert losses[-1] < 0.7 * losses[0]
    shown = capsys.readouterr().out
    assert "q-error" in shown and "planner" in shown
    untimed = node("Limit", node("Seq Scan"))
    for part in (untimed, untimed["Plans"][0]):
        del part["Actual Total Time"], part["Actual Loops"]
    (tmp_path / "new").write_text(json.dumps([{"Plan": untimed}], indent=2))
    best = str(tmp_path / "run" / "checkpoint.best.safetensors")
    assert main(["predict", best, str(tmp_path / "new")]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith(" ms") and float(line.split()[0]) >= 0


def test_the_recording_that_comes_with_the_model_has_every_operator():
    assert RECORDING.stat().st_size < 1e6
    args = argparse.Namespace(hidden_size=2, data=None, seed=0)
    task = registry.find("plan-cost").build(args)
    parts = [task.required(name) for name in ("train", "dev", "test")]
    assert min(map(len, parts)) > 100
    found = {name for graph in parts[0] for name in graph.types}
    assert found == set(OPERATORS)


def account() -> str | None:
    """Return an account that may run a server; None for the own one."""
    if os.geteuid():
        return None
    names = [entry.pw_name for entry in pwd.getpwall() if entry.pw_uid]
    return "postgres" if "postgres" in names else names[-1]


@pytest.mark.skipif(record_plans.programs_of_postgres() is None, reason="needs PostgreSQL")
def test_plans_are_recorded(tmp_path, capsys):
    out = tmp_path / RECORDING.name
    user = account()
    words = ["--queries=12", "--scale=0.02", "--out", str(out)]
    assert record_plans.main([*words, *(["--user", user] if user else [])]) == 0
    graphs = read_plans(out)
    assert f"{len(graphs)} plans in {out}" in capsys.readouterr().out
    assert 10 <= len(graphs) <= 12
    assert all(graph.features["ran"][-1, 0] == 1 for graph in graphs)


@pytest.mark.skipif(record_plans.programs_of_postgres() is None, reason="needs PostgreSQL")
def test_a_schema_that_fails_stops_the_recording(monkeypatch):
    folder = Path(tempfile.mkdtemp())
    monkeypatch.setattr(record_plans, "schema", lambda scale: "CREATE TABLE a (b nothing);")
    monkeypatch.setattr(tempfile, "mkdtemp", lambda prefix: str(folder))
    with pytest.raises(SystemExit, match='type "nothing" does not exist'):
        record_plans.record(record_plans.programs_of_postgres(), account(), 1, 0.02, 0)
    assert not folder.exists()


def test_a_recording_without_plans_is_an_error(monkeypatch):
    monkeypatch.setattr(record_plans, "Server", lambda *_: contextlib.nullcontext(Silent()))
    with pytest.raises(SystemExit, match="none of 3 queries gave a plan"):
        record_plans.record(RECORDING, None, 3, 1.0, 0)


class Silent:
    """A server whose queries all fail."""

    def sql(self, text, skip_failed=False):
        return "query\n" * skip_failed * text.count("echo query")


def test_an_unknown_account_is_told(tmp_path, capsys):
    with pytest.raises(SystemExit):
        record_plans.main(["--out", str(tmp_path / "x"), "--programs=x", "--user=no such"])
    assert "--user no such: there is no such account" in capsys.readouterr().err


def test_a_missing_server_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(record_plans, "programs_of_postgres", lambda: None)
    with pytest.raises(SystemExit):
        record_plans.main(["--out", str(tmp_path / "x.json.gz")])
    assert "there is no PostgreSQL" in capsys.readouterr().err
