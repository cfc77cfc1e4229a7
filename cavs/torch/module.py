"""A vertex function or model as a module of PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from cavs.config import require_flag
from cavs.data.features import FeatureDomain
from cavs.errors import ConfigError, user_line
from cavs.frontend.model import Model
from cavs.frontend.parameter import Parameter
from cavs.frontend.vertex import VertexFunction
from cavs.runtime.forward_run import ForwardRun
from cavs.runtime.host_inputs import (
    FUNCTION,
    FunctionModel,
    check_domains,
    check_model,
    with_specs,
)
from cavs.runtime.interface import BatchLike
from cavs.runtime.session import Session
from cavs.torch.function import Call, Run
from cavs.torch.operator import Outputs, outputs_by_number, outputs_of, register
from cavs.torch.tensor_batch import with_tensors
from cavs.torch.torch_parameter import TorchParameter

_FLOATS = (torch.float32, torch.float64)


class Module(torch.nn.Module):  # type: ignore[misc]
    """A vertex function or model that autograd differentiates, on the CPU.

    ``module(batch, x=tensor, ...)`` runs all graphs of a ``cavs.batch`` and returns a tensor, or
    tensors by name, for what a vertex function pushes or ``Model.forward`` returns, with rows in
    the order of the batch. Tensors are inputs of the vertex function, or features of the batch that
    the model reads by their names.

    Its parameters, by the names that they have in the model, are torch Parameters on the same
    memory. Gradients reach them and the tensors. Outside of training mode nothing is dropped, and
    without gradients the program for inference runs. Random numbers follow ``torch.manual_seed``.

    features: of the batch, which are inputs of a vertex function besides the tensors. domains:
    "vertex" (the default), "edge" or "graph" for each tensor, by its name: what a row of it is for.
    sparse: gradients of tables that lookups alone read are sparse tensors, as those of
    ``torch.nn.Embedding(sparse=True)`` are, but in programs of ``torch.compile``.

    Raises ConfigError for parameters that use other memory and a tensor on another device;
    FeatureError for a tensor with another number of rows; DTypeError for one of another dtype than
    the parameters, float32 or, after ``double()``, float64.
    """

    def __init__(
        self,
        model: Model | VertexFunction,
        *,
        features: Sequence[str] = (),
        domains: Mapping[str, FeatureDomain] | None = None,
        sparse: bool = False,
    ) -> None:
        super().__init__()
        check_model(model, "module")
        self._function = model if isinstance(model, VertexFunction) else None
        self._model = FunctionModel(model, ()) if isinstance(model, VertexFunction) else model
        self._features, self._domains = tuple(features), dict(domains or {})
        check_domains(self._domains)
        require_flag("sparse", sparse)
        self._sparse = sparse
        self._inputs: tuple[str, ...] | None = (
            None  # those of the first call, for a vertex function
        )
        self._session: Session | None = None
        self._calls, self._latest = 0, [0]  # see Call
        self._dtype = torch.float32
        self._number = register(self)
        self._outputs: Outputs | None = None  # as compiled programs know them
        self._shared: list[TorchParameter] = []
        for name, parameter in self._model.parameters().items():
            self._share(name.removeprefix(FUNCTION), parameter)

    def _share(self, name: str, parameter: Parameter) -> None:
        *path, key = name.split(".")
        owner: torch.nn.Module = self
        try:
            for part in path:
                if part not in owner._modules:
                    owner.add_module(part, torch.nn.Module())
                owner = owner._modules[part]
            shared = TorchParameter(name, parameter, owner, key, parameter.current())
            shared.attach()
        except KeyError as error:
            raise ConfigError(
                f"a torch module cannot have a parameter {name!r}: {error.args[0]}",
                hint="rename the attribute of the model that holds it",
            ) from None
        self._shared.append(shared)
        self._dtype = shared.tensor.dtype

    # ---- memory of the parameters ------------------------------------------------------------

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Module:
        """Convert to another dtype; ConfigError for a device or a dtype that the engine lacks."""
        probe = fn(torch.empty(0, dtype=self._dtype))
        if probe.device.type != "cpu" or probe.dtype not in _FLOATS:
            raise ConfigError(
                f"a module of {probe.dtype} on the device {probe.device}",
                where=user_line(),
                hint="cavs.torch runs in torch.float32 or torch.float64 on the CPU",
            )
        super()._apply(fn, recurse)
        self._adopt(probe.dtype)
        return self

    def _adopt(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        for shared in self._shared:
            shared.adopt()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the programs, which a copy compiles again."""
        return {**self.__dict__, "_session": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for shared in self._shared:
            shared.address = 0  # the copies of tensor and array have memory of their own
        self._number = register(self)
        self._adopt(self._dtype)

    # ---- running -----------------------------------------------------------------------------

    def forward(self, batch: BatchLike, **inputs: torch.Tensor) -> Any:
        """Return a tensor, or tensors by name, for the outputs of the model."""
        if torch.compiler.is_compiling():
            return self._compiled(batch, inputs)
        session, given, seed = self._begin(batch, inputs)
        tensors = [shared.tensor for shared in self._shared]
        if torch.is_grad_enabled() and any(t.requires_grad for t in (*inputs.values(), *tensors)):
            call = self._call(session, given, tuple(inputs), seed)
            rows = Run.apply(call, *inputs.values(), *tensors)
            found = dict(zip(call.outputs, rows, strict=True))
        else:
            found = self._infer(session, given, seed)
        return found["output"] if set(found) == {"output"} else found

    def _begin(
        self, batch: BatchLike, inputs: Mapping[str, torch.Tensor]
    ) -> tuple[Session, BatchLike, int]:
        """Return a session that knows the parameters, the inputs of a run, and a seed."""
        self._check_inputs(tuple(inputs))
        given = with_tensors(batch, inputs, self._dtype, self._domains) if inputs else batch
        for shared in self._shared:
            shared.follow()
        session = self._running_session()
        session.pack_again()  # writes by way of Tensor.data leave no trace
        self._calls += 1
        self._latest[0] = self._calls
        return session, given, int(torch.randint(2**31, ()))

    def _call(self, session: Session, given: BatchLike, inputs: Sequence[str], seed: int) -> Call:
        numbers = self._calls, self._latest
        return Call(
            session,
            given,
            inputs,
            list(session.parameters),
            self.training,
            seed,
            [],
            *numbers,
            self._sparse,
        )

    def _compiled(self, batch: Any, inputs: dict[str, torch.Tensor]) -> Any:
        """Call by the operator, which torch.compile takes into its programs."""
        parameters = [shared.tensor for shared in self._shared]
        names, given = ",".join(inputs), list(inputs.values())
        torch.ops.cavs.prepare(batch.number, self._number, names, given)
        outputs = outputs_by_number(self._number)
        wanted = [t.requires_grad and torch.is_grad_enabled() for t in (*given, *parameters)]
        rows, _ = torch.ops.cavs.run(
            batch.number,
            self._number,
            list(batch.sizes),
            outputs.text,
            names,
            given,
            parameters,
            any(wanted),
            any(wanted[: len(given)]),
            outputs.call,
        )
        found = dict(zip(outputs.names, rows, strict=True))
        return found["output"] if outputs.names == ("output",) else found

    def _learn_outputs(
        self, batch: BatchLike, names: Sequence[str], inputs: Sequence[torch.Tensor]
    ) -> None:
        """Find the outputs for a batch and inputs, which may have no values yet."""
        self._check_inputs(tuple(names))
        given = with_specs(batch, dict(zip(names, inputs, strict=True)), self._domains)
        self._outputs = outputs_of(self._model, given)

    def _execute(
        self,
        batch: BatchLike,
        inputs: Mapping[str, torch.Tensor],
        parameters: Sequence[torch.Tensor],
        gradients: bool,
        by_inputs: bool,
    ) -> tuple[dict[str, torch.Tensor], Call | None, ForwardRun | None]:
        """Return the outputs by name, and if ``gradients`` follow the run that they need.

        parameters: as the compiled program has them, which must be those of the module.
        """
        session, given, seed = self._begin(batch, inputs)
        for shared, tensor in zip(self._shared, parameters, strict=True):
            if tensor.data_ptr() != shared.address:
                raise shared.replaced_error()
        if not gradients:
            return self._infer(session, given, seed), None, None
        call = self._call(session, given, tuple(inputs), seed)._replace(sparse=False)
        run = call.forward(by_inputs)
        call.outputs.extend(run.outputs)
        return {k: torch.from_numpy(rows) for k, rows in run.outputs.items()}, call, run

    def _infer(self, session: Session, batch: BatchLike, seed: int) -> dict[str, torch.Tensor]:
        """Return the outputs without gradients; of the program for inference if nothing drops."""
        if self.training:
            rows = session.forward(batch, seed=seed).outputs
        else:
            rows = session.predict(batch, seed=seed)
        return {name: torch.from_numpy(np.asarray(x)) for name, x in rows.items()}

    def _running_session(self) -> Session:
        dtype = np.float32 if self._dtype == torch.float32 else np.float64
        if self._session is None or self._session.dtype != dtype:
            self._session = Session(self._model, dtype=dtype)
        return self._session

    def _check_inputs(self, names: tuple[str, ...]) -> None:
        """Let a vertex function take ``names`` as inputs; ConfigError for others than before."""
        if self._function is None or names == self._inputs:
            return
        if self._inputs is None:
            self._inputs = names
            assert isinstance(self._model, FunctionModel)
            self._model.names = (*names, *self._features)
        elif set(names) != set(self._inputs):
            raise ConfigError(
                f"inputs {', '.join(names) or 'none'}; the first call had "
                f"{', '.join(self._inputs) or 'none'}",
                where=user_line(),
                hint="a module is traced once: give the same inputs in every call, or make "
                "another Module of the vertex function",
            )

    def extra_repr(self) -> str:
        """Return the model that runs."""
        return repr(self._model if self._function is None else self._function)
