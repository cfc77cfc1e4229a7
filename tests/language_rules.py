"""Rules of language and names: the words they forbid, and functions that find them."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.prose import CPP, PYTHON, Prose, cpp_code, long_lines, python_code, sentences
from tests.tracked import ROOT, tracked_files

# These files name the words that they forbid; programs write results.
EXEMPT = ["tests/language_rules.py", "tests/test_language.py", "benchmarks/results"]
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


@cache
def texts() -> dict[str, str]:
    """Return the text of every tracked text file that is not exempt, by its path from the root."""
    found = {}
    for path in tracked_files():
        name = str(path.relative_to(ROOT))
        if path.suffix not in (".png", ".gz") and not any(
            name == e or name.startswith(e + "/") for e in EXEMPT
        ):
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
    text = re.sub(r".*# former names.*", "", text)
    lower = text.lower()
    parts = [word for word in PRIVATE_WORDS if word in lower]  # maybe of longer words
    return [
        f"{number}: {word}"
        for number, line in enumerate(text.splitlines(), start=1)
        if any(part in line.lower() for part in parts)
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
    "stage": "cavs/passes cavs/compiler cavs/distributed/strategy cavs/runtime cavs/inspect "
    "cavs/cuda csrc/exec csrc/bindings cavs/_engine.pyi cuda",
    "factors": "cavs/ir cavs/distributed csrc/exec csrc/bindings cavs/_engine.pyi cavs/_cuda.pyi "
    "cuda",
    "kind": "cavs/ir cavs/ops cavs/passes cavs/codegen cavs/compiler cavs/runtime cavs/data "
    "cavs/cuda cavs/inspect cavs/distributed/step cavs/distributed/sync/stale_server csrc/schedule "
    "csrc/exec csrc/bindings cavs/_engine.pyi cuda",
    "bound": "cavs/runtime cavs/inspect csrc/schedule csrc/exec csrc/bindings cuda",
    "segment": "cavs/ir cavs/frontend cavs/passes cavs/compiler csrc/kernels csrc/exec "
    "csrc/bindings cuda",
    "slot": "cavs/ir cavs/frontend cavs/passes cavs/compiler cavs/runtime cavs/inspect csrc/exec "
    "cuda",
}
# Words of Python, NumPy, C++ and CUDA.
LANGUAGE_WORDS = re.compile(
    r"\bbound=|dtype\.kind|kind=.stable|__launch_bounds__|(?:upp|low)er_bound|(?i:in_?place)"
)


def identifiers(path: str, text: str) -> set[str]:
    """Return the names in the code of a file of ``CODE``."""
    if not path.startswith(CODE):
        return set()
    text = LANGUAGE_WORDS.sub("_", text)  # a name, so that the code stays well-formed
    if Path(path).suffix in PYTHON:
        code = python_code(text)
    elif Path(path).suffix in CPP:
        code = cpp_code(text)
    else:
        return set()
    return set(re.findall(r"[A-Za-z_]\w*", code))


def reserved_words(path: str, text: str) -> list[str]:
    """Identifiers outside the paths where a reserved word has its meaning, as ``word: name``."""
    reserved = [
        word
        for word, allowed in RESERVED.items()
        if not any(f"{path}/".startswith(f"{folder}/") for folder in allowed.split())
    ]
    lower = text.lower()
    if not any(word in lower for word in reserved):
        return []  # the names need not be found
    return [
        f"{word}: {name}"
        for name in sorted(identifiers(path, text) - {"slots", "__slots__"})
        for word in reserved
        if {word, f"{word}s"} & set(words(name))
    ]


# Words of names that the glossary need not explain: English, and terms of the field.
PLAIN = set(
    words(
        """
        access addition all architecture array at attention auto attribute axis b back backward
        balance balancer balancing base batch benchmark binary binding bit block body
        bracket branch broadcast bucket build builder byte cache cached candidate case cast
        cell chain channel choose clock cluster code codegen collate collective comm common
        communication communicator compile compiled compiler compressed compression
        compute config constant context copy cosine cost count cross csrc data decay
        decision deferred dense device differentiate distributed doc driver dropout edge
        elastic embedding empty end engine entropy entry error eval evaluator exec
        executor explanation exponential expression fact failed feedback fit float fold for
        forward from frontend function future gathered gathering gpu grad gradient group handle host
        hybrid identity index insert inspect interned interrupt into item job kernel key
        label labelled launch layer layout library like line linear load loader local
        lock lookup loop loss lost lowering mailbox map match matmul max measure
        measured memory memoryless merge merged merging message metric mismatch model
        module moved multiword near network
        nn no norm number numerics of on one op operand operation optimizer option order
        origin outcome output owner pair parameter parameterized parsed part partition
        partitioned peer pending persistent pickling piece plan planning plateau point
        port prediction predictor prepared pricing problem process product profiler progress
        push pushed queue random rate read reader recorded recurrence reduce reduced refusal
        register repeat repeatable replicate reply report request resource restrict result
        resume retry rival role round rule run runtime sample save scale sentence serial
        session settings shape sharded share signal signature simplify simulation single sinker
        size slice snapshot sparse spec speed split stale started startup statement step
        stepper storage store stream structure style sum symbolic sync synchronous table
        tensor test text thread time to total traffic train trainable trainer training tree trim
        type uneven union unit update usage value variable variant verify version
        vocabulary wait warm warmup warning watch whole with work worker

        adadelta adagrad adam ar arima bf blas cavs ci cli conllu cpu csr cubin cuda cudnn cupy d
        ema fc gru horovod ir json k lbbsp lion lstm mpi narx nccl numpy nvrtc parallax
        poseidon power prop ps rms rntn sgd tn top up w
        """
    )
)


IRREGULAR = {
    "branches": "branch",
    "vertices": "vertex",
    "leaves": "leaf",
    "indices": "index",
    "bias": "bias",
}


def singular(word: str) -> str:
    """Return the singular of a plural; other words as they are."""
    if word in IRREGULAR:
        return IRREGULAR[word]
    for ending, new in (("sses", "ss"), ("ies", "y"), ("ss", "ss"), ("s", "")):
        if len(word) > 2 and word.endswith(ending):
            return word.removesuffix(ending) + new
    return word


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
            stem = Path(path).stem
            found += [(path, stem)] if stem != "__init__" else []
        if path.startswith("cavs/") and path.endswith(".py"):
            classes = (n for n in ast.parse(text).body if isinstance(n, ast.ClassDef))
            found += [(path, c.name) for c in classes if not c.name.startswith("_")]
        if match := re.search(r"#define CAVS_INSTRUCTIONS\(X\)(.*?)\n\n", text, re.DOTALL):
            found += [(path, name) for name in re.findall(r"\bX\(k(\w+),", match[1])]
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
