"""The LSTM on grids equals one in NumPy that runs pixel by pixel."""

from __future__ import annotations

import re

import numpy as np
import pytest

import cavs
from cavs.cli import main
from cavs.errors import DataError
from models.grid_lstm import (
    SHAPES,
    ShapeClassifier,
    draw_shape,
    image_graph,
    images,
    read_images,
)
from tests.models.against_numpy import check, cross_entropy, epoch_losses, sigmoid

SIZES = [(1, 1), (3, 2), (1, 4), (2, 1), (4, 3)]  # one pixel, rows, columns; depths from 1 to 6
RNG = np.random.default_rng(0)
IMAGES = [RNG.normal(size=size) for size in SIZES]
LABELS = [0, 2, 1, 3, 2]


def last_state(p, image):
    """Return the state at the last pixel; Graves and Schmidhuber 2009 without peepholes."""
    size = len(p["grid.U"]) // 2
    Wi, Wo, Wu, Wl, Wa = np.split(p["grid.W"][0], 5)
    gates_of = [np.split(rows, 5, axis=1) for rows in np.split(p["grid.U"], 2)]
    biases = np.split(p["grid.b"], 5)
    c, h = {}, {}
    zeros = np.zeros(size)
    for row in range(image.shape[0]):
        for column in range(image.shape[1]):
            left, above = (row, column - 1), (row - 1, column)
            h_left, h_above = h.get(left, zeros), h.get(above, zeros)
            i, o, u, f_left, f_above = (
                image[row, column] * w + h_left @ gates_of[0][k] + h_above @ gates_of[1][k] + b
                for k, (w, b) in enumerate(zip((Wi, Wo, Wu, Wl, Wa), biases, strict=True))
            )
            kept = sigmoid(f_left) * c.get(left, zeros) + sigmoid(f_above) * c.get(above, zeros)
            c[row, column] = sigmoid(i) * np.tanh(u) + kept
            h[row, column] = sigmoid(o) * np.tanh(c[row, column])
    return h[image.shape[0] - 1, image.shape[1] - 1]


def reference(p):
    """Return the mean cross entropy over images, and their scores."""
    scores = [last_state(p, x) @ p["output.weight"] + p["output.bias"] for x in IMAGES]
    losses = [cross_entropy(row, label) for row, label in zip(scores, LABELS, strict=True)]
    return np.mean(losses), np.array(scores)


def test_loss_scores_and_gradients_equal_the_reference(monkeypatch):
    graphs = [image_graph(image, label) for image, label in zip(IMAGES, LABELS, strict=True)]
    # Features are rounded to float32: so are those of the reference.
    monkeypatch.setattr(f"{__name__}.IMAGES", [x.astype("f4").astype(float) for x in IMAGES])
    check(ShapeClassifier(3), cavs.batch(graphs), reference)


def test_a_pixel_gathers_from_the_left_and_from_above():
    graph = image_graph(np.zeros((2, 3)))
    assert [graph.children(v).tolist() for v in range(6)] == [
        [],
        [0],
        [1],
        [-1, 0],
        [3, 1],
        [4, 2],
    ]
    assert (graph.depth, graph.roots.tolist()) == (4, [5])


def test_images_are_drawn_from_a_seed_with_every_shape():
    first, again, other = (images(8, 5, 7, seed) for seed in (0, 0, 1))
    pixels = [[g.features["pixel"].tobytes() for g in part] for part in (first, again, other)]
    assert pixels[0] == pixels[1] != pixels[2]
    assert [int(g.graph_features["label"]) for g in first] == [0, 1, 2, 3] * 2
    for label in range(len(SHAPES)):  # every shape fits in the smallest image
        assert draw_shape(np.random.default_rng(0), label, 5, 5).sum() > 4


def test_the_loss_of_a_training_falls(tmp_path, capsys):
    options = ["--hidden-size=8", "--images=64", "--least=5", "--most=6", "--batch-size=16"]
    given = [*options, "--epochs=6", "--lr=0.03", "--quiet", "--out", str(tmp_path / "run")]
    assert main(["train", "grid-lstm", *given]) == 0
    losses = epoch_losses(tmp_path / "run")
    assert losses[-1] < 0.9 * losses[0]
    (tmp_path / "new").write_text("#\n\n.#.\n###\n.#.\n")
    capsys.readouterr()
    checkpoint = str(tmp_path / "run" / "checkpoint.best.safetensors")
    assert main(["predict", checkpoint, str(tmp_path / "new")]) == 0
    assert set(capsys.readouterr().out.split()) <= set(SHAPES)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (".#.\n.x.\n", r"<text>:2: '.x.' is no row of pixels"),
        (".#.\n.#\n", r"<text>:2: a row of 2 pixels below one of 3"),
    ],
)
def test_bad_images_are_refused(text, told):
    with pytest.raises(DataError, match=re.escape(told)):
        read_images(text)


@pytest.mark.parametrize(
    ("given", "told"),
    [("--least=4", "--least 4"), ("--most=7", "--most 7"), ("--images=0", "--images 0")],
)
def test_bad_options_are_refused(given, told, capsys):
    assert main(["train", "grid-lstm", given]) == 1
    assert f"ConfigError: {told}\n  hint: choose at least" in capsys.readouterr().err
