"""Modules in ``DistributedDataParallel``, on two processes with gloo."""

from __future__ import annotations

import subprocess
import sys

import pytest

import cavs
from tests.oracle import assert_close

torch = pytest.importorskip("torch", reason="cavs.torch needs the package torch")

from tests.torch.classifier import Classifier, graphs  # noqa: E402

RANKS, STEPS = 2, 3


def train(model, batches, scale):
    """Return the gradients of the first step, and the parameters after all."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    gradients = []
    for batch in batches:
        optimizer.zero_grad()
        ((model(batch) ** 2).sum() * scale).backward()
        gradients = gradients or [p.grad.clone() for p in model.parameters()]
        optimizer.step()
    return gradients, [p.detach().clone() for p in model.parameters()]


def batches_of(rank, ranks):
    """Return the batches of a rank: a share of the graphs, in an order of their own for a step."""
    own = graphs()
    return [cavs.batch(own[rank + step % 2 :: ranks][: 4 // ranks]) for step in range(STEPS)]


def run_rank(rank, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=RANKS
    )
    try:
        model = Classifier().double()
        if rank:  # the first rank's parameters are sent to all
            with torch.no_grad():
                for p in model.parameters():
                    p.zero_()
        parallel = torch.nn.parallel.DistributedDataParallel(model)
        found = train(parallel, batches_of(rank, RANKS), float(RANKS))
        shared = [p.current() for p in model.cell._model.parameters().values()]
        tensors = {p.data_ptr() for p in model.cell.parameters()}
        assert {a.__array_interface__["data"][0] for a in shared} == tensors
        del parallel  # before its process group
        torch.save(found, f"{folder}/{rank}")
    finally:
        torch.distributed.destroy_process_group()


def test_ranks_equal_one_process_on_the_joined_batches(tmp_path):
    code = "import sys; from tests.torch.test_distributed import run_rank as run; "
    code += "run(int(sys.argv[1]), sys.argv[2])"
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(rank), str(tmp_path)])
        for rank in range(RANKS)
    ]
    try:
        assert [process.wait(timeout=60) for process in processes] == [0] * RANKS
    finally:
        for process in processes:
            process.kill()
    ranks = [torch.load(tmp_path / str(rank)) for rank in range(RANKS)]
    joined = [
        cavs.batch([g for batch in parts for g in batch.graphs])
        for parts in zip(*(batches_of(rank, RANKS) for rank in range(RANKS)), strict=True)
    ]
    gradients, parameters = train(Classifier().double(), joined, 1.0)
    for found in ranks:
        for ours, theirs in zip(found[0] + found[1], gradients + parameters, strict=True):
            assert_close(ours.numpy(), theirs.numpy(), 1e-12, "gradient or parameter")
    for ours, theirs in zip(*(found[1] for found in ranks), strict=True):
        assert torch.equal(ours, theirs)
