"""Costs of a step on the average, where exchanges take turns, and of a part of the parameters."""

import numpy as np
import pytest

from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.planning.builders import build
from cavs.distributed.planning.cost import bytes_by_rank, features
from tests.distributed.planning.test_cost import B, W


@pytest.mark.parametrize("accumulate", [True, False])
def test_an_exchange_in_turns_costs_its_share_of_every_step(accumulate):
    """One bin in four is reduced in a step, on the average."""
    four = ResourceSpec.local(4)
    whole = build("AllReduce", [W], four)
    made = build(f"PartialExchange(budget=0.25, cut=True, accumulate={accumulate})", [W], four)
    assert {leaf.sync.bins for leaf in made.leaves} == {4}
    found, expected = bytes_by_rank(made, [W]), bytes_by_rank(whole, [W])
    assert found == pytest.approx(expected / 4, rel=0.01)


def test_parameters_that_a_strategy_leaves_out_cost_nothing():
    resources = ResourceSpec.local(2)
    alone = build("AllReduce", [W], resources)
    np.testing.assert_array_equal(bytes_by_rank(alone, [W, B]), bytes_by_rank(alone, [W]))
    np.testing.assert_array_equal(
        features(alone, [W, B], resources), features(alone, [W], resources)
    )
