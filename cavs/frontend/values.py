"""Several values by name: states of children, and pushed values of a cell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NoReturn

from cavs.errors import TraceError, user_line
from cavs.ir import Node


class Values:
    """Attributes or items: ``.h`` or ``["h"]``."""

    __slots__ = ("_values",)
    _all, _one, _example = "these values", "value", "values"  # as errors name them

    def __init__(self, values: Mapping[str, Node]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> Node:
        if name not in self._values:
            raise TraceError(
                f"no {self._one} {name!r}; {self._all} has {', '.join(self._values)}",
                where=user_line(),
                hint=f"name one of its values, {self._first}" + self._more(name),
            )
        return self._values[name]

    def __getattr__(self, name: str) -> Node:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def _items(self) -> Iterable[tuple[str, Node]]:
        """Return names and values."""
        return self._values.items()

    @property
    def _first(self) -> str:
        """The expression for one of the values."""
        return f"{self._example}.{next(iter(self._values))}"

    def _more(self, name: object) -> str:
        """Return another cure for a value that is missing."""
        return ""

    def as_node(self) -> NoReturn:
        """Raise TraceError: several values are no operand."""
        raise TraceError(
            f"{self._all} has the values {', '.join(self._values)}, and is none itself",
            where=user_line(),
            hint=f"name the one that is meant: {self._first}",
        )

    def _no_operand(self, *others: object) -> NoReturn:
        self.as_node()

    __iter__ = __neg__ = __abs__ = _no_operand
    __add__ = __sub__ = __mul__ = __truediv__ = __matmul__ = __pow__ = _no_operand
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rmatmul__ = _no_operand
    __lt__ = __le__ = __gt__ = __ge__ = _no_operand


def check_names(names: Iterable[str], cls: type[Values], what: str) -> None:
    """TraceError for a name that ``cls`` has as an attribute of its own."""
    own = [name for name in dir(cls) if not name.startswith("__")]
    for name in names:
        if name in own or name.startswith("__"):
            raise TraceError(
                f"{what} cannot be called {name!r}: {cls._all} has an attribute of that name",
                where=user_line(),
                hint=f"choose another name; taken are {', '.join(own)}, and names with __ in front",
            )


class Gathered(Values):
    """States of children, by the state's names."""

    __slots__ = ()
    _all, _one, _example = "the gathered state", "state", "v.gather()"

    def _more(self, name: object) -> str:
        if isinstance(name, int):
            return f"; of one child it is v.gather({name}).{next(iter(self._values))}"
        if name in ("sum", "mean", "max", "min", "prod", "softmax"):
            return f", and fold that: {self._first}.{name}()"
        return f", or add {name}=... to State"


class Pushed(Values):
    """Values that a cell pushes by name; ``vars`` returns the dict of them."""

    _all, _one, _example = "what the cell pushes", "pushed value", "out"

    def __init__(self, values: Mapping[str, Node]) -> None:
        super().__init__(values)
        vars(self).update(values)

    def _more(self, name: object) -> str:
        return f", or push {name}=..., too"


def listed(pushed: Pushed) -> str:
    """Return the text of a dict of all values, as ``forward`` may return it."""
    return "{" + ", ".join(f"{name!r}: out.{name}" for name in pushed._values) + "}"
