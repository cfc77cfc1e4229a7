"""Replicas that differ, on devices: each trains as it does on the CPU."""

import pytest

import cavs
from tests.cuda.distributed.test_ranks import assert_close, trained
from tests.distributed.test_trainer import BATCHES

STRATEGIES = [
    "SMA(alpha=0.3)",
    "Crossbow",
    "Lookahead(every=3)",
    "PartialExchange(budget=0.4)",
    "PeerAverage",
    "ADPSGD",
]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_replica_trains_as_on_the_cpu(twin, strategy):
    options = {"strategy": strategy, "parts": BATCHES[:4], "optimizer": cavs.optim.SGD(lr=0.1)}
    found, expected = trained(2, twin, **options), trained(2, None, **options)
    for (values, reports), (wanted, others) in zip(found, expected, strict=True):
        for name, value in wanted.items():
            assert_close(values[name], value, name)
        for a, b in zip(reports[1:], others[1:], strict=True):
            assert a.loss == pytest.approx(b.loss, rel=1e-12)
            assert a.sent_bytes == b.sent_bytes
    first, second = (values for values, _ in found)
    assert any((first[name] != second[name]).any() for name in first)
