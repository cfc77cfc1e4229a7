"""Programs that `Program.finish` and `Executor` refuse: both numbers are named, nothing crashes."""

import numpy as np
import pytest
from hand_programs import (
    EDGE,
    GRAPH,
    INNER,
    LEAF,
    ONE,
    VERTEX,
    Hand,
    TreeRnn,
    assert_read_refused,
    index,
    one,
    schedule,
    segment,
    self_,
)

from cavs import _engine

SECOND_STRUCTURE = (1 << 20) + 2  # vertices of structure 1
PAIRS = 1 << 21  # pairs of link 0
INDICES = 1 << 16  # more than any feature, argument or parameter


def refused(m, message, **finish):
    with pytest.raises(ValueError, match=message):
        m.p.finish(**finish)


BUFFERS = {
    "width": (dict(role="arena", width=0), "width 0, needs at least 1"),
    "live range": (
        dict(role="arena", first=1, last=0),
        r"is live in stages \[1, 0\] of 0",
    ),
    "past the last stage": (dict(role="arena", last=3), r"is live in stages \[0, 3\] of 0"),
    "count": (dict(role="count", width=2), "counts of width 2, a count is one number"),
    "feature": (dict(role="feature", index=INDICES), r"index 65536 outside \[0, 65536\)"),
    "parameter": (dict(role="param", index=-1), r"index -1 outside \[0, 65536\)"),
    "structure": (dict(role="feature", space=SECOND_STRUCTURE), "structure 1 of 1"),
    "pairs": (dict(role="feature", space=PAIRS), "rows of .*pair"),
}


@pytest.mark.parametrize("case", BUFFERS)
def test_a_buffer_is_refused_with_its_number(case):
    m = Hand()
    options, message = BUFFERS[case]
    m.buffer(**{"space": ONE, **options})
    refused(m, rf"\[buffer 0\] {message}")


def test_a_role_is_one_of_a_list():
    with pytest.raises(ValueError, match="role 'heap' is none of arena, scratch, param"):
        Hand().buffer("heap")


WEIGHTS = {
    "no rows": (0, 2, [], "size 0 x 2, needs at least 1 x 1"),
    "no parameter": (3, 2, [(-1, 0, 2, 1, 3, 2, 0, 0)], "a piece of parameter -1 has a negative"),
    "negative stride": (3, 2, [(4, 0, -2, 1, 3, 2, 0, 0)], "a piece of parameter 4 has a negative"),
    "empty piece": (3, 2, [(0, 0, 2, 1, 0, 2, 0, 0)], r"a piece of 0 x 2 at \(0, 0\) leaves"),
    "too many columns": (
        3,
        2,
        [(0, 0, 2, 1, 3, 2, 0, 1)],
        r"a piece of 3 x 2 at \(0, 1\) leaves .* 3 x 2",
    ),
}


@pytest.mark.parametrize("case", WEIGHTS)
def test_a_weight_is_refused_with_its_number(case):
    k, n, pieces, message = WEIGHTS[case]
    m = Hand()
    m.weight(2, 2, [])
    m.weight(k, n, pieces)
    refused(m, rf"\[weight 1\] {message}")


def test_kinds_differ():
    refused(Hand(kinds=(4, 1, 4)), "kind key 4 occurs twice")


@pytest.mark.parametrize(
    ("structures", "of_ints", "links", "message"),
    [
        (0, [], [], "0 structures, needs 1 to 64"),
        (65, [], [], "65 structures, needs 1 to 64"),
        (1, [0, 1], [], "an int feature of structure 1 of 1"),
        (2, [], [(0, 2)], "a link of structure 2 of 2"),
        (2, [], [(-1, 0)], "a link of structure -1 of 2"),
    ],
)
def test_structures_that_do_not_exist(structures, of_ints, links, message):
    m = Hand()
    m.p.set_structures(structures, of_ints, links)
    refused(m, message)


def copy(m, space=VERTEX, **changes):
    """Add a copy of a feature to an arena buffer, with ``changes``; return its number."""
    x, y = m.buffer("feature", VERTEX, 4), m.buffer("arena", VERTEX, 4)
    fields = {"inputs": [index(x, 4, "order")], "out": self_(y, 4), "label": "copied", **changes}
    return m.op(fields.pop("type", "copy"), space, **fields)


