"""Fused kernels read no more operands than registers of a GPU's thread can hold."""

from __future__ import annotations

from unittest import mock

import numpy as np

import cavs
from cavs import nn
from cavs.compiler import fuse
from tests.compiler.test_equality import FLOAT64, check
from tests.oracle import reference
from tests.runtime.trees import Classifier, treebank


def test_wide_kernels_are_cut_and_give_the_same():
    model, batch = Classifier(nn.RNTN(12), input_size=12), treebank(3, longest=6)
    model.initialize(1, np.float64)
    _, expected = reference(model, batch)
    _, forward = reference(model, batch, training=False)
    most, kernels = [], []
    for limit in (1000, fuse.MAX_OPERANDS, 3):
        with mock.patch.object(fuse, "MAX_OPERANDS", limit):
            session = cavs.Session(model, dtype=np.float64)
            maps = [i for i in session.compiled(batch).program.instructions if i.type == "map"]
            check(session, batch, expected, forward, FLOAT64)
        most.append(max(len(i.loads) for i in maps))
        kernels.append(len(maps))
    assert most[0] > fuse.MAX_OPERANDS >= most[1] > most[2]
    assert kernels[0] < kernels[1] < kernels[2]
