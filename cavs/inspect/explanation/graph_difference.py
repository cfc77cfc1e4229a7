"""`graph_difference`: the lines of a printed IR graph that a pass added, removed or changed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import NamedTuple

_NUMBER = re.compile(r"%(\d+)\b")
_VALUE = re.compile(r"%(\d+) = ")
_MOST = 300_000  # pairs of lines of the same form that are compared
_CONTEXT = 2  # unchanged lines around a change


class Line(NamedTuple):
    """A line of a difference.

    sign: " " of a line that stays, "+", "-", or "~" where lines are left out: text is their number.
    """

    sign: str
    text: str


@dataclass(frozen=True)
class GraphDifference:
    """The difference of two graphs. changed: values with other inputs, and all else the same.

    A changed value is a removed and an added line of ``lines``. Inputs of removed lines have the
    numbers of the later graph; a value that it has not is ``%3'``, by its number in the earlier.
    """

    lines: tuple[Line, ...]
    added: int
    removed: int
    changed: int

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


class _Graph:
    """A printed graph by lines, each with its form, and with the key of the value it computes."""

    def __init__(self, text: str, keys: dict[object, int]) -> None:
        self.lines = text.split("\n")
        self.forms: list[str] = []
        self.keys: list[int] = []
        self.numbers: list[str] = []  # "" of lines that compute no value
        known: dict[str, int] = {}
        for line in self.lines:
            code = line.partition("    #")[0]
            found = _VALUE.match(code)
            number = found[1] if found else ""
            code = code[found.end() :] if found else code
            inputs = _NUMBER.findall(code)
            form = _NUMBER.sub("%", code)
            value = (form, *(known.get(n, n) for n in inputs))
            self.forms.append(form)
            self.keys.append(keys.setdefault(value, len(keys)))
            self.numbers.append(number)
            if number:
                known[number] = self.keys[-1]


def graph_difference(before: str, after: str) -> GraphDifference:
    """Return the difference of two printed graphs, in which numbers and order mean nothing.

    Equal values have the same operator, attributes and inputs. Other values that have the same
    operator and attributes, in corresponding lines, are changed unless their inputs correspond too.
    """
    keys: dict[object, int] = {}
    old, new = _Graph(before, keys), _Graph(after, keys)
    source = _equal_values(old, new)
    _corresponding_lines(old, new, source)
    names = {
        old.numbers[i]: f"%{new.numbers[j]}"
        for j, i in enumerate(source)
        if i >= 0 and new.numbers[j]
    }

    def renumbered(line: str) -> str:
        return _NUMBER.sub(lambda m: names.get(m[1], f"%{m[1]}'"), line)

    texts = [renumbered(line) for line in old.lines]
    gone: dict[int, list[int]] = {}  # removed lines, by the line of the later graph before them
    target = {i: j for j, i in enumerate(source) if i >= 0}
    last = -1
    for i in range(len(old.lines)):
        last = target.get(i, last)
        if i not in target:
            gone.setdefault(last, []).append(i)
    found, changed = [Line("-", texts[i]) for i in gone.get(-1, ())], 0
    for j, line in enumerate(new.lines):
        i = source[j]
        if i >= 0 and _code(texts[i]) != _code(line):
            found.append(Line("-", texts[i]))
            changed += 1
        found.append(Line(" " if i >= 0 and _code(texts[i]) == _code(line) else "+", line))
        found += [Line("-", texts[i]) for i in gone.get(j, ())]
    return GraphDifference(
        tuple(_folded(found)), source.count(-1), len(old.lines) - len(target), changed
    )


def _code(line: str) -> str:
    return line.partition("    #")[0]


def _equal_values(old: _Graph, new: _Graph) -> list[int]:
    """Return, for each line of ``new``, the line of ``old`` with the same value; -1 for none."""
    lines: dict[int, list[int]] = {}
    for i in reversed(range(len(old.keys))):
        lines.setdefault(old.keys[i], []).append(i)
    return [lines[k].pop() if lines.get(k) else -1 for k in new.keys]


def _corresponding_lines(old: _Graph, new: _Graph, source: list[int]) -> None:
    """Add to ``source`` lines of the same form between lines that are equal values."""
    used = {i for i in source if i >= 0}
    a = [str(i) if i in used else form for i, form in enumerate(old.forms)]
    b = [str(i) if i >= 0 else new.forms[j] for j, i in enumerate(source)]
    for i, j in _aligned(a, b):
        if source[j] < 0 and i not in used:
            source[j] = i


def _aligned(a: list[str], b: list[str]) -> Iterator[tuple[int, int]]:
    """Yield pairs of equal items in order: the first ones, the last ones, and some in between."""
    least = min(len(a), len(b))
    first = next((n for n in range(least) if a[n] != b[n]), least)
    last = next((n for n in range(least - first) if a[-1 - n] != b[-1 - n]), least - first)
    yield from ((n, n) for n in range(first))
    yield from ((len(a) - n, len(b) - n) for n in range(last, 0, -1))
    a, b = a[first : len(a) - last], b[first : len(b) - last]
    counts = Counter(b)
    if sum(counts[item] for item in a) > _MOST:
        return
    for i, j, size in SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks():
        yield from ((first + i + n, first + j + n) for n in range(size))


def _folded(lines: Sequence[Line]) -> Iterator[Line]:
    """Yield the lines near changes, and the number of lines between them."""
    near: set[int] = set()
    for n, line in enumerate(lines):
        if line.sign != " ":
            near.update(range(n - _CONTEXT, n + _CONTEXT + 1))
    left_out = 0
    for n, line in enumerate(lines):
        if n not in near:
            left_out += 1
            continue
        if left_out:
            yield Line("~", str(left_out))
        left_out = 0
        yield line
    if left_out:
        yield Line("~", str(left_out))
