"""Arguments of an update that the engine refuses before it writes a parameter."""

import numpy as np
import pytest
from hand_programs import TreeRnn, schedule

from cavs import _engine

PLAN = schedule([[[], [], [0, 1]], [[]]])
TOKENS = np.array([0, 1, 2, 3], np.int32)
W, U, B = 1, 2, 3  # parameters of the cell, of 35, 25 and 5 elements


@pytest.fixture
def cell():
    return TreeRnn()


@pytest.fixture
def executor(cell):
    """An executor after a run; nothing that is refused may change a parameter."""
    before = [p.copy() for p in cell.parameters]
    found = cell.executor()
    found.run(PLAN, [], [TOKENS])
    yield found
    for p, first in zip(cell.parameters, before, strict=True):
        np.testing.assert_array_equal(p, first)


def step(executor, states, trainable, **options):
    sgd = {"kind": "sgd", "lr": 0.1, **options}
    return executor.step(PLAN, [], [TOKENS], 0, 0, sgd, states, trainable)


def test_scales_of_every_parameter(executor):
    with pytest.raises(ValueError, match="scales of 2 parameters, the program has 5"):
        step(executor, [[]] * 5, [True] * 5, scales=[(1.0, 1.0), (0.5, 1.0)])


def test_flags_of_every_parameter(executor):
    found = "states of 5 parameters, 4 trainable flags, the program has 5 parameters"
    with pytest.raises(ValueError, match=found):
        step(executor, [[]] * 5, [True] * 4)


def test_more_states_than_an_optimiser_may_have(executor):
    states = [[np.zeros(77)] * (_engine.MOST_STATES + 1)] * 5
    with pytest.raises(
        ValueError, match=r"state of parameter 0: \d+ arrays, the optimizer needs 0"
    ):
        step(executor, states, [True] * 5)


@pytest.mark.parametrize("missing", ["kind", "lr"])
def test_options_without_a_default(executor, missing):
    options = {"kind": "sgd", "lr": 0.1}
    del options[missing]
    with pytest.raises(KeyError, match=f"missing key '{missing}'"):
        executor.step(PLAN, [], [TOKENS], 0, 0, options, [[]] * 5, [True] * 5)


def apply(executor, *piece):
    executor.apply([piece], {"kind": "sgd", "lr": 0.1}, [[]] * 5, [True] * 5)


ROWS = np.array([0, 5], np.int32)
PIECES = {
    "no such parameter": ((5, np.zeros(5), None, None, 0), "parameter 5"),
    "too many elements": (
        (B, np.zeros(6), None, None, 0),
        "rows 0 to 5 of 1 elements from element 0 of parameter 3, which has 5",
    ),
    "from beyond the end": (
        (B, np.zeros(2), None, None, 4),
        "rows 0 to 1 of 1 elements from element 4 of parameter 3, which has 5",
    ),
    "rows beyond the end": (
        (U, np.zeros((2, 5)), ROWS, 5, 0),
        "rows 0 to 5 of 5 elements from element 0 of parameter 2, which has 25",
    ),
    "rows from below": (
        (U, np.zeros((2, 5)), ROWS - 1, 5, 0),
        "rows -1 to 4 of 5 elements from element 0 of parameter 2, which has 25",
    ),
    "rows that overlap": (
        (W, np.zeros((2, 5)), ROWS, 4, 0),
        "rows 0 to 5 of 4 elements from element 0 of parameter 1, which has 35",
    ),
}


@pytest.mark.parametrize("case", PIECES)
def test_a_piece_of_a_gradient_is_part_of_its_parameter(executor, case):
    piece, message = PIECES[case]
    with pytest.raises(IndexError, match=message):
        apply(executor, *piece)


def test_arrays_of_a_piece(executor):
    with pytest.raises(TypeError, match="gradient of parameter 3 is float32, needs float64"):
        apply(executor, B, np.zeros(5, np.float32), None, None, 0)
    with pytest.raises(ValueError, match="1 rows for 2 rows of values"):
        apply(executor, U, np.zeros((2, 5)), ROWS[:1], 5, 0)
    with pytest.raises(TypeError, match="rows of parameter 2 is int64, needs int32"):
        apply(executor, U, np.zeros((2, 5)), ROWS.astype(np.int64), 5, 0)
    with pytest.raises(TypeError, match="gradient of parameter 3 is no array"):
        executor.squared_norm([(B, 5, None, None, 0)])


RULES = {
    "too many numbers": (dict(numbers=_engine.MOST_NUMBERS + 1), "numbers, but a rule has up to"),
    "no rate": (dict(numbers=0), "0 states and 0 numbers, but a rule has up to"),
    "register": (dict(registers=3), "a rule reads or writes a register that it does not have"),
    "result": (dict(results=[9]), "a rule reads or writes a register that it does not have"),
    "the value as a result": (dict(results=[0]), "a register that it does not have"),
    "random numbers": (
        dict(ops=[("uniform", 3, 0, 0, 0, 0.0)]),
        "a register that it does not have",
    ),
    "opcode": (dict(ops=[("sinh", 3, 0, 0, 0, 0.0)]), "opcode 'sinh' is none of"),
}


@pytest.mark.parametrize("case", RULES)
def test_rules_of_updates_are_checked(case):
    whole = dict(key="sgd", ops=[("sub", 3, 0, 1, 0, 0.0)], results=[3], registers=4, numbers=1)
    _engine.UpdateProgram(**whole)
    changes, message = RULES[case]
    with pytest.raises(ValueError, match=message):
        _engine.UpdateProgram(**whole | changes)
