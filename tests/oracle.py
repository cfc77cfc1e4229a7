"""The float64 oracle on a batch, and the comparison of every optimised path with it."""

from __future__ import annotations

from unittest import mock

import numpy as np

import cavs
from cavs import data
from cavs.frontend.model import trace_model
from cavs.ir import REGISTRY, Graph
from cavs.ir import interpret as interpreter
from cavs.ir.interpret import Inputs, interpret
from cavs.ir.types import INT
from cavs.ir.verify import verify
from cavs.passes.differentiate import differentiate
from cavs.passes.simplify import CANONICAL, simplify
from cavs.runtime.features import FeatureTypes


def inputs_of(batch: data.GraphBatch, seed: int = 0, step: int = 0) -> Inputs:
    """Return the inputs of the interpreter for a batch."""
    if isinstance(batch, data.SampleBatch):
        return _inputs_of_samples(batch, seed, step)
    topology = batch.topology
    offsets, children, graph_of, positions = [0], [], [], []
    for g, graph in enumerate(topology.graphs):
        base = int(topology.vertex_offsets[g])
        local = np.asarray(graph.offsets)
        positions += [int(k) for k in graph.positions]
        kids = np.asarray(graph.children)
        for v in range(graph.num_vertices):
            children += [base + int(c) for c in kids[local[v] : local[v + 1]]]
            offsets.append(len(children))
            graph_of.append(g)
    names = batch.feature_schema()
    features = {n: batch[n] for n in names}
    types = [of for graph in batch.graphs for of in graph.types or ()]
    rows = {f"#row {of}": batch[f"#row {of}"] for of in set(types)}
    return Inputs(offsets, children, graph_of, features | rows, seed, step, positions, types)


def _inputs_of_samples(batch: data.SampleBatch, seed: int, step: int) -> Inputs:
    features = {n: batch[n] for n in batch.feature_schema()}
    structures = {name: inputs_of(graphs) for name, graphs in batch.graphs.items()}
    rows = [f"{name}.#row {t}" for name, of in structures.items() for t in set(of.types)]
    features |= {n: batch[n] for n in rows}
    for of in structures.values():
        of.features = features
    links = {}
    for name, link in batch.links.items():
        targets, sources = batch.graphs[link.target], batch.graphs[link.source]
        links[name] = rows = []
        for i, sample in enumerate(batch.samples):
            first = int(sources.topology.vertex_offsets[i])
            found = sample.links[name]
            for v in range(sample.graphs[link.target].num_vertices):
                if found.vertices is None:
                    own = range(sample.graphs[link.source].num_vertices)
                elif found.single:
                    own = [found.vertices[v]] if found.vertices[v] >= 0 else []
                else:
                    own = found.vertices[found.offsets[v] : found.offsets[v + 1]]
                rows.append([first + int(s) for s in own])
        assert len(rows) == targets.num_vertices
    return Inputs([0], [], [], features, seed, step, structures=structures, links=links)


def traced(model, batch, *, training=True, inputs=False, outside=False):
    """Return the graph of the model on such batches; with gradients in training.

    inputs: also by features. outside: of a loss outside of the model, by cotangents of its outputs.
    """
    from cavs.frontend.batch import Feature

    schema = {
        n: Feature(s.domain, s.dtype, tuple(s.shape), s.has_absent, s.type)
        for n, s in batch.feature_schema().items()
    }
    structures = FeatureTypes(model).structures(batch)
    how = {"with_loss": False, "predictions": True} if outside else {}
    graph = trace_model(model, schema, training=training, structures=structures, **how)
    graph = verify(simplify(graph, CANONICAL), "trace")
    if training:
        graph = differentiate(graph, inputs=inputs, outside=outside)
        graph = verify(simplify(graph, CANONICAL), "differentiate")
    return graph


def reference(model, batch, *, training=True, seed=0, step=0):
    """Return the traced graph and its outputs by the interpreter; with gradients in training."""
    graph = traced(model, batch, training=training)
    return graph, interpret(graph, inputs_of(batch, seed, step))


