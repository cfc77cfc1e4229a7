"""Errors in a batch are reported before it runs: graph, vertex, feature, the cure."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.errors import FeatureError, GraphError
from tests.frontend.test_trace_errors import line_in


class Words(cavs.Model):
    def __init__(self, cell=None):
        self.embedding = nn.Embedding(5, 4)
        self.cell = nn.ChildSumTreeLSTM(4, 3) if cell is None else cell
        self.output = nn.Linear(3, 2)

    def forward(self, batch):
        return self.output(self.cell(batch.graph, x=self.embedding(batch["token"])))

    def loss(self, batch):
        return ops.cross_entropy(self.forward(batch), batch["label"])


def tree(tokens=(0, 1, -1), labels=(0, 1, 1), children=((), (), (0, 1)), **more):
    return cavs.Graph(children, {"token": list(tokens), "label": list(labels), **more})


@pytest.mark.parametrize("run", ["gradients", "evaluate"])
def test_a_token_out_of_range(run):
    batch = cavs.batch([tree(), tree(tokens=(1, 5, -1))])
    with pytest.raises(FeatureError) as caught:
        getattr(cavs.Session(Words()), run)(batch)
    assert str(caught.value).startswith(
        "feature 'token' is 5 at vertex 1 of graph 1, but embedding.weight has 5 rows"
    )
    assert "0 to 4" in caught.value.hint


def test_a_label_out_of_range():
    batch = cavs.batch([tree(labels=(0, 1, 2))])
    with pytest.raises(FeatureError, match=r"'label' is 2 at vertex 2 .* 2 classes") as caught:
        cavs.Session(Words()).gradients(batch)
    assert caught.value.where == line_in(Words.loss, "cross_entropy")


def test_a_session_recovers_from_a_bad_batch():
    session = cavs.Session(Words())
    good_batch = cavs.batch([tree()])
    loss = session.evaluate(good_batch).loss
    with pytest.raises(FeatureError):
        session.evaluate(cavs.batch([tree(tokens=(9, 9, 9))]))
    assert session.evaluate(good_batch).loss == loss


def test_features_that_are_not_finite():
    with pytest.raises(FeatureError, match=r"\"dense\" holds nan at vertex 1"):
        tree(dense=[[0.0], [np.nan], [0.0]])


def test_a_feature_missing_in_a_later_batch():
    session = cavs.Session(Words())
    session.evaluate(cavs.batch([tree()]))
    later = cavs.Graph([[]], {"word": [1], "label": [0]})
    with pytest.raises(FeatureError, match=r"no feature 'token'(.|\n)*label, word"):
        session.evaluate(cavs.batch([later]))


def test_a_graph_that_lacks_a_feature_is_named_also_if_it_is_alone():
    odd = cavs.Graph([[]], {"word": [1], "token": [0]}, name="odd")
    session = cavs.Session(Words())
    session.evaluate(cavs.batch([tree()]))
    with pytest.raises(FeatureError, match="graph 0 \"odd\" has no feature 'label'") as caught:
        session.evaluate(cavs.batch([odd]))
    assert "every graph needs it; these have token, word" in caught.value.hint


def test_rows_of_two_shapes():
    rows = [cavs.Graph([[]], {"t": t}) for t in ([1], [[1, 2]])]
    with pytest.raises(FeatureError, match=r"shape \(\) .* shape \(2,\)") as caught:
        cavs.batch(rows)
    assert "rows of one shape" in caught.value.hint


def test_a_feature_of_another_dtype_in_a_later_batch():
    session = cavs.Session(Words())
    session.evaluate(cavs.batch([tree()]))
    with pytest.raises(FeatureError, match=r"'token' was int \[\] .* now float \[\] .* vertex"):
        session.evaluate(cavs.batch([tree(tokens=(0.5, 1.0, 2.0))]))


def test_features_that_the_model_does_not_read_may_be_missing():
    session = cavs.Session(Words())
    with_more = session.evaluate(cavs.batch([tree(weight=[1.0, 2.0, 3.0])])).loss
    assert session.evaluate(cavs.batch([tree()])).loss == with_more


def test_an_arity_that_the_cell_does_not_read():
    three = tree((0, 1, 2, -1), (0, 1, 1, 1), ((), (), (), (0, 1, 2)))
    batch = cavs.batch([tree(), three])
    with pytest.raises(GraphError, match=r"vertex 3 of graph 1 has 3 children") as caught:
        cavs.Session(Words(nn.BinaryTreeLSTM(4, 3))).evaluate(batch)
    assert "BinaryTreeLSTM reads 2 by gather(k)" in str(caught.value)
    assert "v.gather()" in caught.value.hint and caught.value.vertex == 6
    with pytest.raises(GraphError, match="LSTM reads 1"):
        cavs.Session(Words(nn.LSTM(4, 3))).gradients(cavs.batch([tree()]))
    cavs.Session(Words(nn.ChildSumTreeLSTM(4, 3))).evaluate(batch)


class First(cavs.VertexFunction):
    """Reads the first child; all of them only where it says so."""

    def __init__(self, count):
        self.state, self.W = cavs.State(h=3), cavs.Parameter((4, 3))
        self.count = count

    def vertex(self, v):
        children = v.gather()
        h = ops.tanh(v.pull("x") @ self.W + v.gather(0).h)
        v.scatter(h=h)
        v.push(h + 0.1 * children.h.sum() if self.count else h)


def test_unread_gathered_children_are_not_checked():
    batch = cavs.batch([tree()])
    cavs.Session(Words(First(True))).evaluate(batch)
    with pytest.raises(GraphError, match="has 2 children; First reads 1 by gather"):
        cavs.Session(Words(First(False))).evaluate(batch)


class FirstAndEdges(cavs.VertexFunction):
    """Gathers the first child, and sums values of all edges."""

    def __init__(self):
        self.state, self.W = cavs.State(h=3), cavs.Parameter((4, 3))

    def vertex(self, v):
        h = ops.tanh(v.pull("x") @ self.W + v.gather(0).h + v.edge("relation").sum())
        v.scatter(h=h)
        v.push(h)


class Related(Words):
    def forward(self, batch):
        x = self.embedding(batch["token"])
        return self.output(self.cell(batch.graph, x=x, relation=batch["relation"]))


def test_values_of_all_edges_read_every_child():
    words = tree()
    graph = cavs.Graph(((), (), (0, 1)), words.features, {"relation": np.ones((2, 3))})
    session = cavs.Session(Related(FirstAndEdges()))
    before = session.evaluate(cavs.batch([graph])).loss
    other = cavs.Graph(((), (), (0, 1)), words.features, {"relation": [[1.0] * 3, [5.0] * 3]})
    assert session.evaluate(cavs.batch([other])).loss != before


def test_an_empty_batch():
    with pytest.raises(FeatureError, match="an empty batch"):
        cavs.batch([])


def test_a_model_in_a_file_whose_name_is_not_utf8():
    """Errors name its lines and programs store them."""
    source = inspect.getsource(First) + "\n\nmodel = Words(First(True))\n"
    space = {**globals()}
    exec(compile(source, "m\udcff.py", "exec"), space)
    batch = cavs.batch([tree()])
    session = cavs.Session(space["model"])
    assert np.isfinite(session.gradients(batch)[0])
