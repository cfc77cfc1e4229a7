"""Samples, index plans and products against simple, slow implementations."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from benchmarks.products import products_of
from benchmarks.rivals.tree_plan import plan_trees
from benchmarks.samples import Tree, Vocabulary, complete_tree, data_folder, parse_tree, wikitext
from benchmarks.workloads import Case, initial_parameters, load


def test_bracketed_tree() -> None:
    tree = parse_tree("(3 (2 It) (4 (1 works) (0 well)))", Vocabulary())
    assert tree.left.tolist() == [-1, -1, -1, 1, 0]
    assert tree.right.tolist() == [-1, -1, -1, 2, 3]
    assert tree.token.tolist() == [1, 2, 3, -1, -1]
    assert tree.label.tolist() == [2, 1, 0, 4, 3]
    assert tree.height.tolist() == [0, 0, 0, 1, 2]


@pytest.mark.parametrize(
    ("text", "what"), [("(1 (2 a) (3 b)", "not closed"), ("(1 (2 a))", "1 children")]
)
def test_bad_tree(text: str, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        parse_tree(text, Vocabulary())


def test_deep_tree_needs_no_recursion() -> None:
    n = 5000
    text = "(1 " * n + "(2 a)" + " (3 b))" * n
    assert parse_tree(text, Vocabulary()).height[-1] == n


def test_complete_tree() -> None:
    tree = complete_tree(4, np.arange(4, dtype=np.int32), 2)
    assert tree.left.tolist() == [-1, -1, -1, -1, 0, 2, 4]
    assert tree.right.tolist() == [-1, -1, -1, -1, 1, 3, 5]
    assert tree.height.tolist() == [0, 0, 0, 0, 1, 1, 2]
    assert tree.label.tolist() == [-1] * 6 + [2]
    with pytest.raises(ValueError, match="power of two"):
        complete_tree(3, np.arange(3, dtype=np.int32), 0)


def test_data_folder_says_how_to_name_it(monkeypatch: pytest.MonkeyPatch, data: str) -> None:
    monkeypatch.delenv("CAVS_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="--data DIR or set CAVS_DATA"):
        data_folder("sst")
    monkeypatch.setenv("CAVS_DATA", data)
    assert data_folder("sst").name == "sst"
    with pytest.raises(FileNotFoundError, match="must hold nothing/"):
        data_folder("nothing")


def test_wikitext_keeps_the_most_frequent_words(data: str) -> None:
    sentences, size = wikitext(data, 10)
    assert size == 10
    counts = np.bincount(np.concatenate(sentences), minlength=10)
    assert (np.diff(counts[1:]) <= 0).all() and counts[0] > 0
    assert all(len(sentence) > 1 for sentence in sentences)


def test_tree_plan_covers_every_edge(data: str) -> None:
    trees = [s for b in load(Case("tree-lstm", 4, 16, batches=1, data=data)).batches for s in b]
    plan = plan_trees(trees)
    assert sorted(plan.vertex.tolist()) == list(range(sum(len(t) for t in trees)))
    shift = np.cumsum([0, *(len(t) for t in trees)])
    children = {
        (int(shift[g] + v), side): int(shift[g] + child[v])
        for g, t in enumerate(trees)
        if isinstance(t, Tree)
        for side, child in enumerate((t.left, t.right))
        for v in range(len(t))
        if child[v] >= 0
    }
    assert 2 * len(plan.child) == len(children)
    for i, pair in enumerate(plan.child):
        parent = plan.leaves + i
        for side, child in enumerate(pair):
            assert plan.vertex[child] == children[int(plan.vertex[parent]), side]
            assert plan.up[child] == 2 * i + side
    assert (plan.up == 2 * len(plan.child)).sum() == len(trees)
    for begin, end in pairwise(plan.level_rows):
        assert begin < end
    # Rows of a level are consumed at consecutive places of their parents' pools.
    for level in range(1, len(plan.level_rows) - 1):
        first, last = plan.level_rows[level] - plan.leaves, plan.level_rows[level + 1] - plan.leaves
        pool = plan.pool_position[plan.child[first:last].ravel()]
        assert sorted(pool.tolist()) == list(range(2 * (last - first)))


def test_products_count_what_the_model_multiplies() -> None:
    workload = load(Case("tree-fc", 8, 3, batches=1, leaves=16))
    forward = products_of(workload, workload.batches[0], training=False)
    inner, roots = 3 * 15, 3
    flops = 2 * inner * 16 * 8 + 2 * roots * 8 * 5
    assert sum(p.flops for p in forward) == flops
    training = products_of(workload, workload.batches[0], training=True)
    assert sum(p.flops for p in training) == 3 * flops
    assert [p.m for p in forward] == [24, 12, 6, 3, 3]


def test_products_of_sequences(data: str) -> None:
    workload = load(Case("var-lstm", 8, 5, batches=1, embedding=8, classes=8, data=data))
    tokens = sum(len(s) for s in workload.batches[0])
    forward = products_of(workload, workload.batches[0], training=False)
    flops = 2 * tokens * 8 * 32 + 2 * (tokens - 5) * 8 * 32 + 2 * tokens * 8 * 8
    assert sum(p.flops for p in forward) == flops


def test_cases_are_the_same_for_every_runner(data: str) -> None:
    case = Case("fixed-lstm", 4, 3, batches=2, length=6, embedding=4, classes=8, data=data)
    one, two = load(case), load(case)
    for a, b in zip(one.batches, two.batches, strict=True):
        assert [s.token.tolist() for s in a] == [s.token.tolist() for s in b]
        assert {len(s) for s in a} == {6}
    left, right = initial_parameters(one), initial_parameters(two)
    assert all((left[k] == right[k]).all() for k in left)
