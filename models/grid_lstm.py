"""Kinds of shapes in images: a two-dimensional LSTM over the pixels of a grid of any size.

    cavs train grid-lstm

A pixel gathers from the pixel to its left and the one above, each of which has a forget gate
(multi-dimensional LSTM, Graves and Schmidhuber 2009, without peepholes); the state at the last
pixel, in the lower right corner, has seen the image and gives the kind of the shape in it. Images
are drawn from a seed: an outline of random size at a random position, and noise. The defaults reach
99.0 % of the test part.
"""

from __future__ import annotations

import numpy as np

import cavs
from cavs import nn, ops
from cavs.cli import Task, require_least
from cavs.errors import DataError
from cavs.train import metrics

DEFAULTS = {"epochs": 12, "batch_size": 32, "lr": 0.01, "optimizer": "adam", "max_norm": 1.0}
SHAPES = ("cross", "diamond", "frame", "triangle")
NOISE = 0.02  # share of the pixels that noise turns


class GridLSTM(cavs.VertexFunction):
    """LSTM on grids: the children are the pixels to the left and above, absent at the border."""

    def __init__(self, input_size: int, hidden_size: int):
        self.state = cavs.State(c=hidden_size, h=hidden_size)
        self.W = cavs.Parameter((input_size, 5 * hidden_size))
        self.U = cavs.Parameter((2 * hidden_size, 5 * hidden_size))
        # Forget gates begin at a half: the cells of two predecessors add up, on very many paths.
        self.b = cavs.Parameter((5 * hidden_size,), init="zeros")

    def vertex(self, v):
        """Gates i, o, a candidate u and two forget gates read the pixel and both states."""
        left, above = v.gather(0), v.gather(1)
        gates = v.pull("x") @ self.W + ops.concat([left.h, above.h]) @ self.U + self.b
        i, o, u, f_left, f_above = ops.split(gates, 5)
        c = ops.sigmoid(f_left) * left.c + ops.sigmoid(f_above) * above.c
        c = c + ops.sigmoid(i) * ops.tanh(u)
        h = ops.sigmoid(o) * ops.tanh(c)
        v.scatter(c=c, h=h)
        v.push(h)


class ShapeClassifier(cavs.Model):
    """Read an image pixel by pixel, and classify it by the state of the last one."""

    def __init__(self, hidden_size: int):
        self.grid = GridLSTM(1, hidden_size)
        self.output = nn.Linear(hidden_size, len(SHAPES))

    def forward(self, batch):
        """Return scores of the shapes, one row per image."""
        return self.output(ops.sum_roots(self.grid(batch.graph, x=batch["pixel"])))

    def loss(self, batch):
        """Return the mean cross entropy over images."""
        return ops.cross_entropy(self.forward(batch), batch["label"])


def add_arguments(parser):
    """Add the options of this model."""
    parser.add_argument("--hidden-size", type=int, default=32)
    parser.add_argument("--images", type=int, default=4000, help="number of images for training")
    parser.add_argument("--least", type=int, default=8, help="pixels of a side, at least 5")
    parser.add_argument("--most", type=int, default=16, help="pixels of a side")


def image_graph(image: np.ndarray, label: int | None = None) -> cavs.Graph:
    """Return an image [height, width] as a grid, whose pixels are numbered row by row."""
    height, width = image.shape
    number = np.arange(height * width).reshape(height, width)
    left, above = np.full((2, height, width), -1)
    left[:, 1:], above[1:] = number[:, :-1], number[:-1]
    pairs = np.stack([left.ravel(), above.ravel()], axis=1)
    children = [pair if pair.max() >= 0 else [] for pair in pairs]
    labels = {} if label is None else {"label": label}
    return cavs.Graph(children, {"pixel": image.reshape(-1, 1)}, graph_features=labels)


def draw_shape(rng: np.random.Generator, label: int, least: int, most: int) -> np.ndarray:
    """Return an image of 0 and 1 with the outline of a shape, and noise."""
    height, width = rng.integers(least, most + 1, 2)
    radius = int(rng.integers(2, (min(height, width) - 1) // 2 + 1))
    y, x = (int(rng.integers(radius, side - radius)) for side in (height, width))
    rows, columns = np.indices((height, width))
    dy, dx = abs(rows - y), abs(columns - x)
    if SHAPES[label] == "cross":
        shape = ((dy == 0) | (dx == 0)) & (dy <= radius) & (dx <= radius)
    elif SHAPES[label] == "diamond":
        shape = dy + dx == radius
    elif SHAPES[label] == "frame":
        shape = np.maximum(dy, dx) == radius
    else:  # a right angle in the lower left, and the diagonal
        down, right = rows - y + radius, columns - x + radius
        edge = (right == 0) | (down == 2 * radius) | (right == down)
        shape = edge & (dy <= radius) & (dx <= radius) & (right <= down)
    return (shape ^ (rng.random((height, width)) < NOISE)).astype(np.float32)


def images(count: int, least: int, most: int, seed: int) -> list[cavs.Graph]:
    """Return images with as many of each shape, drawn from `seed`."""
    rng = np.random.default_rng((2, seed))
    labels = [n % len(SHAPES) for n in range(count)]
    return [image_graph(draw_shape(rng, label, least, most), label) for label in labels]


def read_images(text: str) -> list[cavs.Graph]:
    """Return the images of a text of dots and #, with an empty line between two images."""
    hint = "an empty line ends an image of .##."
    found, rows = list[cavs.Graph](), list[str]()
    for number, line in enumerate(map(str.rstrip, [*text.split("\n"), ""]), 1):
        if set(line) - set(".#"):
            raise DataError(f"<text>:{number}: {line!r:.40} is no row of pixels", hint=hint)
        if line and rows and len(line) != len(rows[0]):
            told = f"a row of {len(line)} pixels below one of {len(rows[0])}"
            raise DataError(f"<text>:{number}: {told}", hint=hint)
        if line:
            rows.append(line)
        elif rows:
            found.append(image_graph(np.array([[p == "#" for p in r] for r in rows], np.float32)))
            rows = []
    return found


def build(args, assets=None):
    """Return the model, and images that depend on its options alone."""
    require_least(args, images=1, least=5, most=args.least)
    held_out = max(args.images // 8, 1)
    model = ShapeClassifier(args.hidden_size)
    model.initialize(args.seed)

    return Task(
        model,
        train=lambda: images(args.images, args.least, args.most, seed=0),
        dev=lambda: images(held_out, args.least, args.most, seed=1),
        test=lambda: images(held_out, args.least, args.most, seed=2),
        metrics=[metrics.accuracy()],
        predict=lambda outputs, batch: (SHAPES[k] for k in outputs["output"].argmax(axis=1)),
        read=read_images,
    )
