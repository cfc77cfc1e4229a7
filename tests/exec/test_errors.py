"""Invalid programs and inputs raise an error that names both values, and never crash."""

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
    index,
    one,
    schedule,
    segment,
    self_,
)

from cavs import _engine

GRAPHS = [[[], [], [0, 1]], [[]]]


def copy_program(read, space=VERTEX, width=4, build=None):
    m = Hand()
    m.x = m.buffer("feature", VERTEX, 4)
    m.h = m.buffer("arena", VERTEX, 4, first=0, last=1)
    m.table = m.buffer("param", width=4)
    m.scratch = m.buffer("scratch", VERTEX, 4)
    m.ones = m.buffer("ones", width=4)
    m.out = m.buffer("arena", space, width, first=1, last=1)
    m.rows(VERTEX, [m.op("copy", VERTEX, inputs=[index(m.x, 4, "order")], out=self_(m.h, 4))])
    m.rows(space, [m.op("copy", space, inputs=[read(m)], out=self_(m.out, width), label="second")])
    return m.finish(outputs=[m.out])


@pytest.mark.parametrize(
    ("read", "space", "message"),
    [
        (lambda m: self_(m.h, 5), VERTEX, r"\[second\] columns \[0, 5\) of buffer 1, which has 4"),
        (lambda m: self_(m.h, 3), VERTEX, r"\[second\] widths of input and output differ: 3 != 4"),
        (lambda m: self_(99, 4), VERTEX, r"buffer 99 of 6"),
        (lambda m: self_(m.x, 4), VERTEX, r"without an order"),
        (lambda m: self_(m.h, 4), GRAPH, r"arena buffer 1 of vertex from graph row by row"),
        (lambda m: one(m.h, 4), VERTEX, r"reads one row of arena buffer 1 of vertex from vertex"),
        (lambda m: index(m.h, 4, "child"), VERTEX, r"from vertex through child"),
        (lambda m: index(m.h, 4, "order"), VERTEX, r"through order"),
        (lambda m: index(m.h, 4, "children"), VERTEX, r"by index with array children"),
        (lambda m: segment(m.h, 4, "nth_child"), VERTEX, r"sums segments .* with array nth_child"),
        (lambda m: segment(m.h, 4, "graph_rows"), VERTEX, r"through graph_rows"),
        (lambda m: segment(m.h, 4, "graph_roots"), VERTEX, r"through graph_roots"),
        (lambda m: segment(m.h, 4, "row_graphs"), VERTEX, r"of vertex from vertex through row_g"),
        (lambda m: segment(m.h, 4, "root_graphs"), GRAPH, r"from graph through root_graphs"),
        (lambda m: segment(m.h, 4, "out"), VERTEX, r"of vertex from vertex through out"),
        (lambda m: index(m.h, 4, "nth_child", -1), VERTEX, r"argument -1"),
        (lambda m: index(m.h, 4, "index_feature"), VERTEX, r"arena buffer 1 .* index_feature"),
        (
            lambda m: segment(m.ones, 4, "edges"),
            GRAPH,
            r"ones buffer 4 .* from graph through edges",
        ),
        (lambda m: self_(m.table, 4), VERTEX, r"param buffer 2 .* row by row"),
        (lambda m: segment(m.scratch, 4, "children"), VERTEX, r"buffer 3 through children in the"),
        (
            lambda m: segment(m.out, 4, "children"),
            VERTEX,
            r"buffer 5 through children in the stage",
        ),
        (
            lambda m: (m.h, 0, 4, "diagonal", "none", 0),
            VERTEX,
            r"row map 'diagonal' is none of self",
        ),
        (lambda m: (m.h, 0, 4), VERTEX, r"has 3 elements, needs 6"),
    ],
)
def test_invalid_operands(read, space, message):
    with pytest.raises(ValueError, match=message):
        copy_program(read, space)


