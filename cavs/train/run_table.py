"""`RunTable`: the settings of a training that may change while it runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from cavs.errors import ConfigError


@dataclass(frozen=True)
class Setting:
    """A setting of a running training.

    read: returns the present value, a JSON value. write: sets a new one. check: raises
    `ConfigError` for a value that cannot be set.
    """

    read: Callable[[], Any]
    write: Callable[[Any], None]
    check: Callable[[Any], None]


class RankAgreement(Protocol):
    """Ranks that can find out if they ask for the same."""

    def same(self, data: bytes) -> bool:
        """Return True on all ranks if they have passed equal bytes, else False on all."""
        ...


class RunTable:
    """Settings by name, such as ``"batch_size"``, which all ranks change together.

    version: Number of changes so far.
    """

    def __init__(self, group: RankAgreement) -> None:
        self.group, self.version = group, 0
        self._settings: dict[str, Setting] = {}

    def declare(self, name: str, setting: Setting) -> None:
        """Add a setting."""
        self._settings[name] = setting

    def __getitem__(self, name: str) -> Any:
        """Return the present value. Raises `ConfigError` if there is no such setting."""
        return self._setting(name).read()

    def adapt(self, name: str, value: Any) -> bool:
        """Set `name` to `value` if all ranks ask for the same; return True on all ranks if so.

        Otherwise nothing changes on any rank. Raises `ConfigError` on all ranks if the value is
        invalid. This is the consistent change of Mai et al., KungFu, OSDI 2020, algorithm 1.
        """
        setting = self._setting(name)
        try:
            data = json.dumps([name, value], allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{name} is {value!r}", hint="give a number, a text, or a list of these"
            ) from error
        if not self.group.same(data):
            return False
        setting.check(value)
        if value != setting.read():
            setting.write(value)
            self.version += 1
        return True

    def _setting(self, name: str) -> Setting:
        if name not in self._settings:
            known = ", ".join(self._settings)
            raise ConfigError(
                f"this training has no setting {name!r} to change",
                hint=f"it has {known}" if known else "call it within Trainer.fit",
            )
        return self._settings[name]
