"""Jets of one or two prongs: a recursive network over the tree in which particles were joined.

    cavs train jets

Jets are drawn from a seed: particles around one axis or around two. The kt algorithm joins the
pair of nearest particles again and again (sequential recombination), which gives a binary tree
with momenta at all vertices. The network is that of Louppe et al. 2017, "QCD-aware recursive
neural networks for jet physics": the state of a pair reads its momentum and the states of both
parts, and that of the root classifies the jet. The defaults reach an AUC of 0.968 on the test part.
"""

from __future__ import annotations

import numpy as np

import cavs
from cavs import nn, ops
from cavs.cli import Task, require_least
from cavs.errors import DataError
from cavs.train import metrics

from ._recombination import FEATURES, recombine, relative

DEFAULTS = {"epochs": 20, "batch_size": 64, "lr": 0.002, "optimizer": "adam"}
PRONGS = ("one prong", "two prongs")


class Recombination(cavs.VertexFunction):
    """A state for each particle, and for each pair of parts that were joined."""

    def __init__(self, hidden_size: int):
        self.state = cavs.State(h=hidden_size)
        self.embedding = nn.Linear(FEATURES, hidden_size)
        self.joined = nn.Linear(3 * hidden_size, hidden_size)

    @cavs.vertex("particle")
    def particle(self, v):
        """The state of a particle is the embedding of its momentum."""
        self.finish(v, ops.relu(self.embedding(v.pull("momentum"))))

    @cavs.vertex("pair")
    def pair(self, v):
        """A pair reads its own momentum, the sum of two, and both parts."""
        own = ops.relu(self.embedding(v.pull("momentum")))
        parts = [v.gather(0).h, v.gather(1).h, own]
        self.finish(v, ops.relu(self.joined(ops.concat(parts))))

    def finish(self, v, h):
        """Scatter and push the state."""
        v.scatter(h=h)
        v.push(h)


class JetClassifier(cavs.Model):
    """Classify the jet by the state at the root, through one more layer."""

    def __init__(self, hidden_size: int):
        self.tree = Recombination(hidden_size)
        self.hidden = nn.Linear(hidden_size, hidden_size)
        self.output = nn.Linear(hidden_size, len(PRONGS))

    def forward(self, batch):
        """Return scores of one and of two prongs, one row per jet."""
        root = ops.sum_roots(self.tree(batch.graph, momentum=batch["momentum"]))
        return self.output(ops.relu(self.hidden(root)))

    def loss(self, batch):
        """Return the mean cross entropy over jets."""
        return ops.cross_entropy(self.forward(batch), batch["label"])


def add_arguments(parser):
    """Add the options of this model."""
    parser.add_argument("--hidden-size", type=int, default=40)
    parser.add_argument("--jets", type=int, default=4000, help="number of jets for training")
    parser.add_argument("--particles", type=int, default=30, help="most particles of a jet")


def draw_particles(rng: np.random.Generator, prongs: int, most: int) -> np.ndarray:
    """Return the particles of a jet, [count, 3]: transverse momentum, rapidity and angle."""
    count = int(rng.integers(min(4, most), most + 1))
    share, turn, spread = rng.uniform(0.3, 0.7), rng.uniform(0, 2 * np.pi), rng.uniform(0.2, 0.6)
    axis = (prongs - 1) * spread * np.array([np.cos(turn), np.sin(turn)])
    at = np.where(rng.random((count, 1)) < share, share - 1, share) * axis
    momenta = rng.pareto(2.0, count) + 0.1
    width = spread * (0.2 if prongs == 2 else 0.4) / np.sqrt(momenta / momenta.mean())
    at = at + rng.normal(size=(count, 2)) * width[:, None]  # both kinds of jets are as wide
    return np.column_stack([momenta * rng.uniform(200, 300) / momenta.sum(), at])


def jet_graph(particles: np.ndarray, prongs: int | None = None, name: str = "jet") -> cavs.Graph:
    """Return the tree of a jet, with the momentum of each vertex relative to that of the jet."""
    children, momenta = recombine(particles, name)
    types = ["pair" if below else "particle" for below in children]
    labels = {} if prongs is None else {"label": prongs - 1}
    rows = {"momentum": relative(momenta, name)}
    return cavs.Graph(children, rows, graph_features=labels, types=types)


def jets(count: int, most: int, seed: int) -> list[cavs.Graph]:
    """Return as many jets of one prong as of two, drawn from `seed`."""
    rng = np.random.default_rng((3, seed))
    prongs = [1 + n % 2 for n in range(count)]
    return [jet_graph(draw_particles(rng, number, most), number) for number in prongs]


def read_jets(text: str) -> list[cavs.Graph]:
    """Return the jets of a text: "momentum rapidity angle" of a particle on each line."""
    found, rows = list[cavs.Graph](), list[list[float]]()
    for number, line in enumerate([*text.split("\n"), ""], 1):
        if line.strip():
            try:
                p, y, phi = map(float, line.split())
            except ValueError:
                p = y = phi = np.nan
            if not (1e-9 < p < 1e9 and abs(y) <= 10 and np.isfinite(phi)):
                raise DataError(
                    f"<text>:{number}: {line.strip()!r:.40} is no particle",
                    hint="write transverse momentum above 0, rapidity from -10 to 10, and angle",
                )
            rows.append([p, y, phi])
        elif rows:
            found.append(jet_graph(np.array(rows), name=f"<text>:{number - len(rows)}"))
            rows = []
    return found


def build(args, assets=None):
    """Return the model, and jets that depend on ``--jets`` and ``--particles`` alone."""
    require_least(args, jets=1, particles=1)
    held_out = max(args.jets // 8, 1)
    model = JetClassifier(args.hidden_size)
    model.initialize(args.seed)

    def predict(outputs, batch):
        return (PRONGS[best] for best in outputs["output"].argmax(axis=1))

    return Task(
        model,
        train=lambda: jets(args.jets, args.particles, seed=0),
        dev=lambda: jets(held_out, args.particles, seed=1),
        test=lambda: jets(held_out, args.particles, seed=2),
        metrics=[metrics.accuracy(), metrics.auc()],
        monitor="auc",
        predict=predict,
        read=read_jets,
    )
