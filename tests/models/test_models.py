"""Every model of models/: it builds, overfits a little data, and resumes from a checkpoint."""

from __future__ import annotations

import argparse
import gzip
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cavs
from cavs.cli import Task, main, registry
from cavs.data.readers.python_functions import functions_of
from cavs.errors import ConfigError, DataError
from models import ast_naming
from models.data.plans import RECORDING

SENTENCES = [
    "(3 (2 It) (4 (3 works) (2 .)))",
    "(1 (2 It) (0 (1 fails) (2 .)))",
    "(4 (4 Lovely) (2 film))",
    "(2 plain)",
    "(0 (0 Awful) (2 (2 ,) (2 film)))",
]
CONLLU = """1\tDogs\tdog\tNOUN\t_\t_\t2\tnsubj\t_\t_
2\tbark\tbark\tVERB\t_\t_\t0\troot\t_\t_
3\t.\t.\tPUNCT\t_\t_\t2\tpunct\t_\t_

1\tGo\tgo\tVERB\t_\t_\t0\troot\t_\t_
2\tnow\tnow\tADV\t_\t_\t1\tadvmod\t_\t_

"""
TEXT = "the dog runs\nthe cat runs and the dog sleeps\na cat sleeps\n"
CODE = """
def get_{0}(self):
    return self.{0}

def set_{0}(self, value):
    self.{0} = value
    self.changed = True

def is_{0}(self):
    return self.{0} is not None
"""
LEFT_OUT = (
    """def get_one(a):
    return a
def _(a):
    return a
def huge(x):
    def inner(y):
        return y
"""
    + "    x = x + 1\n" * 300
)