def amplified(graph, batch, exact, bound, *, seed=0, step=0, draws=8):
    """Return how far each output of ``graph`` moves if every product is off by up to ``bound``.

    The error is relative to the norms of the operands: the effect of products of that precision on
    a model, whichever kernel computes them.
    """
    rng = np.random.default_rng(0)
    matmul, matmul_tn = REGISTRY["matmul"], REGISTRY["matmul_tn"]
    of_rows, of_gradients = matmul.evaluate, matmul_tn.evaluate

    def off(node, x, w):
        noise = bound * rng.uniform(-1, 1, w.shape[1])
        return of_rows(node, x, w) + noise * np.linalg.norm(x) * np.linalg.norm(w, axis=0)

    def gradients_off(node, x, y):
        terms = of_gradients(node, x, y)
        return terms * (1 + bound * rng.uniform(-1, 1, terms.shape))

    inputs = inputs_of(batch, seed, step)
    try:  # an Op is frozen
        object.__setattr__(matmul, "evaluate", off)
        object.__setattr__(matmul_tn, "evaluate", gradients_off)
        found = [interpret(graph, inputs) for _ in range(draws)]
    finally:
        object.__setattr__(matmul, "evaluate", of_rows)
        object.__setattr__(matmul_tn, "evaluate", of_gradients)
    return _furthest(found, exact)


def _furthest(found, exact):
    return {k: max(float(np.abs(f[k] - x).max(initial=0)) for f in found) for k, x in exact.items()}


def too_steep(graph, batch, exact, tolerance, *, seed=0, step=0, draws=8, features=None):
    """Return True if rounding alone moves an output of ``graph`` by a quarter of ``tolerance``.

    Every intermediate value is off by up to half a unit in the last place of float32. No
    computation in float32 can then be expected to stay within the tolerance. features: that are
    read besides those of the batch.
    """
    rng = np.random.default_rng(0)
    combine = interpreter._combine

    def off(node, row, values, inputs):
        value = combine(node, row, values, inputs)
        if node.type.dtype == INT:
            return value
        return value * (1 + 2.0**-24 * rng.uniform(-1, 1, np.shape(value)))

    inputs = inputs_of(batch, seed, step)
    inputs.features.update(features or {})
    with mock.patch.object(interpreter, "_combine", off):
        moved = _furthest([interpret(graph, inputs) for _ in range(draws)], exact)
    return any(m > tolerance / 4 * scale_of(exact[k], tolerance) for k, m in moved.items())


def loss_of(graph: Graph, batch, seed=0, step=0) -> float:
    only = Graph({"loss": graph.outputs["loss"]}, graph.slots)
    return float(interpret(only, inputs_of(batch, seed, step))["loss"])


def slope_of(gradients, direction) -> float:
    """Return the slope of the loss along ``direction`` by its gradients; missing ones are 0."""
    reached = [k for k in direction if k in gradients]
    return sum(float((np.asarray(gradients[k]) * direction[k]).sum()) for k in reached)


def numeric_slope(model, batch, direction, eps=1e-6) -> float:
    """Return the same slope by central differences in float64, then restore the parameters.

    Richardson extrapolation copes with cells of large curvature.
    """
    graph, parameters = traced(model, batch), model.parameters()
    start = {k: p.value.copy() for k, p in parameters.items()}

    def at(t):
        for k, p in parameters.items():
            p.value = start[k] + t * direction[k]
        return loss_of(graph, batch)

    wide, narrow = ((at(step) - at(-step)) / (2 * step) for step in (eps, eps / 2))
    at(0.0)
    return (4 * narrow - wide) / 3


def scale_of(expected, tolerance):
    """Return the scale that a tolerance is relative to: the largest magnitude.

    It is at least 1e-3, in float32 1e-2 and in fewer bits 1, since large terms may cancel.
    """
    least = 1.0 if tolerance > 1e-4 else 1e-2 if tolerance > 1e-6 else 1e-3
    return max(float(np.abs(expected).max(initial=0.0)), least)


def assert_close(actual, expected, tolerance, what, more=0.0):
    """Compare relative to the largest magnitude (see scale_of), plus ``more``."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape, (what, actual.shape, expected.shape)
    scale = scale_of(expected, tolerance)
    error = float(np.abs(actual - expected).max(initial=0.0))
    assert error <= tolerance * scale + more, f"{what}: {error / scale:.3g} > {tolerance}"


def drawn(model, scale, seed=0):
    """Draw all parameters of the model in float64: zero biases would hide their use."""
    model.initialize(seed, np.float64)
    rng = np.random.default_rng(seed)
    for p in model.parameters().values():
        p.value = scale * rng.normal(size=p.shape)
    return model


def agrees(model, batch, tolerance=1e-11, **options):
    """Compare loss and gradients of a session with the oracle; return session and gradients.

    options: of the session, in float64 by default.
    """
    _, expected = reference(model, batch)
    session = cavs.Session(model, **{"dtype": np.float64} | options)
    loss, gradients = session.gradients(batch)
    assert_close(loss, expected["loss"], tolerance, "loss")
    for key, g in gradients.items():
        assert_close(g, expected.get(f"grad:{key}", np.zeros(g.shape)), tolerance, key)
    return session, gradients
