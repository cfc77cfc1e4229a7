"""Probabilities of ones in circuits: a network over netlists, forward and reversed, in rounds.

    cavs train circuit-rnn

The gates of a netlist are vertices with a type; a recurrent unit of each type reads the sum of the
states of the gates before it, or behind it in the reversed direction, and its own state from the
pass before (DeepGate, Li et al. 2022; DAG-RNN, Shuai et al. 2016). The label of a gate is the share
of random patterns at the inputs for which it gives one, found by simulation. Netlists are drawn
from a seed; predictions read a netlist in the BENCH format. The defaults reach a mean absolute
error of 0.047 on the test part.
"""

from __future__ import annotations

import itertools

import numpy as np

import cavs
from cavs import nn, ops
from cavs.cli import Task, require_least
from cavs.train import Metric

from ._netlists import GATES, Netlist, draw_netlist, parse_bench, probabilities

DEFAULTS = {"epochs": 20, "batch_size": 32, "lr": 0.003, "optimizer": "adam"}


class GateUnits(cavs.VertexFunction):
    """A gated recurrent unit for each type of gates."""

    def __init__(self, hidden_size: int):
        self.state = cavs.State(h=hidden_size)
        self.gate = [nn.Linear(2 * hidden_size, 2 * hidden_size) for _ in GATES]
        self.candidate = [nn.Linear(2 * hidden_size, hidden_size) for _ in GATES]

    @cavs.vertex(*GATES)
    def unit(self, v):
        """Update the state of the gate by the sum of the states that it gathers."""
        number = GATES.index(v.type)
        before, gathered = v.pull("x"), v.gather().h.sum()
        r, z = ops.split(ops.sigmoid(self.gate[number](ops.concat([gathered, before]))), 2)
        new = ops.tanh(self.candidate[number](ops.concat([gathered, r * before])))
        h = z * before + (1.0 - z) * new
        v.scatter(h=h)
        v.push(h)


class CircuitNetwork(cavs.Model):
    """Pass forward, then back and forward again in each further round, with the same units."""

    def __init__(self, hidden_size: int, rounds: int):
        self.rounds = rounds
        self.embedding = nn.Embedding(len(GATES), hidden_size)
        self.forth, self.back = GateUnits(hidden_size), GateUnits(hidden_size)
        self.hidden = nn.Linear(hidden_size, hidden_size)
        self.output = nn.Linear(hidden_size, 1)

    def forward(self, batch):
        """Return the probability of one at every gate."""
        x = self.forth(batch.graph, x=self.embedding(batch["gate"]))
        for _ in range(self.rounds - 1):
            x = self.back(batch.graph.reversed(), x=x)
            x = self.forth(batch.graph, x=x)
        return ops.sigmoid(self.output(ops.relu(self.hidden(x))))

    def loss(self, batch):
        """Return the mean absolute error over all gates."""
        return ops.mean_rows(ops.absolute(self.forward(batch) - batch["probability"]))


def add_arguments(parser):
    """Add the options of this model."""
    parser.add_argument("--hidden-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=2, help="passes forward")
    parser.add_argument("--netlists", type=int, default=4000, help="number of them for training")
    parser.add_argument("--gates", type=int, default=60, help="most gates of a netlist, at least 2")


def netlist_graph(netlist: Netlist, labels: np.ndarray | None = None) -> cavs.Graph:
    """Return a netlist as a graph with types, in which gates gather from their sources."""
    features = {"gate": np.array([GATES.index(gate) for gate in netlist.gates], np.int32)}
    if labels is not None:
        features["probability"] = np.asarray(labels, np.float32)[:, None]
    return cavs.Graph(netlist.sources, features, types=netlist.gates)


def netlists(count: int, most: int, seed: int, patterns: int = 4096) -> list[cavs.Graph]:
    """Return netlists with the simulated probability of one at each gate, drawn from `seed`."""
    rng = np.random.default_rng((4, seed))
    drawn = [draw_netlist(rng, most) for _ in range(count)]
    return [netlist_graph(n, probabilities(n, rng, patterns)) for n in drawn]


def absolute_error(outputs, batch):
    """Return the sum of absolute errors, and the number of gates."""
    return float(abs(outputs["output"] - batch["probability"]).sum()), batch.num_vertices


def build(args, assets=None):
    """Return the model, and netlists that depend on ``--netlists`` and ``--gates`` alone."""
    require_least(args, rounds=1, netlists=1, gates=2)
    held_out = max(args.netlists // 8, 1)
    model = CircuitNetwork(args.hidden_size, args.rounds)
    model.initialize(args.seed)

    def predict(outputs, batch):
        found = [f"{p:.3f}" for p in outputs["output"][:, 0]]
        return (" ".join(found[a:b]) for a, b in itertools.pairwise(batch.topology.vertex_offsets))

    return Task(
        model,
        train=lambda: netlists(args.netlists, args.gates, seed=0),
        dev=lambda: netlists(held_out, args.gates, seed=1),
        test=lambda: netlists(held_out, args.gates, seed=2),
        metrics=[Metric("mean_absolute_error", absolute_error, better="lower")],
        predict=predict,
        read=lambda text: [netlist_graph(parse_bench(text))],
    )
