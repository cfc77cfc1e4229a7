"""The faults that the benchmark of killed ranks reports."""

import dataclasses

import numpy as np
import pytest

from benchmarks.killed_rank import FinishedRun, compare

RANKS, STEPS = 3, 4
DEV, LOSSES = [0.9, 0.6], [1.2, 1.0, 0.8, 0.7]


def ended(stale, ranks=range(RANKS), dev=DEV, shift=0.0, **changes):
    """Return a run without faults; shift: added to all parameters."""
    result = {"dev": list(dev), "losses": LOSSES, "seen": [0, 1] * STEPS}
    result |= {"steps": STEPS, "ranks": len(ranks), "stale": stale}
    values = {"w": np.linspace(1, 2, 50) + shift, "b": np.ones(3) + shift}
    return FinishedRun(
        **{
            "status": 0,
            "errors": "",
            "results": {r: dict(result) for r in ranks},
            "values": {r: {n: v.copy() for n, v in values.items()} for r in ranks},
            "checkpoint": STEPS,
        }
        | changes
    )


def calm(stale):
    """Return one run, or four whose losses differ by 0.01 and whose parameters differ by 0.02."""
    if not stale:
        return [ended(False)]
    noise = np.random.default_rng(0).normal(0, 0.01, (4, 2))
    return [
        ended(True, dev=DEV + n, shift=s)
        for n, s in zip(noise, [-2e-2, -1e-2, 1e-2, 2e-2], strict=True)
    ]


@pytest.mark.parametrize("stale", [False, True])
def test_survivors_like_undisturbed_runs_have_no_faults(stale):
    found = compare(ended(stale, ranks=[0, 2], still=2.5), calm(stale), RANKS)
    assert found["faults"] == []
    assert found["losses"] < (0.05 if stale else 1e-15)


def one_rank(run, **changes):
    results = {r: dict(result) for r, result in run.results.items()}
    results[2] |= changes
    return dataclasses.replace(run, results=results)


@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda run: one_rank(run, steps=3), "rank 2 made 3 of 4 steps"),
        (lambda run: one_rank(run, seen=[0, 1] * 3), "rank 2 saw other graphs"),
        (lambda run: dataclasses.replace(run, status=1), "status 1"),
        (lambda run: dataclasses.replace(run, still=10.5), "the survivors paused for 10.5 s"),
        (lambda run: dataclasses.replace(run, checkpoint=3), "the last checkpoint is of step 3"),
        (
            lambda run: dataclasses.replace(run, results={0: run.results[0]}),
            "1 of 3 ranks finished",
        ),
    ],
)
def test_an_incomplete_run_is_a_fault(stale, change, said):
    faults = compare(change(ended(stale, ranks=[0, 2])), calm(stale), RANKS)["faults"]
    assert len(faults) == 1 and said in faults[0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dev": [0.9, 0.6 + 1e-6]}, "losses 1.7e-06"),
        ({"shift": 1e-6}, "parameters 1.0e-06"),
        ({"dev": [0.9, float("nan")]}, "losses nan"),
    ],
)
def test_without_stale_parameters_rounding_alone_may_differ(changes, said):
    (fault,) = compare(ended(False, ranks=[0, 1], **changes), calm(False), RANKS)["faults"]
    assert said in fault


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dev": [0.9, 0.8]}, "standard deviations away"),
        ({"dev": [0.9, float("nan")]}, "standard deviations away"),
        ({"shift": 0.2}, "is 1.3e-01 away"),
        ({"shift": float("nan")}, "is nan away"),
    ],
)
def test_with_stale_parameters_more_than_noise_is_a_fault(changes, said):
    faults = compare(ended(True, ranks=[0, 1], **changes), calm(True), RANKS)["faults"]
    assert any(said in fault for fault in faults)


def test_survivors_of_stale_runs_are_equal():
    run = ended(True, ranks=[0, 2])
    run.values[2]["w"] = run.values[2]["w"] + 1e-15
    (fault,) = compare(run, calm(True), RANKS)["faults"]
    assert fault == "rank 2 ended with another w than rank 0"
    (fault,) = compare(one_rank(ended(True, ranks=[0, 2]), dev=[0.9, 0.61]), calm(True), RANKS)[
        "faults"
    ]
    assert fault == "rank 2 found other losses in evaluations than rank 0"
