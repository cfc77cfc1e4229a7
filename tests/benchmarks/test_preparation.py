"""Preparation of a step, measured on tiny cases."""

from __future__ import annotations

import pytest

from benchmarks.preparation import growth, growth_table, share, shares_table
from benchmarks.workloads import Case


def test_shares_of_a_step() -> None:
    found = share(Case("tree-fc", 8, 2, batches=2, leaves=4), rounds=2)
    assert found["vertices"] == 2 * 7
    assert found["alone"]["median"] > 0 and found["share"]["median"] > 0
    assert found["scheduled"]["between"]["median"] > 0
    assert "tree-fc training, h 8, bs 2, 1 thread" in shares_table([found])


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_graphs_that_grow(shape: str) -> None:
    found = growth(shape, 1200)
    assert found["vertices"] == 1200
    assert (found["levels"] == 1200) == (shape == "chain")
    assert min(found["build"], found["prepare"], found["step"]) > 0
    assert "1,200" in growth_table([found])
