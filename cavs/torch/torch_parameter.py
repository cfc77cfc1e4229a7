"""Parameters that cavs and torch read and write in the same memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from cavs.errors import ConfigError, user_line
from cavs.frontend.parameter import Parameter
from cavs.runtime.interface import Array


@dataclass(eq=False)
class TorchParameter:
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
        """The torch Parameter."""
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

    def replaced_error(self) -> ConfigError:
        """Return the error of a tensor that uses other memory."""
        return ConfigError(
            f"the parameter {self.name!r} no longer uses the memory of the model's own: it was "
            "replaced",
            where=user_line(),
            hint="write new values in place, with torch.no_grad(): p.copy_(values); a session "
            "of another dtype converts parameters, too",
        )

    def follow(self) -> Any:
        """Return the tensor, after its values have been declared written if torch has written."""
        tensor = self.owner._parameters.get(self.key)
        replaced = tensor is None or tensor.data_ptr() != self.address
        if replaced or self.parameter.current() is not self.array:
            raise self.replaced_error()
        if tensor._version != self.version:
            self.version = tensor._version
            self.parameter.written()
        self.parameter.trainable = tensor.requires_grad
        return tensor
