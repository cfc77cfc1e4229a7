"""The network over circuits equals one in NumPy gate by gate, and netlists their definition."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

import cavs
from cavs.cli import main
from cavs.errors import DataError
from models._netlists import GATES, Netlist, draw_netlist, parse_bench, probabilities
from models.circuit_rnn import CircuitNetwork, netlist_graph, netlists
from tests.models.against_numpy import check, epoch_losses, sigmoid

ALONE = Netlist(["input"], [[]])
HALF_ADDER = Netlist(["input", "input", "xor", "and"], [[], [], [0, 1], [0, 1]])
ROUNDS = 2
RNG = np.random.default_rng(0)
NETLISTS = [ALONE, HALF_ADDER, draw_netlist(RNG, 8), draw_netlist(RNG, 12)]
LABELS = [RNG.random(len(n.gates)).astype("f4") for n in NETLISTS]


def unit(p, name, gate, gathered, before):
    """Return the new state of a gate: a gated recurrent unit of its type."""
    number = GATES.index(gate)
    w, b = (p[f"{name}.gate.{number}.{part}"] for part in ("weight", "bias"))
    r, z = np.split(sigmoid(np.concatenate([gathered, before]) @ w + b), 2)
    w, b = (p[f"{name}.candidate.{number}.{part}"] for part in ("weight", "bias"))
    new = np.tanh(np.concatenate([gathered, r * before]) @ w + b)
    return z * before + (1 - z) * new


def outputs(p, netlist):
    """Return the probability at each gate, in passes over the gates in their order."""
    count = len(netlist.gates)
    x = [p["embedding.weight"][GATES.index(gate)] for gate in netlist.gates]
    for number in range(2 * ROUNDS - 1):
        name = "back" if number % 2 else "forth"
        h = [np.zeros(len(x[0]))] * count
        for v in reversed(range(count)) if number % 2 else range(count):
            others = [w for w in range(count) if v in netlist.sources[w]]
            gathered = np.zeros(len(x[0]))
            for w in others if number % 2 else netlist.sources[v]:
                gathered += h[w]
            h[v] = unit(p, name, netlist.gates[v], gathered, x[v])
        x = h
    hidden = [np.maximum(h @ p["hidden.weight"] + p["hidden.bias"], 0) for h in x]
    return [sigmoid(h @ p["output.weight"] + p["output.bias"]) for h in hidden]


def test_loss_probabilities_and_gradients_equal_the_reference():
    def reference(p):
        found = np.concatenate([outputs(p, netlist) for netlist in NETLISTS])
        return abs(found[:, 0] - np.concatenate(LABELS)).mean(), found

    graphs = [netlist_graph(n, label) for n, label in zip(NETLISTS, LABELS, strict=True)]
    assert len({g.depth for g in graphs}) > 2
    check(CircuitNetwork(2, ROUNDS), cavs.batch(graphs), reference)


BENCH = """# a full adder
OUTPUT(carry)
carry = OR(both, passed)   # before its sources
passed = nand(either, c)
either = XOR(a, b)
both = AND(a, b)
n = NOT(passed)
INPUT(a)
INPUT(b)
INPUT(c)
"""


def test_a_netlist_is_read_in_any_order():
    netlist = parse_bench(BENCH)
    gates = ["or", "nand", "xor", "and", "not", "input", "input", "input"]
    assert netlist == Netlist(gates, [[3, 1], [2, 7], [5, 6], [5, 6], [1], [], [], []])
    assert netlist_graph(netlist).depth == 4


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("INPUT(a)\nb = AND a\n", "<text>:2: 'b = AND a' is no line of BENCH"),
        ("INPUT(a)\nb = DFF(a)\n", "<text>:2: no gate is called 'dff'"),
        ("b = INPUT(a)\n", "<text>:1: no gate is called 'input'"),
        ("INPUT(a)\nb = NOT(a, a)\n", "<text>:2: not has 2 inputs"),
        ("INPUT(a)\nb = NOT(a, a)\n", "hint: write b = NOT(a)"),
        ("INPUT(a)\nb = AND()\n", "<text>:2: and has 0 inputs"),
        ("INPUT(a)\nb = AND()\n", "hint: write b = AND(c, d)"),
        ("INPUT(a)\nINPUT(a)\n", "<text>:2: a is defined again"),
        ("INPUT(a)\nb = AND(a, c)\n", "<text>:2: c is not defined"),
        ("OUTPUT(a)\n", "<text>:1: a is not defined"),
        ("INPUT(a)\nb = AND(a, c)\nc = NOT(b)\n", "<text>:2: b -> c -> b is a cycle"),
        ("# nothing\n", "<text>:1: there is no gate"),
    ],
)
def test_bad_netlists_are_refused(text, told):
    with pytest.raises(DataError, match=re.escape(told)):
        parse_bench(text)


def test_probabilities_are_those_of_all_patterns():
    functions = {
        "and": all,
        "nand": lambda x: not all(x),
        "or": any,
        "nor": lambda x: not any(x),
        "not": lambda x: not x[0],
        "xor": lambda x: sum(x) % 2 == 1,
        "xnor": lambda x: sum(x) % 2 == 0,
    }
    drawn = draw_netlist(np.random.default_rng(3), 16)
    every = Netlist(["input"] * 3 + list(GATES[1:]), [[]] * 3 + [[0, 1, 2]] * 7)
    every.sources[3 + GATES[1:].index("not")] = [1]
    for netlist in (drawn, every):
        inputs, ones = netlist.gates.count("input"), np.zeros(len(netlist.gates))
        for pattern in itertools.product([False, True], repeat=inputs):
            values = list(pattern)
            for gate, sources in list(zip(netlist.gates, netlist.sources, strict=True))[inputs:]:
                values.append(functions[gate]([values[s] for s in sources]))
            ones += values
        found = probabilities(netlist, np.random.default_rng(0), 20_000)
        np.testing.assert_allclose(found, ones / 2**inputs, atol=0.02)


def test_netlists_are_drawn_from_a_seed():
    first, again, other = (netlists(4, 12, seed, patterns=16) for seed in (0, 0, 1))
    labels = [[g.features["probability"].tobytes() for g in part] for part in (first, again, other)]
    assert labels[0] == labels[1] != labels[2]
    assert {len(draw_netlist(np.random.default_rng(n), 2).gates) for n in range(5)} == {2}


def test_the_loss_of_a_training_falls(tmp_path, capsys):
    options = ["--hidden-size=8", "--netlists=48", "--gates=12", "--batch-size=8", "--lr=0.02"]
    given = [*options, "--epochs=5", "--quiet", "--out", str(tmp_path / "run")]
    assert main(["train", "circuit-rnn", *given]) == 0
    assert "mean_absolute_error" in capsys.readouterr().out
    losses = epoch_losses(tmp_path / "run")
    assert losses[-1] < 0.8 * losses[0]
    (tmp_path / "new").write_text(BENCH)
    checkpoint = str(tmp_path / "run" / "checkpoint.best.safetensors")
    assert main(["predict", checkpoint, str(tmp_path / "new")]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert len(line.split()) == 8 and all(0 <= float(word) <= 1 for word in line.split())


@pytest.mark.parametrize("given", ["--rounds=0", "--netlists=0", "--gates=1"])
def test_bad_options_are_refused(given, capsys):
    assert main(["train", "circuit-rnn", given]) == 1
    assert f"ConfigError: {given.replace('=', ' ')}" in capsys.readouterr().err
