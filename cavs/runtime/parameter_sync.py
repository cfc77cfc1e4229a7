"""The part of a session that keeps engine and host agreed on what parameters hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cavs.cuda.engine import CudaEngine
from cavs.errors import ProcessLocal
from cavs.frontend.parameter import Parameter
from cavs.runtime.variant import Array, Variant


class Following(ProcessLocal):
    """Packed weights and copies on a device follow what is written, by whomever."""

    parameters: dict[str, Parameter]
    _variants: dict[Any, Variant]
    _cuda: CudaEngine | None
    dtype: np.dtype[Any]
    _versions: int  # of the parameters, as far as this session has followed them
    _arrays: list[Array]  # of the parameters, that executors were made for

    def moved(self, executor: Any) -> None:
        """Tells the other executors, and other sessions, that `executor` has updated parameters."""
        if self._cuda is None:
            for p in self.parameters.values():
                p.written()
            self._versions += len(self.parameters)
        for variant in self._variants.values():
            if variant.executor is not None and variant.executor is not executor:
                variant.executor.invalidate_parameters()

    def _follow_others(self) -> None:
        """Takes over what other sessions have made of the parameters, here or on devices."""
        parameters = self.parameters.values()
        for copy in {id(c): c for p in parameters for c in p.copies}.values():
            if copy is not self._cuda:
                copy.download()
        own = 0 if self._cuda is None else self._cuda.published
        versions = sum(p.version for p in parameters) - own
        if versions != self._versions:
            self.keep_dtype()
            self.invalidate()
        own = 0 if self._cuda is None else self._cuda.published
        self._versions = sum(p.version for p in parameters) - own

    def keep_dtype(self) -> None:
        """Sessions of other dtypes, and `initialize`, put other arrays in the parameters' place:
        they are converted to the session's dtype again, and programs are made for them.
        """
        for p in self.parameters.values():
            if p.current().dtype != self.dtype:
                p.convert(self.dtype)
        found = [p.current() for p in self.parameters.values()]
        if all(a is b for a, b in zip(found, self._arrays, strict=False)):
            return
        if self._cuda is not None:
            self._cuda.forget()
        for variant in self._variants.values():
            variant.executor = None

    def invalidate(self) -> None:
        """Tells the engine that arrays of parameters were written that it has seen before.

        Not needed where ``Parameter.value`` was asked for or set since the last run.
        """
        if self._cuda is not None:
            self._cuda.invalidate()
        for variant in self._variants.values():
            if variant.executor is not None:
                variant.executor.invalidate_parameters()

    def write(self, parameters: Sequence[int], rows: Mapping[int, Array] | None = None) -> None:
        """`invalidate` for the values of some, by number, which only the caller updates.

        rows: of further parameters, those that were written.
        """
        values = list(self.parameters.values())
        for number in (*parameters, *(rows or ())):  # other sessions learn of it, this one knows
            values[number].written()
            self._versions += 1
        if self._cuda is None:
            self.invalidate()
            return
        self._cuda.write(parameters)
        for number, some in (rows or {}).items():
            self._cuda.write_rows(number, some, math.prod(values[number].shape[1:]))
        for variant in self._variants.values():
            if variant.executor is not None:
                variant.executor.invalidate_parameters()

    def download(self) -> None:
        """Brings arrays of the host up to date: of parameters, and of states on the device.

        DeviceError if the device has failed and steps are lost with it: the arrays stay behind.
        """
        if self._cuda is not None:
            self._cuda.update_host()

    def lost_steps(self) -> int:
        """`download` without a warning; how many steps are lost with a device that has failed.

        Counted since the last call: parameters, and the states given to ``step``, are those of so
        many steps before the last one that was waited for.
        """
        return 0 if self._cuda is None else self._cuda.lost_steps()
