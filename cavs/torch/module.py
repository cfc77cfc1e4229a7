"""A vertex function or model as a module of PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cavs.compiler.options import Passes
from cavs.data.features import FeatureDomain
from cavs.errors import ConfigError, user_line
from cavs.frontend.batch import SymbolicBatch
from cavs.frontend.model import Model
from cavs.frontend.parameter import Parameter
from cavs.frontend.values import Pushed
from cavs.frontend.vertex import VertexFunction
from cavs.runtime.interface import Array, BatchLike
from cavs.runtime.session import Session
from cavs.torch.function import Call, Run
from cavs.torch.tensor_batch import check_domains, with_tensors

_FLOATS = (torch.float32, torch.float64)
# A batch may have features of its own by the names of tensors: equal vertices are not searched for.
_PASSES = Passes(merge_vertices=False)
_FUNCTION = "function."  # begins the names of parameters of a vertex function


class _FunctionModel(Model):
    """A model of one vertex function. names: of the features that it takes as inputs."""

    def __init__(self, function: VertexFunction, names: Sequence[str]) -> None:
        self.function = function
        self._names = tuple(names)

    def forward(self, batch: SymbolicBatch) -> Any:
        found = self.function(batch.graph, **{name: batch[name] for name in self._names})
        return dict(found._items()) if isinstance(found, Pushed) else found


@dataclass(eq=False)
class _Shared:
    """A parameter of cavs and the torch Parameter on its memory, which ``owner`` has by ``key``."""

    name: str
    parameter: Parameter
    owner: torch.nn.Module
    key: str
    array: Array
    address: int = 0
    version: int = 0

    @property
    def tensor(self) -> Any:
        return self.owner._parameters[self.key]

    def attach(self) -> None:
        """Let the tensor use the memory of the parameter, which has its values."""
        self.array = self.parameter.current()
        if self.owner._parameters.get(self.key) is None:
            found = torch.nn.Parameter(
                torch.from_numpy(self.array), requires_grad=self.parameter.trainable
            )
            self.owner.register_parameter(self.key, found)
        else:
            self.tensor.data = torch.from_numpy(self.array)
        self.address, self.version = self.tensor.data_ptr(), self.tensor._version

    def adopt(self) -> None:
        """Take over the values and the dtype of a tensor that uses other memory."""
        if self.tensor.data_ptr() == self.address and self.parameter.current() is self.array:
            return
        values = self.tensor.detach().numpy().copy()
        if self.parameter.current().dtype != values.dtype:
            self.parameter.convert(values.dtype)
        self.parameter.current()[...] = values
        self.parameter.written()
        self.attach()

    def follow(self) -> Any:
        """Return the tensor, after its values have been declared written if torch has written."""
        tensor = self.owner._parameters.get(self.key)
        replaced = tensor is None or tensor.data_ptr() != self.address
        if replaced or self.parameter.current() is not self.array:
            raise ConfigError(
                f"the parameter {self.name!r} no longer uses the memory of the model's own: it was "
                "replaced",
                where=user_line(),
                hint="write new values in place, with torch.no_grad(): p.copy_(values); a session "
                "of another dtype converts parameters, too",
            )
        if tensor._version != self.version:
            self.version = tensor._version
            self.parameter.written()
        self.parameter.trainable = tensor.requires_grad
        return tensor


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
    ) -> None:
        super().__init__()
        if not isinstance(model, Model | VertexFunction):
            raise ConfigError(
                f"a module of {model!r:.60}",
                where=user_line(),
                hint="give an instance of a cavs.VertexFunction or a cavs.Model",
            )
        self._function = model if isinstance(model, VertexFunction) else None
        self._model = _FunctionModel(model, ()) if isinstance(model, VertexFunction) else model
        self._features, self._domains = tuple(features), dict(domains or {})
        check_domains(self._domains)
        self._inputs: tuple[str, ...] | None = (
            None  # those of the first call, for a vertex function
        )
        self._session: Session | None = None
        self._calls, self._latest = 0, [0]  # see Call
        self._dtype = torch.float32
        self._shared: list[_Shared] = []
        for name, parameter in self._model.parameters().items():
            self._share(name.removeprefix(_FUNCTION), parameter)

    def _share(self, name: str, parameter: Parameter) -> None:
        *path, key = name.split(".")
        owner: torch.nn.Module = self
        try:
            for part in path:
                if part not in owner._modules:
                    owner.add_module(part, torch.nn.Module())
                owner = owner._modules[part]
            shared = _Shared(name, parameter, owner, key, parameter.current())
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
        self._adopt(self._dtype)

    # ---- running -----------------------------------------------------------------------------

    def forward(self, batch: BatchLike, **inputs: torch.Tensor) -> Any:
        """Return a tensor, or tensors by name, for the outputs of the model."""
        self._check_inputs(tuple(inputs))
        given = with_tensors(batch, inputs, self._dtype, self._domains) if inputs else batch
        tensors = [shared.follow() for shared in self._shared]
        session = self._running_session()
        session.pack_again()  # writes by way of Tensor.data leave no trace
        self._calls += 1
        self._latest[0] = self._calls
        seed = int(torch.randint(2**31, ()))
        wanted = torch.is_grad_enabled() and any(
            t.requires_grad for t in (*inputs.values(), *tensors)
        )
        if wanted:
            names = list(session.parameters)
            numbers = self._calls, self._latest
            call = Call(session, given, tuple(inputs), names, self.training, seed, [], *numbers)
            rows = Run.apply(call, *inputs.values(), *tensors)
            found = dict(zip(call.outputs, rows, strict=True))
        else:
            found = self._infer(session, given, seed)
        return found["output"] if set(found) == {"output"} else found

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
            self._session = Session(self._model, dtype=dtype, passes=_PASSES)
        return self._session

    def _check_inputs(self, names: tuple[str, ...]) -> None:
        """Let a vertex function take ``names`` as inputs; ConfigError for others than before."""
        if self._function is None or names == self._inputs:
            return
        if self._inputs is None:
            self._inputs = names
            assert isinstance(self._model, _FunctionModel)
            self._model._names = (*names, *self._features)
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