INSTRUCTIONS = {
    "inputs of a fused kernel": (
        dict(type="map", stores=[(1, 0, 0, "write", 0)], registers=1, inner=4),
        "has inputs, a fused kernel has loads",
    ),
    "loads of another": (
        dict(loads=[((0, 0, 4, "index", "order", 0), 0, False)]),
        "has loads or stores, which only a fused kernel has",
    ),
    "no input": (dict(inputs=[]), "has 0 inputs, needs at least 1"),
    "no columns": (dict(inputs=[index(0, 0, "order")]), r"columns \[0, 0\) are no range"),
    "columns from -1": (
        dict(inputs=[index(0, 4, "order", column=-1)]),
        r"columns \[-1, 3\) are no",
    ),
    "no such weight": (dict(type="matmul", weight=7), "weight 7 of 0"),
    "no such label": (dict(type="cross_entropy_grad", argument=-1), "int feature -1"),
    "no such child": (
        dict(inputs=[index(1, 4, "nth_child", INDICES)]),
        "through nth_child with argument 65536",
    ),
    "no such link": (dict(inputs=[index(1, 4, "linked", 0)]), "through linked with argument 0"),
}


@pytest.mark.parametrize("case", INSTRUCTIONS)
def test_an_instruction_is_refused_by_its_label(case):
    m = Hand()
    changes, message = INSTRUCTIONS[case]
    m.rows(VERTEX, [copy(m, **changes)])
    refused(m, rf"\[copied\] .*{message}")


def test_keys_of_instructions():
    m = Hand()
    y = m.buffer("arena", VERTEX, 4)
    with pytest.raises(ValueError, match=r"\[a\] out is not self"):
        m.op("copy", VERTEX, inputs=[self_(y, 4)], out=index(y, 4, "order"), label="a")
    with pytest.raises(KeyError, match=r"\[b\] missing key 'out'"):
        m.op("copy", VERTEX, inputs=[self_(y, 4)], label="b")
    with pytest.raises(KeyError, match="missing key 'space'"):
        m.p.add_instruction({"type": "copy"})
    with pytest.raises(ValueError, match="instruction type 'fold' is none of"):
        m.op("fold", VERTEX)


def test_an_instruction_is_in_one_stage():
    m = Hand()
    made = copy(m)
    m.rows(VERTEX, [made])
    m.rows(VERTEX, [made])
    refused(m, r"\[copied\] is in two bodies")
    m = Hand()
    m.rows(VERTEX, [3], label="later")
    refused(m, r"\[later\] instruction 3 of 0")


def test_a_stage_has_rows_of_its_own():
    m = Hand()
    x, y = m.buffer("feature", GRAPH, 4), m.buffer("arena", GRAPH, 4)
    made = m.op("copy", GRAPH, inputs=[self_(x, 4)], out=self_(y, 4), label="a")
    m.rows(VERTEX, [made])
    refused(m, r"\[a\] runs over graph in a stage over vertex")


def test_sums_and_rows_have_stages_of_their_own():
    m = Hand()
    m.global_(copy(m))
    refused(m, r"\[copied\] copy in a global stage")
    m = Hand()
    x, y = m.buffer("feature", VERTEX, 4), m.buffer("arena", ONE, 4)
    total = m.op("sum_rows", VERTEX, inputs=[index(x, 4, "order")], out=self_(y, 4), label="sum")
    m.rows(VERTEX, [total])
    refused(m, r"\[sum\] sum_rows needs a global stage of its own, or a loop")
    m = Hand()
    m.global_(label="empty")
    refused(m, r"\[empty\] 0 instructions, a global stage has one or more")


def test_a_global_stage_reads_no_scratch_buffer():
    m = Hand()
    x, y = m.buffer("scratch", VERTEX, 4), m.buffer("arena", ONE, 4)
    m.global_(m.op("sum_rows", VERTEX, inputs=[self_(x, 4)], out=self_(y, 4), label="sum"))
    refused(m, r"\[sum\] scratch buffer 0 in a global stage")


