"""The parser of trees of nested JSON objects."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as brief
from typing import Any

from cavs.data.source import as_text
from cavs.errors import DataError

_TOKEN = re.compile(r'\s*([\[\]{},:]|"(?:[^"\\]|\\.)*"|[^\s\[\]{},:"]+)', re.DOTALL)
_FORMAT = (
    'a tree is an object with a list of its children: {"word": "sat", "children": []}; '
    "children= names another key"
)


@dataclass(frozen=True, slots=True)
class JsonTree:
    """A tree of JSON objects: children before their parent, the root last.

    ``objects``: the object of every vertex, without its children; ``offsets`` and ``children``: CSR
    as in ``Graph``; ``name``: the name that errors give the tree.
    """

    name: str
    objects: list[dict[str, Any]]
    offsets: list[int]
    children: list[int]

    def to_json(self, children: str = "children") -> str:
        """Return the tree as nested objects on one line. ``children``: the key of the children.

        DataError for a value that JSON does not have, and for an object with that key.
        """
        out: list[str] = []
        waiting: list[int | str] = [len(self.objects) - 1]
        while waiting:
            item = waiting.pop()
            if isinstance(item, str):
                out.append(item)
                continue
            own = self.objects[item]
            if children in own:
                raise DataError(
                    f"{self.name or '<tree>'}: object {item} has the key {children!r}",
                    hint="children= names the key under which children are written",
                )
            try:
                text = json.dumps(own, ensure_ascii=False, allow_nan=False)
            except (TypeError, ValueError, RecursionError) as error:
                raise DataError(
                    f"{self.name or '<tree>'}: object {item} is not JSON: {error}",
                    hint="use strings, finite numbers, lists and dicts",
                ) from None
            below = self.children[self.offsets[item] : self.offsets[item + 1]]
            if not below:
                out.append(text)
                continue
            comma = ", " if own else ""
            out.append(f"{text[:-1]}{comma}{json.dumps(children)}: [")
            waiting.append("]}")
            for i, child in enumerate(reversed(below)):
                waiting += [", ", child] if i else [child]
        return "".join(out)


def parse_trees(text: str, children: str, path: Path) -> list[JsonTree]:
    """Return the trees of a text; DataError with line and column."""
    text = as_text(text, f"{path}:1", "trees as JSON", _FORMAT)
    trees = [tree_of(root, children, name) for name, root in _documents(text, path)]
    if not trees:
        raise DataError(f"{path}: no tree in the text; expected at least one", hint=_FORMAT)
    return trees


def tree_of(root: Any, key: str, name: str) -> JsonTree:
    """Return the tree of nested objects."""
    objects: list[dict[str, Any]] = []
    below: list[list[int]] = []
    # Objects whose children are not all done, with the numbers of those that are.
    open_objects: list[tuple[dict[str, Any], list[Any], list[int]]] = []
    value: Any = root
    path = list[int]()
    while True:
        if not isinstance(value, dict):
            raise DataError(f"{name}: {_at(path)} is {brief(value)}, no object", hint=_FORMAT)
        inner = value.get(key, [])
        if not isinstance(inner, list):
            found = f"{name}: {_at(path)} has {key} {brief(inner)}, no list"
            raise DataError(found, hint=_FORMAT)
        open_objects.append((value, inner, []))
        while open_objects:
            own, inner, numbers = open_objects[-1]
            if len(numbers) < len(inner):
                break
            open_objects.pop()
            if path:
                path.pop()
            if open_objects:
                open_objects[-1][2].append(len(objects))
            objects.append({k: v for k, v in own.items() if k != key})
            below.append(numbers)
        if not open_objects:
            break
        path.append(len(numbers))
        value = inner[len(numbers)]
    offsets = [0]
    for numbers in below:
        offsets.append(offsets[-1] + len(numbers))
    return JsonTree(name, objects, offsets, [child for numbers in below for child in numbers])


def _at(path: list[int]) -> str:
    """Return the name of an object by the positions of its ancestors among their siblings."""
    return f"the child at {'.'.join(map(str, path[-8:]))}" if path else "the root"


def _documents(text: str, path: Path) -> list[tuple[str, Any]]:
    """Return the roots of a text and their names."""
    try:
        whole = _loads(text)
    except json.JSONDecodeError as error:
        if not error.msg.startswith("Extra data"):
            raise _malformed(path, error, 0) from None
    else:
        if not isinstance(whole, list):
            return [(f"{path.name}:1", whole)]
        return [(f"{path.name}: tree {i}", root) for i, root in enumerate(whole)]
    found = []
    for number, line in enumerate(text.split("\n")):
        if line.strip():
            try:
                found.append((f"{path.name}:{number + 1}", _loads(line)))
            except json.JSONDecodeError as error:
                raise _malformed(path, error, number) from None
    return found


def _malformed(path: Path, error: json.JSONDecodeError, lines: int) -> DataError:
    where = f"{path}:{lines + error.lineno}: column {error.colno}" if error.doc else str(path)
    cut = error.doc and error.pos >= len(error.doc.rstrip())
    hint = "the text ends inside a tree: it may be cut off" if cut else _FORMAT
    return DataError(f"{where}: no JSON: {error.msg}", hint=hint)


def _loads(text: str) -> Any:
    """Return the value of a text; `JSONDecodeError` if it is not JSON."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        return _loads_nested(text)
    except json.JSONDecodeError:
        raise
    except ValueError as error:  # a number with too many digits
        raise json.JSONDecodeError(str(error), "", 0) from None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


