"""The GPU benchmark on the host twin."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import levels, runners_cavs
from benchmarks.accuracy import curve, errors
from benchmarks.fresh import fresh
from benchmarks.gpu_parts import curve as curve_part
from benchmarks.gpu_parts import fresh as fresh_part
from benchmarks.gpu_parts import launches as launches_part
from benchmarks.gpu_parts import timeline
from benchmarks.gpu_table import ALLOWED, summary_table
from benchmarks.latency import latency, latency_case, ways_on
from benchmarks.level_points import WAYS, Point, compile_one
from benchmarks.levels import levels_of
from benchmarks.refcheck import check
from benchmarks.runner import make_runner
from benchmarks.runners_cavs import SWITCHES
from benchmarks.sessions import LocalSession
from benchmarks.timeline import (
    HOST,
    PYTHON,
    STEPS,
    TRACKS,
    UPLOADS,
    busy,
    chrome_trace,
    profiled,
    trace_of_spans,
    traced,
)
from benchmarks.workloads import WORKLOADS, Case, load
from cavs.cuda.device import Device

CASE = Case(
    "tree-lstm", 12, 3, embedding=8, leaves=4, length=5, vocabulary=30, data="random", batches=2,
    device="cuda", lr=0.1,
)  # fmt: skip


@pytest.fixture(autouse=True)
def on_the_twin(twin, monkeypatch):
    """Sessions that ask for a GPU get the twin; yields the texts that it has compiled."""
    compiled = []

    class Compiler:
        def compile(self, name, source, *options):
            compiled.append((name, source))
            return twin.compiler.compile(name, source, *options)

    device = Device(twin.library, 0, "sm_90", Compiler(), None, twin.cublaslt)
    options = runners_cavs.device_options

    def here(case: Case) -> dict[str, Any]:
        found = options(case)
        return found | {"device": device} if "device" in found else found

    monkeypatch.setattr(runners_cavs, "device_options", here)
    monkeypatch.setattr("cavs.cuda.device.open_device", lambda name: device)
    yield compiled
    assert twin.fault() == ""


@pytest.mark.parametrize("precision", ALLOWED)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_errors_are_within_the_bounds_of_the_benchmark(workload, precision):
    found = errors(replace(CASE, workload=workload, precision=precision))
    assert found.keys() == {"loss", "outputs", "gradients"}
    assert max(found.values()) < ALLOWED[precision]
    if precision != "fp32":
        assert max(found.values()) > 1e-6  # products run on tensor cores


def test_losses_are_those_of_the_cpu():
    found = curve(CASE, 10)
    assert found["worst"] < 1e-4
    assert found["last"] < found["first"]


def test_a_profiled_step_has_a_timeline():
    report = profiled(CASE)
    timed = [line for line in report["stages"] if line["seconds"] > 0]
    spans = [e for e in chrome_trace(report)["traceEvents"] if e["ph"] == "X" and e["tid"] == 0]
    assert [e["name"] for e in spans] == [line["label"] for line in timed]
    assert len(spans) > 2


def test_steps_that_overlap_have_a_timeline():
    spans = traced(replace(CASE, batches=3))
    stages = {line["label"] for line in profiled(CASE)["stages"] if line["seconds"] > 0}
    on = {lane: {name for name, of, *_ in spans if of == lane} for lane in TRACKS}
    assert on[0] | on[1] >= stages | {"assemble", "update"}
    assert on[1]
    assert on[UPLOADS] == {"upload"}
    assert on[HOST] == {"bind", "stage", "launch"}
    assert [name for name, lane, *_ in spans if lane == PYTHON] == ["prepare"] * STEPS
    assert all(end >= begin for _, _, begin, end in spans)
    first, last = spans[0][2], max(end for *_, end in spans)
    assert last - first < 60  # all on one clock
    events = trace_of_spans(spans)["traceEvents"]
    assert sum(e["ph"] == "X" for e in events) == len(spans)
    assert min(e["ts"] for e in events if e["ph"] == "X") == 0
    assert 0 < busy(spans) <= 1


@pytest.mark.parametrize("part", [curve_part, fresh_part, launches_part, timeline])
def test_parts_of_the_benchmark(tmp_path, part):
    given = SimpleNamespace(
        device="cuda", data="random", tiny=True, full=False, steps=20, rounds=1, patience=60,
        out=tmp_path / "gpu.json",
    )  # fmt: skip
    found, failed = part(given)
    assert failed == []
    record = {"machine": {"cpu": ""}, "data": "", "seconds": 0, "command": "", "cases": []}
    record |= {"failed": [], "skipped": [], part.__name__: found}
    if part is launches_part:
        assert {"one_by_one", "forked", "replay", "capture", "instantiate"} <= found[0].keys()
        assert [of["bytes"] for of in found] == [16, 440]
        assert summary_table(record).count("a launch, ") == 2
    assert summary_table(record).count("\n") >= 4
    if part is timeline:
        assert 0 < found["busy"] <= 1
        assert found["memory"]["parameters"] > 0
        events = json.loads((tmp_path / found["trace"]).read_text())["traceEvents"]
        assert {e["args"]["name"] for e in events if e["ph"] == "M"} == set(TRACKS.values())


def test_busy_time_of_a_lane():
    spans = [("a", 0, 1.0, 2.0), ("b", 1, 1.5, 3.0), ("c", 2, 0.0, 9.0), ("d", 0, 4.0, 5.0)]
    assert busy(spans) == pytest.approx(3 / 4)
    assert busy(spans, (0,)) == pytest.approx(2 / 4)
    assert busy([]) == 0


def test_fresh_batches_are_compared_with_ready_ones():
    found = fresh(CASE, 2)
    assert found["exposed"]["rounds"] == 2
    assert min(found[name]["least"] for name in ("ready", "fresh", "prepare")) > 0
    assert found["exposed"]["median"] > -1


@pytest.mark.parametrize("switch", SWITCHES)
def test_switches_of_a_device(twin, switch):
    """Switches change the work, but not the losses."""

    def work(name):
        twin.reset()
        runner = make_runner(name, load(replace(CASE, hidden=40, embedding=40, batch_size=12)))
        plans = [runner.prepare(batch) for batch in runner.workload.batches]
        losses = runner.train_all(plans)
        asked = {(o.kind, o.name, o.stream) for o in twin.operations()}
        assert runner.device_memory() > 0
        return losses, asked

    (expected, usual), (found, asked) = work("cavs"), work(f"cavs-without-{switch}")
    assert found == pytest.approx(expected, rel=1e-5)
    launched = [
        {(name, stream) for kind, name, stream in of if kind == "launch"} for of in (usual, asked)
    ]
    if switch == "second-stream":
        assert [len({stream for _, stream in of}) for of in launched] == [2, 1]
    elif switch == "few-row-kernels":
        assert ["matmul_16" in {name for name, _ in of} for of in launched] == [True, False]
    elif switch == "cublas":
        assert [any(kind == "product" for kind, *_ in of) for of in (usual, asked)] == [True, False]
    elif switch == "launches-by-task":
        walks = [{name for name, _ in of if name.startswith("persistent_")} for of in launched]
        assert [len(of) for of in walks] == [0, 2]
    elif switch == "separate-vertices":  # merged vertices have more kinds
        maps = [{name for name, _ in of if name.startswith("map_")} for of in launched]
        assert len(maps[1]) > len(maps[0])
    else:  # another device, with other streams
        names = [{name for name, _ in of} for of in launched]
        assert names[0] == names[1]


def replayed(session):
    return session.runner.report()["replay"]


@pytest.mark.parametrize("training", [False, True])
def test_passes_are_timed(training):
    session = LocalSession("cavs-without-fuse")
    assert session.configure(replace(CASE, training=training, batches=1)) > 0
    assert session.run().wall > 0
    assert session.prepare().wall > 0
    graphs = replayed(session)["graphs"]
    assert len(graphs) == 2  # one batch, in two staging buffers
    assert all(line["decided"] for line in graphs)
    session.close()


def test_graphs_can_be_requested():
    session = LocalSession("cavs-without-single-launches")
    session.configure(CASE)
    replays = replayed(session)["replays"]
    session.run()
    assert replayed(session)["replays"] == replays + 1 + CASE.batches
    session.close()


@pytest.mark.parametrize("workload", ["fixed-lstm", "var-lstm"])
def test_lstms_by_cudnn_agree_with_our_own(workload, twin, monkeypatch):
    device = Device(twin.library, 0, "sm_90", twin.compiler, None, cudnn=twin.cudnn)
    monkeypatch.setattr(runners_cavs, "device_options", lambda case: {"device": device})
    assert check(replace(CASE, workload=workload), ["cavs-cudnn"], "cavs") == []
    assert any(o.name == "cudnnRNNForward" for o in twin.operations())


@pytest.mark.parametrize("cell", levels.CELLS)
def test_levels_are_timed_in_every_mode(cell):
    found, failed = levels_of(Point(cell, 8, "tf32"), 2, (1, 3), 4)
    assert failed == []
    assert [entry["width"] for entry in found["widths"]] == [1, 3]
    for entry in found["widths"]:
        assert entry["ways"].keys() == WAYS.keys()
        for way, of in entry["ways"].items():
            assert min(of["whole_forward"], of["whole_both"]) > 0
            if way == "graphs":  # the subtracted time was measured elsewhere
                assert of["forward"] <= of["whole_forward"] and of["both"] <= of["whole_both"]
            else:
                assert of["forward"] > 0 and 0 < of["backward"] < of["both"]
        launches = {way: of["launches"] for way, of in entry["ways"].items()}
        assert launches["graphs"] == launches["launched"]
        assert launches["persistent"]["both"] <= launches["launched"]["both"] - 6
    assert found["fits"].keys() == {"launched", "persistent"}


def test_levels_must_be_tasks(monkeypatch):
    given = levels.batch_of
    monkeypatch.setattr(levels, "batch_of", lambda cell, *_: given(cell, 2, 4))
    with pytest.raises(RuntimeError, match="4 levels of 3 vertices are not as many tasks"):
        levels_of(Point("lstm", 8, "fp32"), 1, (3,), 4, ("launched",))


def test_a_failing_width_does_not_affect_the_others(monkeypatch):
    given = levels.measured

    def measured(sessions, point, width, *others):
        if width == 2:
            raise RuntimeError("no memory")
        return given(sessions, point, width, *others)

    monkeypatch.setattr(levels, "measured", measured)
    found, failed = levels_of(Point("lstm", 8, "fp32"), 1, (1, 2, 3), 4, ("launched",))
    assert [entry["width"] for entry in found["widths"]] == [1, 3]
    assert failed == [("levels: lstm, h 8, fp32, 2 a level", "no memory")]
    with pytest.raises(RuntimeError, match="no memory"):
        levels_of(Point("lstm", 8, "fp32"), 1, (2, 3), 4, ("launched",))


def test_precompiled_kernels_are_those_of_the_levels(on_the_twin):
    point, compiled = Point("tree", 8, "bf16"), on_the_twin
    compile_one(point, (1, 3), 4)
    ahead = set(compiled)
    levels_of(point, 1, (1, 3), 4)
    assert ahead == set(compiled) and len(compiled) > len(ahead) > 3


def test_latency_of_one_tree():
    case = latency_case("cuda", "random", "tf32", tiny=True)
    found, failed = latency(case, ways_on("cuda"))
    assert failed == [] and found["ways"].keys() == {"launched", "persistent"}
    for of in found["ways"].values():
        assert 0 < of["collation"]["median"] < of["median"] <= of["p90"]
