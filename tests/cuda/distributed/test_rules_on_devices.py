"""Traced rules of optimisers on ranks with devices: updates on the device, and by owners."""

from __future__ import annotations

from typing import Any

import pytest

from cavs.compiler.pipeline import Passes
from tests.cuda.distributed.test_ranks import assert_same, trained
from tests.train.own_rules import AMSGrad


@pytest.mark.parametrize(("size", "strategy"), [(1, None), (2, None), (2, "PSLoadBalancing")])
def test_ranks_on_devices_equal_ranks_on_cpus(twin: Any, size: int, strategy: str | None) -> None:
    optimizer = AMSGrad(0.05, weight_decay=0.01, groups={"*.bias": {"weight_decay": 0.0}})
    options = {"strategy": strategy, "optimizer": optimizer, "passes": Passes(), "max_norm": 0.5}
    assert_same(trained(size, twin, **options), trained(size, None, **options))
