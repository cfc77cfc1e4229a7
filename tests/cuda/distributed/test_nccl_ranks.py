"""Ranks whose devices sum dense gradients by a stand-in for NCCL on the twin."""

from __future__ import annotations

import contextlib
import gc
import re
import threading
import types
from dataclasses import replace

import numpy as np
import pytest

import cavs
from cavs.cuda.device import Device
from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.comm import run_threads
from cavs.distributed.planning.builders import build
from cavs.distributed.step.devices import join_devices
from cavs.distributed.strategy import variables_of
from cavs.distributed.sync import AllReduce, DeviceAllReduce
from cavs.errors import CommunicationError, ConfigError, DeviceError, FeatureError
from tests.cuda.allocators import Pool
from tests.cuda.distributed.test_ranks import ADAM, Wide, assert_close, trained, trainer, values_of
from tests.distributed.elastic.test_survivors import Killed, mortal
from tests.distributed.step.test_consensus import outcomes
from tests.distributed.test_trainer import BATCHES, Tree, trees
from tests.patience import patience


def device_of(twin, rank):
    return Device(twin.library, rank, "sm_90", twin.compiler, Pool(twin))


def on_devices(c, twin, **options):
    return trainer(c, twin, **{"device": device_of(twin, c.rank), **options})


def train(size, twin, **options):
    """Like `trained`, with a device for each rank; also return the exchanges by NCCL of rank 0."""

    def work(c):
        with on_devices(c, twin, **options) as t:
            reports = [t.advance(cavs.batch(part)) for part in BATCHES]
            there = [e for e in t.session.exchanges if isinstance(e, DeviceAllReduce)]
        return values_of(t), reports, there

    return run_threads(size, work)


@pytest.mark.parametrize(
    ("size", "strategy", "by_nccl"),
    [
        (1, None, 2),  # the last gradient is reduced alone
        (2, None, 2),
        (2, "Buckets", 2),
        (3, "AllReduce(chunk=2)", 5),
        (2, "PartitionedAR", 1),
        (2, "RandomAxisPartitionAR", 0),  # its parts are not consecutive
        (3, "Parallax", 1),
        (2, "Horovod", 1),
        (2, "PartitionedPS", 0),
        (2, "AllReduce(compressor='float16')", 0),
    ],
)
def test_the_same_training_as_on_cpus(twin, nccl, size, strategy, by_nccl):
    options = {"strategy": strategy, "max_norm": 0.5}
    expected = trained(size, None, **options)
    for seed in (0, 4):
        twin.adversarial(seed)
        twin.set("devices", 4)
        found = train(size, twin, **options)
        for (values, reports, _), (wanted, others) in zip(found, expected, strict=True):
            for name, value in wanted.items():
                assert_close(values[name], value, name)
                assert values[name].tobytes() == found[0][0][name].tobytes()
            for a, b in zip(reports, others, strict=True):
                assert a.loss == pytest.approx(b.loss, rel=1e-12)
                assert a.grad_norm == pytest.approx(b.grad_norm, rel=1e-12)
        assert len(found[0][2]) == by_nccl


def test_nccl_on_request_is_used_or_refused(twin, nccl):
    expected = train(2, twin, strategy="AllReduce(chunk=2)")
    found = train(2, twin, strategy="AllReduce(chunk=2, spec='nccl')")
    for (values, _, there), (wanted, _, others) in zip(found, expected, strict=True):
        assert len(there) == len(others) == 5
        assert all(values[name].tobytes() == value.tobytes() for name, value in wanted.items())

    by_nccl = AllReduce(spec="nccl", group=None)
    variables = variables_of(Tree())
    plain = build("Buckets", variables, ResourceSpec.local(2))
    nodes = [
        node if variable.sparse else replace(node, synchroniser=by_nccl)
        for node, variable in zip(plain.nodes, variables, strict=True)
    ]
    buckets = replace(plain, nodes=tuple(nodes))
    assert all(len(there) == 2 for *_, there in train(2, twin, strategy=buckets))

    def work(c, strategy="RandomAxisPartitionAR(spec='nccl')", **options):
        t = on_devices(c, twin, strategy=strategy, **options)
        try:
            t.advance(cavs.batch(BATCHES[0]))
        finally:
            t.session.close()

    for error in outcomes(2, work):
        assert "spec 'nccl', but parts of its group are not consecutive in memory" in str(error)
    for strategy in ({}, {"strategy": buckets}):
        for error in outcomes(2, lambda c, s=strategy: work(c, collectives="mpi", **s)):
            assert "spec 'nccl', but NCCL sums nothing here" in str(error)


