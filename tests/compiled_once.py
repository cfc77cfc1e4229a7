"""Compile equal models once, for tests of what runs programs: devices, ranks, training."""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import pytest

from cavs.compiler.options import CPU
from cavs.compiler.pipeline import compile_graph
from cavs.frontend import Parameter
from cavs.ir.graph import Graph, Slot
from cavs.ir.types import Domain
from cavs.runtime import program_cache, tracing
from cavs.runtime.encode import encode

MOST = 50
WITHOUT_GRAPHS = {"traced": Graph({}), "graph": Graph({}), "partition": None}
_known, _encoded, _lock = OrderedDict(), OrderedDict(), threading.Lock()


def signature(graph):
    """Return all that the compiler sees of a traced model; equal for equal models."""
    numbers, structures = {}, {}

    def plain(value):
        match value:
            case Parameter():
                return value.name, value.shape, value.trainable, value.sparse
            case Slot():
                of = value.structure
                number = structures.setdefault(id(of), len(structures))
                whose = number, of.name, of.of, of.arity, of.where, value.name
                whose = *whose, tuple(of.of_types.items())
                return *whose, value.shape, value.backward, value.child, value.leaf, value.alike
            case tuple():
                return tuple(map(plain, value))
            case float():
                return repr(value)  # which distinguishes -0.0 from 0.0
            case str() | int() | None | Domain():
                return value
        raise TypeError(f"add to this function the parts of {value!r} that the compiler sees")

    def line(node):
        numbers[node] = len(numbers)
        inputs = tuple(numbers[x] for x in node.inputs)
        attrs = tuple((name, plain(value)) for name, value in node.attrs)
        return node.op.name, inputs, attrs, node.type, node.where

    lines = tuple(map(line, graph.nodes()))
    slots = tuple((plain(slot), numbers[node]) for slot, node in graph.slots.items())
    outputs = tuple((name, numbers[node]) for name, node in graph.outputs.items())
    return lines, slots, outputs


def compile_once(traced, kinds, parameters, options):
    """Call `compile_graph`, or return its earlier result for the same arguments."""
    if options.record:
        return compile_graph(traced, kinds, parameters, options)
    key = signature(traced), tuple(kinds), tuple(parameters), options
    with _lock:
        found = _known.get(key)
        if found is None:
            found = compile_graph(traced, kinds, parameters, options)
            # Graphs refer to parameters, and these to their values on a device: keep none of them.
            on_device = options.target != CPU
            _known[key] = replace(found, **WITHOUT_GRAPHS) if on_device else found
        elif found.partition is None:
            found = replace(found, traced=traced)
        _known.move_to_end(key)
        if len(_known) > MOST:
            _known.popitem(last=False)
        return found


def encode_once(program):
    """Call `encode`, or return its earlier result for this very program; engines only read it."""
    with _lock:
        if id(program) not in _encoded:
            _encoded[id(program)] = program, encode(program)
            if len(_encoded) > MOST:
                _encoded.popitem(last=False)
        _encoded.move_to_end(id(program))
        return _encoded[id(program)][1]


@pytest.fixture(autouse=True)
def compiled_once(monkeypatch):
    """Let all sessions of the test process share compiled programs."""
    monkeypatch.setattr(program_cache, "compile_graph", compile_once)
    monkeypatch.setattr(program_cache, "encode", encode_once)


@contextmanager
def programs_shared():
    """Let sessions of one model share its traces and compiled programs."""
    known, trace = {}, tracing.trace_model

    def trace_once(model, schema, **how):
        key = id(model), *sorted(schema.items()), *sorted(how.items())
        if key not in known:
            known[key] = model, trace(model, schema, **how)  # the model keeps its id
        return known[key][1]

    new = {"compile_graph": compile_once, "encode": encode_once}
    with (
        mock.patch.object(tracing, "trace_model", trace_once),
        mock.patch.multiple(program_cache, **new),
    ):
        yield
