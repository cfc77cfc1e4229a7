"""Rules of language: standard English, terms of docs/glossary.md, pages that name their reader."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.prose import CPP, PYTHON, Prose, cpp_code, long_lines, prose, sentences
from tests.tracked import ROOT, tracked_files

# Folders and files that are not rewritten yet: the rules hold for all others.
UNFINISHED = [
    *("benchmarks", "cavs", "csrc", "cuda", "tests"),
    *("docs/cuda.md", "docs/operators.md", "docs/passes.md"),
    "docs/persistent.md",
]
# This file names what it forbids; results are written by programs.
EXEMPT = ["tests/test_language.py", "benchmarks/results"]
MAX_COLUMNS = 100

# No sentence begins with a clause in place of a subject.
OPENING = re.compile(
    r"[(\"'*_]*(?:What|Of|Those (?:that|who|which)|Whether|Whose|Who|That which)\b(?! course\b)"
)
PRIVATE_PHRASES = {
    phrase: re.compile(rf"\b{pattern}\b", re.IGNORECASE)
    for phrase, pattern in {
        "hang on": r"(?:hangs?|hung|hanging) (?:up)?on",
        "take the place of": r"(?:takes?|taken|taking|took) the places? of",
        "in the places of": r"in the places of",
        "stand still": r"(?:stands?|stood|standing) still",
        "of whom": r"(?:of|to|by|from|for) whom",
        "for who": r"(?:for|of|by) who",
        "those who": r"those who",
    }.items()
}
SPLIT = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def words(identifier: str) -> list[str]:
    """Split ``merge_CSRRows2`` into ``merge``, ``csr``, ``rows``."""
    return [word.lower() for word in SPLIT.findall(identifier)]


# Words that only readers of this project would know in the sense that it gave to them.
PRIVATE_WORDS = set(
    words(
        """
        anew apart bereft beside dying grown judge judged judges judging lumped mend mended mending
        mends nobody stretch stretched stretches thereof torn whence
        """
    )
)


def finished(path: str) -> bool:
    """True if the rules hold for a file, given from the root."""
    return not any(path == p or path.startswith(p + "/") for p in UNFINISHED + EXEMPT)


@cache
def texts() -> dict[str, str]:
    """Return the text of every tracked text file that is not exempt, by its path from the root."""
    found = {}
    for path in tracked_files():
        name = str(path.relative_to(ROOT))
        if path.suffix != ".png" and not any(name == e or name.startswith(e + "/") for e in EXEMPT):
            found[name] = path.read_text(encoding="utf-8")
    return found


def unclear_openings(found: list[Prose], document: bool) -> list[str]:
    """Sentences that begin with a clause, as ``line: sentence``.

    A comment may begin with a small letter; in a document, only labels of tables do.
    """
    return [
        f"{line}: {sentence}"
        for line, text in found
        for number, sentence in enumerate(sentences(text))
        if OPENING.match(sentence if number or document else sentence[:1].upper() + sentence[1:])
    ]


def private_words(text: str, found: list[Prose]) -> list[str]:
    """Private words anywhere in a file, and private phrases in its prose, as ``line: word``."""
    text = text.replace("apart from", "").replace("Apart from", "")
    return [
        f"{number}: {word}"
        for number, line in enumerate(text.splitlines(), start=1)
        for word in words(line)
        if word in PRIVATE_WORDS
    ] + [
        f"{line}: {phrase}"
        for line, paragraph in found
        for phrase, pattern in PRIVATE_PHRASES.items()
        if pattern.search(paragraph)
    ]


# Identifiers of the package and its engines have a reserved word only below the paths named here.
CODE = ("cavs/", "csrc/", "cuda/", "models/")
RESERVED = {
    "place": "cavs/ir cavs/ops cavs/passes cavs/compiler csrc/exec cuda",
    "stage": "cavs/compiler cavs/runtime cavs/cuda csrc/exec csrc/bindings cuda",
    "factors": "cavs/ir cavs/distributed csrc/exec csrc/bindings cuda",
    "kind": "cavs/ir cavs/passes cavs/compiler cavs/runtime cavs/data cavs/inspect csrc/schedule "
    "csrc/exec cuda",
    "bound": "cavs/runtime csrc/schedule csrc/bindings benchmarks",
    "segment": "cavs/compiler csrc/kernels csrc/exec csrc/bindings cuda",
    "slot": "cavs/ir cavs/frontend cavs/passes cavs/compiler cavs/runtime cavs/inspect csrc/exec "
    "cuda",
}


def identifiers(path: str, text: str) -> set[str]:
    """Return the names in the code of a file of ``CODE``."""
    if not path.startswith(CODE):
        return set()
    if Path(path).suffix in PYTHON:
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        return {token.string for token in tokens if token.type == tokenize.NAME}
    if Path(path).suffix in CPP:
        return set(re.findall(r"[A-Za-z_]\w*", cpp_code(text)))
    return set()


def reserved_words(path: str, text: str) -> list[str]:
    """Identifiers outside the paths where a reserved word has its meaning, as ``word: name``."""
    return [
        f"{word}: {name}"
        for name in sorted(identifiers(path, text) - {"slots", "__slots__"})
        for word, allowed in RESERVED.items()
        if {word, f"{word}s"} & set(words(re.sub(r"(?i)in_?place", "", name)))
        and not any(path.startswith(folder + "/") for folder in allowed.split())
    ]


# Words of names that the glossary need not explain: English, and terms of the field.
PLAIN = set(
    words(
        """
        access all architecture array attention attribute axis b back backward balance balancer
        balancing base batch benchmark binary binding bit body bracket broadcast bucket
        builder byte cache candidate cast cell chain channel choose clock cluster code
        codegen collate collective comm communication communicator compile compiled
        compiler compression config constant context copy cosine cost count cross csrc
        data decay decision deferred dense device differentiate distributed doc driver
        dropout edge elastic embedding empty engine entropy entry error eval exec explanation
        exponential expression failed feedback fit float forward frontend function gpu
        grad gradient group handle host hybrid identity index interned interrupt item
        job kernel label layer layout library like line linear load loader lookup loop
        loss lost lowering mailbox map matmul max measure memory merge merged merging
        metric model module moved multiword network nn no norm number numerics op operand operation
        optimizer option order outcome output owner pair parameter parameterized parsed part
        partition partitioned peer pending persistent plan planning plateau port
        prediction predictor problem product progress push queue random reader
        recurrence reduce register replicate report request resource result retry rival
        round rule run runtime sample save sentence serial session settings shape
        sharded signal simplify simulation single size snapshot spec speed split startup
        statement storage store stream structure style sum symbolic sync table tensor
        test text thread time total train trainable trainer tree trim type uneven unit
        update usage value variable variant verify version vocabulary wait warm warmup
        warning watch work worker

        evaluator local lock moved pickling point process repeatable resume stepper training

        adagrad adam ar arima bf blas cavs ci cli conllu cpu csr cubin cuda cudnn cupy d
        ema fc gru horovod ir json k lbbsp lstm mpi narx nccl numpy nvrtc parallax
        poseidon power ps rntn sgd tn top up w
        """
    )
)


def singular(word: str) -> str:
    """Return a word without the ``s`` of a plural."""
    return word[:-1] if len(word) > 2 and word.endswith("s") and not word.endswith("ss") else word


@cache
def vocabulary() -> frozenset[str]:
    """Return the words of names: those of the glossary's terms and ``PLAIN``, in the singular."""
    glossary = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    terms = re.findall(r"^\| ([^|]*) \|", glossary, re.MULTILINE)
    return frozenset(singular(word) for term in [*terms, *PLAIN] for word in words(term))


