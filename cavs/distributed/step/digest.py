"""Digests and facts that all ranks must have in common before the first step."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import cavs._cuda
import cavs._engine
from cavs._engine import isa
from cavs.compiler.pipeline import Compiled
from cavs.data import GraphBatch
from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.comm.agreement import Agreement
from cavs.ir import Graph
from cavs.ir.printer import number, print_node
from cavs.train.checkpoint import model_name, version

_STEPS = (0, 1, 10, 100, 1000, 10_000, 100_000)  # at which learning rates are compared


@lru_cache(maxsize=1)
def code_digest() -> str:
    """Return a digest of every Python file of the package and of the engines."""
    root = Path(__file__).resolve().parents[2]
    engines = [Path(str(module.__file__)) for module in (cavs._engine, cavs._cuda)]
    files = [*sorted(root.rglob("*.py")), *engines]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def facts(
    model: Any, parameters: Mapping[str, Any], optimizer: Any, seed: int, strategy: str, **more: Any
) -> dict[str, str]:
    """Return the facts that ranks compare, by the names by which errors quote them."""
    shapes = {
        name: [str(p.current().dtype), list(p.shape), bool(p.trainable)]
        for name, p in parameters.items()
    }
    return {
        "version of cavs": f"{version()} ({code_digest()})",
        "model": model_name(model),
        "parameters": _short(shapes),
        "optimizer": _rule(optimizer),
        "seed": str(seed),
        "strategy": strategy,
        # All ranks apply the same updates, which are to come out in the same bits.
        "instructions": "base, which round it twice (as all ranks do with CAVS_ISA=base)"
        if isa() == "base"
        else "those that round a sum of products once",
        **{name: str(value) for name, value in more.items()},
    }


def cluster(resources: ResourceSpec | None) -> str:
    """Return the facts about a resource specification that ranks compare."""
    if resources is None:
        return "none"
    addresses = [node.address for node in resources.nodes]
    shown = ", ".join(addresses[:4]) + ", ..." * (len(addresses) > 4)
    nodes = f"{len(addresses)} node{'s' * (len(addresses) > 1)}"
    return f"{nodes} ({shown}), digest {_digest(resources)}"


def guesses(batch: GraphBatch) -> bool:
    """True if a trace for `batch` guesses types: those of edge features, if there are no edges."""
    return bool(batch.edge_features) and batch.num_edges == 0


def same_trace(agreement: Agreement, trace: Graph | None, error: Exception | None) -> None:
    """Raise ConfigError on all ranks unless they traced the same model, or `error` of this rank.

    trace: None on a rank that has none.
    """
    agreement.same(None if trace is None else _facts_of(_lines(trace)), error)


def same_program(agreement: Agreement, compiled: Compiled | None, order: Sequence[int]) -> None:
    """Raise ConfigError on all ranks unless they run the same program; it says how they differ.

    compiled: None on ranks that compute nothing, or that had to guess. order: of the gradients, by
    parameter.
    """
    facts, lines = None, list[str]()
    if compiled is not None:
        program, lines = compiled.program, _lines(compiled.traced)
        facts = {
            "kinds of gradients": f"{program.gradients}",
            "order of gradients": ", ".join(program.parameters[i] for i in order),
            "compiled program": f"digest {_digest(program)}",
        }
    digests = agreement.communicator.share(facts and _digest([facts, lines]))
    if len({digest for digest in digests if digest is not None}) > 1:
        agreement.same(facts and {**facts, **_facts_of(lines)})  # the lines only now


def _facts_of(lines: Sequence[str]) -> dict[str, str]:
    each = {f"line {i} of the trace": line for i, line in enumerate(lines)}
    return {"trace of the model": f"{len(lines)} lines, digest {_digest(lines)}", **each}


def _lines(trace: Graph) -> list[str]:
    """Return a traced model as text, without positions in files, which hosts may have elsewhere."""
    names = number(trace)
    lines = [print_node(node, names) for node in trace.nodes() if node.op.name != "parameter"]
    lines += [f"slot {name} <- {names[node]}" for name, node in trace.slots.items()]
    return lines + [f"return {key} = {names[node]}" for key, node in trace.outputs.items()]


def _digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def _rule(optimizer: Any) -> str:
    """Return an optimiser as text: its numbers, and the rates of its schedule."""
    hyper = {name: value for name, value in optimizer.hyper(0).items() if name != "lr"}
    if dataclasses.is_dataclass(optimizer):  # there are more, such as what states begin with
        fields = [f.name for f in dataclasses.fields(optimizer) if f.name != "lr"]
        hyper = {name: getattr(optimizer, name) for name in fields}
    rates = ", ".join(f"{_rate(optimizer, step)} after {step}" for step in _STEPS)
    adapts = optimizer.plateau()
    return f"{type(optimizer).__name__} {hyper}, lr {rates} steps" + (f", {adapts}" * bool(adapts))


def _rate(optimizer: Any, step: int) -> str:
    """Return the rate in 12 digits: on another rank a cosine may have another last bit."""
    try:
        return repr(float(f"{optimizer.rate(step):.12g}"))
    except Exception as error:  # a schedule of the user that ends before
        return type(error).__name__


def _short(shapes: Mapping[str, Any]) -> str:
    text = "; ".join(f"{name} {kind}{shape}" for name, (kind, shape, _) in shapes.items())
    text = text if len(text) < 400 else f"{text[:400]} ..."
    return f"{len(shapes)} ({text}), digest {_digest(shapes)}"