def _loads_nested(text: str) -> Any:
    """Return the value of a text that is nested more deeply than `json` can read."""
    found: list[Any] = []  # the value, once it is complete
    open_values: list[tuple[Any, str | None]] = []  # containers, and the key of the next value
    position, expected = 0, "value"
    end = len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            raise json.JSONDecodeError("Unterminated string", text, position)
        token, at, position = match[1], match.start(1), match.end()
        inside = open_values[-1][0] if open_values else None
        if expected in ("value", "value or ]") and token in ("{", "["):
            new: Any = {} if token == "{" else []
            _put(found, open_values, new)
            open_values.append((new, None))
            expected = "key or }" if token == "{" else "value or ]"
        elif (token == "]" and expected in ("value or ]", ", or ]")) or (
            token == "}" and expected in ("key or }", ", or }")
        ):
            open_values.pop()
            expected = _after(open_values)
        elif token == "," and expected.startswith(","):
            expected = "key" if isinstance(inside, dict) else "value"
        elif token == ":" and expected == ":":
            expected = "value"
        elif token[0] == '"' and expected in ("key", "key or }"):
            open_values[-1] = inside, _scalar(token, text, at)
            expected = ":"
        elif token not in "[]{},:" and expected in ("value", "value or ]"):
            _put(found, open_values, _scalar(token, text, at))
            expected = _after(open_values)
        else:
            message = "Extra data" if expected == "end" else f"Expecting {expected}"
            raise json.JSONDecodeError(message, text, at)
    if expected != "end":
        raise json.JSONDecodeError(f"Expecting {expected}", text, end)
    return found[0]


def _put(found: list[Any], open_values: list[tuple[Any, str | None]], value: Any) -> None:
    """Add a value to the innermost container."""
    inside, key = open_values[-1] if open_values else (found, None)
    if isinstance(inside, dict):
        inside[key] = value
    else:
        inside.append(value)


def _after(open_values: list[tuple[Any, str | None]]) -> str:
    """Return what may follow a value."""
    if not open_values:
        return "end"
    return ", or }" if isinstance(open_values[-1][0], dict) else ", or ]"


def _scalar(token: str, text: str, at: int) -> Any:
    try:
        return json.loads(token, parse_constant=_refuse)
    except ValueError as error:
        raise json.JSONDecodeError(getattr(error, "msg", str(error)), text, at) from None
