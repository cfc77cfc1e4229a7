"""Statement trees under a chain, on functions of the Python library.

There is no dropout, and `cavs` computes equal subtrees of a batch once.
"""

from __future__ import annotations

import numpy as np

from benchmarks.model_case import ModelCase, Sizes, plain_children
from cavs.data import function_graphs, read_functions
from cavs.data.readers.python_functions import function_vocabularies
from models.astnn import StatementChain, statements

HIDDEN = 128
CLASSES, MIN_COUNT = 20, 3  # as in training
SHARE = 6  # functions that are read for each one that is chosen
REASON = "collation is part of our time, and the rival has its indices before"


def case(sizes: Sizes) -> ModelCase:
    """Return the model with functions that are drawn from the first of the library."""
    count = sizes.batches * sizes.batch_size
    functions = read_functions(limit=200 + SHARE * count)
    types, names, classes = function_vocabularies(functions, CLASSES, MIN_COUNT)
    graphs = function_graphs(functions, types, names, classes)
    chosen = np.random.default_rng(0).permutation(len(graphs))[:count]
    samples = [statements(graphs[i], types) for i in chosen]
    batches = [samples[i :: sizes.batches] for i in range(sizes.batches)]

    def plain(sample):
        trees, chain = sample.graphs["trees"], sample.graphs["statements"]
        return {
            "children": plain_children(trees),
            "type": trees.features["type"].tolist(),
            "name": trees.features["name"].tolist(),
            "roots": sample.links["tree"].vertices.tolist(),
            "label": int(chain.graph_features["label"]),
        }

    shape = len(types), len(names), len(classes)
    return ModelCase(
        lambda: StatementChain(*shape, HIDDEN, 0.0),
        batches,
        sum(sample.graphs["trees"].num_vertices for sample in samples),
        "vertices",
        HIDDEN,
        {"torch": "astnn_torch", "dynet": "astnn_dynet"},
        [[plain(sample) for sample in batch] for batch in batches],
        reasons={"inference": (REASON, 1.6)},
    )
