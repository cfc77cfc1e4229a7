"""Trees of words for tests: their graphs of models, and formulas of Tree-LSTMs in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cavs.cli import main
from cavs.data import Tree, Vocabulary, parse_tree
from tests.models.against_numpy import epoch_losses, sigmoid

# Unequal depths, a sentence of one word, equal words, and a word without an embedding.
LINES = [
    "(3 (2 it) (4 (3 works) (2 .)))",
    "(2 plain)",
    "(4 (4 (3 works) (3 (2 and) (4 works))) (2 (2 it) (1 (0 fails) (2 .))))",
    "(0 (0 awful) (2 film))",
]
WORDS = ["it", "works", ".", "plain", "and", "fails", "awful"]


def trees() -> list[Tree]:
    return [parse_tree(line) for line in LINES]


def vocabulary() -> Vocabulary:
    return Vocabulary(["<unk>", *WORDS])


def up(tree: Tree, word: Callable[[int], Any], phrase: Callable[..., Any]) -> list[Any]:
    """Return the state of each vertex: that of a token, or that of the states of two parts."""
    states: list[Any] = []
    for v, text in enumerate(tree.words):
        below = [states[c] for c in tree.children_of(v)]
        token = 0 if text not in WORDS else 1 + WORDS.index(text)
        states.append(phrase(*below) if text is None else word(token))
    return states


def tree_lstm(tree: Tree, table: Any, word: Sequence[Any], phrase: Sequence[Any]) -> list[Any]:
    """Return h of each vertex of a binary Tree-LSTM (Tai et al. 2015, equations 9 to 14).

    word, phrase: weight and bias, whose gates are i, o, u, f_left, f_right.
    """

    def leaf(token: int) -> Any:
        i, o, u = np.split(table[token] @ word[0] + word[1], 3)
        c = sigmoid(i) * np.tanh(u)
        return c, sigmoid(o) * np.tanh(c)

    def compose(left: Any, right: Any) -> Any:
        z = np.concatenate([left[1], right[1]]) @ phrase[0] + phrase[1]
        i, o, u, f_left, f_right = np.split(z, 5)
        c = sigmoid(i) * np.tanh(u) + sigmoid(f_left) * left[0] + sigmoid(f_right) * right[0]
        return c, sigmoid(o) * np.tanh(c)

    return [h for _, h in up(tree, leaf, compose)]


def write_treebank(folder: Path, **bad: str) -> Path:
    """Write the parts of a treebank; `bad` has lines to add to some of them."""
    for part in ("train", "dev", "test"):
        lines = [*LINES * 4, bad.get(part, "")]
        (folder / f"{part}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def train(model: str, folder: Path, *more: str) -> int:
    """Run ``cavs train`` on the treebank in a folder; its run is in the folder, too."""
    out = ["--data", str(folder), "--out", str(folder / "run")]
    return main(["train", model, "--hidden-size=6", "--dropout=0", "--quiet", *out, *more])


def trains_and_predicts(model: str, folder: Path, capsys: Any, *more: str) -> None:
    """Train on a treebank: the loss falls, and the checkpoint predicts two new trees."""
    write_treebank(folder)
    assert train(model, folder, "--batch-size=4", "--epochs=6", *more) == 0
    losses = epoch_losses(folder / "run")
    assert losses[-1] < 0.8 * losses[0]
    (folder / "new").write_text("(2 unseen)\n\n(2 (2 it) (2 works))\n", encoding="utf-8")
    capsys.readouterr()
    checkpoint = str(folder / "run" / "checkpoint.best.safetensors")
    assert main(["predict", checkpoint, str(folder / "new")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
