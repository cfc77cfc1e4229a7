"""Programs that run a whole LSTM: validation, and rejection by the CPU."""

import numpy as np
import pytest
from hand_programs import ONE, VERTEX, Hand, index, self_

from cavs import _engine

X, H = 3, 2
PIECES = [
    (param, gate * H, 4 * H, 1, rows, H, k0, gate * H)
    for gate in range(4)
    for param, rows, k0 in ((0, X, 0), (1, H, X), (2, 1, X + H))
]


def lstm(wrong=lambda m: None, **changes):
    """Forward, backward and gradient of parameter 0; `changes` to fields of the instructions."""
    m = Hand()
    m.feature = m.buffer("feature", VERTEX, X)
    m.x = m.buffer("arena", VERTEX, X, last=3)
    m.h = m.buffer("arena", VERTEX, H, last=3)
    m.d = m.buffer("arena", VERTEX, H, last=3)
    m.dx = m.buffer("arena", VERTEX, X, last=3)
    m.grad = m.buffer("grad", ONE, 4 * H)
    m.weight_of = m.weight(*changes.pop("weight", (X + H + 1, 4 * H, PIECES)))
    m.space = VERTEX
    wrong(m)
    m.rows(VERTEX, [m.op("copy", VERTEX, inputs=[index(m.feature, X, "order")], out=self_(m.x, X))])
    forward = {"inputs": [self_(m.x, X)], "out": self_(m.h, H), "weight": m.weight_of}
    backward = {"inputs": [self_(m.h, H), self_(m.d, H)], "out": self_(m.dx, X)}
    weights = {"inputs": [self_(m.dx, X)], "out": self_(m.grad, 4 * H * X), "accumulate": True}
    for kind, fields in (("lstm", forward), ("lstm_grad", backward), ("lstm_weight_grad", weights)):
        change = changes.pop(kind, None)
        m.global_(m.op(kind, m.space, **fields | (change(m) if change else {})))
    for again in changes.pop("more", ()):
        m.global_(m.op(again, VERTEX, **forward))
    return m.finish(outputs=[m.h])


def pieces(*change):
    return (X + H + 1, 4 * H, [*PIECES[1:], change])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"weight": (X + H, 4 * H, [])}, "rows of the weight differ: 5 != 6"),
        ({"weight": (X + H + 1, 3 * H, [])}, "columns of the weight differ: 6 != 8"),
        (
            {"weight": pieces(0, 0, 8, 1, X - 1, H, 0, 0)},
            "2 x 2 at .0, 0. is no matrix of one gate",
        ),
        ({"weight": pieces(0, 0, 8, 1, X, H, 0, 1)}, "is no matrix of one gate"),
        ({"weight": pieces(0, 0, 1, 8, X, H, 0, 0)}, "is no matrix of one gate"),
        ({"lstm": lambda m: {"weight": 7}}, "weight 7 of 1"),
        ({"lstm": lambda m: {"argument": 1}}, "there is no LSTM of number 0"),
        ({"lstm": lambda m: {"inputs": []}}, "an LSTM without input"),
        (
            {"lstm": lambda m: {"inputs": [index(m.feature, X, "order")]}},
            "reads rows through an index or segments, needs stored rows",
        ),
        ({"lstm": lambda m: {"inputs": [self_(m.x, X)] * 2}}, "has 2 inputs, needs 1"),
        ({"lstm_grad": lambda m: {"inputs": [self_(m.h, H)]}}, "has 1 inputs, needs 2"),
        (
            {"lstm_grad": lambda m: {"inputs": [self_(m.h, H), self_(m.d, 1)]}},
            "widths of h differ: 1 != 2",
        ),
        ({"lstm_grad": lambda m: {"out": self_(m.h, H)}}, "widths of x differ: 2 != 3"),
        (
            {"lstm_weight_grad": lambda m: {"argument2": 1}},
            "adds the gradient of parameter 1 into grad buffer 5",
        ),
        ({"lstm_weight_grad": lambda m: {"accumulate": False}}, "does not add into a gradient"),
        ({"more": ["lstm"]}, "two LSTMs of number 0"),
        ({"wrong": lambda m: setattr(m, "space", 4)}, "runs over vertex kind 0, needs vertex"),
    ],
)
def test_invalid_lstm_programs(wrong, message):
    with pytest.raises(ValueError, match=message):
        lstm(**wrong)


def test_cpu_rejects_lstm_programs():
    sizes = ((X, 4 * H), (H, 4 * H), (4 * H,))
    with pytest.raises(ValueError, match="runs on devices only"):
        _engine.Executor(lstm(), [np.zeros(s, np.float32) for s in sizes])
