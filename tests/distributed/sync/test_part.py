"""Parts of parameters, their slabs and pieces, and the time of their communication."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cavs
from cavs.distributed import Trainer
from cavs.distributed.comm import run_threads
from cavs.distributed.strategy.partition import Shard
from cavs.distributed.sync import Piece, part_of
from cavs.distributed.sync.all_reduce import DevicePiece
from cavs.distributed.sync.parameter_server import DenseServers, SparseServers
from cavs.distributed.sync.part import wait_parts
from cavs.distributed.sync.stale_server import StaleServers
from tests.distributed.test_trainer import BATCHES, Tree


@given(st.data())
def test_slabs_of_a_part_are_its_elements_in_order(data):
    rows, columns = data.draw(st.integers(0, 9)), data.draw(st.integers(1, 9))
    start = data.draw(st.integers(0, rows))
    stop = data.draw(st.integers(start, rows))
    part = part_of(3, (rows, columns), Shard(0, start, stop, (stop - start, columns)))
    flat = np.arange(rows * columns)
    size = data.draw(st.integers(1, 30))
    slabs = part.slabs(size)
    found = [slab.view(flat).reshape(-1) for slab in slabs]
    np.testing.assert_array_equal(np.concatenate(found), part.view(flat).reshape(-1))
    assert all(slab.parameter == 3 and slab.rows == 1 for slab in slabs)
    assert all(slab.offset // size == (slab.end - 1) // size for slab in slabs if slab.size)


def test_columns_of_a_parameter_are_not_cut():
    part = part_of(0, (6, 10), Shard(1, 2, 5, (6, 3)))
    assert part.slabs(4) == [part]
    assert (part.offset, part.end) == (2, 55)


def test_an_exchange_waits_for_elements_of_its_parts_only():
    asked = []

    class Gradients:
        def wait_gradient(self, parameter, begin=0, end=None):
            asked.append((parameter, begin, end))
            return parameter != 1

    upper = part_of(2, (6, 10), Shard(0, 3, 6, (3, 10)))
    columns = part_of(1, (4, 4), Shard(1, 1, 2, (4, 1)))
    assert wait_parts([upper], Gradients())
    assert not wait_parts([columns, upper], Gradients())
    assert asked == [(2, 30, 60), (1, 1, 14), (2, 30, 60)]


@given(st.integers(0, 20), st.integers(1, 6))
def test_ranks_share_a_piece_completely(count, ranks):
    values, rows = np.arange(count * 3.0).reshape(count, 3), np.arange(count) * 7
    tables = [Piece(2, values, rows).share(r, ranks) for r in range(ranks)]
    np.testing.assert_array_equal(np.concatenate([p.values for p in tables]), values)
    np.testing.assert_array_equal(np.concatenate([p.rows for p in tables]), rows)
    whole = DevicePiece(2, np.empty(0), None, 1, 50, count=count)
    kept = [whole.share(r, ranks).as_tuple() for r in range(ranks)]
    places = [range(offset, offset + n) for _, n, _, _, offset in kept]
    assert [x for place in places for x in place] == list(range(50, 50 + count))


@pytest.mark.parametrize("kind", [DenseServers, SparseServers])
def test_values_of_owners_are_exposed_communication(kind, monkeypatch):
    distribute, slow = kind.distribute, 0.2

    def late(exchange, c):
        time.sleep(slow)
        distribute(exchange, c)

    def work(c):
        trainer = Trainer(Tree(), cavs.optim.SGD(lr=0.1), strategy="PS(servers=1)", communicator=c)
        trainer.advance(cavs.batch(BATCHES[0]))
        monkeypatch.setattr(kind, "distribute", late)
        c.barrier()
        return trainer.advance(cavs.batch(BATCHES[0]))

    for report in run_threads(3, work):  # the last rank computes nothing
        assert min(report.communication_seconds, report.exposed_seconds) >= slow


def test_a_wait_for_stale_values_is_exposed_communication(monkeypatch):
    fetch, slow = StaleServers.fetch, 0.2

    def late(servers):
        time.sleep(slow)
        return fetch(servers)

    monkeypatch.setattr(StaleServers, "fetch", late)

    def work(c):
        strategy = "Parallax(staleness=1)"  # for the table only
        with Trainer(Tree(), cavs.optim.SGD(lr=0.1), strategy=strategy, communicator=c) as trainer:
            reports = [trainer.advance(cavs.batch(BATCHES[0])) for _ in range(2)]
            assert not trainer.session.asynchronous
        return reports[1]

    for report in run_threads(2, work):
        assert min(report.communication_seconds, report.exposed_seconds) >= slow