def write_data(name: str, folder: Path) -> Path | None:
    """Write a tiny data set for a model; None for a model with synthetic data."""
    if name in TREES:
        for split in ("train", "dev", "test"):
            (folder / f"{split}.txt").write_text("\n".join(SENTENCES) + "\n")
    elif name in ("dependency-tagger", "char-tagger", "lattice-lstm"):
        for split in ("dev", "test"):
            (folder / f"xx-ud-{split}.conllu").write_text(CONLLU * 20)
    elif name == "lstm-lm":
        for split in ("valid", "test"):
            (folder / f"{split}.txt").write_text(TEXT * 10)
    elif name in ("ast-naming", "astnn"):
        for i in range(30):
            (folder / f"m{i}.py").write_text(CODE.format("abcdefghij"[i % 10] * (i // 10 + 1)))
    elif name == "plan-cost":
        lines = gzip.decompress(RECORDING.read_bytes()).splitlines(keepends=True)
        (folder / RECORDING.name).write_bytes(gzip.compress(b"".join(lines[:40])))
    else:
        return None
    return folder


TREES = ("tree-lstm", "typed-trees", "mv-rnn", "nested-rnn")
OPTIONS: dict[str, dict[str, Any]] = {
    "tree-lstm": {"embedding_size": 8, "hidden_size": 6, "dropout": 0.0},
    "typed-trees": {"embedding_size": 8, "hidden_size": 6, "dropout": 0.0},
    "mv-rnn": {"hidden_size": 5, "rank": 2, "dropout": 0.0},
    "nested-rnn": {"embedding_size": 8, "hidden_size": 6, "dropout": 0.0, "documents": 10},
    "dependency-tagger": {"embedding_size": 8, "hidden_size": 6, "dropout": 0.0},
    "char-tagger": {"word_size": 8, "char_size": 6, "hidden_size": 6, "dropout": 0.0},
    "lstm-lm": {"embedding_size": 8, "hidden_size": 6, "dropout": 0.0},
    "ast-naming": {"size": 8, "dropout": 0.0, "classes": 3},
    "astnn": {"size": 8, "dropout": 0.0, "classes": 3},
    "plan-cost": {"hidden_size": 6},
    "lattice-lstm": {"hidden_size": 6},
    "translator": {"hidden_size": 8, "pairs": 40, "length": 4},
    "tree-fc": {"hidden_size": 8, "trees": 20, "leaves": 4},
    "grid-lstm": {"hidden_size": 8, "images": 20, "least": 5, "most": 6},
    "circuit-rnn": {"hidden_size": 8, "netlists": 20, "gates": 10},
    "jets": {"hidden_size": 8, "jets": 20, "particles": 6},
}


def test_every_model_is_tested() -> None:
    assert sorted(OPTIONS) == registry.names()


@pytest.fixture(params=OPTIONS)
def entry(request: pytest.FixtureRequest) -> registry.Entry:
    return registry.find(request.param)


def namespace(entry: registry.Entry, folder: Path, **more: Any) -> argparse.Namespace:
    data = write_data(entry.name, folder)
    own = {**entry.options(), **OPTIONS[entry.name], **more}
    return argparse.Namespace(**own, data=data and str(data), seed=0)


def build(entry: registry.Entry, folder: Path, **more: Any) -> Task:
    return entry.build(namespace(entry, folder, **more))


def test_a_model_overfits_little_data(entry: registry.Entry, tmp_path: Path) -> None:
    task = build(entry, tmp_path)
    task.model.initialize(1)
    batch = cavs.batch(task.required("train")[:20])
    trainer = cavs.Trainer(task.model, cavs.optim.Adam(0.03))
    first = trainer.step(batch)
    for _ in range(150):
        last = trainer.step(batch)
    assert last < 0.5 * first
    values = trainer.evaluate([batch], task.metrics)
    assert set(values) == {"loss", *(metric.name for metric in task.metrics)}


def test_options_set_the_size_of_a_model(entry: registry.Entry, tmp_path: Path) -> None:
    small, again = build(entry, tmp_path), build(entry, tmp_path)
    size = "size" if "size" in OPTIONS[entry.name] else "hidden_size"
    large = build(entry, tmp_path, **{size: 12})
    models = (task.model.parameters().values() for task in (small, again, large))
    count = [sum(p.value.size for p in parameters) for parameters in models]
    assert count[0] == count[1] < count[2]


def test_train_evaluate_predict(
    entry: registry.Entry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_data(entry.name, tmp_path)
    words = [f"--{k.replace('_', '-')}={v}" for k, v in OPTIONS[entry.name].items()]
    words += ["--quiet", "--epochs", "2", "--out", str(tmp_path / "run")]
    words += ["--data", str(data)] if data else []
    assert main(["train", entry.name, *words]) == 0
    trained = capsys.readouterr().out
    assert "test  loss" in trained
    best = str(tmp_path / "run" / "checkpoint.best.safetensors")
    assert main(["evaluate", best]) == 0
    evaluated = capsys.readouterr().out
    assert evaluated.splitlines()[-1].split()[-1] in trained  # the last metric, to the digit
    task = build(entry, tmp_path)
    if task.predict is not None:
        assert main(["predict", best, "--split", "test"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == len(task.required("test"))
        assert all(lines)
    if line := {"tree-lstm": 1, "dependency-tagger": 1, "ast-naming": 2}.get(entry.name):
        bad = tmp_path / "bad"
        bad.write_text("(3 oops\n" if line == 1 else "import os\ndef f(:\n")
        assert main(["predict", best, str(bad)]) == 1
        assert f"DataError: {bad}:{line}: " in capsys.readouterr().err


@pytest.mark.parametrize("name", ["tree-lstm", "dependency-tagger", "lstm-lm"])
def test_a_model_without_data_says_what_it_needs(name: str) -> None:
    entry = registry.find(name)
    with pytest.raises(DataError, match="pass --data DIR"):
        entry.build(argparse.Namespace(**entry.options(), data=None, seed=0))


def test_options_and_folders_without_data(tmp_path: Path) -> None:
    for name, options in (("tree-fc", {"trees": 0}), ("lstm-lm", {"length": 0})):
        with pytest.raises(
            ConfigError, match=f"--{next(iter(options))} 0(.|\n)*  hint: choose at least 1"
        ):
            build(registry.find(name), tmp_path, **options)
    empty = tmp_path / "empty"
    empty.mkdir()
    entry = registry.find("dependency-tagger")
    for assets in (None, {"forms": ["a"]}):
        with pytest.raises(DataError, match="empty has none of "):
            entry.build(argparse.Namespace(**entry.options(), data=str(empty), seed=0), assets)


def test_predictions_of_new_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = {
        "tree-lstm": ("(2 (2 Lovely) (2 day))\n", 1),
        "lstm-lm": ("the\nthe dog\n", 2),
        "dependency-tagger": (CONLLU, 2),
        "ast-naming": (CODE.format("unseen"), 3),
    }
    for name, (text, count) in new.items():
        folder = tmp_path / name
        folder.mkdir()
        data = write_data(name, folder)
        words = [f"--{k.replace('_', '-')}={v}" for k, v in OPTIONS[name].items()]
        words += ["--quiet", "--epochs", "1", "--data", str(data), "--out", str(folder / "run")]
        assert main(["train", name, *words]) == 0
        (tmp_path / "new").write_text(text)
        capsys.readouterr()
        best = str(folder / "run" / "checkpoint.best.safetensors")
        assert main(["predict", best, str(tmp_path / "new")]) == 0
        assert len(capsys.readouterr().out.splitlines()) == count


@pytest.mark.parametrize(
    ("name", "file", "bad", "told"),
    [
        ("tree-lstm", "test.txt", b"(3 (2 It)\n", r"test.txt:6: column 10"),
        ("tree-lstm", "dev.txt", b"(9 It)\n", r"dev.txt:6: "),
        ("lstm-lm", "test.txt", b"\xff\n", r"test.txt:31: byte 0xff is not UTF-8"),
        ("dependency-tagger", "xx-ud-test.conllu", b"1\tGo\n\n", "test.conllu:141: 2 columns"),
        (
            "dependency-tagger",
            "xx-ud-test.conllu",
            b"1\tGo\tgo\tVB\t_\t_\t0\troot\t_\t_\n\n",
            "test.conllu:141: word 1",
        ),
    ],
)
def test_a_malformed_split_is_refused_before_the_first_step(
    name: str,
    file: str,
    bad: bytes,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cavs.Trainer, "advance", lambda *_, **__: pytest.fail("a step"))
    monkeypatch.setattr(cavs.Trainer, "fit", lambda *_, **__: pytest.fail("a training"))
    data = write_data(name, tmp_path)
    with open(tmp_path / file, "ab") as part:
        part.write(bad)
    assert main(["train", name, "--quiet", "--data", str(data), "--out", str(tmp_path / "r")]) == 1
    assert re.search(f"DataError: .*{told}", capsys.readouterr().err)
    assert not (tmp_path / "r").exists()


def test_a_tagger_ignores_the_tags_of_new_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_data("dependency-tagger", tmp_path)
    out = str(tmp_path / "run")
    words = ["--quiet", "--epochs=1", "--hidden-size=6", "--data", str(tmp_path), "--out", out]
    assert main(["train", "dependency-tagger", *words]) == 0
    capsys.readouterr()
    shown = set()
    for tag in ("VERB", "VB", "_", ""):
        (tmp_path / "new").write_text(CONLLU.replace("VERB", tag))
        best = str(tmp_path / "run" / "checkpoint.best.safetensors")
        assert main(["predict", best, str(tmp_path / "new")]) == 0
        shown.add(capsys.readouterr().out)
    assert len(shown) == 1 and len(shown.pop().split()) == 5


def test_functions_that_are_left_out_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    found = list(functions_of(LEFT_OUT, "input", sizes=(2, 1000)))
    lines = list(ast_naming.left_out(LEFT_OUT, found))
    assert [f.name for f in found] == ["get_one", "inner"]
    assert lines == [
        "_ in line 3: there is no word in its name",
        "huge in line 5: it has more than 1000 nodes",
    ]
    task = registry.find("ast-naming").build(
        argparse.Namespace(data=None, seed=0, size=4, dropout=0.0),
        {"types": ["<unk>"], "names": ["<unk>"], "classes": ["get"]},
    )
    assert task.read is not None
    assert len(task.read(LEFT_OUT)) == 2
    assert capsys.readouterr().err == "".join(f"cavs: left out: {line}\n" for line in lines)


def test_errors_in_new_text_name_its_lines(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("tree-lstm", "lstm-lm")}
    for folder in folders.values():
        folder.mkdir()
    tree, text = (build(registry.find(name), folder) for name, folder in folders.items())
    assert tree.read is not None and text.read is not None
    with pytest.raises(DataError, match="<text>:3: column 10"):
        tree.read("\n\n(3 (2 It)\n")
    (graph,) = tree.read("\n(3 (2 a\u2028b) (2 c\x85d))\n\n")
    assert (graph.name, graph.num_vertices) == ("<text>:2", 3)
    assert [g.num_vertices for g in text.read("the\u2028dog\n\nthe\x85\n")] == [3, 1, 2]
    assert [g.num_vertices for g in text.read("the dog")] == [3]
    assert text.read("") == []


def test_fixed_length_chains(tmp_path: Path) -> None:
    task = build(registry.find("lstm-lm"), tmp_path, length=5)
    assert {graph.num_vertices for graph in task.required("train")} == {5}
    paragraphs = build(registry.find("lstm-lm"), tmp_path)
    assert len({graph.num_vertices for graph in paragraphs.required("train")}) > 1


def test_tree_fc_makes_complete_trees(tmp_path: Path) -> None:
    entry = registry.find("tree-fc")
    trees = build(entry, tmp_path, leaves=8).required("train")
    assert {(t.num_vertices, t.depth, t.arity, len(t.roots)) for t in trees} == {(15, 4, 2, 1)}
    labels = [int(t.graph_features["label"]) for t in trees]
    assert 0 < np.mean(labels) < 1
    with pytest.raises(ConfigError, match="power of two"):
        build(entry, tmp_path, leaves=6)