@pytest.mark.parametrize(
    ("held", "read", "space", "message"),
    [
        ("inner", lambda h: self_(h, 4), VERTEX, "of vertex inner from vertex row by row"),
        ("inner", lambda h: self_(h, 4), LEAF, "of vertex inner from vertex kind 0 row by row"),
        ("inner", lambda h: index(h, 4, "nth_child", 0), INNER, "through nth_child"),
        ("inner", lambda h: index(h, 4, "nth_leaf", 0), INNER, "through nth_leaf"),
        ("inner", lambda h: segment(h, 4, "children"), INNER, "through children"),
        ("inner", lambda h: index(h, 4, "child"), EDGE, "through child"),
        ("inner", lambda h: segment(h, 4, "graph_rows"), GRAPH, "through graph_rows"),
        ("inner", lambda h: segment(h, 4, "graph_roots"), GRAPH, "through graph_roots"),
        ("leaves", lambda h: self_(h, 4), INNER, "of vertex leaves from vertex kind 1 row by row"),
        ("leaves", lambda h: segment(h, 4, "nth_parents", 0), VERTEX, "through nth_parents"),
        ("leaves", lambda h: segment(h, 4, "parents"), VERTEX, "through parents"),
        ("leaves", lambda h: index(h, 4, "parent"), EDGE, "through parent"),
        ("leaves", lambda h: index(h, 4, "nth_leaf", -1), VERTEX, "argument -1"),
    ],
)
def test_operands_whose_rows_are_not_held(held, read, space, message):
    m = Hand()
    x = m.buffer("feature", VERTEX, 4)
    h = m.buffer("arena", VERTEX, 4, last=1, held=held)
    out = m.buffer("arena", space, 4, first=1, last=1)
    kind = INNER if held == "inner" else LEAF
    m.rows(kind, [m.op("copy", kind, inputs=[index(x, 4, "order")], out=self_(h, 4))])
    own = VERTEX if space == EDGE else space
    m.rows(own, [m.op("copy", space, inputs=[read(h)], out=self_(out, 4), label="second")])
    with pytest.raises(ValueError, match=message):
        m.finish(outputs=[out])


@pytest.mark.parametrize("array", ["nth_parents", "parents"])
def test_leaves_may_read_parents_in_the_buffer_they_write(array):
    """Parents of leaves are other rows than leaves; other kinds may not read what they write."""

    def program(space):
        m = Hand()
        x, h = m.buffer("feature", VERTEX, 4), m.buffer("arena", VERTEX, 4, last=1)
        m.rows(VERTEX, [m.op("copy", VERTEX, inputs=[index(x, 4, "order")], out=self_(h, 4))])
        read = [segment(h, 4, array)]
        m.rows(space, [m.op("copy", space, inputs=read, out=self_(h, 4))])
        return _engine.Executor(m.finish(outputs=[h]), [np.zeros(1)]), h

    executor, h = program(LEAF)
    executor.run(schedule([[[], [0], [0]]]), [np.arange(12.0).reshape(3, 4)], [])
    np.testing.assert_array_equal(executor.output(h)[0], np.arange(4.0, 8) + np.arange(8.0, 12))
    for space in (INNER, VERTEX):
        with pytest.raises(ValueError, match=f"through {array} in the stage that writes it"):
            program(space)


@pytest.mark.parametrize(
    ("buffer", "writer", "outputs", "message"),
    [
        (("arena", VERTEX, "inner"), LEAF, [], "writes buffer 1 of vertex inner from vertex kind"),
        (("arena", VERTEX, "inner"), VERTEX, [], "writes buffer 1 of vertex inner from vertex"),
        (("arena", VERTEX, "inner"), INNER, [1], "output 1 has vertex inner"),
        (("scratch", VERTEX, "all"), LEAF, [1], "output 1 is a scratch buffer of vertex, needs"),
        (("scratch", LEAF, "all"), LEAF, [1], "output 1 is a scratch buffer of vertex kind 0"),
        (("arena", INNER, "inner"), INNER, [], "holds inner only, is arena of vertex kind 1"),
        (("scratch", VERTEX, "leaves"), LEAF, [], "holds leaves only, is scratch of vertex"),
        (("arena", VERTEX, "some"), LEAF, [], "rows held 'some' is none of all, inner, leaves"),
    ],
)
def test_invalid_held_buffers(buffer, writer, outputs, message):
    m = Hand()
    x = m.buffer("feature", VERTEX, 4)
    role, space, held = buffer
    with pytest.raises(ValueError, match=message):
        h = m.buffer(role, space, 4, held=held)
        m.rows(writer, [m.op("copy", writer, inputs=[index(x, 4, "order")], out=self_(h, 4))])
        m.finish(outputs=outputs)


