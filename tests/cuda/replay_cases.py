"""Models, sessions and results for the tests of replays."""

from __future__ import annotations

import numpy as np

import cavs
from cavs import nn
from cavs.cuda.device import Device
from tests.runtime.trees import Classifier

TIMES = 6  # staging is double-buffered, and the third run of either buffer is a graph


def device_of(twin, replay="always", **more):
    return Device(twin.library, 0, "sm_90", twin.compiler, None, replay=replay, **more)


def classifier(cell=nn.ChildSumTreeLSTM, rate=0.0, size=8):
    model = Classifier(cell(size, 6), input_size=size, rate=rate)
    model.initialize(1, np.float64)
    return model


def session_on(device, model):
    return cavs.Session(model, dtype=np.float64, device=device)


def of_report(session, training=True):
    return session.report(training)["replay"]


def found(session, batch, step=0):
    """Return all results of a batch as bytes."""
    loss, gradients = session.gradients(batch, seed=5, step=step)
    outputs = session.predict(batch)
    return loss, *(a.tobytes() for of in (gradients, outputs) for a in of.values())