@cache
def public_names() -> list[tuple[str, str]]:
    """Return path and name of every public class, pass, instruction and folder."""
    found = []
    for path, text in texts().items():
        folder = path.rpartition("/")[0]
        found += [(folder, part) for part in folder.split("/")]
        if path.startswith("cavs/passes/"):
            found.append((path, Path(path).stem))
        if path.startswith("cavs/") and path.endswith(".py"):
            classes = (n for n in ast.parse(text).body if isinstance(n, ast.ClassDef))
            found += [(path, c.name) for c in classes if not c.name.startswith("_")]
        if match := re.search(r"enum class InstructionKind[^{]*{(.*?)}", text, re.DOTALL):
            found += [(path, name[1:]) for name in re.findall(r"\bk[A-Z]\w*", cpp_code(match[1]))]
    return list(dict.fromkeys(found))


def unknown_words(name: str) -> list[str]:
    """Return the words of a name that are neither terms nor plain English."""
    return [word for word in words(name) if singular(word) not in vocabulary()]


READERS = re.compile(r"For .*\b(?:contributors|maintainers|operators|readers|users)\b")


def page_faults(text: str) -> list[str]:
    """Say what a page breaks: its first paragraph, and the lines that are too long."""
    first = text.split("\n\n")[1].replace("\n", " ")
    named = any(READERS.match(sentence) for sentence in sentences(first))
    return [
        *(f"{line}: over {MAX_COLUMNS} columns" for line in long_lines(text, MAX_COLUMNS)),
        *([] if named else ["1: the first paragraph does not say 'For ...' whom it is"]),
    ]


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


def test_finished_files_keep_the_rules() -> None:
    assert [f"{path}: {f}" for path in texts() if finished(path) for f in faults(path)] == []


def test_unfinished_files_exist() -> None:
    assert [name for name in UNFINISHED + EXEMPT if not (ROOT / name).exists()] == []


def test_folders_have_names_of_the_glossary() -> None:
    folders = {(p, n) for p, n in public_names() if p not in texts() and finished(f"{p}/x")}
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
    """Print every fault below a path, then their number by folder, finished or not."""
    found = {path: faults(path) for path in texts() if path.startswith(under)}
    for path, lines in found.items():
        print(*(f"{path}: {line}" for line in lines), sep="\n", end="\n" if lines else "")
    counts: Counter[str] = Counter()
    for path, lines in found.items():
        counts[path.rpartition("/")[0] or path] += len(lines)
    print(*(f"{number:6} {folder}" for folder, number in counts.most_common() if number), sep="\n")


if __name__ == "__main__":  # python -m tests.test_language [PATH]
    report(sys.argv[1] if len(sys.argv) > 1 else "")
