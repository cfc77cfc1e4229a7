"""A program that ends on one rank while the others train ends all ranks, with an error."""

import time

import pytest

import cavs
from cavs.distributed.comm.agreement import Agreement, may_save
from cavs.errors import CommunicationError
from tests.distributed.mpirun import ROOT, needs_mpi
from tests.distributed.step.test_consensus import outcomes, trainer
from tests.distributed.test_train_command import cavs_command
from tests.distributed.tree import BATCHES
from tests.patience import patience

mpi, missing = needs_mpi
PROGRAM = """
import sys
import cavs
from cavs.distributed import Trainer, contiguous
from tests.distributed.tree import BATCHES, Tree

how, strategy = sys.argv[1], sys.argv[2] or None

def split(graphs, ranks):
    if how == "inside" and t.steps == 1 and t.communicator.rank == 1:
        sys.exit(7)
    return contiguous(graphs, ranks)

def main():
    global t
    t = Trainer(Tree(), cavs.optim.SGD(lr=0.1), strategy=strategy, split=split)
    leaves = t.communicator.rank == 1 and how != "together"
    if how == "before" and leaves:
        sys.exit(0)
    t.advance(cavs.batch(BATCHES[0]))
    if how == "settled":
        t.settle()
    if leaves and how in ("says", "settled"):
        sys.exit("my file is missing")
    if leaves and how == "returns":
        return
    for _ in range(20):
        t.advance(cavs.batch(BATCHES[1]))

main()
"""
LEFT = "its program has ended, without Trainer.close()"
ENDED = f"cavs: rank 1: {LEFT}, while others train"


def ranks(test):
    """Run ranks as processes, not threads."""
    return mpi(missing(test))


def launched(tmp_path, how, strategy=""):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    begun = time.monotonic()
    process = cavs_command("launch", "-n", 2, program, how, strategy, PYTHONPATH=str(ROOT))
    _, errors = process.communicate(timeout=patience(100))
    assert time.monotonic() - begun < patience(60)  # the others would wait 300 s
    return process.returncode, errors


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ("says", ENDED),
        ("returns", ENDED),
        ("before", ENDED),
        ("inside", "cavs: rank 1: its program has ended in the middle of a step"),
    ],
)
@ranks
def test_a_program_that_ends_on_one_rank_ends_all(tmp_path, how, line):
    status, errors = launched(tmp_path, how)
    assert status != 0 and errors.count(line) == 1, errors
    assert ("my file is missing" in errors) == (how == "says")


@ranks
def test_an_exit_with_settled_stale_parameters_ends_all(tmp_path):
    status, errors = launched(tmp_path, "settled", "PS(staleness=1)")
    words = "rank 1: CommunicationError: it left while others train: call Trainer.close()"
    assert status != 0 and words in errors, errors


@ranks
def test_programs_that_end_together_need_no_close_call(tmp_path):
    status, errors = launched(tmp_path, "together")
    assert status == 0, errors


@pytest.mark.parametrize("begun", [True, False])
def test_remaining_ranks_learn_of_an_exit(begun):
    def work(c):
        t = trainer(c)
        if begun:
            t.advance(cavs.batch(BATCHES[0]))
        if c.rank == 1:
            Agreement(c).leave(begun)
        else:
            t.advance(cavs.batch(BATCHES[0]))

    errors = outcomes(3, work)
    assert all(isinstance(e, CommunicationError) and f"rank 1: {LEFT}" in str(e) for e in errors)
    assert not any(may_save(e, "step") for e in errors)  # which needs all ranks


@pytest.mark.parametrize("begun", [True, False])
def test_all_ranks_may_exit(begun):
    assert outcomes(3, lambda c: Agreement(c).leave(begun)) == [None] * 3
