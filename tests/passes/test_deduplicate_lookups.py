"""Products of looked-up rows are computed once for each distinct index, with the same bits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cavs
from cavs import _engine, nn, ops
from cavs.compiler.options import Passes
from cavs.compiler.program import selection_of
from cavs.ir.interpret import interpret
from cavs.passes import deduplicate_lookups
from cavs.runtime import program_cache, tracing
from tests.draws import examples
from tests.oracle import assert_close, inputs_of, reference, traced
from tests.random_cells import batches, models, traced_parameters
from tests.random_structures import cases
from tests.typed_cells import typed_batches, typed_models

ON = Passes()
OFF = replace(ON, deduplicate_lookups=False)
SIZE, NUMBER = 24, 40


@contextmanager
def small(repeated: float = 0.0) -> Iterator[None]:
    """Let the pass apply to small batches and narrow products."""
    with (
        mock.patch.multiple(program_cache, MIN_LOOKUPS=1, MIN_MERGED=1, MIN_READERS=0.0),
        mock.patch.multiple(deduplicate_lookups, LEAST_ROWS=1, LEAST_REPEATED=repeated),
        mock.patch.object(tracing, "LEAST_REPEATED", repeated),
    ):
        yield


def distinct_products(program):
    """Return the index features over whose distinct values a program multiplies."""
    found = (selection_of(i.space) for i in program.instructions if i.type == "matmul")
    return [program.int_features[s[1]] for s in found if s and s[0] == "distinct"]


def results(model, batch, passes, **options):
    """Return loss and predictions, and the program."""
    session = cavs.Session(model, passes=passes, **options)
    found = session.evaluate(batch, seed=5, step=2)
    values = {"loss": np.asarray(found.loss), **found.outputs}
    return values, session.compiled(batch, training=False, record=False).program


def same_bits(model, batch, on=ON, off=OFF, **options):
    """Compare the bits with those without the pass; return the features that it applies to."""
    found, program = results(model, batch, on, **options)
    expected, plain = results(model, batch, off, **options)
    assert found.keys() == expected.keys()
    for name, rows in found.items():
        np.testing.assert_array_equal(rows, expected[name], err_msg=name)
    assert not distinct_products(plain)
    return distinct_products(program)


def equals_oracle(model, batch):
    """Compare values in float64 with the oracle; return the features that the pass applies to."""
    _, expected = reference(model, batch, training=False, seed=5, step=2)
    with small():
        found, program = results(model, batch, ON, dtype=np.float64)
        for name, rows in found.items():
            assert_close(rows.reshape(np.shape(expected[name])), expected[name], 1e-9, name)
        applied = distinct_products(program)
        for merge in True, False:  # products of several lookups stay where they are merged
            switches = {"merge_vertices": merge, "merge_products": merge}
            passes = replace(ON, **switches)
            applied += same_bits(model, batch, on=passes, off=replace(OFF, **switches))
    return applied


@examples(25)
@given(models(), batches())
def test_random_cells(model, batch):
    equals_oracle(model, traced_parameters(model, batch))


@examples(12)
@given(st.data())
def test_random_cells_of_types(data):
    model = data.draw(typed_models())
    batch = data.draw(typed_batches(model))
    traced(model, batch, training=False)
    model.initialize(3, np.float64)
    equals_oracle(model, batch)


@examples(12)
@given(cases())
def test_random_samples_of_structures(case):
    equals_oracle(*case)


class Words(cavs.Model):
    """A cell over chains whose vertices have a word, and a loss at labelled vertices."""

    def __init__(self, rows=NUMBER, size=SIZE, way="one"):
        self.word, self.tag = nn.Embedding(rows, size), nn.Embedding(3, size)
        self.hidden, self.output = nn.Linear(size, size), nn.Linear(size, 3)
        self.cell = nn.ChildSumTreeLSTM(size, size)
        self.way = way
        self.initialize(0)

    def rows(self, batch):
        """Return the inputs of the cell in one of several ways."""
        x = self.word(batch["word"])
        if self.way == "two tables":
            return x + self.tag(batch["tag"])
        if self.way == "hidden":
            return ops.tanh(self.hidden(x))
        if self.way == "deep":
            for _ in range(40):  # each value is read twice
                x = x + 0.1 * ops.tanh(x)
            return self.hidden(x)
        if self.way == "columns":
            pair = ops.reshape(self.word(batch["pair"]), (2 * SIZE,))
            return self.hidden(pair[:SIZE]) * ops.sigmoid(pair[SIZE:])
        return x

    def forward(self, batch):
        return self.output(self.cell(batch.graph, x=self.rows(batch)))

    def loss(self, batch):
        return ops.cross_entropy(self.forward(batch), batch["label"])


def sentences(vertices, number=12, seed=0, absent=0.0, labelled=1.0):
    """Return a batch of chains of 20 vertices and a shorter one, with ``number`` words."""
    rng = np.random.default_rng(seed)

    def chain(n):
        word = np.where(rng.random(n) < absent, -1, rng.integers(0, number, n))
        label = np.where(rng.random(n) < labelled, rng.integers(0, 3, n), -1)
        pair = rng.integers(-1, number, (n, 2))
        tag = rng.integers(0, 3, n)
        features = {"word": word, "tag": tag, "pair": pair, "label": label}
        return cavs.Graph.chain(n, {k: x.astype(np.int32) for k, x in features.items()})

    return cavs.batch([chain(min(20, vertices - i)) for i in range(0, vertices, 20)])


def rows_written(session, batch, label):
    """Return the rows that the instructions of a label write in an evaluation."""
    session.evaluate(batch)
    program = session.latest(False).built.compiled.program
    found = []
    lines = session.report(False)["instructions"]
    for i, line in zip(program.instructions, lines, strict=True):
        weight = program.weights[i.weight].pieces[0] if i.type == "matmul" else None
        if weight and program.parameters[weight[0]] == label:
            found.append(line["write_bytes"] // (i.out.width * session.dtype.itemsize))
    return found


@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("absent", [0.0, 0.3])
def test_products_have_a_row_for_each_distinct_index(merge, absent):
    batch = sentences(310, absent=absent)
    passes = replace(ON, merge_vertices=merge)
    on = cavs.Session(Words(), passes=passes)
    assert rows_written(on, batch, "cell.W") == [12]
    off = cavs.Session(Words(), passes=replace(passes, deduplicate_lookups=False))
    expected = int((batch["word"] >= 0).sum())
    found = sum(rows_written(off, batch, "cell.W"))
    assert found == expected if not merge else 100 < found <= expected
    off = replace(passes, deduplicate_lookups=False)
    assert same_bits(Words(), batch, passes, off) == ["word"]


@pytest.mark.parametrize(
    ("way", "features"),
    [
        ("one", ["word"]),
        ("hidden", ["word"] * 2),
        ("deep", ["word"] * 2),
        ("columns", ["#pair[:, 0]"]),
        ("two tables", []),  # one product of a sum, which is another for each pair of rows
    ],
)
@pytest.mark.parametrize("labelled", [1.0, 0.2])
def test_values_that_depend_on_one_index(way, features, labelled):
    batch = sentences(300, labelled=labelled)
    assert same_bits(Words(way=way), batch) == features
    _, expected = reference(Words(way=way), batch, training=False)
    found, _ = results(Words(way=way), batch, ON, dtype=np.float64)
    assert_close(found["loss"], expected["loss"], 1e-9, "loss")


def test_products_of_one_row_by_several_parameters_are_one():
    class Gated(Words):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(SIZE, SIZE)
            self.initialize(0)

        def rows(self, batch):
            x = self.word(batch["word"])
            return ops.tanh(self.hidden(x)) * ops.sigmoid(self.gate(x))

    batch = sentences(300)
    assert set(same_bits(Gated(), batch)) == {"word"}
    _, program = results(Gated(), batch, ON)
    distinct = [
        {program.parameters[p.param] for p in program.weights[i.weight].pieces}
        for i in program.instructions
        if i.type == "matmul" and (s := selection_of(i.space)) and s[0] == "distinct"
    ]
    assert {"gate.weight", "hidden.weight"} in distinct  # side by side in one product


def not_applied(model, batch, passes=ON, **options):
    _, program = results(model, batch, passes, **options)
    return not distinct_products(program)


def test_the_pass_applies_where_it_pays():
    few, many = sentences(300), sentences(300, number=290)
    assert not not_applied(Words(), few)
    assert not_applied(Words(300), many)  # about 190 of 300 are distinct
    assert not_applied(Words(size=8), few)  # narrow products
    assert not_applied(Words(), sentences(200))  # a small batch
    assert not_applied(Words(), few, replace(ON, hoist_eager=False))
    training = cavs.Session(Words()).compiled(few, record=False)
    assert not distinct_products(training.program)


def test_lookups_of_kinds_that_multiply_count():
    """Inner vertices alone multiply: words of leaves are not among the products, but distinct."""

    class AtInner(cavs.VertexFunction):
        def __init__(self):
            self.state = cavs.State(h=SIZE)
            self.W = cavs.Parameter((SIZE, SIZE))

        @cavs.vertex("leaf")
        def leaf(self, v):
            v.scatter(h=v.pull("x"))
            v.push(v.pull("x"))

        @cavs.vertex("inner")
        def inner(self, v):
            h = ops.tanh(v.gather().h.sum() + v.pull("x") @ self.W)
            v.scatter(h=h)
            v.push(h)

    class Trees(Words):
        def __init__(self):
            super().__init__()
            self.cell = AtInner()
            self.initialize(0)

    def trees(leaves):
        vertices = np.arange(300)
        word = np.where(vertices < leaves, 20 + vertices % 20, 3).astype(np.int32)
        children = [[]] * leaves + [[0, 1]] * (300 - leaves)
        types = ["leaf"] * leaves + ["inner"] * (300 - leaves)
        return cavs.batch([cavs.Graph(children, {"word": word, "label": word % 3}, types=types)])

    separate = replace(ON, merge_vertices=False)
    assert not not_applied(Trees(), trees(100), separate)
    assert not_applied(Trees(), trees(270), separate)  # 30 products, and 21 distinct words


def test_a_larger_batch_decides_after_small_ones():
    session, plain = cavs.Session(Words()), cavs.Session(Words(), passes=OFF)
    found = []
    for vertices in (20, 1, 300, 1, 20, 400):
        batch = sentences(vertices, seed=vertices)
        a, b = session.evaluate(batch), plain.evaluate(batch)
        assert a.loss == b.loss
        np.testing.assert_array_equal(a.outputs["output"], b.outputs["output"])
        found.append(bool(distinct_products(session.latest(False).built.compiled.program)))
    assert found == [False, False, True, True, True, True]
    none = sentences(40, absent=1.0)
    np.testing.assert_array_equal(*(s.predict(none)["output"] for s in (session, plain)))


def test_a_resumed_session_runs_the_same_program():
    model, large, little = Words(), sentences(300), sentences(20)
    session = cavs.Session(model)
    session.evaluate(large)
    state = json.loads(json.dumps(session.state_dict()))
    resumed, without = cavs.Session(model), cavs.Session(model, passes=OFF)
    for other in resumed, without:
        other.load_state_dict(state)
    assert distinct_products(resumed.compiled(little, training=False).program)
    assert not distinct_products(without.compiled(little, training=False).program)
    assert resumed.evaluate(little).loss == session.evaluate(little).loss


@pytest.mark.parametrize("precision", ["int16", "bfloat16x3", "bfloat16"])
def test_narrow_products_have_the_same_bits(precision):
    if _engine.isa(precision) == _engine.isa():
        pytest.skip("this processor has no instructions for them")
    assert same_bits(Words(), sentences(300), precision=precision) == ["word"]


def test_serial_runs_have_the_same_values():
    batch = sentences(300)
    session = cavs.Session(Words(), dtype=np.float64)
    expected = session.predict(batch)["output"]
    session.set_serial(True)
    assert_close(session.predict(batch)["output"], expected, 1e-12, "output")


def test_a_word_beyond_the_table_is_named():
    session = cavs.Session(Words())
    session.evaluate(sentences(300))
    with pytest.raises(cavs.errors.FeatureError, match=f"'word' is {NUMBER} at vertex"):
        session.predict(sentences(300, number=NUMBER + 1))


def test_the_oracle_reads_rows_of_distinct_indices():
    """The compiled graph, before copies, equals the trace."""
    batch = sentences(260, absent=0.2)
    model = Words()
    session = cavs.Session(model, passes=replace(ON, specialise=False, merge_vertices=False))
    compiled = session.compiled(batch, training=False, record=False)
    assert distinct_products(compiled.program)
    found = interpret(compiled.graph, inputs_of(batch))
    expected = interpret(compiled.traced, inputs_of(batch))
    np.testing.assert_allclose(found["output"], expected["output"], rtol=1e-10, atol=1e-12)


def test_replicas_evaluate_with_distinct_indices():
    assert same_bits(Words(), sentences(300), replicated=True) == ["word"]


def test_explain_counts_the_rows():
    """One buffer has a row for each distinct word, and the report has its bytes."""
    found = cavs.explain(Words(), sentences(300, absent=0.2), training=False)
    assert "take_distinct" in str(found)
    (product,) = [b for b in found.buffers if b.space == "distinct.word"]
    assert product.bytes == 12 * product.width * 4
