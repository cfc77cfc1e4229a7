"""The network over circuits, on netlists drawn as in training."""

from __future__ import annotations

import numpy as np

from benchmarks.model_case import ModelCase, Sizes
from models._netlists import GATES, draw_netlist, probabilities
from models.circuit_rnn import CircuitNetwork, netlist_graph

HIDDEN = 32
ROUNDS = 2  # passes forward
GATES_OF_NETLIST = 60
PATTERNS = 512


def case(sizes: Sizes) -> ModelCase:
    """Return the model, with two passes forward, and drawn netlists."""
    rng = np.random.default_rng(0)
    batches = [
        [draw_netlist(rng, GATES_OF_NETLIST) for _ in range(sizes.batch_size)]
        for _ in range(sizes.batches)
    ]
    labels = [[probabilities(n, rng, PATTERNS) for n in batch] for batch in batches]
    pairs = [list(zip(*both, strict=True)) for both in zip(batches, labels, strict=True)]

    def plain(netlist, label):
        gates = [GATES.index(gate) for gate in netlist.gates]
        return {"gates": gates, "sources": netlist.sources, "label": label.tolist()}

    return ModelCase(
        lambda: CircuitNetwork(HIDDEN, ROUNDS),
        [[netlist_graph(netlist, label) for netlist, label in batch] for batch in pairs],
        sum(len(netlist.gates) for batch in batches for netlist in batch),
        "gates",
        HIDDEN,
        {"torch": "circuit_rnn_torch", "dynet": "circuit_rnn_dynet"},
        {"rounds": ROUNDS, "netlists": [[plain(*pair) for pair in batch] for batch in pairs]},
    )