def test_bytes_are_those_of_a_ring(twin, nccl):
    size = 3
    _, reports, (exchange,) = train(size, twin, strategy="Parallax")[1]
    _, others, none = train(size, twin, strategy="Parallax", collectives="mpi")[1]
    dense = sum(count for _, count in exchange.ranges) * 8
    assert none == []
    # The host sends a little more than a ring does, because small sums use a tree.
    ring, confirmed = 2 * (size - 1) * dense // size, 8
    for a, b in zip(reports, others, strict=True):
        assert ring < a.sent_bytes < ring + b.sent_bytes
        assert a.sent_bytes - ring <= b.sent_bytes - 2 * dense // size + 2 * confirmed


def test_no_dense_gradient_crosses_the_bus_and_nothing_is_allocated(twin, nccl):
    part, found = cavs.batch(trees(6, 1)), {}
    optimizer = cavs.optim.SGD(lr=0.1, momentum=0.9)

    def work(c):
        with on_devices(c, twin, model=Wide, optimizer=optimizer) as t:
            for _ in range(3):
                t.advance(part)
            gc.collect()  # objects of earlier tests must not be freed later
            before = twin.live()
            twin.reset()
            found["report"] = t.advance(part)
            found["log"], found["live"] = twin.operations(), (before, twin.live())
            executor, _, compiled = t.session.ready(t.session.shard(part))
            kinds = compiled.program.gradients
            sizes = {n: p.value.nbytes for n, p in t.parameters.items()}
            table = executor.gradient_view(list(kinds).index("embedding.weight"))[1].nbytes
            return [sizes[n] for n, kind in kinds.items() if kind == "dense"], table

    ((dense, table),) = run_threads(1, work)
    log, (before, after) = found["log"], found["live"]
    copies = [o for o in log if o.kind == "copy"]
    down = sorted(o.bytes for o in copies if o.name == "to host")
    assert (
        len(down) == 3 and down[0] == 8 and table in down
    )  # the loss, and partial sums of squares
    assert down[1] < 1000 and max(dense) > 20_000
    assert sum(o.bytes for o in copies if o.name == "to device") < max(dense) + table
    assert before == after
    # The sums wait for events that are recorded while backward is still being launched.
    stream = next(o.stream for o in log if o.kind == "record" and follows(log, o))
    waits = [o for o in log if o.kind == "wait" and o.stream == stream]
    made = [next(r for r in log if r.kind == "record" and r.to == o.from_) for o in waits]
    launches = [o for o in log if o.kind == "launch" and o.name not in ("square", "update")]
    assert len(made) == len(dense)
    assert sum(o.issued < launches[-1].issued for o in made) >= len(made) - 1
    assert 0 < found["report"].communication_seconds < 60


def follows(log, record):
    """True if a stream known only by its events goes on after this record."""
    others = [o for o in log if o.stream == record.stream and o.kind in ("launch", "copy", "set")]
    return not others


@pytest.mark.parametrize(
    ("ordinals", "available", "why"),
    [
        ((0, 0), True, "ranks 0 and 1 share a GPU"),
        ((0, 1), False, "rank 0: CuPy finds no NCCL library\n  rank 1: CuPy finds no NCCL"),
    ],
)
def test_hosts_sum_without_nccl_or_a_device_per_rank(twin, nccl, ordinals, available, why):
    nccl.available = available

    def work(c, collectives):
        device = device_of(twin, ordinals[c.rank])
        with on_devices(c, twin, device=device, collectives=collectives) as t:
            t.advance(cavs.batch(BATCHES[0]))
            return t.session.group

    assert run_threads(2, lambda c: work(c, "auto")) == [None, None]
    for error in outcomes(2, lambda c: work(c, "nccl")):
        assert isinstance(error, DeviceError) and why in str(error)


def test_a_rank_that_cannot_join_is_an_error_on_all(twin, nccl):
    nccl.refuses.add(1)
    first, second = outcomes(2, lambda c: on_devices(c, twin).advance(cavs.batch(BATCHES[0])))
    assert isinstance(second, DeviceError) and "no such network" in str(second)
    assert isinstance(first, CommunicationError) and "rank 1: DeviceError: NCCL" in str(first)


def test_collectives_are_checked(twin, nccl):
    def work(c, **options):
        return on_devices(c, twin, **options)

    (error,) = outcomes(1, lambda c: work(c, collectives="ring"))
    assert isinstance(error, ConfigError) and "collectives is 'ring'" in str(error)
    (error,) = outcomes(1, lambda c: work(c, device="cpu", collectives="nccl"))
    assert isinstance(error, ConfigError) and "on the CPU" in str(error)
    for error in outcomes(2, lambda c: work(c, collectives=("mpi", "auto")[c.rank]).begin()):
        assert "collectives: rank 0 has mpi, rank 1 has auto" in str(error)