def simple(**changes):
    """A program of one map instruction; `changes` replace its keys."""
    m = Hand()
    x = m.buffer("feature", VERTEX, 4)
    y = m.buffer("arena", VERTEX, 4)
    instruction = {
        "type": "map",
        "space": VERTEX,
        "label": "double",
        "registers": 2,
        "inner": 4,
        "loads": [(index(x, 4, "order"), 0, False)],
        "ops": [("add", 1, 0, 0, 0, 0.0)],
        "stores": [(y, 0, 0, "write", 1)],
        **changes,
    }
    m.rows(VERTEX, [m.p.add_instruction(instruction)])
    m.finish(outputs=[y])
    return m, x, y


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(registers=1), r"\[double\] register 1 of 1"),
        (dict(registers=0), r"0 registers for 1 loads"),
        (dict(ops=[("add", 5, 0, 0, 0, 0.0)]), r"register 5 of 2"),
        (dict(ops=[("add", -1, 0, 0, 0, 0.0)]), r"register -1 of 2"),
        (dict(ops=[("sinh", 1, 0, 0, 0, 0.0)]), r"opcode 'sinh' is none of"),
        (dict(inner=5), r"reads 5 columns of an operand of 4"),
        (dict(inner=0), r"iterates over 1 x 0 elements"),
        (dict(outer=2, loads=[], registers=2), r"double"),
        (dict(stores=[]), r"stores nothing"),
        (dict(stores=[(1, 2, 0, "write", 1)]), r"columns \[2, 6\) of buffer 1"),
        (dict(stores=[(0, 0, 0, "write", 1)]), r"writes feature buffer 0"),
        (dict(space=EDGE, loads=[]), r"writes buffer 1 of vertex from edge"),
        (dict(space=44), r"space 44 outside \[0, 8\)"),
        (dict(type="matmul"), r"out"),
        (dict(colour=1), r"unknown key 'colour'"),
    ],
)
def test_invalid_maps(changes, message):
    if "outer" in changes:
        changes = {**changes, "stores": [(1, 0, 3, "write", 1)]}
    with pytest.raises((ValueError, KeyError), match=message):
        simple(**changes)


