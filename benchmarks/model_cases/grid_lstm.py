"""The LSTM on grids, on images drawn as in training."""

from __future__ import annotations

import numpy as np

from benchmarks.model_case import ModelCase, Sizes
from models.grid_lstm import SHAPES, ShapeClassifier, draw_shape, image_graph

HIDDEN = 32
SIDES = 8, 16


def case(sizes: Sizes) -> ModelCase:
    """Return the model with drawn images of both sides between 8 and 16 pixels."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, len(SHAPES), (sizes.batches, sizes.batch_size)).tolist()
    batches = [[(draw_shape(rng, label, *SIDES), label) for label in row] for row in labels]
    return ModelCase(
        lambda: ShapeClassifier(HIDDEN),
        [[image_graph(image, label) for image, label in batch] for batch in batches],
        sum(image.size for batch in batches for image, _ in batch),
        "pixels",
        HIDDEN,
        {"torch": "grid_lstm_torch", "dynet": "grid_lstm_dynet"},
        [[(image.tolist(), label) for image, label in batch] for batch in batches],
    )
