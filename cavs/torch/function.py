"""A run of a session as a function of autograd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from cavs.runtime.forward_run import ForwardRun
from cavs.runtime.interface import Array, BatchLike
from cavs.runtime.results import GradientRows
from cavs.runtime.session import Session


class Call(NamedTuple):
    """A call of a module: its batch, the names of its inputs, and how it is run.

    parameters: their names, in the order of the arguments of `Run`. outputs: receives the names.
    latest: the numbers of all calls so far, the last of which has read the parameters last. sparse:
    gradients of tables are sparse.
    """

    session: Session
    batch: BatchLike
    inputs: Sequence[str]
    parameters: Sequence[str]
    dropout: bool
    seed: int
    outputs: list[str]
    number: int
    latest: list[int]
    sparse: bool

    def read_parameters(self) -> None:
        """Let the session read them again, if another call may have read other values since."""
        if self.latest[0] != self.number:
            self.session.pack_again()
            self.latest[0] = self.number

    def forward(self, inputs: bool) -> ForwardRun:
        """Run forward; inputs: with what gradients by float features need."""
        return self.session.forward(self.batch, inputs=inputs, dropout=self.dropout, seed=self.seed)

    def backward(
        self, run: ForwardRun, inputs: bool, cotangents: Sequence[torch.Tensor | None]
    ) -> tuple[ForwardRun, list[Array | GradientRows | None]]:
        """Return the run whose values were used, and a gradient for each input and parameter.

        It is another one if ``run`` is finished, as the caller retains the graph of autograd.
        """
        given = {
            name: d.numpy()
            for name, d in zip(self.outputs, cotangents, strict=True)
            if d is not None
        }
        self.read_parameters()
        if run.finished:
            run = self.forward(inputs)
        found = run.backward(given, sparse=self.sparse)
        gradients: list[Array | GradientRows | None] = [
            found.inputs.get(name) for name in self.inputs
        ]
        for name in self.parameters:
            table = found.tables.get(name)
            gradients.append(found.parameters.get(name) if table is None else table)
        return run, gradients


def _tensor(gradient: Array | GradientRows, like: torch.Tensor) -> torch.Tensor:
    """Return a gradient as a tensor in the shape of the tensor ``like``."""
    if not isinstance(gradient, GradientRows):
        found = torch.from_numpy(gradient)
        return found if found.shape == like.shape else found.reshape(like.shape)
    rows = torch.from_numpy(gradient.rows.astype(np.int64))
    values = torch.from_numpy(gradient.values).reshape(-1, *like.shape[1:])
    return torch.sparse_coo_tensor(
        rows[None], values, like.shape, is_coalesced=True, check_invariants=False
    )


class Run(torch.autograd.Function):  # type: ignore[misc]
    """One call of the engine forward and one backward.

    Arguments are a `Call`, the tensors of its inputs, and the parameters. A further backward run of
    a graph that the caller retains runs forward again: the first one writes over its values.
    """

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the outputs of the model, in the order of ``call.outputs``."""
        needed = any(ctx.needs_input_grad[1 : 1 + len(call.inputs)])
        run = call.forward(needed)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)  # autograd refuses backward if one was written since
        ctx.call, ctx.run, ctx.inputs = call, run, needed
        call.outputs.extend(run.outputs)
        return tuple(torch.from_numpy(rows) for rows in run.outputs.values())

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *cotangents: torch.Tensor | None) -> tuple[Any, ...]:
        """Return a gradient, or None, for each argument of `forward`."""
        tensors = ctx.saved_tensors
        ctx.run, gradients = ctx.call.backward(ctx.run, ctx.inputs, cotangents)
        needed = ctx.needs_input_grad[1:]
        return None, *(
            None if g is None or not needs else _tensor(g, t)
            for g, needs, t in zip(gradients, needed, tensors, strict=True)
        )