# ---- faults ------------------------------------------------------------------------------------


def test_ranks_go_on_in_a_new_group_after_an_error_of_nccl(twin, nccl):
    twin.adversarial(3)
    twin.set("devices", 4)

    def work(c):
        with on_devices(c, twin) as t:
            t.advance(cavs.batch(BATCHES[0]))
            first, before = t.session.group, values_of(t)
            if c.rank == 1:
                nccl.fails.add(1)
            with pytest.raises((DeviceError, CommunicationError)) as caught:
                t.advance(cavs.batch(BATCHES[1]))
            assert all((values_of(t)[name] == value).all() for name, value in before.items())
            for part in BATCHES[1:]:
                t.advance(cavs.batch(part))
            assert t.session.group is not first and first.lost
        return caught.value, values_of(t)

    (first, values), (second, _) = run_threads(2, work)
    assert isinstance(second, DeviceError) and "unhandled system error" in str(second)
    assert isinstance(first, CommunicationError) and "rank 1: DeviceError: NCCL" in str(first)
    assert [call for call in nccl.calls if call[0] == "abort"]
    for name, value in trained(2, None)[0][0].items():
        assert_close(values[name], value, name)


def test_the_group_survives_an_error_of_one_rank(twin, nccl):
    bad = [*trees(2, 3), cavs.Graph([[]], {"token": [99], "label": [0]})]

    def work(c):
        with on_devices(c, twin) as t:
            t.advance(cavs.batch(BATCHES[0]))
            group = t.session.group
            with pytest.raises((FeatureError, CommunicationError), match="'token' is 99"):
                t.advance(cavs.batch(bad))
            for part in BATCHES[1:]:
                t.advance(cavs.batch(part))
            assert t.session.group is group
        return values_of(t)

    for values in run_threads(2, work):
        for name, value in trained(2, None)[0][0].items():
            assert_close(values[name], value, name)


class Never:
    """An executor whose collectives never end."""

    def wait_collectives(self, seconds):
        return False


@pytest.mark.parametrize("met", [None, "NCCL_ERROR_REMOTE_ERROR: a peer is gone"])
def test_sums_that_never_end_are_aborted(twin, nccl, met):
    def work(c):
        c.timeout = 0.2
        group = join_devices("nccl", device_of(twin, c.rank), c, None)
        nccl.open_of(c.rank)[0].error = met
        try:
            group.finish(Never(), None)
        finally:
            assert group.lost

    for error in outcomes(2, work):
        kind, text = (
            (CommunicationError, "waited 0.2 s for NCCL") if met is None else (DeviceError, met)
        )
        assert isinstance(error, kind) and text in str(error)


def test_mismatched_sums_report_where_each_rank_is(twin, nccl):
    """So do the ranks that wait with it."""
    both = threading.Barrier(2)

    def work(c):
        group = join_devices("nccl", device_of(twin, c.rank), c, None)
        try:
            if c.rank == 1:
                group.finish(types.SimpleNamespace(wait_collectives=lambda seconds: True), None)
                c.receive(np.zeros(1), 0)
                return
            c.timeout = 0.3
            with contextlib.ExitStack() as after:
                after.callback(c.send, np.zeros(1), 1)
                after.callback(both.wait, 20)
                group.finish(Never(), None)
        finally:
            group.abort()

    first, _, third = outcomes(3, work)
    for rank, error in ((0, first), (2, third)):
        assert isinstance(error, CommunicationError)
        (line,) = error.what.splitlines()
        assert line.startswith(f"rank {rank} waited 0.3 s for NCCL: ")
        assert "rank 1 is in receive from rank 0; " in line + "; "
        assert re.search(f"rank {2 - rank} (is|has given up) in sums by NCCL", line)


def test_survivors_form_a_new_group(twin, nccl):
    nccl.timeout = 2.0  # a real group is aborted as soon as a rank is missing

    def work(c):
        mortal(c, 1, 60)
        t = on_devices(c, twin, elastic=True)
        with contextlib.suppress(Killed), t:
            for part in BATCHES:
                t.advance(cavs.batch(part))
            return values_of(t), t.session.group.nccl.size
        t.session.group.close()  # as the end of its process would
        return None

    first, gone, third = run_threads(3, work, timeout=patience(20))
    assert gone is None and first[1] == third[1] == 2
    assert {0, 2} <= {call[1] for call in nccl.calls if call[0] == "abort"}
    alone = trained(1, None, optimizer=ADAM)[0][0]
    for values, _ in (first, third):
        for name, value in alone.items():
            np.testing.assert_allclose(values[name], value, rtol=1e-8, atol=1e-10, err_msg=name)
