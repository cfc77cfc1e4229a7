"""Steps of a module on the threads of PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import _engine
from tests.oracle import drawn
from tests.runtime.test_input_gradients import Encoder, graph_of

torch = pytest.importorskip("torch", reason="cavs.torch needs the package torch")

from cavs.torch import Module  # noqa: E402
from cavs.torch.threads import share_threads  # noqa: E402

TREE = [[], [], [0, 1], [], [2, 3]]


@pytest.fixture
def threads():
    """Two threads in PyTorch and in the engine."""
    torch_threads, engine_threads = torch.get_num_threads(), cavs.num_threads()
    torch.set_num_threads(2)
    cavs.set_num_threads(2)
    yield
    torch.set_num_threads(torch_threads)
    cavs.set_num_threads(engine_threads)


def step(size=64, trees=40):
    """Return the outputs of a module, and the gradients of their sum, of a run on all threads."""
    rng = np.random.default_rng(1)
    cell = drawn(Encoder(size), 0.5)
    batch = cavs.batch([graph_of(TREE, rng, size) for _ in range(trees)])
    module = Module(cell)
    x = torch.tensor(batch["x"], dtype=torch.float64, requires_grad=True)
    out = module(batch, x=x)
    out.sum().backward()
    return [out.detach(), x.grad, *(p.grad for p in module.parameters())]


def test_the_engine_finds_the_threads_of_torch():
    assert share_threads()


def test_a_step_has_the_same_bits_on_threads_of_torch_and_of_the_engine(threads):
    shared = step()
    assert not _engine.use_openmp_of("libnone.so")
    own = step()
    assert share_threads()
    assert all(torch.equal(a, b) for a, b in zip(shared, own, strict=True))


def test_more_threads_of_the_engine_than_of_torch(threads):
    expected = step()
    torch.set_num_threads(1)
    assert all(torch.equal(a, b) for a, b in zip(step(), expected, strict=True))
