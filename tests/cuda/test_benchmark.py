"""What the GPU benchmark asks of cavs, on the host twin."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks import runners_cavs
from benchmarks.accuracy import curve, errors
from benchmarks.gpu_table import ALLOWED
from benchmarks.refcheck import check
from benchmarks.sessions import LocalSession
from benchmarks.timeline import chrome_trace, profiled
from benchmarks.workloads import WORKLOADS, Case
from cavs.cuda.device import Device

CASE = Case(
    "tree-lstm", 12, 3, embedding=8, leaves=4, length=5, vocabulary=30, data="random", batches=2,
    device="cuda", lr=0.1,
)  # fmt: skip


@pytest.fixture(autouse=True)
def on_the_twin(twin, monkeypatch):
    """Sessions that ask for a GPU get the twin."""
    device = Device(twin.library, 0, "sm_90", twin.compiler, None)
    options = runners_cavs.device_options

    def here(case: Case) -> dict[str, Any]:
        found = options(case)
        return found | {"device": device} if "device" in found else found

    monkeypatch.setattr(runners_cavs, "device_options", here)
    yield
    assert twin.fault() == ""


@pytest.mark.parametrize("precision", ALLOWED)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_results_lie_within_what_the_benchmark_allows(workload, precision):
    found = errors(replace(CASE, workload=workload, precision=precision))
    assert found.keys() == {"loss", "outputs", "gradients"}
    assert max(found.values()) < ALLOWED[precision]
    if precision != "fp32":
        assert max(found.values()) > 1e-6  # products do run on tensor cores


def test_losses_follow_those_of_the_cpu():
    found = curve(CASE, 10)
    assert found["worst"] < 1e-4
    assert found["last"] < found["first"]


def test_a_profiled_step_has_a_timeline():
    report = profiled(CASE)
    timed = [line for line in report["stages"] if line["seconds"] > 0]
    spans = [e for e in chrome_trace(report)["traceEvents"] if e["ph"] == "X" and e["tid"] == 0]
    assert [e["name"] for e in spans] == [line["label"] for line in timed]
    assert len(spans) > 2


@pytest.mark.parametrize("training", [False, True])
def test_passes_are_timed(training):
    session = LocalSession("cavs-without-fuse")
    assert session.configure(replace(CASE, training=training)) > 0
    assert session.run().wall > 0
    assert session.prepare().wall > 0
    session.close()


@pytest.mark.parametrize("workload", ["fixed-lstm", "var-lstm"])
def test_lstms_by_cudnn_agree_with_our_own(workload, twin, monkeypatch):
    device = Device(twin.library, 0, "sm_90", twin.compiler, None, cudnn=twin.cudnn)
    monkeypatch.setattr(runners_cavs, "device_options", lambda case: {"device": device})
    assert check(replace(CASE, workload=workload), ["cavs-cudnn"], "cavs") == []
    assert any(o.name == "cudnnRNNForward" for o in twin.operations())
