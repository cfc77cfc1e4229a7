"""A device runs tasks in the order of a policy, with kernels launched one by one or not."""

from dataclasses import replace

import numpy as np
import pytest

import cavs
from benchmarks.word_lattices import lattices
from tests.oracle import assert_close
from tests.runtime.test_scheduling import Lattice


@pytest.mark.parametrize("persistent", ["never", "always"])
@pytest.mark.parametrize("scheduling", ["agenda", "learned"])
def test_a_policy_gives_the_values_of_the_cpu(device, shuffle, scheduling, persistent):
    shuffle(3)
    batch = cavs.batch(lattices(5, 1))
    loss, expected = cavs.Session(Lattice(), dtype=np.float64).gradients(batch)
    where = replace(device, persistent=persistent)
    session = cavs.Session(Lattice(), dtype=np.float64, device=where, scheduling=scheduling)
    for _ in range(2):
        own, found = session.gradients(batch)
        assert own == pytest.approx(loss, rel=1e-12)
        for name, g in expected.items():
            assert_close(found[name], g, 1e-9, name)
