"""Every program of a workload, cavs among them, computes the same."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.refcheck import check, relative_error
from benchmarks.workloads import WORKLOADS, Case

RIVALS = {
    "tree-lstm": ["cavs", "hand", "hand-unique", "manual", "hand-graph", "manual-graph"],
    "tree-fc": ["cavs", "hand", "manual", "hand-graph", "manual-graph"],
    "var-lstm": ["cavs", "padded", "packed", "hand", "manual", "hand-graph", "manual-graph"],
    "fixed-lstm": ["cavs", "padded", "packed", "hand", "manual", "hand-graph", "manual-graph"],
}


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_runners_agree(workload: str, optimizer: str, data: str) -> None:
    pytest.importorskip("torch")
    case = Case(
        workload, 12, 8, embedding=8, leaves=8, length=7, vocabulary=30, data=data,
        optimizer=optimizer, lr=0.1,
    )  # fmt: skip
    assert check(case, RIVALS[workload]) == []


def test_check_finds_a_runner_that_is_wrong(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from benchmarks.rivals.hand_tree import HandTreeLSTM

    right = HandTreeLSTM.forward
    monkeypatch.setattr(HandTreeLSTM, "forward", lambda *a: right(*a) * 1.01)
    found = check(Case("tree-lstm", 12, 8, embedding=8, data=data), ["hand"])
    assert any("hand: logits is off by" in line for line in found)


def test_relative_error() -> None:
    a, b = np.array([1.0, 2.0], np.float32), np.array([1.0, 4.0], np.float32)
    assert relative_error(a, b) == 0.5
    assert relative_error(a, b, rounding=2.0) == 0.0
    with pytest.raises(AssertionError, match="shapes differ"):
        relative_error(a, b[:1])
