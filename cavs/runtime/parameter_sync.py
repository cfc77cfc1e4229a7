"""Keeps the values of parameters equal on the host, in packed weights and on a device.

Also the state that updates them, as the engine takes it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from cavs import _engine
from cavs.cuda.engine import CudaEngine
from cavs.errors import ConfigError
from cavs.frontend.parameter import Parameter
from cavs.runtime.interface import Array
from cavs.runtime.variant import Variants


def keep_dtype(parameters: Iterable[Parameter], dtype: np.dtype[Any]) -> None:
    """Convert parameters that have another dtype."""
    for p in parameters:
        if p.current().dtype != dtype:
            p.convert(dtype)


class ParameterSync:
    """Follows writes to ``parameters``, by other sessions and from Python, for one session."""

    def __init__(
        self,
        parameters: Mapping[str, Parameter],
        dtype: np.dtype[Any],
        cuda: CudaEngine | None,
        variants: Variants,
    ) -> None:
        self._parameters, self._dtype = list(parameters.values()), dtype
        self._cuda, self._variants = cuda, variants
        self._versions = 0  # sum of the parameters' versions that this session has seen
        self._arrays: list[Array] = []  # arrays of the parameters that executors were made for

    def take_arrays(self) -> list[Array]:
        """Return the arrays for a new executor, or one of the dtype if there are no parameters."""
        self._arrays = [p.current() for p in self._parameters]
        return self._arrays or [np.zeros(1, self._dtype)]

    def updated_by(self, executor: Any) -> None:
        """Tell other executors and sessions that ``executor`` has updated parameters."""
        if self._cuda is None:
            for p in self._parameters:
                p.written()
            self._versions += len(self._parameters)
        for other in self._variants.executors():
            if other is not executor:
                other.invalidate_parameters()

    def follow_others(self) -> None:
        """Take over values that other sessions have written, here or on devices."""
        for copy in {id(c): c for p in self._parameters for c in p.copies}.values():
            if copy is not self._cuda:
                copy.download()
        if self.written() != self._versions:
            self.keep_dtype()
            self.invalidate()
            self._versions = self.written()

    def written(self) -> int:
        """Sum of the parameters' versions, without downloads from this session's device."""
        own = 0 if self._cuda is None else self._cuda.published
        return sum([p.version for p in self._parameters]) - own

    def keep_dtype(self) -> None:
        """Convert parameters to the session's dtype again, if another session has changed it.

        Programs are dropped if their arrays were replaced, by that or by ``initialize``.
        """
        keep_dtype(self._parameters, self._dtype)
        found = [p.current() for p in self._parameters]
        if all(a is b for a, b in zip(found, self._arrays, strict=False)):
            return
        if self._cuda is not None:
            self._cuda.forget()
        self._variants.drop_builds()

    def invalidate(self) -> None:
        """Tell the engine that arrays of parameters were written."""
        if self._cuda is not None:
            self._cuda.invalidate()
        self._invalidate_executors()

    def pack_again(self) -> None:
        """Read all parameters again before the next run, in case arrays were written.

        The caller knows which forward runs may still be continued.
        """
        for executor in self._variants.executors():
            if isinstance(executor, _engine.Executor):
                executor.pack_again()
            else:
                self.invalidate()

    def _invalidate_executors(self) -> None:
        for executor in self._variants.executors():
            executor.invalidate_parameters()

    def write(self, parameters: Sequence[int], rows: Mapping[int, Array]) -> None:
        """Tell the engine that some parameters were written, and ``rows`` of some tables."""
        for number in (*parameters, *rows):  # other sessions learn of it, this one knows
            self._parameters[number].written()
            self._versions += 1
        if self._cuda is not None:
            self._cuda.write(parameters)
            for number, some in rows.items():
                width = math.prod(self._parameters[number].shape[1:])
                self._cuda.write_rows(number, some, width)
        self._invalidate_executors()

    def download(self) -> None:
        """Bring the host's arrays up to date; DeviceError where steps are lost with a device."""
        if self._cuda is not None:
            self._cuda.update_host()

    def lost_steps(self) -> int:
        """Return how many steps were lost with a failed device since the last call."""
        return 0 if self._cuda is None else self._cuda.lost_steps()


def update_of(
    parameters: Collection[Parameter], states: Sequence[Sequence[Array]]
) -> tuple[list[list[Array]], list[bool]]:
    """Return the optimiser's arrays for each parameter, and which are trained, for the engine.

    For a model without parameters the engine has one that nothing reads. ConfigError unless there
    are states for each parameter.
    """
    if len(states) != len(parameters):
        raise ConfigError(
            f"states of {len(states)} parameters, the model has {len(parameters)}",
            hint="give a list of arrays for each of model.parameters(), an empty one for kind='sgd'"
            "; optimizer.init_states(list(model.parameters().values())) returns them",
        )
    if not parameters:
        return [[]], [False]
    return [list(s) for s in states], [p.trainable for p in parameters]
