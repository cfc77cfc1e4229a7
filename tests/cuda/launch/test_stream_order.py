"""Operations of the engine on several streams are ordered by events or by waits of the host.

Checked kernels report their accesses to the twin, which looks for two operations that access the
same memory without an order: a single run suffices, in whatever order it ran.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import cavs
from cavs import nn
from cavs.cuda.device import Device
from cavs.distributed.comm import run_threads
from tests.cuda.allocators import Pool
from tests.cuda.covering_models import MODELS, task_of
from tests.cuda.distributed.test_ranks import trainer as rank_trainer
from tests.cuda.replay_cases import TIMES
from tests.cuda.tagger import SGD, STATES, graphs, single, tagger, trainer_on
from tests.cuda.twin import TwinCompiler
from tests.distributed.test_trainer import BATCHES
from tests.lstm_cells import Tagger, chains
from tests.models.test_cells import CELLS, taken
from tests.models.test_cells import Classifier as CellClassifier
from tests.models.test_cells import graphs as cell_graphs
from tests.runtime.trees import Classifier, treebank


@pytest.fixture
def watched(twin):
    """A device whose operations must be ordered, with both lanes and cuBLASLt in use."""
    twin.watch_order()
    twin.compiler = TwinCompiler(checked=True)
    yield Device(twin.library, 0, "sm_90", twin.compiler, Pool(twin), cublas_lt=twin.cublaslt)
    assert twin.fault() == ""


def train(model, batches, device, steps=3, **options):
    """Gradients and predictions, then steps, each launched before the last one has ended."""
    session = cavs.Session(model, device=device, **options)
    session.gradients(batches[0])
    session.predict(batches[0])
    trainer = cavs.Trainer(model, cavs.optim.Adam(lr=0.01), session=session, max_norm=0.5)
    for i in range(steps):
        trainer.launch(batches[i % len(batches)])
    trainer.land()
    session.predict(batches[-1])


@pytest.mark.parametrize("name", CELLS)
def test_cells(watched, twin, name):
    model = CellClassifier(CELLS[name]())
    model.initialize(3, np.float32)
    structures = taken(model)
    batches = [cavs.batch(cell_graphs(structures, seed)) for seed in range(2)]
    train(model, batches, watched)
    assert len({o.stream for o in twin.launches()}) > 1


@pytest.mark.parametrize("name", MODELS)
def test_models(watched, name, tmp_path):
    task = task_of(name, tmp_path)
    task.model.initialize(1, np.float32)
    data = task.required("train")
    train(task.model, [cavs.batch(data[:2]), cavs.batch(data[2:5])], watched)


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize("replay", ["never", "always"])
def test_products_and_graphs(watched, twin, precision, replay):
    """cuBLASLt multiplies from 16 rows on, in both lanes, each with its workspace."""
    device = replace(watched, replay=replay, blas_rows=16)
    model = Classifier(nn.BinaryTreeLSTM(40, 33), input_size=40)
    model.initialize(1, np.float32)
    batches = [treebank(3, longest=12), treebank(4, longest=9, seed=2)]
    steps = 2 * TIMES if replay == "always" else 3
    train(model, batches, device, steps=steps, precision=precision)
    log = twin.operations()
    assert len({o.priority for o in log if o.kind == "product"}) == 2
    assert any(o.kind == "graph" for o in log) == (replay == "always")


def test_lstms_by_cudnn(watched, twin):
    model = Tagger(nn.LSTM, 2)
    model.initialize(1, np.float32)
    batches = [chains([7, 1, 12, 3]), chains([4, 4])]
    train(model, batches, replace(watched, cudnn=twin.cudnn), cudnn="always")
    assert any(o.name.startswith("cudnn") for o in twin.operations())


def test_steps_launched_without_waiting(watched):
    """A staged batch reuses the buffer of the batch before the last."""
    session = cavs.Session(tagger(), dtype=np.float64, device=watched)
    launched = [session.launch(single(i % 5), SGD, STATES) for i in range(8)]
    assert all(np.isfinite(step.loss) for step in launched)


def test_fit(watched):
    """The loader's thread collates; evaluations and checkpoints come in between."""
    data = graphs()
    loader = cavs.DataLoader(data, batch_size=2, shuffle=True, seed=1)
    trainer = trainer_on(watched, tagger(rate=0.3))
    trainer.fit(loader, epochs=2, dev=cavs.DataLoader(data[:3], batch_size=2), progress=False)


@pytest.mark.parametrize("strategy", [None, "PSLoadBalancing", "Parallax"])
def test_gradients_copied_during_a_run(watched, twin, strategy):
    """Ranks whose gradients are copied to the host during a run, each on streams of its own."""

    def work(c):
        device = Device(twin.library, 0, "sm_90", twin.compiler, Pool(twin))
        with rank_trainer(c, twin, device=device, strategy=strategy) as t:
            for part in BATCHES[:3]:
                t.advance(cavs.batch(part))

    run_threads(2, work)
