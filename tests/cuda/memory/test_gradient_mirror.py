"""Gradients are copied to the host during a run, behind the launches that write them."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import _cuda, nn
from cavs.cuda.engine import fixed_kernels
from tests.exec.hand_programs import (
    INNER,
    LEAF,
    ONE,
    VERTEX,
    Hand,
    batch_children,
    index,
    random_dag,
    schedule,
    self_,
)
from tests.runtime.trees import Classifier, treebank

K, W = 24, 64
MATRIX, OTHER, BIAS = range(3)
SHAPES = [(K + 1, W), (K, W), (W,)]
WRITES = {"product": MATRIX, "row": MATRIX, "other": OTHER, "left": BIAS, "right": BIAS}

# Stages in order, whose sums are one step, and the gradients that both lanes write: every other
# stage runs on the second lane, except the halves of the bias, which are one launch at "left".
PROGRAMS = [
    ("product row other", {MATRIX}),
    ("row product other", {MATRIX}),
    ("other product row left right", {MATRIX}),
    ("product left row right other", set()),
    ("loop product row", {MATRIX}),  # the product runs concurrently with the loop
    ("loop product left row right", set()),
]


def made(stages):
    """A program whose first gradient has a product above and a row below, like weights and a bias.

    After a loop all sums except products read its results.
    """
    m = Hand()
    x, y = m.buffer("feature", VERTEX, K), m.buffer("feature", VERTEX, W, index=1)
    gradients = [m.buffer("grad", ONE, W, index=i) for i in range(len(SHAPES))]
    copied = m.buffer("arena", VERTEX, W, last=len(stages) - 1)

    def add_sum(stage):
        gradient, space = gradients[WRITES[stage]], LEAF if stage == "row" else VERTEX
        if stage in ("product", "other"):
            kind, split, inputs = "matmul_tn", 1, [index(x, K, "order"), index(y, W, "order")]
            out = self_(gradient, W)
        else:
            width = W if stage == "row" else W // 2
            column = width if stage == "right" else 0
            looped, of_y = self_(copied, width, column), index(y, width, "order", column=column)
            kind, split, inputs = "sum_rows", 0, [looped if "loop" in stages else of_y]
            out = self_(gradient, width, K * W if stage == "row" else column)
        m.global_(m.op(kind, space, inputs=inputs, split=split, out=out, accumulate=True))

    for stage in stages:
        if stage == "loop":
            out = {"inputs": [index(y, W, "order")], "out": self_(copied, W)}
            m.loop([[m.op("copy", space, **out)] for space in (LEAF, INNER)])
        else:
            add_sum(stage)
    return m.finish()


def executor_of(device, stages):
    images, values = fixed_kernels(device, "double", "float32"), [np.zeros(s) for s in SHAPES]
    parameters = _cuda.Parameters(device.native, images, values)
    return _cuda.Executor(made(stages), parameters, b"", [], replay="never")


def data(vertices=300):
    """Return inputs of a run, and its gradients."""
    rng = np.random.default_rng(vertices)
    graph = random_dag(rng, vertices)
    leaf = np.array([not children for children in batch_children([graph])])
    x, y = (rng.standard_normal((vertices, n)) for n in (K, W))
    matrix = np.vstack([x.T @ y, y[leaf].sum(0)])
    return (schedule([graph]), [x, y], []), [matrix, matrix[:K], y.sum(0)]


def before(log, one):
    """Return the operations ordered before an operation of the log, by streams and events."""
    found, ends = [], [one]
    while ends:
        at = ends.pop()
        earlier = log[: log.index(at)]
        last = [o for o in earlier if o.stream == at.stream][-1:]
        if at.kind == "wait":
            last += [o for o in earlier if (o.kind, o.to) == ("record", at.from_)][-1:]
        ends += [o for o in last if o not in found]
        found += last
    return found


def runs_in_any_order(twin, e, inputs):
    """Run from gradients of zero, each time in another order of streams."""
    for seed in range(1, 21):
        e.gradient_block()[...] = 0
        twin.adversarial(seed)
        e.arm_gradients()
        e.run(*inputs)
        yield seed


def launches_of(log, stages):
    """Return the launches of each stage of sums, in the order of stages; none of "right"."""
    found, names = {}, iter(s for s in stages if s not in ("loop", "right"))
    for o in log:
        if o.kind == "launch" and o.name in ("matmul_tn", "sum_rows"):
            stage = next(names)
        if o.kind == "launch" and o.name != "copy_rows":
            found.setdefault(stage, []).append(o)
    assert next(names, None) is None
    return found


@pytest.mark.parametrize("kept", [False, True], ids=["copied", "kept"])
@pytest.mark.parametrize(("stages", "both_lanes"), PROGRAMS)
def test_a_copy_waits_for_the_launches_that_write_the_gradient(
    twin, twin_device, stages, both_lanes, kept
):
    stages = stages.split()
    e, (inputs, _) = executor_of(twin_device, stages), data()
    written = sorted(e.gradient_order())
    for p in written if kept else ():
        e.keep_gradient(p)
    e.run(*inputs)
    twin.reset()
    e.arm_gradients()
    e.run(*inputs)
    for p in written if kept else ():
        assert e.follow_gradient(p)
    log = twin.operations()
    launches = launches_of(log, stages)
    for i, p in enumerate(written):
        waits = [o for o in log if o.kind == "wait"]  # the last ones are those of collectives
        followed = waits[i - len(written)]
        if not kept:
            (copy,) = (o for o in log if (o.name, o.bytes) == ("to host", 8 * np.prod(SHAPES[p])))
            followed = [o for o in waits if o.stream == copy.stream and o.issued < copy.issued][-1]
        left = [o for o in log if (o.kind, o.to) == ("record", followed.from_)][-1]
        own = [o for stage, of in launches.items() if WRITES[stage] == p for o in of]
        awaited = before(log, left)
        assert all(o in awaited for o in own), p
        streams = {o.stream for o in own}
        assert (len(streams) == 2) == (p in both_lanes)
        if p in both_lanes:
            continue
        last = max(i for i, stage in enumerate(stages) if WRITES.get(stage) == p)
        for stage, of in launches.items():
            if stages.index(stage) > last:
                assert left.issued < of[0].issued, "it leaves only after a later stage"
            assert {o.stream for o in of if o in awaited} <= streams, "it waits for the other lane"


@pytest.mark.parametrize(("stages", "both_lanes"), PROGRAMS)
def test_copies_are_the_gradients_in_any_order_of_streams(twin, twin_device, stages, both_lanes):
    e, (inputs, expected) = executor_of(twin_device, stages.split()), data()
    for _ in runs_in_any_order(twin, e, inputs):
        for p in e.gradient_order():
            found = e.gradient_view(p)[1].reshape(SHAPES[p])
            np.testing.assert_allclose(found, expected[p], rtol=1e-10, atol=1e-10)


def test_a_bias_summed_over_different_vertices(twin, twin_device):
    """Over all vertices and over those with children: stages of one step, on either lane."""
    model = Classifier(nn.TreeAttention(8, 6))
    model.initialize(1, np.float64)
    session = cavs.Session(model, dtype=np.float64, device=twin_device)
    e, inputs, compiled = session.ready(treebank(3))
    bias, program = list(session.parameters).index("tree.b"), compiled.program
    sums = [i for i in program.instructions if i.type == "sum_rows"]
    outs = [program.buffers[i.out[0]] for i in sums]
    assert [(b.role, b.index) for b in outs].count(("grad", bias)) > 1
    for _ in runs_in_any_order(twin, e, inputs):
        for p in e.gradient_order():
            rows, values = e.gradient_view(p)
            assert rows is not None or (values == e.gradient(p).ravel()).all(), p


def test_gradients_of_a_frozen_parameter_are_not_applied(twin_device):
    """It needs no states either, which momentum has."""
    images, values = fixed_kernels(twin_device, "double", "float32"), [np.ones(s) for s in SHAPES]
    parameters = _cuda.Parameters(twin_device.native, images, values)
    e = _cuda.Executor(made(["product", "other"]), parameters, b"", [], replay="never")
    pieces = [(p, np.ones(values[p].size), None, None, 0) for p in (MATRIX, OTHER)]
    states = [[], [np.zeros(SHAPES[OTHER])], [np.zeros(SHAPES[BIAS])]]
    e.apply(pieces, {"kind": "momentum", "lr": 0.5}, states, [False, True, True])
    parameters.download()
    for p, expected in enumerate((1, 0.5, 1)):
        np.testing.assert_array_equal(values[p], np.full(SHAPES[p], expected))