def test_invalid_stages_and_lifetimes():
    m, _, _ = simple()
    with pytest.raises(ValueError, match="finished"):
        m.rows(VERTEX, [])
    m = Hand()
    h = m.buffer("arena", VERTEX, 2, first=0, last=0)
    s = m.buffer("scratch", VERTEX, 2)
    fill = [m.map(VERTEX, [], [("constant", 0, 0, 0, 0, 1.0)], [(b, 0)], 2) for b in (s, s, h)]
    m.rows(VERTEX, [fill[0]], "first")
    m.rows(VERTEX, [fill[1]], "second")
    with pytest.raises(ValueError, match=r"scratch buffer 1 is used in stage 0 and in stage 1"):
        m.finish()
    m = Hand()
    h = m.buffer("arena", VERTEX, 2, first=0, last=0)
    m.rows(VERTEX, [])
    m.rows(VERTEX, [m.map(VERTEX, [], [("constant", 0, 0, 0, 0, 1.0)], [(h, 0)], 2, label="late")])
    with pytest.raises(
        ValueError, match=r"\[late\] uses buffer 0 in stage 1, it is live in \[0, 0"
    ):
        m.finish()
    m = Hand()
    m.loop([[]])
    with pytest.raises(ValueError, match="bodies and kinds differ: 1 != 2"):
        m.finish()
    m = Hand()
    h = m.buffer("arena", VERTEX, 2)
    x = m.buffer("feature", VERTEX, 2)
    total = m.op("sum_rows", VERTEX, inputs=[index(x, 2, "order")], out=self_(h, 2), label="sum")
    m.rows(VERTEX, [total])
    with pytest.raises(ValueError, match=r"\[sum\] sums into arena buffer 0 of vertex"):
        m.finish()
    m = Hand()
    x = m.buffer("feature", VERTEX, 2)
    h = m.buffer("arena", INNER, 2)
    m.rows(VERTEX, [m.op("copy", VERTEX, inputs=[index(x, 2, "order")], out=self_(h, 2))])
    with pytest.raises(ValueError, match="writes buffer 1 of vertex kind 1 from vertex"):
        m.finish()
    m = Hand()
    y = m.buffer("scratch", VERTEX, 6)
    x = m.buffer("feature", VERTEX, 2)
    w = m.weight(3, 2, [])
    m.matmul(VERTEX, [index(x, 2, "order")], w, self_(y, 2), label="product")
    with pytest.raises(ValueError, match=r"\[product\] inner sizes differ: 2 != 3"):
        m.finish()
    m = Hand()
    m.weight(3, 2, [(0, 0, 1, 1, 3, 2, 1, 0)])
    with pytest.raises(ValueError, match=r"3 x 2 at \(1, 0\) leaves the matrix of 3 x 2"):
        m.finish()
    with pytest.raises(ValueError, match=r"the loss is buffer 0 of feature in vertex"):
        m = Hand()
        m.buffer("feature", VERTEX, 2)
        m.finish(loss=0)


def test_invalid_sums_in_a_loop():
    def program(out="grad", read="arena", accumulate=True, behind=False, reads_gradient=False):
        m = Hand()
        h = m.buffer(read, INNER, 2, first=0, last=0)
        g = m.buffer(out, ONE, 2, first=0, last=0)
        fill = m.map(INNER, [], [("constant", 0, 0, 0, 0, 1.0)], [(h, 0)], 2, label="fill")
        total = m.op(
            "sum_rows",
            INNER,
            inputs=[self_(h, 2)],
            out=self_(g, 2),
            accumulate=accumulate,
            label="sum",
        )
        loads = [one(g, 2)] if reads_gradient else [self_(h, 2)]
        late = m.map(INNER, loads, [("neg", 1, 0, 0, 0)], [(h, 1)], 2, label="late")
        m.loop(
            [[], [fill, *([late] if reads_gradient else []), total, *([late] if behind else [])]]
        )
        return m.finish()

    program()
    with pytest.raises(
        ValueError, match=r"\[sum\] is a sum in a loop that does not add into a grad"
    ):
        program(accumulate=False)
    with pytest.raises(
        ValueError, match=r"\[sum\] is a sum in a loop that does not add into a grad"
    ):
        program(out="arena")
    with pytest.raises(ValueError, match=r"\[sum\] sums scratch buffer 0 over the rows of a task"):
        program(read="scratch")
    with pytest.raises(ValueError, match=r"\[late\] comes after a sum over the rows of the task"):
        program(behind=True)
    with pytest.raises(ValueError, match=r"\[late\] reads gradient 0 in a loop"):
        program(reads_gradient=True)


def test_invalid_parameters():
    cell = TreeRnn()
    with pytest.raises(ValueError, match=r"finish\(\)"):
        _engine.Executor(_engine.Program(), [])
    with pytest.raises(ValueError, match=r"parameter 2 of 2"):
        _engine.Executor(cell.program, cell.parameters[:2])
    with pytest.raises(TypeError, match=r"parameter 1 is float32, needs float64"):
        _engine.Executor(
            cell.program,
            [p.astype(np.float32) if i == 1 else p for i, p in enumerate(cell.parameters)],
        )
    with pytest.raises(ValueError, match=r"parameter 0 is not C-contiguous"):
        _engine.Executor(
            cell.program, [p if i else np.asfortranarray(p) for i, p in enumerate(cell.parameters)]
        )
    small = [*cell.parameters[:2], np.zeros((4, 5)), *cell.parameters[3:]]
    with pytest.raises(ValueError, match=r"element 25 of parameter 2, which has 20"):
        _engine.Executor(cell.program, small)
    uneven = [np.zeros(76), *cell.parameters[1:]]
    with pytest.raises(ValueError, match=r"rows of 7 of parameter 0, which has 76 elements"):
        _engine.Executor(cell.program, uneven)
    frozen = [p.copy() for p in cell.parameters]
    frozen[3].flags.writeable = False
    with pytest.raises(ValueError, match="parameter 3 is read-only"):
        _engine.Executor(cell.program, frozen)


