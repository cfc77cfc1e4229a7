"""Test the language of code and documents: standard English, terms of docs/glossary.md, readers.

``python -m tests.test_language [PATH]`` lists the faults below a path, and their number by folder.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.language_rules import (
    EXEMPT,
    page_faults,
    private_words,
    public_names,
    reserved_words,
    texts,
    unclear_openings,
    unknown_words,
)
from tests.prose import Prose, prose
from tests.tracked import ROOT


def faults(path: str) -> list[str]:
    """Return everything that a file breaks, as ``rule: line: text``."""
    text = texts()[path]
    found = prose(ROOT / path)
    page = path.startswith("docs/") and path.endswith(".md")
    return [
        *(f"opening: {fault}" for fault in unclear_openings(found, path.endswith(".md"))),
        *(f"private word: {fault}" for fault in private_words(text, found)),
        *(f"reserved word: {fault}" for fault in reserved_words(path, text)),
        *(f"page: {fault}" for fault in (page_faults(text) if page else [])),
        *(
            f"name: {name} has {', '.join(unknown)}: no term of docs/glossary.md"
            for place, name in public_names()
            if place == path and (unknown := unknown_words(name))
        ),
    ]


def test_files_keep_the_rules() -> None:
    assert [f"{path}: {fault}" for path in texts() for fault in faults(path)] == []


def test_exempt_files_exist() -> None:
    assert [name for name in EXEMPT if not (ROOT / name).exists()] == []


def test_folders_have_names_of_the_glossary() -> None:
    folders = {(p, n) for p, n in public_names() if p not in texts()}
    assert [f"{p}: {unknown_words(n)}" for p, n in sorted(folders) if unknown_words(n)] == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", "x = 1  # what is kept\n"),
        ("a.py", 'def f():\n    """Of each row, the sum."""\n'),
        ("a.py", "# A row is read\n# twice. Whether it is written is\n# known.\nx = 1\n"),
        ("a.cc", 'f("//");  // those that are read\n'),
        ("a.cc", "/* Who runs\n * next. */\n"),
        ("a.cu", "int a;  // a row\n        // of it. That which is\n"),
        ("a.md", "# What is\n"),
        ("a.md", "Rows are `a.b`\nread. Of them, two\nare.\n"),
        ("a.md", "| a | Whether it is |\n"),
        ("Makefile", "all: x  # of all\n"),
    ],
)
def test_a_planted_opening_is_found(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert len(unclear_openings(prose(tmp_path / name), name.endswith(".md"))) == 1


def test_a_clear_opening_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('"""Return what is read: of each row, one."""\nx = "Of"\n')
    (tmp_path / "a.cc").write_text('// A row,\n// of which one is read.\nf(R"(// Of it)");\n')
    (tmp_path / "a.md").write_text("# A\n\n```\nWhat\n```\n\nA row\nof `a. What`.\n")
    for path in tmp_path.iterdir():
        assert prose(path) and not unclear_openings(prose(path), path.suffix == ".md")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("x = is_mended\n", "1: mended"),
        ("class NobodyWaits: ...\n", "1: nobody"),
        ('x = "read anew"\n', "1: anew"),
        ("# it hangs\n# on a row\n", "1: hang on"),
        ("# A row takes the\n# places of others.\n", "1: take the place of"),
        ("# one row each, apart\n", "1: apart"),
    ],
)
def test_a_planted_private_word_is_found(tmp_path: Path, text: str, fault: str) -> None:
    (tmp_path / "a.py").write_text(text)
    assert private_words(text, prose(tmp_path / "a.py")) == [fault]


def test_other_words_are_not_private() -> None:
    text = "Recommend it, apart from stretcher and mendacity."
    assert private_words(text, [Prose(1, text)]) == []


def test_a_planted_reserved_word_is_found() -> None:
    text = "placement = in_place = InPlace = 'place'  # place\nthe_place = 1\n"
    assert reserved_words("cavs/train/a.py", text) == ["place: the_place"]
    assert reserved_words("cavs/passes/a.py", text) == []
    assert reserved_words("csrc/base/a.h", 'int kind_; // slot\nf("slot");') == ["kind: kind_"]


def test_a_planted_name_is_found() -> None:
    assert unknown_words("VertexFunction") == unknown_words("AllReduce") == []
    assert unknown_words("HeldBack") == ["held"]
    names = {name for _, name in public_names()}
    assert {"Trainer", "simplify", "SegmentMax", "passes"} <= names


def test_a_planted_page_is_found() -> None:
    page = "# A\n\nFor users: a page.\n\n"
    assert page_faults(page) == []
    assert page_faults("# A\n\nStatus: kept. For contributors.\n\n## B\n") == []
    assert len(page_faults("# A\n\nA page of use.\n\nFor users.\n")) == 1
    assert page_faults(page + "word " * 21 + "\n") == ["5: over 100 columns"]
    exempt = [f"| {'x' * 99} |\n", f"```\n{'x ' * 60}\n```\n", f"[a](https://{'x' * 99})\n"]
    assert page_faults(page + "".join(exempt)) == []


def report(under: str) -> None:
    """Print every fault below a path, then their number by folder."""
    found = {path: faults(path) for path in texts() if path.startswith(under)}
    for path, lines in found.items():
        print(*(f"{path}: {line}" for line in lines), sep="\n", end="\n" if lines else "")
    counts: Counter[str] = Counter()
    for path, lines in found.items():
        counts[path.rpartition("/")[0] or path] += len(lines)
    print(*(f"{number:6} {folder}" for folder, number in counts.most_common() if number), sep="\n")


if __name__ == "__main__":  # python -m tests.test_language [PATH]
    report(sys.argv[1] if len(sys.argv) > 1 else "")
