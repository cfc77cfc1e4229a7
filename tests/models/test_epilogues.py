"""Products whose bias a library could add as an epilogue; see docs/cuda.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import cavs
from cavs.cli import registry
from cavs.compiler.program import Instruction, Program
from tests.models.test_models import OPTIONS, build

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


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", OPTIONS)
def test_only_the_output_layer_has_an_epilogue(name: str, training: bool, tmp_path: Path) -> None:
    task: Any = build(registry.find(name), tmp_path)
    task.model.initialize(1)
    batch = cavs.batch(task.required("train")[:20])
    compiled = cavs.Session(task.model).compiled(batch, training=training, record=False)
    program = compiled.program
    outs = [product.out for product in followed_by_a_bias(program)]
    found = [program.buffers[out[0]].width for out in outs if out is not None]
    layers = [getattr(task.model, layer) for layer in OUTPUTS.get(name, ("output",))]
    assert sorted(found) == sorted(layer.weight.shape[1] for layer in layers)
    assert sum(i.type == "matmul" for i in program.instructions) > 1
