"""An interrupted compilation, or an event between two calls, changes no later result."""

import threading

import numpy as np
import pytest

import cavs
from cavs.runtime import program_cache, tracing
from tests.runtime.test_session_parameters import LEAVES, TREE, Classifier, check


@pytest.fixture
def broken(monkeypatch):
    """Let the next compilation, or trace, end in an error, as Ctrl-C may."""

    def once(module, name):
        real = getattr(module, name)

        def fail(*args, **options):
            monkeypatch.setattr(module, name, real)
            raise KeyboardInterrupt

        monkeypatch.setattr(module, name, fail)

    return once


WAYS = [(program_cache, "compile_graph"), (program_cache, "encode")]


@pytest.mark.parametrize(("module", "name"), WAYS)
def test_compilation_for_a_new_kind(broken, module, name):
    session = cavs.Session(Classifier(), dtype=np.float64)
    session.gradients(LEAVES)
    broken(module, name)
    with pytest.raises(KeyboardInterrupt):
        session.gradients(TREE)
    check(session, LEAVES)
    check(session, TREE)


@pytest.mark.parametrize(("module", "name"), WAYS)
def test_compilation_for_a_thawed_parameter(broken, module, name):
    model = Classifier()
    model.cell.W.trainable = False
    session = cavs.Session(model, dtype=np.float64)
    session.gradients(TREE)
    model.cell.W.trainable = True
    broken(module, name)
    with pytest.raises(KeyboardInterrupt):
        session.gradients(TREE)
    check(session, TREE)


@pytest.mark.parametrize(("module", "name"), [*WAYS, (tracing, "trace_model")])
def test_compilation_for_an_absent_feature(broken, module, name):
    absent = cavs.batch([cavs.Graph([[], [0]], {"word": [1, -1], "label": [0, 1]})])
    session = cavs.Session(Classifier(), dtype=np.float64)
    session.gradients(TREE)
    broken(module, name)
    with pytest.raises(KeyboardInterrupt):
        session.gradients(absent)
    for batch in (TREE, absent, LEAVES):
        check(session, batch)


def test_threads_of_one_session_get_their_own_results():
    session = cavs.Session(Classifier(), dtype=np.float64)
    graphs = [
        cavs.Graph.chain(n, features={"word": np.arange(n) % 5, "label": np.arange(n) % 2})
        for n in (3, 40, 90)
    ]
    batches = [cavs.batch([graph]) for graph in graphs]
    expected = [(session.evaluate(b).loss, session.gradients(b)[1]["W"]) for b in batches]
    wrong = []

    def work(batch, loss, gradient):
        for _ in range(60):
            if session.evaluate(batch).loss != loss:
                wrong.append("loss")
            if (session.gradients(batch)[1]["W"] != gradient).any():
                wrong.append("gradient")

    threads = [
        threading.Thread(target=work, args=(b, *e)) for b, e in zip(batches, expected, strict=True)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []
