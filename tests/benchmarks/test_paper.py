"""The figures of the paper: their cases, their tables from given times, and one small run."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks import machine, paper, paper_cases, paper_plots, paper_tables, report
from benchmarks.bounds import missed
from benchmarks.paper_cases import FIGURES, OPTIMISATIONS, STREAMED, base, cases, sized
from benchmarks.runner import make_runner
from benchmarks.samples import RANDOM
from benchmarks.workloads import Case, load


@pytest.fixture
def everywhere(monkeypatch):
    """As if all libraries were installed."""
    monkeypatch.setattr(paper_cases, "available", lambda runner: True)


def measured(case: Case, **times: tuple[float, float, float]):
    """Return a case as the harness records it. times: step, preparation, construction."""
    runners = {
        name.replace("_", "-"): {
            "seconds_per_vertex": [step] * 3,
            "prepare_seconds_per_vertex": [prepare] * 3,
            "construct_seconds_per_vertex": [construct] * 3 if construct else [],
        }
        for name, (step, prepare, construct) in times.items()
    }
    return {
        "case": case.record(),
        "title": case.title,
        "vertices_per_batch": 10.0,
        "runners": runners,
    }


def test_each_figure_has_the_sizes_of_the_paper(everywhere):
    found = cases(["6.11"], "", "cpu", 1, models=["tree-lstm"])
    assert len(found) == 2 * (9 + 5 - 1)  # h 512 in batches of 64 is in both panels
    assert {case.batch_size for case in found} == {2**i for i in range(9)}
    for runners in found.values():
        assert runners == ["cavs", "hand", "dynet", "dynet-depth", "dgl", "naive"]
    leaves = cases(["6.12"], "", "cpu", 1, models=["tree-fc"])
    assert [case.leaves for case in leaves] == [32, 64, 128, 256, 512, 1024]
    assert all(runners == ["cavs", "dynet"] for runners in leaves.values())
    for runners in cases(["6.13"], "", "cpu", 1).values():
        assert runners == list(OPTIMISATIONS.values())


def test_language_models_predict_the_whole_vocabulary():
    assert sized(base("var-lstm", "", "cpu", 1), 64, 4).classes == 0
    assert sized(base("tree-lstm", "", "cpu", 1), 64, 4).classes == 5


def test_dynet_does_not_run_on_a_device(everywhere):
    found = cases(["6.11", "6.13"], "", "cuda", 1, models=["fixed-lstm"])
    names = {name for runners in found.values() for name in runners}
    assert "dynet" not in names and any("second-stream" in name for name in names)


def test_a_missing_library_is_left_out(monkeypatch):
    monkeypatch.setattr(paper_cases, "find_spec", lambda name: None)
    monkeypatch.delenv("CAVS_BENCH_PYTHON_DYNET", raising=False)
    monkeypatch.setenv("CAVS_BENCH_PYTHON_DGL", "python")
    sizes = {"models": ["tree-lstm"], "batch_sizes": [1], "hidden": []}
    for runners in cases(["6.11"], "", "cpu", 1, **sizes).values():
        assert runners == ["cavs", "hand", "dgl", "naive"]


def test_tables_show_ratios_and_shares():
    tree = sized(base("tree-lstm", "", "cpu", 1), 512, 64)
    entry = measured(tree, cavs=(1.0, 0.04, 0), hand=(2.0, 0.08, 0), dynet=(3.12, 0.0, 1.12))
    entry["runners"]["cavs"] |= {
        "product_seconds": 0.5,
        "map_seconds": 0.25,
        "other_seconds": 0.25,
    }
    whole = paper.summarise([entry], FIGURES)
    assert "| 64         | 1.04e+04       | 2.00 | 3.00  |" in whole  # 6.11
    assert "3.8%" in whole and "35.9%" in whole  # 6.12
    assert "| 2.00  | 1.8          |" in whole  # table 6.2, next to that of the paper
    assert "25.0%" in whole  # table 6.3
    assert not missed(paper_tables.bounds([entry]))
    slower = measured(tree, cavs=(1.0, 0.06, 0), hand=(1.0, 0.0, 0))
    assert len(missed(paper_tables.bounds([slower]))) == 2


def test_one_optimisation_at_a_time_is_relative_to_none():
    case = sized(base("tree-lstm", "", "cpu", 1), 64, 64)
    entry = measured(case, cavs=(1.0, 0.0, 0))
    (plain,) = entry["runners"].values()
    times = {"none": 4.0, "eager": 3.2, "lazy": 2.0, "fusion": 2.5, "all": 1.0}
    entry["runners"] = {
        OPTIMISATIONS[name]: plain | {"seconds_per_vertex": [t] * 3} for name, t in times.items()
    }
    assert "| 64     | 1.25  | 2.00 | 1.60   | 4.00 |" in paper_tables.optimisations([entry])


@pytest.mark.parametrize("device, names", [("cpu", OPTIMISATIONS), ("cuda", STREAMED)])
def test_the_picture_of_optimisations_has_the_ratios_of_the_table(device, names):
    case = sized(base("tree-lstm", "", device, 1), 64, 64)
    entry = measured(case, cavs=(1.0, 0.0, 0))
    (plain,) = entry["runners"].values()
    entry["runners"] = {
        name: plain | {"seconds_per_vertex": [2.0 if label == "none" else 1.0] * 3}
        for label, name in names.items()
    }
    curves = paper_plots.speedups([entry], "hidden")
    assert curves == {label: [(64, 2.0)] for label in names if label != "none"}
    assert all(label in paper_tables.optimisations([entry]) for label in curves)


def test_bounds_are_those_of_the_cases_of_their_figures():
    tree = sized(base("tree-lstm", "", "cpu", 1), 512, 64)
    complete = sized(base("tree-fc", "", "cpu", 1), 512, 64, leaves=32)  # only 6.12 has it
    entries = [
        measured(tree, cavs=(1.0, 0.06, 0), hand=(2.0, 0.0, 0), dynet=(2.0, 0.0, 1.0)),
        measured(complete, cavs=(1.0, 0.06, 0), dynet=(0.5, 0.0, 0.1)),
    ]
    assert not missed(paper_tables.bounds(entries, ["6.11"]))
    (share,) = missed(paper_tables.bounds(entries, ["6.12"]))
    assert share.startswith("share of collation")
    assert not paper_tables.bounds(entries, ["6.13"])


def test_a_pass_of_small_batches_has_at_most_sixteen():
    sizes = [1, 2, 4, 64, 256]
    found = [sized(base("tree-lstm", "", "cpu", 1), 512, size).batches for size in sizes]
    assert found == [16, 16, 16, 1, 1]


@pytest.mark.parametrize("name", OPTIMISATIONS.values())
def test_optimisations_change_no_result(name):
    case = replace(sized(base("tree-lstm", RANDOM, "cpu", 1), 8, 4), embedding=6)
    workload = load(replace(case, batches=1))
    found = [
        runner.gradients(runner.prepare(workload.batches[0]))
        for runner in (make_runner(n, workload) for n in ("cavs", name))
    ]
    (loss, gradients), (other, others) = found
    assert other == pytest.approx(loss, rel=1e-6)
    for key, value in gradients.items():
        assert others[key] == pytest.approx(value, rel=1e-4, abs=1e-6)


def test_a_run_writes_tables(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(paper, "find_spec", lambda name: True)
    monkeypatch.setattr(paper_cases, "available", lambda runner: runner.startswith("cavs"))
    out = tmp_path / "paper.json"
    small = ["--figure", "6.13", "--models", "tree-lstm", "--hidden", "4", "--rounds", "1"]
    given = [*small, "--data", RANDOM, "--out", str(out)]
    assert paper.main(given) == 0
    assert "6.13" in json.loads(out.read_text())["summary"]
    assert "6.13" in capsys.readouterr().out


def test_the_report_has_a_page_with_pictures(tmp_path):
    pytest.importorskip("matplotlib")
    tree = sized(base("tree-lstm", "", "cpu", 1), 512, 64)
    entry = measured(tree, cavs=(1.0, 0.04, 0), hand=(2.0, 0.08, 0), dynet=(3.12, 0.0, 1.12))
    record = {**machine.surroundings(), "cases": [entry], "summary": "the tables"}
    (tmp_path / "paper.json").write_text(json.dumps(record))
    assert report.main(["--results", str(tmp_path), "--out", str(tmp_path)]) == 0
    page = (tmp_path / "paper.md").read_text()
    assert "the tables" in page and "paper-6.11.png" in page
    assert (tmp_path / "paper-6.11.png").stat().st_size > 10_000
    assert "the tables" not in (tmp_path / "results.md").read_text()


def test_without_pytorch_the_cure_is_named(monkeypatch, capsys):
    monkeypatch.setattr(paper, "find_spec", lambda name: None)
    assert paper.main([]) == 2
    assert "pip install" in capsys.readouterr().err
