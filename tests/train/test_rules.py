"""Rules of optimisers against NumPy: built-in ones, those of users, random ones."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cavs
from cavs import _engine, ops, optim
from cavs.distributed.sync.stale_server.owner import optimiser
from cavs.errors import ConfigError, MovedAttributeError, NumericsError, TraceError
from tests.draws import examples
from tests.train.own_rules import (
    AMSGrad,
    HeavyBall,
    TracedAdagrad,
    TracedAdam,
    TracedAdamW,
    TracedSGD,
)

Array = np.ndarray
WIDTH, STRIDE = 5, 7
DECAY, SCALE = 0.03, 0.5  # SCALE: of clipping
SIZES = (1, 61, 300, 40_000)  # the last is cut into chunks
DTYPES = {"float32": 1e-6, "float64": 1e-12}


def sgd(o: Any, v: Array, g: Array, s: list[Array], lr: float, t: int) -> Array:
    if not o.momentum:
        return v - lr * g
    s[0] = o.momentum * s[0] + g
    return v - lr * (g + o.momentum * s[0] if o.nesterov else s[0])


def adagrad(o: Any, v: Array, g: Array, s: list[Array], lr: float, t: int) -> Array:
    s[0] = s[0] + g * g
    return v - lr * g / (np.sqrt(s[0]) + o.eps)


def adam(o: Any, v: Array, g: Array, s: list[Array], lr: float, t: int) -> Array:
    s[0] = o.beta1 * s[0] + (1 - o.beta1) * g
    s[1] = o.beta2 * s[1] + (1 - o.beta2) * g * g
    mean, square = s[0] / (1 - o.beta1**t), s[1] / (1 - o.beta2**t)
    return v - lr * mean / (np.sqrt(square) + o.eps)


def rmsprop(o: Any, v: Array, g: Array, s: list[Array], lr: float, t: int) -> Array:
    s[0] = o.beta * s[0] + (1 - o.beta) * g * g
    return v - lr * g / (np.sqrt(s[0]) + o.eps)


def adadelta(o: Any, v: Array, g: Array, s: list[Array], lr: float, t: int) -> Array:
    s[0] = o.beta * s[0] + (1 - o.beta) * g * g
    move = np.sqrt(s[1] + o.eps) / np.sqrt(s[0] + o.eps) * g
    s[1] = o.beta * s[1] + (1 - o.beta) * move * move
    return v - lr * move


def lion(o: Any, v: Array, g: Array, s: list[Array], lr: float, t: int) -> Array:
    ahead = o.beta1 * s[0] + (1 - o.beta1) * g
    s[0] = o.beta2 * s[0] + (1 - o.beta2) * g
    return v - lr * np.sign(ahead)


def amsgrad(o: Any, v: Array, g: Array, s: list[Array], lr: float, t: int) -> Array:
    s[0] = o.beta1 * s[0] + (1 - o.beta1) * g
    s[1] = o.beta2 * s[1] + (1 - o.beta2) * g * g
    s[2] = np.maximum(s[2], s[1] / (1 - o.beta2**t))
    return v - lr * (s[0] / (1 - o.beta1**t)) / (np.sqrt(s[2]) + o.eps)


def heavy_ball(o: Any, v: Array, g: Array, s: list[Array], lr: float, t: int) -> Array:
    before, s[0] = s[0], v.copy()
    return v + o.beta * (v - before) - lr * g


KEPT = {"weight_decay": DECAY}
RULES: dict[str, tuple[optim.Optimizer, Any]] = {
    "sgd": (optim.SGD(0.1, **KEPT), sgd),
    "momentum": (optim.SGD(0.1, momentum=0.9, **KEPT), sgd),
    "nesterov": (optim.SGD(0.1, momentum=0.9, nesterov=True), sgd),
    "adagrad": (optim.Adagrad(0.1, initial=0.1, **KEPT), adagrad),
    "adam": (optim.Adam(0.1, **KEPT), adam),
    "adamw": (optim.AdamW(0.1, **KEPT), adam),
    "rmsprop": (optim.RMSProp(0.1, **KEPT), rmsprop),
    "adadelta": (optim.Adadelta(1.0, **KEPT), adadelta),
    "lion": (optim.Lion(0.01, **KEPT), lion),
    "amsgrad": (AMSGrad(0.1, **KEPT), amsgrad),
    "heavy ball": (HeavyBall(0.1), heavy_ball),
    "traced sgd": (TracedSGD(0.1), sgd),
    "traced nesterov": (TracedSGD(0.1, momentum=0.9, nesterov=True, **KEPT), sgd),
    "traced adagrad": (TracedAdagrad(0.1, initial=0.1, **KEPT), adagrad),
    "traced adam": (TracedAdam(0.1, **KEPT), adam),
    "traced adamw": (TracedAdamW(0.1, **KEPT), adam),
}


def decayed(
    optimizer: optim.Optimizer, value: Array, gradient: Array, lr: float, decay: float
) -> tuple[Array, Array]:
    if optimizer.decoupled_decay:
        return value * (1 - lr * decay), gradient
    return value, gradient + decay * value


class Problem:
    """Parameters that are updated densely, by rows of a table, and in a window of columns."""

    def __init__(self, optimizer: optim.Optimizer, dtype: str, n: int) -> None:
        self.optimizer, self.rng = optimizer, np.random.default_rng(n)
        shapes = [(n,), (40, WIDTH), (12, STRIDE)]
        self.values = [self.draw(*shape).astype(dtype) for shape in shapes]
        start = getattr(optimizer, "initial", 0.0)
        names = optimizer.state_names()
        self.states = [[np.full_like(v, start) for _ in names] for v in self.values]
        self.exact = [v.astype("f8") for v in self.values]
        self.exact_states = [[s.astype("f8") for s in of] for of in self.states]
        self.executor = optimiser(self.values)

    def draw(self, *shape: int) -> Array:
        return self.rng.uniform(0.25, 1.0, shape) * self.rng.choice([-1.0, 1.0], shape)

    def step(self, reference: Any, t: int, scales: list[tuple[float, float]] | None) -> None:
        dtype, own = self.values[0].dtype, self.values
        rows = self.rng.permutation(len(own[1]))[:23].astype(np.int32)
        grads = [self.draw(*own[0].shape), self.draw(len(rows), WIDTH), self.draw(12, WIDTH)]
        grads = [g.astype(dtype) for g in grads]
        pieces = [(0, grads[0], None, None, 0), (1, grads[1], rows, None, 0)]
        pieces.append((2, grads[2], None, STRIDE, 1))
        hyper = self.optimizer.hyper(t - 1) | ({} if scales is None else {"scales": scales})
        self.executor.apply(pieces, hyper, self.states, [True] * 3, SCALE)
        for i, at in enumerate([slice(None), rows, (slice(None), slice(1, 1 + WIDTH))]):
            lr, decay = self.optimizer.rate(t - 1), self.optimizer.weight_decay
            if scales is not None:
                lr, decay = lr * scales[i][0], decay * scales[i][1]
            states = [s[at] for s in self.exact_states[i]]
            gradient = grads[i].astype("f8") * SCALE
            value, gradient = decayed(self.optimizer, self.exact[i][at], gradient, lr, decay)
            self.exact[i][at] = reference(self.optimizer, value, gradient, states, lr, t)
            for of, new in zip(self.exact_states[i], states, strict=True):
                of[at] = new

    def check(self, tolerance: float) -> None:
        for i, (value, exact) in enumerate(zip(self.values, self.exact, strict=True)):
            pairs = [(value, exact), *zip(self.states[i], self.exact_states[i], strict=True)]
            for got, expected in pairs:
                np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", RULES)
def test_rules_equal_numpy(name: str, dtype: str) -> None:
    optimizer, reference = RULES[name]
    assert bool(optimizer.kernel) == (name in KERNELS)
    for n in SIZES:
        problem = Problem(optimizer, dtype, n)
        for t in (1, 2, 3):
            problem.step(reference, t, None)
        problem.check(DTYPES[dtype])


KERNELS = ("sgd", "momentum", "nesterov", "adagrad", "adam", "adamw")


@pytest.mark.parametrize("name", ["rmsprop", "lion", "amsgrad", "traced adamw"])
def test_groups_scale_rate_and_decay_of_a_rule(name: str) -> None:
    optimizer, reference = RULES[name]
    problem = Problem(optimizer, "float64", 61)
    for t in (1, 2):
        problem.step(reference, t, [(1.0, 0.0), (0.5, 2.0), (0.0, 1.0)])
    problem.check(1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
def test_alignment_changes_no_bit_of_a_rule(dtype: str) -> None:
    """Ranks hold the same values at different addresses and must stay equal."""
    optimizer, n, found = AMSGrad(0.1, weight_decay=DECAY), 301, set()
    rng = np.random.default_rng(0)
    drawn = [np.abs(rng.standard_normal(n)) for _ in range(5)]
    for begin in range(17):
        held = [np.full(n + 40, 7.0, dtype) for _ in drawn]
        inner = [x[begin : begin + n] for x in held]
        for x, v in zip(inner, drawn, strict=True):
            x[...] = v
        value, grad, *states = inner
        optimiser([value]).apply(
            [(0, grad, None, None, 0)], optimizer.hyper(0), [states], [True], 1.0
        )
        for x in held:
            assert (x[:begin] == 7.0).all() and (x[begin + n :] == 7.0).all()
        found.add(b"".join(x.tobytes() for x in inner))
    assert len(found) == 1


@pytest.mark.parametrize("rows", [False, True])
def test_threads_change_no_bit_of_a_rule(rows: bool) -> None:
    """Each thread has memory of its own for what a rule computes."""
    before, found = _engine.num_threads(), set()
    rng = np.random.default_rng(0)
    optimizer, shape = AMSGrad(0.1, weight_decay=DECAY), (3000, 100)
    value, grad = rng.standard_normal((2, *shape)).astype("f4")
    order = rng.permutation(len(value)).astype(np.int32) if rows else None
    piece = (0, grad, order, None, 0) if rows else (0, grad.reshape(-1), None, None, 0)
    try:
        for threads in (1, 2, 3):
            _engine.set_num_threads(threads)
            values, states = value.copy(), [np.zeros_like(value) for _ in range(3)]
            executor = optimiser([values])
            executor.set_serial(False)
            executor.apply([piece], optimizer.hyper(0), [states], [True], SCALE)
            found.add(b"".join(x.tobytes() for x in (values, *states)))
    finally:
        _engine.set_num_threads(before)
    assert len(found) == 1


# ---- random rules ------------------------------------------------------------------------------

STATES = ("a", "b")
LEAVES = ("value", "gradient", "a", "b", "rate", "step", 0.5, -1.25, 2.0)
UNARY = {
    "neg": (operator.neg, operator.neg),
    "absolute": (ops.absolute, np.abs),
    "tanh": (ops.tanh, np.tanh),
    "sigmoid": (ops.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "root": (lambda x: ops.sqrt(ops.absolute(x) + 0.1), lambda x: np.sqrt(np.abs(x) + 0.1)),
    "decayed": (lambda x: ops.exp(-ops.absolute(x)), lambda x: np.exp(-np.abs(x))),
    "square": (lambda x: x**2, lambda x: x * x),
}
BINARY = {
    "add": (operator.add, operator.add),
    "sub": (operator.sub, operator.sub),
    "mul": (operator.mul, operator.mul),
    "div": (lambda x, y: x / (2.0 + y**2), lambda x, y: x / (2.0 + y * y)),
    "maximum": (ops.maximum, np.maximum),
    "minimum": (ops.minimum, np.minimum),
    "greater": (  # continuous, so that rounding does not choose
        lambda x, y: ops.where(x > y, x, (x + y) * 0.5),
        lambda x, y: np.where(x > y, x, (x + y) * 0.5),
    ),
}
EXPRESSIONS = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(sorted(UNARY)), inner),
        st.tuples(st.sampled_from(sorted(BINARY)), inner, inner),
    ),
    max_leaves=8,
)


def computed(expression: Any, known: dict[str, Any], traced: bool) -> Any:
    """Return the value of a drawn expression, bounded so that rules stay finite."""
    if not isinstance(expression, tuple):
        return known.get(expression, expression)
    name, *inputs = expression
    values = [computed(x, known, traced) for x in inputs]
    if traced and all(isinstance(x, float) for x in values):  # numbers of Python
        traced = False
    found = (UNARY if len(inputs) == 1 else BINARY)[name][0 if traced else 1](*values)
    return found if traced else np.float64(found) if np.ndim(found) == 0 else found


@dataclass(frozen=True)
class Drawn(optim.Optimizer):
    """A rule of three drawn expressions."""

    drawn: tuple[Any, ...] = ()
    states = STATES

    def rule(self, value: Any, gradient: Any, state: Any, rate: Any, step: Any) -> Any:
        known = {"value": value, "gradient": gradient, "rate": rate, "step": step}
        known |= {name: getattr(state, name) for name in STATES}
        new = [computed(x, known, True) for x in self.drawn]
        tied = [ops.tanh(x) + value * 0.25 for x in new]  # one number per element
        return tied[0], dict(zip(STATES, tied[1:], strict=True))


def drawn_rule(o: Any, v: Array, g: Array, s: list[Array], lr: float, t: int) -> Array:
    known = {"value": v, "gradient": g, "rate": np.float64(lr), "step": np.float64(t)}
    known |= dict(zip(STATES, s, strict=True))
    tied = [np.tanh(computed(x, known, False)) + v * 0.25 for x in o.drawn]
    s[:] = tied[1:]
    return tied[0]


@given(st.tuples(EXPRESSIONS, EXPRESSIONS, EXPRESSIONS), st.sampled_from((1, 70, 300)))
@examples(40)
def test_random_rules_equal_numpy(drawn: tuple[Any, ...], n: int) -> None:
    for dtype, tolerance in (("float64", 1e-11), ("float32", 2e-4)):
        problem = Problem(Drawn(0.1, drawn=drawn, weight_decay=DECAY), dtype, n)
        for t in (1, 2):
            problem.step(drawn_rule, t, None)
        problem.check(tolerance)


# ---- errors ------------------------------------------------------------------------------------


def rule_of(function: Any, states: Any = ("m",)) -> optim.Optimizer:
    cls = type("Mine", (optim.Optimizer,), {"states": states, "rule": function})
    return cls(0.1)


W = cavs.Parameter((7,), init=0.5)
BAD_RULES = {
    "a sum": (lambda o, v, g, s, rate, step: (v - g.sum(-1), {"m": s.m}), "applies sum_axis"),
    "a slice": (
        lambda o, v, g, s, rate, step: (v - ops.concat([g[1:], g[:1]]), {"m": s.m}),
        "applies (slice|concat)",
    ),
    "a parameter": (lambda o, v, g, s, rate, step: (v * W, {"m": s.m}), "reads a parameter"),
    "no states": (lambda o, v, g, s, rate, step: v - rate * g, "states of none.*states are m"),
    "other states": (lambda o, v, g, s, rate, step: (v, {"n": v}), "the states n, but .*are m"),
    "a number": (lambda o, v, g, s, rate, step: (rate * 2, {"m": g}), "one number .* as value"),
    "a number of Python": (lambda o, v, g, s, rate, step: (v, {"m": 1.0}), "one number .* as m"),
    "nothing": (lambda o, v, g, s, rate, step: (None, {"m": g}), "returns None as value"),
    "an unknown state": (lambda o, v, g, s, rate, step: (s.n, {"m": g}), "'n': its states are m"),
    "an assigned state": (
        lambda o, v, g, s, rate, step: setattr(s, "m", g),
        r"assigns state.m\n(.|\n)*return the new states",
    ),
    "a negative power": (
        lambda o, v, g, s, rate, step: (v - (-0.5) ** step * g, {"m": g}),
        r"-0.5 \*\* step",
    ),
    "many numbers": (
        lambda o, v, g, s, rate, step: (sum((v * (i + 0.5) for i in range(40)), v), {"m": g}),
        "reads 4[01] different numbers, but it may read at most 31",
    ),
}


@pytest.mark.parametrize("name", BAD_RULES)
def test_a_rule_that_is_not_elementwise_is_refused_with_its_line(name: str) -> None:
    function, found = BAD_RULES[name]
    with pytest.raises(TraceError, match=found) as error:
        _ = rule_of(function).program
    assert "test_rules.py:" in str(error.value) and "hint" in str(error.value)


@pytest.mark.parametrize("states", [["m"], ("m", "m"), ("a b",), "m", tuple("abcdefghi"), (1,)])
def test_states_are_names(states: Any) -> None:
    with pytest.raises(ConfigError, match=r"Mine.states is .* a tuple of at most 8 different"):
        rule_of(lambda *operands: None, states)


def test_a_rule_is_a_method() -> None:
    with pytest.raises(MovedAttributeError, match="defines rule as a name, but it is the method"):
        type("Mine", (optim.SGD,), {"rule": "sgd"})
    with pytest.raises(ConfigError, match="Bare has no rule"):
        _ = type("Bare", (optim.Optimizer,), {})(0.1).program


def test_a_number_that_is_not_finite_is_refused_with_its_line() -> None:
    reciprocal = rule_of(lambda o, v, g, s, rate, step: (v - 1.0 / (step - 2.0) * g, {"m": g}))
    value = np.ones(3)

    def update(optimizer: optim.Optimizer, step: int) -> None:
        pieces = [(0, np.ones(3), None, None, 0)]
        optimiser([value]).apply(pieces, optimizer.hyper(step), [[np.zeros(3)]], [True], 1.0)

    update(reciprocal, 0)
    before = value.copy()
    with pytest.raises(NumericsError, match=r"Mine computes inf by div in step 2, with") as error:
        update(reciprocal, 1)
    assert "test_rules.py:" in str(error.value)
    np.testing.assert_array_equal(value, before)


COPY = ("copy", 3, 0, 0, 0, 0.0)  # register 3 = value; before it: gradient and a number


@pytest.mark.parametrize(
    ("ops_of_rule", "results", "registers", "numbers", "found"),
    [
        ([COPY], [3], 3, 1, "a register that it does not have"),
        ([("copy", 0, 0, 0, 0, 0.0)], [3], 4, 1, "a register that it does not have"),
        ([("add", 3, 0, 9, 0, 0.0)], [3], 4, 1, "a register that it does not have"),
        ([COPY], [1], 4, 1, "a register that it does not have"),
        ([COPY], [3], 4, 0, "0 states and 0 numbers, but a rule has up to 8 and 32"),
        ([COPY], [3] * 10, 14, 1, "9 states and 1 numbers, but a rule has up to 8 and 32"),
        ([("lion", 3, 0, 0, 0, 0.0)], [3], 4, 1, "opcode 'lion' is none of"),
    ],
)
def test_the_engine_refuses_an_invalid_program(
    ops_of_rule: Any, results: list[int], registers: int, numbers: int, found: str
) -> None:
    _engine.UpdateProgram("valid", [COPY], [3], 4, 1)
    with pytest.raises(ValueError, match=found):
        _engine.UpdateProgram("invalid", ops_of_rule, results, registers, numbers)
