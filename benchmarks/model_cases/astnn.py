"""Statement trees under a chain, on functions of the Python library.

There is no dropout, and `cavs` computes equal subtrees of a batch once.
"""

from __future__ import annotations

import numpy as np

from benchmarks.model_case import ModelCase, Sizes
from cavs.data import load_functions
from models.astnn import StatementChain, statements

HIDDEN = 128
FUNCTIONS = 2000


def case(sizes: Sizes) -> ModelCase:
    """Return the model with functions that are drawn from the first of the library."""
    data = load_functions(limit=FUNCTIONS)
    rng = np.random.default_rng(0)
    chosen = rng.permutation(len(data.train))[: sizes.batches * sizes.batch_size]
    samples = [statements(data.train[i], data.types) for i in chosen]
    batches = [samples[i :: sizes.batches] for i in range(sizes.batches)]

    def plain(sample):
        trees, chain = sample.graphs["trees"], sample.graphs["statements"]
        return {
            "children": [trees.children(v).tolist() for v in range(trees.num_vertices)],
            "type": trees.features["type"].tolist(),
            "name": trees.features["name"].tolist(),
            "roots": sample.links["tree"].vertices.tolist(),
            "label": int(chain.graph_features["label"]),
        }

    shape = len(data.types), len(data.names), len(data.classes)
    return ModelCase(
        lambda: StatementChain(*shape, HIDDEN, 0.0),
        batches,
        sum(sample.graphs["trees"].num_vertices for sample in samples),
        "vertices",
        HIDDEN,
        {"torch": "astnn_torch", "dynet": "astnn_dynet"},
        [[plain(sample) for sample in batch] for batch in batches],
    )
