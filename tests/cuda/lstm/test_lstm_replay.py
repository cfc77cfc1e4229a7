"""Replays of LSTMs by cuDNN: calls of a library become nodes of a graph."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cavs import nn
from cavs.errors import DeviceWarning
from tests.cuda.lstm.test_lstm import (  # noqa: F401
    RAGGED,
    by_cudnn,
    device,
    made,
    on_twin,
)
from tests.cuda.replay_cases import TIMES, of_report
from tests.lstm_cells import Tagger, chains
from tests.oracle import assert_close


@pytest.mark.parametrize("seed", range(2))
def test_calls_of_cudnn_are_replayed(device, twin, seed):  # noqa: F811
    """Batches of other lengths come in between, which need other descriptors."""
    twin.adversarial(seed)
    batches = [chains(RAGGED), chains([6] * 5), chains([7, 7, 2])]
    model = made(Tagger(nn.LSTM, 2))
    often, never = (
        by_cudnn(model, replace(device, replay=replay)) for replay in ("always", "never")
    )
    for step in range(3 * TIMES):
        batch = batches[step % 3]
        loss, gradients = often.gradients(batch, seed=5, step=step)
        expected, wanted = never.gradients(batch, seed=5, step=step)
        assert_close(loss, expected, 1e-12, "loss")
        for name, g in gradients.items():
            assert_close(g, wanted[name], 1e-12, name)
    report = of_report(often)
    assert report["trouble"] == ""
    assert report["replays"] >= 3
    assert of_report(never)["replays"] == 0


def test_a_capture_that_cudnn_refuses_is_a_warning(twin, on_twin):  # noqa: F811
    session = by_cudnn(made(Tagger(nn.LSTM)), replace(on_twin, replay="always"))
    batch = chains(RAGGED)
    expected = session.gradients(batch)[0]
    for _ in range(3):  # staging is double-buffered: the fifth run is a graph
        session.gradients(batch)
    twin.fail_cudnn(2)
    with pytest.warns(DeviceWarning, match="cudnnRNNForward"):
        assert session.gradients(batch)[0] == expected
    assert session.gradients(batch)[0] == expected
    assert "cudnnRNNForward" in of_report(session)["trouble"]
