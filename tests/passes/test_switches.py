"""Every switch of the compiler changes the program as its pass promises."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.compiler.options import RENAMED, Passes
from cavs.compiler.text import space_name
from cavs.errors import ConfigError
from tests.runtime.trees import Classifier, graph, treebank

RNG = np.random.default_rng(0)
TREES = treebank(40)  # enough vertices to look for copies
FEW = cavs.batch([graph([[], [], [0, 1]], RNG), graph([[]], RNG)])
DAG = cavs.batch([graph([[], [], [0, 1], [0, 1], [0, 1]], RNG)])  # more edges than vertices
ROOTS = cavs.batch([FEW.graphs[0].with_features({"label": [-1, -1, 1]})])
CHAIN = cavs.batch([graph([[], [0], [1], [2]], RNG).with_features({"label": [-1, -1, -1, 1]})])
WORDS = cavs.batch([graph([[], [], [0, 1]], RNG, absent=lambda kids: False)])


class Gated(cavs.VertexFunction):
    """Two products of one value."""

    def __init__(self):
        self.state = cavs.State(h=6)
        self.W, self.U, self.V = (cavs.Parameter((n, 6)) for n in (8, 6, 6))

    def vertex(self, v):
        s = v.gather().h.sum()
        h = ops.sigmoid(s @ self.U) * ops.tanh(s @ self.V) + v.pull("x") @ self.W
        v.scatter(h=h)
        v.push(h)


def products(program, parameter=""):
    """Where the products with a parameter run, and the sizes of their weights."""
    found = []
    for i in program.instructions:
        if i.type == "matmul":
            weight = program.weights[i.weight]
            names = {program.parameters[p[0]] for p in weight.pieces}
            if not parameter or names == {parameter}:
                found.append((space_name(program, i.space), weight.k, weight.n))
    return found


def of_leaves_alone(compiled):
    """True if leaves multiply by no recurrent weight."""
    return not any(space == "vertex.1" for space, *_ in products(compiled.program, "tree.U"))


def in_loops(compiled):
    """Labels of instructions that run task by task."""
    p = compiled.program
    inside = [i for s in p.stages if s.type == "loop" for body in s.bodies for i in body]
    return [p.instructions[i].label for i in inside]


def maps(compiled):
    return sum(i.type == "map" for i in compiled.program.instructions)


def lifetimes(compiled):
    """Return the average part of the stages through which a value is alive."""
    values = [b for b in compiled.program.buffers if b.role in ("arena", "scratch")]
    return np.mean([b.last - b.first + 1 for b in values]) / len(compiled.program.stages)


def pads(compiled):
    return sum(n.op.name == "pad" for n in compiled.graph.nodes())


BINARY, CHILD_SUM = nn.BinaryTreeLSTM, nn.ChildSumTreeLSTM
# Each switch with a cell, a batch, a property of the compiled program, and a predicate that is true
# of it only with the pass.
SWITCHES = {
    "restrict_to_labelled": (
        BINARY,
        ROOTS,
        lambda c: products(c.program, "output.weight"),
        lambda found: {space for space, *_ in found} == {"present.label"},
    ),
    "hoist_products_to_child": (
        CHILD_SUM,
        DAG,
        lambda c: products(c.program, "tree.U_f"),
        lambda found: found and not any(space.startswith("edge") for space, *_ in found),
    ),
    "hoist_products_to_leaves": (
        BINARY,
        TREES,
        lambda c: [b for b in c.program.buffers if b.held == "leaves"],
        lambda found: len(found) == 1,
    ),
    "hoist_cotangents": (
        lambda size, _: nn.TreeFC(size),
        FEW,
        lambda c: products(c.program, "tree.W"),
        lambda found: (
            [size for size in found if size[0] == "vertex.0"].count(("vertex.0", 8, 8)) == 2
        ),
    ),
    "specialise": (BINARY, FEW, of_leaves_alone, bool),
    "trim_products": (  # leaves have no use for a forget gate
        CHILD_SUM,
        FEW,
        lambda c: products(c.program, "tree.W"),
        lambda found: ("vertex.1", 8, 18) in found and ("vertex.1", 8, 24) not in found,
    ),
    "merge_products": (
        lambda *sizes: Gated(),
        FEW,
        lambda c: [size for size in products(c.program) if size[0] == "vertex.0"],
        lambda found: found == [("vertex.0", 6, 12), ("vertex.0", 12, 6)],
    ),
    "hoist_eager": (
        CHILD_SUM,
        WORDS,
        lambda c: products(c.program, "tree.W"),
        lambda found: ("vertex", 8, 24) in found,
    ),
    "hoist_lazy": (
        BINARY,
        WORDS,
        lambda c: [label for label in in_loops(c) if label.startswith("gradient")],
        lambda found: not found,
    ),
    "fuse": (BINARY, FEW, maps, lambda found: found < 10),
    "plan_memory": (BINARY, FEW, lifetimes, lambda found: found < 0.7),
    "save_memory": (
        lambda size, _: nn.TreeFC(size),
        CHAIN,
        lambda c: [label for label in in_loops(c) if label.startswith("gradient")],
        bool,
    ),
}


def compiled(cell, batch, **switches):
    session = cavs.Session(Classifier(cell(8, 6)), passes=replace(Passes(), **switches))
    return session.compiled(batch)


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_changes_the_program(name):
    cell, batch, read, promise = SWITCHES[name]
    on, off = (read(compiled(cell, batch, **{name: flag})) for flag in (True, False))
    assert promise(on), on
    assert not promise(off), off


def test_without_simplify_cotangents_of_slices_are_padded_and_added():
    """Where nothing is specialised: specialise and trim_products simplify their results anyway."""
    on, off = (compiled(BINARY, FEW, simplify=flag, specialise=False) for flag in (True, False))
    assert pads(on) == 0 and pads(off) >= 5
    assert len(off.program.instructions) > 1.5 * len(on.program.instructions)
    before = [
        dict(compiled(BINARY, FEW, simplify=flag).stages)["simplify"].count(" pad ")
        for flag in (True, False)
    ]
    assert before[0] == 0 and before[1] >= 5


def test_without_merge_vertices_every_vertex_is_a_row():
    def rows(on):
        session = cavs.Session(Classifier(), passes=Passes(merge_vertices=on))
        return len(session.schedule(TREES).order)

    assert rows(False) == TREES.num_vertices > 1.2 * rows(True)


def test_what_a_switched_off_pass_has_decided_is_not_resumed():
    model = Classifier(BINARY(8, 6))
    on = cavs.Session(model)
    _, _, read, promise = SWITCHES["hoist_products_to_leaves"]
    assert promise(read(on.compiled(TREES)))
    off = cavs.Session(model, passes=Passes(hoist_products_to_leaves=False))
    off.load_state_dict(on.state_dict())
    assert not promise(read(off.compiled(TREES)))


@pytest.mark.parametrize("old", RENAMED)
def test_a_former_name_of_a_switch_names_the_present_one(old):
    for build in (Passes, lambda **off: replace(Passes(), **off)):
        with pytest.raises(ConfigError, match=f"{old}.* renamed") as error:
            build(**{old: False})
        assert RENAMED[old] in str(error.value) and "test_switches.py" in str(error.value)
    present = RENAMED[old].split(" and ")
    assert not any(vars(Passes(**dict.fromkeys(present, False)))[name] for name in present)


def test_no_switch_is_left_out():
    elsewhere = {"simplify", "merge_vertices", "deduplicate_lookups"}  # the last without gradients
    assert {*SWITCHES, *elsewhere} == set(vars(Passes()))
