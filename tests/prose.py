"""Extract the prose of the tracked files: comments, docstrings and the sentences of documents."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

PYTHON = {".py", ".pyi"}
CPP = {".cc", ".h", ".inc", ".cu", ".cuh"}
HASH = {".toml", ".cmake", ".sh", ".supp"}  # formats whose comments start with "#"
HASH_NAMES = {"Makefile", "CMakeLists.txt"}


class Prose(NamedTuple):
    """One comment, docstring, or paragraph of a document, on a single line."""

    line: int
    text: str


class Comment(NamedTuple):
    """A line of a comment; ``column`` is where the comment starts."""

    line: int
    column: int
    text: str
    trailing: bool  # code precedes it on its line


def prose(path: Path) -> list[Prose]:
    """Return the prose of a file; empty for formats without comments."""
    if path.suffix in PYTHON:
        return python_prose(path.read_text(encoding="utf-8"))
    if path.suffix in CPP:
        return cpp_prose(path.read_text(encoding="utf-8"))
    if path.suffix in HASH or path.name in HASH_NAMES or path.parent.name == ".ci":
        return hash_prose(path.read_text(encoding="utf-8"))
    if path.suffix == ".md":
        return document_prose(path.read_text(encoding="utf-8"))
    return []


# Strings, which may contain "#", before comments. Much faster than the tokenizer of Python.
PYTHON_TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?"""|\'\'\'(?:\\.|[^\\])*?\'\'\'|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
    r"|#[^\n]*",
    re.DOTALL,
)


def python_prose(source: str) -> list[Prose]:
    """Return comments and docstrings."""
    comments = []
    for match in PYTHON_TOKEN.finditer(source):
        if match[0].startswith("#"):
            line, column, trailing = _position(source, match.start())
            comments.append(Comment(line, column, match[0].lstrip("#!: "), trailing))
    found = _joined(comments)
    with_docstring = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in _statements(ast.parse(source)):
        if isinstance(node, with_docstring) and (text := ast.get_docstring(node)):
            start = node.body[0].lineno
            found += [Prose(start + n - 1, p) for n, p in _paragraphs(text.splitlines())]
    return sorted(found)


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Iterate over a module and its statements, not into expressions, which have no docstring."""
    yield tree
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        inner = getattr(tree, field, ())
        for node in inner if isinstance(inner, list) else ():
            yield from _statements(node)


def python_code(source: str) -> str:
    """Return the source without comments and strings."""
    return PYTHON_TOKEN.sub(" ", source)


def _position(source: str, at: int) -> tuple[int, int, bool]:
    """Return line and column of a character, and whether code precedes it on its line."""
    start = source.rfind("\n", 0, at) + 1
    return source.count("\n", 0, at) + 1, at - start, bool(source[start:at].strip())


# Strings, which may contain "//", before comments; a raw string before any other.
CPP_TOKEN = re.compile(
    r'R"(?P<tag>[^()\\ ]*)\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])+\''
    r"|//[^\n]*|/\*.*?\*/",
    re.DOTALL,
)


def cpp_prose(source: str) -> list[Prose]:
    """Return comments of C++ and CUDA, and those of CUDA code in raw strings."""
    comments = []
    for match in CPP_TOKEN.finditer(source):
        if not match[0].startswith(("//", "/*")):
            continue
        line, column, trailing = _position(source, match.start())
        for offset, text in enumerate(match[0].splitlines()):
            words = text.strip().strip("/*!< ")
            comments.append(Comment(line + offset, column, words, trailing and not offset))
    return _joined(comments)


def cpp_code(source: str) -> str:
    """Return the source without comments and strings."""
    return CPP_TOKEN.sub(" ", source)


def hash_prose(source: str) -> list[Prose]:
    """Return comments that start with ``#`` at the start of a line or behind a space."""
    found = []
    for number, line in enumerate(source.splitlines(), start=1):
        if match := re.search(r"(?:^|(?<=\s))#+ (.*)", line):
            code = bool(line[: match.start()].strip())
            found.append(Comment(number, match.start(), match[1], code))
    return _joined(found)


def _joined(comments: list[Comment]) -> list[Prose]:
    """Join the lines of each comment: those below each other that start in one column."""
    found: list[Prose] = []
    last: Comment | None = None
    for comment in comments:
        follows = last and comment.line == last.line + 1 and comment.column == last.column
        if follows and not comment.trailing and comment.text:
            found[-1] = Prose(found[-1].line, f"{found[-1].text} {comment.text}")
        elif comment.text:
            found.append(Prose(comment.line, comment.text))
        last = comment if comment.text else None
    return found


def document_prose(source: str) -> list[Prose]:
    """Return headings, paragraphs, list items and table cells, without code blocks."""
    return list(_paragraphs(_without_code(source)))


def _without_code(source: str) -> list[str]:
    fence = False
    lines = []
    for line in source.splitlines():
        edge = line.lstrip().startswith("```")
        lines.append("" if fence or edge else line)
        fence ^= edge
    return lines


BLOCK = re.compile(r"\s*(?:#+|[-*>]|\d+\.)\s+")  # a heading, a list item or a quotation


def _paragraphs(lines: Iterable[str]) -> Iterator[Prose]:
    start, words = 0, ""
    for number, line in enumerate([*lines, ""]):
        table = line.lstrip().startswith("|")
        if words and (not line.strip() or table or BLOCK.match(line)):
            yield Prose(start + 1, words)
            words = ""
        if table:
            cells = (cell.strip(" *") for cell in line.strip().strip("|").split("|"))
            yield from (Prose(number + 1, cell) for cell in cells if cell.strip("-: "))
        elif line.strip():
            start = start if words else number
            words = f"{words} {BLOCK.sub('', line).strip()}".strip()


def sentences(text: str) -> list[str]:
    """Split prose into sentences; code between backticks does not end one."""
    text = re.sub(r"`[^`]*`", lambda m: re.sub(r"[.!?:;]", "_", m[0]), text)
    return re.split(r"(?<=[.!?:;])\s+(?=[(\"'*]*[A-Z])", text)


def long_lines(source: str, limit: int) -> list[int]:
    """Return the numbers of the lines of prose in a document that exceed ``limit`` columns.

    Tables, code blocks and lines that a link alone makes long are exempt.
    """
    return [
        number
        for number, line in enumerate(_without_code(source), start=1)
        if len(line) > limit
        and not line.lstrip().startswith(("|", "!["))
        and len(re.sub(r"\]\([^)]*\)|https?://\S+|^\s*(?:[-*]|\d+\.)?\s*\S+\s*$", "", line)) > limit
    ]
