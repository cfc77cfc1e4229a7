"""The operators ``cavs::run`` and others, by which programs of ``torch.compile`` call modules.

Operators take numbers and tensors, so modules and batches have numbers, and so has a forward run
whose backward run follows; a tensor with that number owns the run.
"""

from __future__ import annotations

import itertools
import json
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from cavs.data.engine_batch import batch_of
from cavs.errors import ConfigError
from cavs.frontend.batch import Feature
from cavs.frontend.model import Model, trace_model
from cavs.ir.types import INT, Domain
from cavs.runtime.features import FeatureTypes
from cavs.runtime.forward_run import ForwardRun
from cavs.runtime.interface import BatchLike
from cavs.torch.function import Call

_DOMAINS = ("vertex", "edge", "graph")  # in the order of `EngineBatch.sizes`
_MODULES: WeakValueDictionary[int, Any] = WeakValueDictionary()
_NUMBERS = itertools.count(2)


@dataclass
class _Outstanding:
    """A forward run, and what its backward run needs. inputs: with gradients by inputs."""

    call: Call
    run: ForwardRun
    inputs: bool


_RUNS: dict[int, _Outstanding] = {}


class Outputs(NamedTuple):
    """Names of the outputs of a module; text: for each its name, domain, row shape and dtype.

    call: a number for each call in a program, since compilers unite operators with equal arguments.
    """

    names: tuple[str, ...]
    text: str
    call: int = 0


def register(module: Any) -> int:
    """Return a number that operators find ``module`` by."""
    number = next(_NUMBERS)
    _MODULES[number] = module
    return number


def outputs_of(model: Model, batch: BatchLike) -> Outputs:
    """Return the outputs of ``model`` for a batch whose features have the types of ``batch``."""
    types = FeatureTypes(model)
    schema = {
        name: Feature(s.domain, s.dtype, tuple(s.shape), bool(s.has_absent), s.type)
        for name, s in types.schema(batch).items()
    }
    graph = trace_model(
        model,
        schema,
        training=False,
        with_loss=False,
        predictions=True,
        edges=batch.topology.num_edges > 0,
        structures=types.structures(batch),
    )
    found = []
    for name, node in graph.outputs.items():
        domain = node.type.domain
        rows = domain.base if domain == Domain(domain.base) else str(domain)
        found.append((name, rows, list(node.type.shape), node.type.dtype == INT))
    return Outputs(tuple(graph.outputs), json.dumps(found))


@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]
def outputs_by_number(module: int) -> Outputs:
    """Return the outputs of a module that `prepare` has been traced for, and a number."""
    found: Outputs = _MODULES[module]._outputs
    return found._replace(call=next(_NUMBERS))


def _prepare(batch: int, module: int, names: str, inputs: list[Tensor]) -> Tensor:
    return torch.empty(0)


def _trace(batch: int, module: int, names: str, inputs: list[Tensor]) -> Tensor:
    """Let the module learn its outputs, when a program that calls it is compiled."""
    owner = _MODULES[module]
    if owner._outputs is None:
        owner._learn_outputs(_batch(_hint(batch)), names.split(",") if names else [], inputs)
    return torch.empty(0)


def _hint(number: Any) -> int:
    """Return a number that may be symbolic."""
    return int(number.node.hint if isinstance(number, torch.SymInt) else number)


def _batch(number: int) -> Any:
    found = batch_of(number)
    if found is None:
        raise ConfigError(
            f"a compiled program runs a batch {number} that is no more",
            hint="give the program the batch in every call, and keep it until the call is done",
        )
    return found


def _run(
    batch: int,
    module: int,
    sizes: Sequence[int],
    outputs: str,
    names: str,
    inputs: list[Tensor],
    parameters: list[Tensor],
    gradients: bool,
    by_inputs: bool,
    call: int,
) -> tuple[list[Tensor], Tensor]:
    """Run forward; return the outputs, and the tensor that owns the run if gradients follow."""
    given = dict(zip(names.split(","), inputs, strict=True)) if names else {}
    found, begun, run = _MODULES[module]._execute(
        _batch(batch), given, parameters, gradients, by_inputs
    )
    token = np.zeros(1, np.int64)
    if run is not None:
        token[0] = number = next(_NUMBERS)
        _RUNS[number] = _Outstanding(begun, run, by_inputs)
        weakref.finalize(token, _RUNS.pop, number, None).atexit = False
    return [found[name] for name, *_ in json.loads(outputs)], torch.from_numpy(token)


