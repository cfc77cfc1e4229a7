"""Guard bytes: writes between values are detected, and no cell has any."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import cavs
from cavs import nn
from cavs.errors import DeviceError
from tests.cuda.covering_models import MODELS, task_of
from tests.cuda.replay_cases import TIMES, classifier, found, session_on
from tests.cuda.twin import TwinCompiler
from tests.models.test_cells import CELLS, Classifier, graphs, taken
from tests.runtime.trees import treebank


def check(model, batches, device, **options):
    """Check that results have the same bits with guards as without."""
    losses = []
    for guards in (True, False):
        session = cavs.Session(model, device=replace(device, guards=guards), **options)
        losses.append([found(session, batch) for batch in batches])
    assert losses[0] == losses[1]


@pytest.mark.parametrize("name", CELLS)
def test_cells(device, name):
    model = Classifier(CELLS[name]())
    model.initialize(3, np.float64)
    structures = taken(model)
    check(
        model,
        [cavs.batch(graphs(structures, seed)) for seed in range(2)],
        device,
        dtype=np.float64,
    )


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_models(device, name, precision, tmp_path):
    task = task_of(name, tmp_path)
    task.model.initialize(1, np.float32)
    data = task.required("train")
    check(task.model, [cavs.batch(data[:5]), cavs.batch(data[:2])], device, precision=precision)


def test_training_and_graphs(device):
    device = replace(device, guards=True, replay="always")
    session, batch = session_on(device, classifier()), treebank(5)
    trainer = cavs.Trainer(session.model, cavs.optim.SGD(lr=0.1), session=session)
    losses = [trainer.step(batch) for _ in range(TIMES)]
    assert losses[-1] < losses[0]
    assert session.report()["replay"]["replays"] > 0


class OneMore(TwinCompiler):
    """A compiler whose kernels write one value after their last row.

    file, before: the kernels, and the position of that write in their text.
    """

    def __init__(self, file, before):
        super().__init__()
        self.file, self.before = file, before

    def compile(self, name, source, headers, options):
        if name == self.file:
            assert self.before in source
            first = "if (threadIdx.x + blockIdx.x + blockIdx.y + blockIdx.z == 0)"
            place = "static_cast<real*>(out)[(end - base) * stride]"
            source = source.replace(self.before, f"{first} {place} = 1;\n{self.before}")
        return super().compile(name, source, headers, options)


@pytest.mark.parametrize(
    ("file", "before"),
    [
        ("matmul.cu", "for_each_few(begin, end, n, out,"),
        ("rows.cu", "if (wide_output(in, out, stride, half)) {\n    fold<kWide>"),
    ],
    ids=["matmul", "segment_max"],
)
def test_an_out_of_bounds_write_is_detected(twin, twin_device, file, before):
    """It hits the next value, where no page and no guard of an allocation shows it."""
    device = replace(twin_device, compiler=OneMore(file, before))
    cell = nn.TreeAttention if file == "rows.cu" else nn.ChildSumTreeLSTM
    batch = treebank(3)
    session_on(device, classifier(cell)).gradients(batch)
    twin.check_guards()
    with pytest.raises(DeviceError, match=r"changed next to buffer \d+, the result of \[") as error:
        session_on(replace(device, guards=True), classifier(cell)).gradients(batch)
    assert "a bug of cavs" in error.value.hint
