"""The network over clustering trees, on jets drawn as in training."""

from __future__ import annotations

import numpy as np

from benchmarks.model_case import ModelCase, Sizes, plain_children
from models.jets import JetClassifier, draw_particles, jet_graph

HIDDEN = 40  # as in the paper
PARTICLES = 30
REASON = (
    "we collate and schedule within the time that is measured, while the indices of the rival are "
    "prepared before"
)


def case(sizes: Sizes) -> ModelCase:
    """Return the model with drawn jets."""
    rng = np.random.default_rng(0)
    prongs = rng.integers(1, 3, (sizes.batches, sizes.batch_size)).tolist()
    drawn = [[(draw_particles(rng, n, PARTICLES), n) for n in row] for row in prongs]
    batches = [[jet_graph(particles, n) for particles, n in batch] for batch in drawn]
    return ModelCase(
        lambda: JetClassifier(HIDDEN),
        batches,
        sum(graph.num_vertices for batch in batches for graph in batch),
        "vertices",
        HIDDEN,
        {"torch": "jets_torch", "dynet": "jets_dynet"},
        [
            [
                {
                    "children": plain_children(graph),
                    "momentum": graph.features["momentum"].tolist(),
                    "label": int(graph.graph_features["label"]),
                }
                for graph in batch
            ]
            for batch in batches
        ],
        reasons={"inference": (REASON, 0.9)},
    )
