"""The gradient of a branch that is not taken, by kernels of a device."""

from __future__ import annotations

import numpy as np
import pytest

from cavs.cuda.device import Device
from tests.ops.test_branches import CELLS, SINGULAR, check, of_each_child


@pytest.mark.parametrize("body", CELLS, ids=lambda body: body.__name__)
def test_gradients_are_those_of_the_branch_taken(device: Device, body: object) -> None:
    check(body, "log", np.float64, device=device)


@pytest.mark.parametrize("name", SINGULAR)
def test_every_operator_with_an_infinite_slope(device: Device, name: str) -> None:
    check(of_each_child, name, np.float32, device=device)