def test_invalid_features():
    cell, plan = TreeRnn(), schedule(GRAPHS)
    executor = cell.executor()
    with pytest.raises(RuntimeError, match="nothing to read"):
        executor.gradient(0)
    tokens = np.array([0, 1, 11, 2], np.int32)
    with pytest.raises(IndexError, match=r"int feature 0 is 11 at vertex 2, needs less than 11"):
        executor.run(plan, [], [tokens])
    with pytest.raises(ValueError, match=r"int feature 0 has 3 values, the batch has 4 vertices"):
        executor.run(plan, [], [tokens[:3]])
    with pytest.raises(ValueError, match=r"reads 1 int features, found 0"):
        executor.run(plan, [], [])
    with pytest.raises(TypeError, match=r"int feature 0 is int64, needs int32"):
        executor.run(plan, [], [tokens.astype(np.int64)])
    with pytest.raises(RuntimeError, match="nothing to read"):
        executor.output(cell.h_out)
    executor.run(plan, [], [tokens % 5])
    with pytest.raises(IndexError, match="buffer 0 is no output"):
        executor.output(0)
    with pytest.raises(IndexError, match="parameter 5 of 5"):
        executor.gradient(5)

    cell = TreeRnn(dense=True)
    executor = cell.executor()
    x = np.zeros((4, 7))
    executor.run(plan, [x], [])
    with pytest.raises(ValueError, match=r"float feature 0 has 3 rows, the batch needs 4"):
        executor.run(plan, [x[:3]], [])
    with pytest.raises(ValueError, match=r"float feature 0 has rows of 6, needs 7"):
        executor.run(plan, [x[:, :6].copy()], [])
    with pytest.raises(ValueError, match=r"float feature 0 is not C-contiguous"):
        executor.run(plan, [x[:, ::-1]], [])
    with pytest.raises(ValueError, match=r"float feature 0 is missing: found 0"):
        executor.run(plan, [], [])
    with pytest.raises(ValueError, match=r"float feature 0 has 1 dimensions, needs 2"):
        executor.run(plan, [np.zeros(4)], [])


def test_kind_that_the_program_does_not_have():
    m = Hand(kinds=[0])
    m.loop([[]])
    executor = _engine.Executor(m.finish(), [np.zeros(1)])
    assert executor.run(schedule([[[], []]]), [], []) == 0
    with pytest.raises(RuntimeError, match=r"kind 1 not compiled: 1 vertices of it"):
        executor.run(schedule(GRAPHS), [], [])
    assert executor.run(schedule([[[], []]]), [], []) == 0


def test_label_out_of_range():
    m = Hand()
    x = m.buffer("feature", GRAPH, 3)
    loss = m.buffer("arena", GRAPH, 1)
    m.rows(
        GRAPH,
        [
            m.op(
                "cross_entropy",
                GRAPH,
                inputs=[self_(x, 3)],
                out=self_(loss, 1),
                label="loss of roots",
            )
        ],
    )
    executor = _engine.Executor(m.finish(outputs=[loss]), [np.zeros(1)])
    executor.run(schedule(GRAPHS), [np.zeros((2, 3))], [np.array([2, -1], np.int32)])
    np.testing.assert_allclose(executor.output(loss)[:, 0], [np.log(3), 0])
    with pytest.raises(IndexError, match=r"\[loss of roots\] int feature 0 is 3 at graph 1"):
        executor.run(schedule(GRAPHS), [np.zeros((2, 3))], [np.array([2, 3], np.int32)])


