"""All programs of a workload, including cavs, compute the same results."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.refcheck import check, relative_error, relative_norm, rivals_of
from benchmarks.runner import MissingLibrary, class_of, python_of, python_variable
from benchmarks.sessions import RemoteSession
from benchmarks.workloads import WORKLOADS, Case

RIVALS = {
    "tree-lstm": [
        *["cavs", "hand", "hand-unique", "hand-medium", "hand-autocast"],
        *["manual", "manual-medium", "hand-graph", "manual-graph"],
    ],
    "tree-fc": ["cavs", "hand", "manual", "hand-graph", "manual-graph"],
    "var-lstm": ["cavs", "padded", "packed", "hand", "manual", "hand-graph", "manual-graph"],
    "fixed-lstm": ["cavs", "padded", "packed", "hand", "manual", "hand-graph", "manual-graph"],
}


ELSEWHERE = [("tree-lstm", "dynet"), ("tree-lstm", "dgl"), ("var-lstm", "dynet")]


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
@pytest.mark.parametrize(("workload", "name"), ELSEWHERE)
def test_rivals_in_other_libraries_agree(
    workload: str, name: str, optimizer: str, data: str
) -> None:
    """They need the library, or variables such as CAVS_BENCH_PYTHON_DYNET."""
    pytest.importorskip("torch")
    if python_of(name) == sys.executable:
        try:
            class_of(name, workload)
        except MissingLibrary as missing:
            pytest.skip(str(missing))
    case = Case(workload, 12, 8, embedding=8, data=data, vocabulary=30, optimizer=optimizer, lr=0.1)
    assert check(case, [name]) == []


@pytest.mark.parametrize(
    ("name", "module"), [("dynet", "dynet_config"), ("dgl", "dgl"), ("dgl", "torch")]
)
def test_a_rival_without_its_library_says_how_to_install_it(
    name: str, module: str, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, f"benchmarks.rivals.with_{name}", raising=False)
    monkeypatch.delenv(python_variable(name), raising=False)
    said = rf"the rival {name} cannot run.* pip install .*CAVS_BENCH_PYTHON_{name.upper()}=PYTHON"
    with pytest.raises(MissingLibrary, match=said):
        class_of(name, "tree-lstm")
    if module != "torch":
        pytest.importorskip("torch")
        assert any(name in line for line in check(Case("tree-lstm", 4, 2, data=data), [name]))
        assert name not in rivals_of("tree-lstm")


def test_a_runner_may_have_another_python(
    tmp_path: Path, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    log = tmp_path / "log"
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    monkeypatch.setenv("CAVS_BENCH_PYTHON_HAND_UNIQUE", str(other))
    monkeypatch.chdir(tmp_path)
    case = Case("tree-lstm", 12, 8, embedding=8, data=data)
    assert check(case, ["hand", "hand-unique"]) == []
    assert log.read_text().startswith("-m benchmarks.serve hand-unique ")
    assert len(log.read_text().splitlines()) == 1
    session = RemoteSession("hand-unique")
    try:
        assert session.own_versions()["python"] == platform.python_version()
    finally:
        session.close()
    monkeypatch.setenv("CAVS_BENCH_PYTHON_HAND_UNIQUE", str(tmp_path / "nothing"))
    with pytest.raises(ValueError, match=r"CAVS_BENCH_PYTHON_HAND_UNIQUE names .*nothing, which"):
        check(case, ["hand-unique"])


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
    assert relative_norm(a, b) == pytest.approx(2 / 17**0.5)
    with pytest.raises(AssertionError, match="shapes differ"):
        relative_error(a, b[:1])
