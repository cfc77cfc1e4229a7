"""The nested RNN in PyTorch, batched by hand: trees level by level, then packed documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.rivals import tree_levels
from benchmarks.rivals.gates import permute_gates
from benchmarks.rivals.hand_tree import HandPlan
from benchmarks.rivals.program import Given, Values, serve
from benchmarks.rivals.tree_levels import Parameters

TABLE = "embedding.weight"
CHAINS = ("chain.forth", "chain.back")


@dataclass(frozen=True)
class Plan:
    """A batch of documents, prepared before the steps; sentences are in the order of packing."""

    trees: HandPlan
    unique: Tensor
    roots: Tensor  # the root of each sentence, among the roots of all levels
    sizes: Tensor  # number of documents that have a sentence at each position
    mean: Tensor  # [documents, sentences]: takes the mean over a document
    label: Tensor
    document_label: Tensor


def plan(batch: Sequence[Any]) -> Plan:
    """Return a batch of documents given as JSON values: trees and class of each."""
    documents = sorted(batch, key=lambda document: -len(document[0]))
    lengths = np.array([len(trees) for trees, _ in documents])
    levels = tree_levels.levels([tree for trees, _ in documents for tree in trees])
    position = np.concatenate([np.arange(n) for n in lengths])
    packed = np.argsort(position, kind="stable")
    # Rows of roots in order: the first ones of each level. Sentence s has the s-th root vertex.
    starts = levels.rows.level_rows[:-1]
    rows = np.concatenate(
        [s + np.arange(n) for s, n in zip(starts, tree_levels.roots(levels), strict=True)]
    )
    row_of = np.argsort(levels.rows.vertex[rows])
    owner = np.repeat(np.arange(len(lengths)), lengths)[packed]
    mean = np.zeros((len(lengths), len(packed)), np.float32)
    mean[owner, np.arange(len(packed))] = 1 / lengths[owner]
    return Plan(
        levels,
        levels.unique,
        torch.from_numpy(row_of[packed]),
        torch.from_numpy(np.bincount(position)),
        torch.from_numpy(mean),
        levels.label[torch.from_numpy(rows[row_of[packed]])],
        torch.tensor([label for _, label in documents]),
    )


def loss(p: Parameters, batch: Plan) -> Tensor:
    """Return the mean cross entropy over sentences plus that over documents."""
    trees, size = batch.trees, p["tree.b_f"].shape[0] // 2
    word = p["tree.b"], p["tree.W"]
    phrase = torch.cat([p["tree.b"], p["tree.b_f"]]), p["tree.U"]
    levels = tree_levels.tree_lstm(p[TABLE], word, phrase, trees)
    counts = tree_levels.roots(trees)
    roots = torch.cat([h[:n] for h, n in zip(levels, counts, strict=True)])
    x = F.embedding(batch.roots, roots)
    zero, no_bias = x.new_zeros(2, len(batch.document_label), size), x.new_zeros(4 * size)
    weights = [w for c in CHAINS for w in (p[f"{c}.W"], p[f"{c}.U"], p[f"{c}.b"], no_bias)]
    # One layer with biases and two directions; the flag before the last is that of training.
    h = torch.lstm(x, batch.sizes, (zero, zero), weights, True, 1, 0.0, False, True)[0]
    sentence = torch.addmm(p["sentence.bias"], h, p["sentence.weight"])
    document = torch.addmm(p["document.bias"], batch.mean @ h, p["document.weight"])
    own = F.cross_entropy(sentence, batch.label)
    return own + F.cross_entropy(document, batch.document_label)


def prepare(values: Values, given: Given) -> Callable[[], float]:
    """Return a pass over all batches."""
    own = dict(values)
    for name, order in (("W", (2, 0, 1)), ("b", (2, 0, 1)), ("U", (2, 0, 1, 3, 4))):
        own[f"tree.{name}"] = permute_gates(values[f"tree.{name}"], order)
    for name in (f"{chain}.{key}" for chain in CHAINS for key in "WUb"):
        # PyTorch has the order i, f, u, o, and weights [gates, inputs].
        own[name] = np.ascontiguousarray(permute_gates(values[name], (0, 1, 3, 2)).T)
    return tree_levels.prepare(own, given, [TABLE], loss, plan)


def main() -> None:
    serve(prepare)