@pytest.mark.parametrize("name", ["cross_entropy", "cross_entropy_grad"])
def test_losses_reject_segment_sums(name):
    m = Hand()
    x = m.buffer("arena", VERTEX, 3)
    out = m.buffer("arena", GRAPH, 1 if name == "cross_entropy" else 3)
    sums = segment(x, 3, "graph_rows")
    m.rows(GRAPH, [m.op(name, GRAPH, inputs=[sums], out=self_(out, 3 if "grad" in name else 1))])
    with pytest.raises(ValueError, match="reads sums of segments: copy them first"):
        m.finish(outputs=[out])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (lambda x, y: [self_(x, 3), self_(x, 3)], "width of a slope: 3 != 1"),
        (lambda x, y: [self_(x, 3), segment(y, 1, "graph_rows")], "reads sums of segments"),
        (lambda x, y: [self_(x, 3)] * 3, "has 3 inputs, takes at most 2"),
    ],
)
def test_invalid_slopes_of_losses(inputs, message):
    m = Hand()
    x, y, out = (
        m.buffer("arena", GRAPH, 3),
        m.buffer("arena", VERTEX, 1),
        m.buffer("arena", GRAPH, 3),
    )
    op = m.op("cross_entropy_grad", GRAPH, inputs=inputs(x, y), out=self_(out, 3))
    m.rows(GRAPH, [op])
    with pytest.raises(ValueError, match=message):
        m.finish(outputs=[out])


def test_report():
    rng = np.random.default_rng(0)
    cell = TreeRnn(d=64, h=48)
    executor = cell.executor()
    plan = schedule([[[]] + [[i] for i in range(9)]] * 20)
    tokens = rng.integers(0, 11, 200).astype(np.int32)
    executor.run(plan, [], [tokens])
    assert executor.report()["product_seconds"] == 0
    executor.set_profiling(True)
    for _ in range(3):
        executor.run(plan, [], [tokens])
    r = executor.report()
    assert r["runs"] == 3 and r["tasks"] == 10 and r["widths"] == [20] * 10
    assert 0 < r["peak_bytes"] <= r["arena_bytes"]
    lines = {line["label"]: line for line in r["instructions"] if line["label"]}
    assert lines["h U"]["calls"] >= 3 * 9 and lines["h U"]["seconds"] > 0
    assert lines["h U"]["flops"] == 2 * 180 * 48 * 48
    assert lines["h U"]["gather_bytes"] == lines["h U"]["indexed_bytes"] == 180 * 48 * 8
    assert 0 < r["gather_bytes"] < r["indexed_bytes"]  # words are looked up
    assert lines["dU"]["flops"] == lines["h U"]["flops"]
    assert r["product_seconds"] > 0 and r["map_seconds"] > 0
    stages = {s["label"]: s["seconds"] for s in r["stages"]}
    assert stages["forward"] > 0 and stages["backward"] > 0


def test_peak_is_reached_by_values_live_together():
    m = Hand()
    n, width = 1000, 64
    a = m.buffer("arena", VERTEX, width, first=0, last=1)
    b = m.buffer("arena", VERTEX, width, first=1, last=2)
    c = m.buffer("arena", VERTEX, width, first=2, last=3)
    d = m.buffer("arena", VERTEX, width, first=3, last=3)
    m.rows(VERTEX, [m.map(VERTEX, [], [("constant", 0, 0, 0, 0, 1.0)], [(a, 0)], width)])
    for x, y in [(a, b), (b, c), (c, d)]:
        m.rows(VERTEX, [m.map(VERTEX, [self_(x, width)], [("add", 1, 0, 0, 0)], [(y, 1)], width)])
    executor = _engine.Executor(m.finish(outputs=[d]), [np.zeros(1)])
    executor.run(schedule([[[] for _ in range(n)]]), [], [])
    np.testing.assert_array_equal(executor.output(d), np.full((n, width), 8.0))
    r = executor.report()
    assert r["peak_bytes"] == 2 * n * width * 8
    assert r["arena_bytes"] < 1.05 * r["peak_bytes"]
