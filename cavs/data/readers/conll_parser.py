"""The parser of CoNLL-U and CoNLL-X: sentences of words with ten columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cavs.data.readers.sentence import EmptyNode, Multiword, Sentence
from cavs.data.source import as_text, data_error, shown, split_lines

_CUT = (
    'cut a text into lines by text.split("\\n"), or pass the text: splitlines() cuts inside words'
)
_TABS = "tabs stand between columns, not blanks"


@dataclass(frozen=True, slots=True)
class Layout:
    """The rules of a format.

    ``extended``: comments, ranges (1-2) and empty nodes (1.1) may stand next to the words.
    ``ended``: an empty line ends the last sentence, too, so that a file that was cut off is found.
    ``hint``: the cure for a malformed row.
    """

    name: str
    columns: tuple[str, ...]
    extended: bool
    ended: bool
    hint: str

    @property
    def separate(self) -> str:
        """The cure for rows that belong to no sentence."""
        comments = ", comments stand before it" if self.extended else ""
        return f"an empty line ends a sentence{comments}"


CONLLU = Layout(
    "CoNLL-U",
    ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC"),
    True,
    True,
    "see https://universaldependencies.org/format.html; blanks between columns are tabs",
)
CONLLX = Layout(
    "CoNLL-X",
    ("ID", "FORM", "LEMMA", "CPOSTAG", "POSTAG", "FEATS", "HEAD", "DEPREL", "PHEAD", "PDEPREL"),
    False,
    False,
    "a word of CoNLL-X has ten columns, between tabs; parse_conllu(text) reads CoNLL-U, with "
    "comments, ranges and empty nodes",
)


def parse_sentences(lines: str | Iterable[str], path: Path, layout: Layout) -> list[Sentence]:
    """Return the sentences of a text, or of its lines; DataError with file and line."""
    sentences = list[Sentence]()
    comments: list[str] = []
    rows: list[tuple[int, list[str]]] = []
    number = 1
    for number, line in enumerate(_lines(lines, path, layout), 1):
        if layout.extended and line.startswith("#"):
            if rows:
                raise data_error(
                    path,
                    number,
                    "a comment inside a sentence",
                    "a word or a blank",
                    layout.separate,
                )
            comments.append(line)
        elif line.strip():
            rows.append((number, line.split("\t")))
        elif rows:
            sentences.append(_sentence(path, rows, comments, layout))
            rows, comments = [], []
    if rows and layout.ended:
        raise data_error(
            path,
            number,
            "the file ends inside a sentence",
            "an empty line after each sentence",
            "it may be cut off: fetch it again, or end it with an empty line",
        )
    if rows:
        sentences.append(_sentence(path, rows, comments, layout))
    if not sentences:
        raise data_error(path, number, "no sentence in the file", "at least one", layout.hint)
    return sentences


def _lines(lines: str | Iterable[str], path: Path, layout: Layout) -> Iterator[str]:
    """Yield the lines of a text or a list, without their ends and without a byte-order mark."""
    if isinstance(lines, str | bytes | bytearray) or not isinstance(lines, Iterable):
        needed = f"{layout.name}, a text or its lines"
        lines = split_lines(as_text(lines, f"{path}:1", needed, layout.hint))
    for number, given in enumerate(lines, 1):
        line = given
        if number == 1 or not isinstance(line, str):
            line = as_text(line, f"{path}:{number}", f"a line of {layout.name}", layout.hint)
        if line.endswith(("\n", "\r")):
            line = line.removesuffix("\n").removesuffix("\r")
        if "\n" in line:
            raise data_error(path, number, "several lines in one", "one line each", _CUT)
        yield line


def _sentence(
    path: Path, rows: list[tuple[int, list[str]]], comments: list[str], layout: Layout
) -> Sentence:
    words: list[tuple[int, list[str]]] = []
    ranges: list[tuple[int, list[str]]] = []
    empty_nodes: list[EmptyNode] = []
    for number, columns in rows:
        if len(columns) != len(layout.columns):
            raise data_error(
                path,
                number,
                f"{len(columns)} columns between tabs",
                f"{len(layout.columns)}: {' '.join(layout.columns)}",
                hint=f"{layout.hint}; {_CUT}" if len(columns) > 1 else _TABS,
            )
        identity = columns[0]
        if identity == str(len(words) + 1):
            if not columns[1]:
                raise data_error(
                    path, number, "an empty FORM", "a word, or _ for none", layout.hint
                )
            words.append((number, columns))
        elif layout.extended and _is_pair(identity, "-"):
            ranges.append((number, columns))
        elif layout.extended and _is_pair(identity, "."):
            empty_nodes.append(EmptyNode(identity, *columns[1:6], *columns[8:]))
        else:
            raise data_error(
                path,
                number,
                f"word number {shown(identity)}",
                f"{len(words) + 1}",
                f"words of a sentence count from 1; {layout.separate}",
            )
    if not words:
        raise data_error(
            path,
            rows[0][0],
            "a sentence without words",
            "at least one word",
            "ranges (1-2) and empty nodes (1.1) are no words: leave the sentence out",
        )
    heads = [_head(path, number, columns[6], len(words)) for number, columns in words]
    circle = _circle(heads)
    if circle is not None:
        raise data_error(
            path,
            words[circle][0],
            f"word {circle + 1} ({shown(words[circle][1][1])}) heads itself through its heads",
            "heads that end in a root (0)",
            "give one word of the circle the head 0, or a word outside",
        )
    _, forms, lemmas, upos, xpos, feats, _, deprel, last, final = (
        list(column) for column in zip(*(columns for _, columns in words), strict=True)
    )
    sentence = Sentence(
        f"{path.name}:{words[0][0]}", forms, upos, deprel, heads, lemmas, xpos, feats
    )
    if not layout.extended:
        sentence.projective_heads.extend(last)
        sentence.projective_deprel.extend(final)
        return sentence
    sentence.deps.extend(last)
    sentence.misc.extend(final)
    sentence.comments.extend(comments)
    sentence.multiword.extend(_multiword(path, ranges, len(words)))
    sentence.empty_nodes.extend(empty_nodes)
    return sentence


def _multiword(path: Path, rows: list[tuple[int, list[str]]], num_words: int) -> list[Multiword]:
    """Return the ranges of a sentence; DataError for one of other words, or of those of another."""
    found: list[Multiword] = []
    stop = 0
    for number, columns in rows:
        first, last = map(int, columns[0].split("-"))
        if not stop < first <= last <= num_words:
            raise data_error(
                path,
                number,
                f"range {shown(columns[0])}",
                f"first and last of words {stop + 1}..{num_words}",
                "a range holds words of its sentence that no range before it holds",
            )
        stop = last
        found.append(Multiword(first - 1, last, columns[1], columns[5], columns[9]))
    return found


def _is_pair(identity: str, mark: str) -> bool:
    """True for two numbers with ``mark`` between them: the range 1-2, the empty node 1.1."""
    first, _, last = identity.partition(mark)
    return _is_number(first) and _is_number(last)


def _is_number(text: str) -> bool:
    # The length is bounded: thousands of digits are no number worth parsing.
    return text.isascii() and text.isdigit() and len(text) < 10


def _head(path: Path, number: int, text: str, num_words: int) -> int:
    if not _is_number(text) or int(text) > num_words:
        raise data_error(
            path,
            number,
            f"head {shown(text)}",
            f"0 (root) or a word 1..{num_words}",
            "the head is the number of a word of the same sentence",
        )
    return int(text) - 1


def _circle(heads: list[int]) -> int | None:
    """Return a word on a circle of heads, None without a circle. Follows every word once."""
    seen = [-1] * len(heads)  # the start of the walk that visited the word
    for start in range(len(heads)):
        word = start
        while word >= 0 and seen[word] == -1:
            seen[word] = start
            word = heads[word]
        if word >= 0 and seen[word] == start:
            return word
    return None