def _run_shapes(
    batch: int,
    module: int,
    sizes: Sequence[int],
    outputs: str,
    names: str,
    inputs: list[Tensor],
    parameters: list[Tensor],
    gradients: bool,
    by_inputs: bool,
    call: int,
) -> tuple[list[Tensor], Tensor]:
    """Return tensors like those of `_run`: other rows than ``sizes`` depend on the batch."""
    floats = next((t.dtype for t in (*inputs, *parameters)), torch.float32)
    rows: dict[str, Any] = {"one": 1, **dict(zip(_DOMAINS, sizes, strict=True))}
    found = []
    for _, domain, shape, whole_numbers in json.loads(outputs):
        if domain not in rows:
            rows[domain] = torch.library.get_ctx().new_dynamic_size()
        dtype = torch.int32 if whole_numbers else floats
        found.append(torch.empty((rows[domain], *shape), dtype=dtype))
    return found, torch.empty(1, dtype=torch.int64)


def _backward(
    token: Tensor, cotangents: list[Tensor | None], tensors: list[Tensor], needed: list[bool]
) -> list[Tensor]:
    """Return the gradients by those of inputs and parameters that are ``needed``."""
    held = _RUNS[int(token)]
    held.run, gradients = held.call.backward(held.run, held.inputs, cotangents)
    return [
        torch.zeros(t.shape, dtype=t.dtype) if g is None else torch.from_numpy(g).reshape(t.shape)
        for g, t, needs in zip(gradients, tensors, needed, strict=True)
        if needs
    ]


def _backward_shapes(
    token: Tensor, cotangents: list[Tensor | None], tensors: list[Tensor], needed: list[bool]
) -> list[Tensor]:
    return [t.new_empty(t.shape) for t, needs in zip(tensors, needed, strict=True) if needs]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[list[Tensor], Tensor]) -> None:
    ctx.count = len(inputs[5])
    ctx.save_for_backward(output[1], *inputs[5], *inputs[6])


def _differentiate(ctx: Any, cotangents: list[Tensor | None], _: Tensor | None) -> tuple[Any, ...]:
    token, *tensors = ctx.saved_tensors
    needed = [*ctx.needs_input_grad[5], *ctx.needs_input_grad[6]]
    found = iter(torch.ops.cavs.run_backward(token, cotangents, tensors, needed))
    gradients = [next(found) if needs else None for needs in needed]
    return *[None] * 5, gradients[: ctx.count], gradients[ctx.count :], None, None, None


_RUN = (
    "(SymInt batch, SymInt module, SymInt[] sizes, str outputs, str names, Tensor[] inputs, "
    "Tensor[] parameters, bool gradients, bool by_inputs, SymInt call) -> (Tensor[], Tensor)"
)
_PREPARE = "(SymInt batch, SymInt module, str names, Tensor[] inputs) -> Tensor"
_BACKWARD = "(Tensor token, Tensor?[] cotangents, Tensor[] tensors, bool[] needed) -> Tensor[]"

prepare = torch.library.custom_op("cavs::prepare", _prepare, mutates_args=(), schema=_PREPARE)
prepare.register_fake(_trace)
run = torch.library.custom_op(
    "cavs::run",
    _run,
    mutates_args=(),
    schema=_RUN,
    tags=(torch.Tag.nondeterministic_seeded,),
)
run.register_fake(_run_shapes)
run.register_autograd(_differentiate, setup_context=_save)
run_backward = torch.library.custom_op(
    "cavs::run_backward", _backward, mutates_args=(), schema=_BACKWARD
)
run_backward.register_fake(_backward_shapes)
