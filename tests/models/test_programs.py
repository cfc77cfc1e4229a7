"""Programs of all models: products that a library could add a bias to, and eager work of the
forward pass that a GPU could overlap with a loop; see docs/cuda.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import cavs
from cavs import nn, ops
from cavs.cli import registry
from cavs.compiler.program import Instruction, Program
from tests.models.test_models import OPTIONS, build
from tests.runtime.trees import CLASSES, WORDS, treebank

# Numbers of loops; the other models have one.
CELLS = {"dependency-tagger": 2, "char-tagger": 4, "circuit-rnn": 3, "astnn": 3}
CELLS |= {"nested-rnn": 3, "translator": 2}
# The first step of the second direction of the chain, a row for each function; the inputs of a
# decoder, which could be multiplied while the encoder runs.
OVERLAPS = {"astnn": 1, "translator": 1}
# The output layers of models that have none, or several, or a sigmoid after it in the same kernel.
OUTPUTS = {"plan-cost": (), "circuit-rnn": (), "nested-rnn": ("sentence", "document")}


def followed_by_a_bias(program: Program) -> list[Instruction]:
    """Return the products that one kernel alone reads, to add one row of a parameter."""
    found = []
    for product in (i for i in program.instructions if i.type == "matmul"):
        assert product.out is not None
        buffer = product.out[0]
        readers = [i for i in program.instructions if any(o.buffer == buffer for o in i.operands)]
        if len(readers) != 1 or readers[0].type != "map":
            continue
        roles = [program.buffers[load.operand.buffer].role for load in readers[0].loads]
        codes = [op[0] for op in readers[0].ops if op[0] not in ("load", "store")]
        if codes == ["add"] and "param" in roles:
            found.append(product)
    return found


def overlaps(program: Program) -> list[tuple[int, int]]:
    """Return pairs of a forward stage with products over all rows and a loop it could overlap.

    The loop comes after the stages that compute the inputs of the stage, and before the stages that
    read its outputs.
    """
    stages, reads, writes = program.stages, [], []
    for stage in stages:
        ids = [*stage.body, *(i for body in stage.bodies for i in body)]
        used = [program.instructions[i] for i in ids]
        reads.append({o.buffer for i in used for o in i.operands})
        writes.append({store[0] for i in used for store in i.stores})
        writes[-1] |= {i.out[0] for i in used if i.out is not None}
    loops = [s for s, stage in enumerate(stages) if stage.type == "loop"]
    forward = min((s for s in loops if "backward" in stages[s].label), default=len(stages))
    found = []
    for s in range(forward):
        if "matmul" not in products(program, s):
            continue
        before = [t for t in range(s) if writes[t] & reads[s]]
        after = [t for t in range(s + 1, len(stages)) if reads[t] & writes[s]]
        first, last = (before or [-1])[-1], (after or [len(stages)])[0]
        found += [(s, t) for t in loops if first < t < last]
    return found


def products(program: Program, stage: int) -> set[str]:
    """Return the names of the instructions of a `rows` stage; none for other stages."""
    of = program.stages[stage]
    return {program.instructions[i].type for i in of.body} if of.type == "rows" else set()


class Layers(cavs.Model):
    """Two cells: the second reads the output of the first, or the same input."""

    def __init__(self, stacked: bool) -> None:
        self.stacked = stacked
        self.embedding = nn.Embedding(WORDS, 8, init="xavier")
        self.first, self.second = nn.ChildSumTreeLSTM(8, 8), nn.ChildSumTreeLSTM(8, 8)
        self.output = nn.Linear(8, CLASSES)

    def loss(self, batch: Any) -> Any:
        x = self.embedding(batch["token"])
        h = self.first(batch.graph, x=x)
        top = self.second(batch.graph, x=h if self.stacked else x)
        return ops.cross_entropy(self.output(top if self.stacked else top + h), batch["label"])


def program(model: cavs.Model, batch: Any, training: bool) -> Program:
    model.initialize(1)
    return cavs.Session(model).compiled(batch, training=training, record=False).program


@pytest.mark.parametrize("name", OPTIONS)
def test_models_have_few_epilogues_and_little_eager_work(name: str, tmp_path: Path) -> None:
    """Only output layers could add a bias, and only few models have work to overlap."""
    task: Any = build(registry.find(name), tmp_path)
    batch = cavs.batch(task.required("train")[:20])
    layers = [getattr(task.model, layer) for layer in OUTPUTS.get(name, ("output",))]
    for training in (True, False):
        of = program(task.model, batch, training)
        outs = [product.out for product in followed_by_a_bias(of)]
        found = [of.buffers[out[0]].width for out in outs if out is not None]
        assert sorted(found) == sorted(layer.weight.shape[1] for layer in layers)
        assert sum(i.type == "matmul" for i in of.instructions) > 1
        assert len(overlaps(of)) == OVERLAPS.get(name, 0)
        loops = CELLS.get(name, 1) * (1 + training)
        assert sum(stage.type == "loop" for stage in of.stages) == loops


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("stacked", [True, False])
def test_two_cells_have_no_eager_work_to_overlap(stacked: bool, training: bool) -> None:
    of = program(Layers(stacked), treebank(20), training)
    assert overlaps(of) == []
    assert sum(stage.type == "loop" for stage in of.stages) == 2 + 2 * training


def test_a_stage_that_could_overlap_a_loop_is_found() -> None:
    of = program(Layers(True), treebank(20), False)
    first, second = (s for s, stage in enumerate(of.stages) if stage.type == "loop")
    between = next(s for s in range(first, second) if "matmul" in products(of, s))
    for i in of.stages[between].body:  # as if it read features alone
        of.instructions[i].inputs, of.instructions[i].loads = [], []
    assert overlaps(of) == [(between, first)]