@pytest.mark.parametrize(
    ("column", "message"), [(-1, "column -1"), (3, "writes 4 elements at 3 of buffer 1, .* has 6")]
)
def test_a_sum_stays_in_its_buffer(column, message):
    m = Hand()
    x, y = m.buffer("feature", VERTEX, 4), m.buffer("arena", ONE, 6)
    out = self_(y, 4, column)
    m.global_(m.op("sum_rows", VERTEX, inputs=[index(x, 4, "order")], out=out, label="sum"))
    refused(m, rf"\[sum\] {message}")


def test_the_stages_before_cotangents_are_counted():
    m = Hand()
    m.rows(VERTEX, [copy(m)])
    refused(m, r"\[program\] 2 stages before cotangents of 1", forward_stages=2)
    refused(m, r"\[program\] -2 stages before cotangents of 1", forward_stages=-2)
    m.p.finish(forward_stages=1)


@pytest.mark.parametrize("buffer", [-2, 2])
def test_an_output_is_a_buffer(buffer):
    m = Hand()
    m.rows(VERTEX, [copy(m)])
    refused(m, rf"\[program\] buffer {buffer} of 2", outputs=[buffer])


def two_structures():
    """Return a program of structure 0 with a link to itself, 1 with nothing, and vertices of 1."""
    m = Hand()
    m.p.set_structures(2, [], [(0, 0)])
    return m, m.buffer("arena", SECOND_STRUCTURE, 4)


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (
            lambda h: index(h, 4, "nth_child", 0),
            "through nth_child, which are of another structure",
        ),
        (lambda h: segment(h, 4, "children"), "through children, which are of another structure"),
        (lambda h: index(h, 4, "linked", 0), "through linked with argument 0"),
    ],
)
def test_rows_of_another_structure_are_not_read(read, message):
    m, other = two_structures()
    assert_read_refused(m, 1 << 20, lambda m: read(other), 4, rf"\[second\] .*{message}")


def test_roots_of_a_structure_that_does_not_exist():
    m = Hand()
    h = m.buffer("arena", VERTEX, 4)
    read = segment(h, 4, "graph_roots", 1)
    assert_read_refused(m, GRAPH, lambda m: read, 4, "through graph_roots with argument 1")


def test_reads_leave_no_parameter():
    """The sizes of parameters are known to the executor alone."""
    m = Hand()
    table, out = m.buffer("param", ONE, 2), m.buffer("arena", ONE, 8)
    m.rows(ONE, [m.op("copy", ONE, inputs=[one(table, 8)], out=self_(out, 8), label="all")])
    program = m.finish()
    assert _engine.Executor(program, [np.zeros(8)]).run(schedule([[[]]]), [], []) == 0
    with pytest.raises(ValueError, match=r"\[all\] uses 8 elements of parameter 0, which has 6"):
        _engine.Executor(program, [np.zeros(6)])


PLAN = schedule([[[], [], [0, 1]], [[]]])
TOKENS = np.array([0, 1, 2, 3], np.int32)


@pytest.mark.parametrize("totals", [[1.0], [1.0, 4.0, 2.0]])
def test_totals_of_all_replicas_are_complete(totals):
    executor = TreeRnn().executor()
    with pytest.raises(ValueError, match=f"{len(totals)} totals, the program needs 4"):
        executor.run(PLAN, [], [TOKENS], 0, 0, 1.0, totals)
    assert np.isfinite(executor.run(PLAN, [], [TOKENS], 0, 0, 1.0, [1.0, 4.0, 2.0, 4.0]))


def test_an_int_feature_has_one_axis():
    with pytest.raises(ValueError, match="int feature 0 has 2 dimensions, needs 1"):
        TreeRnn().executor().run(PLAN, [], [TOKENS.reshape(4, 1)])


def test_a_loop_body_writes_rows_of_its_kind():
    m = Hand()
    x, y = m.buffer("feature", VERTEX, 4), m.buffer("arena", VERTEX, 4)
    moved = m.op("copy", INNER, inputs=[index(x, 4, "order")], out=self_(y, 4), label="a")
    m.loop([[moved], []])
    refused(m, r"\[a\] runs over vertex kind 1 in a stage over vertex kind 0")
    m = Hand()
    x, y = m.buffer("feature", EDGE, 4), m.buffer("arena", EDGE, 4)
    moved = m.op("copy", LEAF, inputs=[index(x, 4, "order")], out=self_(y, 4), label="a")
    m.loop([[moved], []])
    refused(m, r"\[a\] writes buffer 1 of edge from vertex kind 0")
