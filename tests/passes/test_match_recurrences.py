"""Which vertex functions are LSTMs, by their traced graphs."""

from __future__ import annotations

import pytest

import cavs
from cavs import nn
from cavs.frontend.batch import Feature
from cavs.frontend.model import trace_model
from cavs.ir.verify import verify
from cavs.passes.differentiate import differentiate
from cavs.passes.match_recurrences import count_recurrences, match_recurrences
from tests.lstm_cells import LSTMS, OTHERS, BothWays, Tagger, chains


def traced(model):
    schema = {
        n: Feature(s.domain, s.dtype, tuple(s.shape), s.has_absent)
        for n, s in chains([2]).feature_schema().items()
    }
    model.initialize(0)
    return trace_model(model, schema, training=True)


@pytest.mark.parametrize("cell", LSTMS, ids=lambda c: c.__name__)
def test_an_lstm_is_found_however_it_is_written(cell):
    graph = traced(Tagger(cell))
    found = verify(match_recurrences(graph), "match_recurrences")
    assert [n.op.name for n in found.nodes()].count("lstm") == 1
    assert found.slots == {}
    verify(differentiate(found), "differentiate")


@pytest.mark.parametrize("cell", OTHERS, ids=lambda c: c.__name__)
def test_what_only_looks_like_one_is_left_alone(cell):
    graph = traced(Tagger(cell))
    found = match_recurrences(graph)
    assert found.outputs == graph.outputs and found.slots == graph.slots
    assert count_recurrences(graph) == 0


def test_gates_come_to_the_places_of_the_operator():
    (lstm,) = (n for n in match_recurrences(traced(Tagger(nn.LSTM))).nodes() if n.op.name == "lstm")
    names = [p.attr("parameter").name for p in lstm.inputs[1:]]
    assert names == ["cells.0.W", "cells.0.U", "cells.0.b"]
    # nn.LSTM has its gates in the order i, f, o, g.
    for gate, column in enumerate([0, 4, 12, 8]):
        for i, (rows, k0) in enumerate([(5, 0), (4, 5), (1, 9)]):
            assert lstm.attr("pieces")[3 * gate + i] == (i + 1, column, 16, rows, 4, k0, 4 * gate)


@pytest.mark.parametrize(("model", "count"), [(Tagger(nn.LSTM, 3), 3), (BothWays(), 2)])
def test_every_lstm_of_a_model_is_found(model, count):
    assert count_recurrences(traced(model)) == count


def test_an_lstm_next_to_another_cell_is_found_alone():
    model = Tagger(nn.LSTM, 2)
    model.cells[1] = nn.GRU(4, 4)
    found = match_recurrences(traced(model))
    assert [n.op.name for n in found.nodes()].count("lstm") == 1
    assert [s.structure.name for s in found.slots] == ["GRU"]


def test_the_same_cell_twice_is_two_lstms():
    class Twice(Tagger):
        def forward(self, batch):
            x = self.embedding(batch["token"])
            x = self.cells[0](batch.graph, x=x)
            return self.output(self.cells[0](batch.graph, x=x @ self.up))

    model = Twice(nn.LSTM)
    model.up = cavs.Parameter((4, 5), init="xavier")
    assert count_recurrences(traced(model)) == 2
