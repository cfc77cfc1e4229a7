"""The nested RNN equals one in NumPy that runs sentence by sentence and vertex by vertex."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs.cli import main
from cavs.data import parse_tree
from models.nested_rnn import DocumentClassifier, draw_documents, sample
from tests.models import sentiment_trees
from tests.models.against_numpy import check, cross_entropy, epoch_losses, lstm_step
from tests.models.sentiment_trees import train, trees, vocabulary, write_treebank

# The numbers of the sentences of each document; one has a single sentence, of one word.
DOCUMENTS = [[0, 2, 3], [1], [3, 1], [2, 2, 0, 1]]
CLASSES = [2, 2, 1, 3]  # mean labels 7/3, 2, 1, 13/4, to the nearest


def chain(p, name, rows):
    """Return h of an LSTM at each row."""
    c = h = np.zeros(len(p[f"{name}.U"]))
    found = []
    for x in rows:
        c, h = lstm_step(x @ p[f"{name}.W"] + h @ p[f"{name}.U"] + p[f"{name}.b"], c)
        found.append(h)
    return found


def reference(p):
    """Return the loss, and the scores of sentences and documents."""
    word = p["tree.W"], p["tree.b"]
    phrase = p["tree.U"], np.concatenate([p["tree.b"], p["tree.b_f"]])
    scores, losses = {"sentence": [], "document": []}, {"sentence": [], "document": []}

    def classify(name, h, label):
        scores[name].append(h @ p[f"{name}.weight"] + p[f"{name}.bias"])
        losses[name].append(cross_entropy(scores[name][-1], label))

    for numbers, label in zip(DOCUMENTS, CLASSES, strict=True):
        document = [trees()[i] for i in numbers]
        table = p["embedding.weight"]
        roots = [sentiment_trees.tree_lstm(t, table, word, phrase)[-1] for t in document]
        forth = chain(p, "chain.forth", roots)
        back = chain(p, "chain.back", roots[::-1])[::-1]
        rows = [np.concatenate(pair) for pair in zip(forth, back, strict=True)]
        for h, tree in zip(rows, document, strict=True):
            classify("sentence", h, tree.labels[-1])
        classify("document", np.mean(rows, axis=0), label)
    loss = sum(np.mean(each) for each in losses.values())
    return loss, {name: np.array(rows) for name, rows in scores.items()}


def samples():
    return [sample([trees()[i] for i in numbers], vocabulary()) for numbers in DOCUMENTS]


@pytest.mark.parametrize("copies", [1, 8])  # 8: a batch whose equal vertices are merged
def test_loss_scores_and_gradients_equal_the_reference(copies):
    def repeated(p):
        loss, scores = reference(p)
        return loss, {name: np.tile(rows, (copies, 1)) for name, rows in scores.items()}

    model = DocumentClassifier(len(vocabulary()), 3, 4, 0.0)
    check(model, cavs.batch(samples() * copies), repeated)


def test_documents_are_drawn_of_sentences_that_are_alike():
    treebank = [parse_tree(f"({i % 5} w)") for i in range(50)]
    documents = draw_documents(treebank, 400, seed=3)
    again = draw_documents(treebank, 400, seed=3)
    assert [[id(t) for t in d] for d in documents] == [[id(t) for t in d] for d in again]
    assert {len(document) for document in documents} == set(range(2, 9))
    labels = [[tree.labels[-1] for tree in document] for document in documents]
    assert set(np.concatenate(labels)) == set(range(5))
    spread = np.mean([np.std(of) for of in labels])
    assert spread < 0.7 * np.std(np.concatenate(labels))
    (alone,) = draw_documents(treebank[:1], 1, seed=0)  # one class only
    assert set(map(id, alone)) == {id(treebank[0])}


def test_the_loss_of_a_training_falls_and_documents_are_predicted(tmp_path, capsys):
    write_treebank(tmp_path)
    sizes = ["--embedding-size=5", "--documents=30", "--batch-size=5", "--epochs=6"]
    assert train("nested-rnn", tmp_path, *sizes) == 0
    losses = epoch_losses(tmp_path / "run")
    assert losses[-1] < 0.9 * losses[0]
    (tmp_path / "new").write_text("(2 unseen)\n(2 (2 it) (2 works))\n\n\n(2 plain)\n")
    capsys.readouterr()
    checkpoint = str(tmp_path / "run" / "checkpoint.best.safetensors")
    assert main(["predict", checkpoint, str(tmp_path / "new")]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert (first.count(","), second.count(",")) == (1, 0)
    (tmp_path / "new").write_text("(2 plain)\n\n(2 (2 it) (2\n")
    assert main(["predict", checkpoint, str(tmp_path / "new")]) == 1
    assert f"DataError: {tmp_path}/new:3: " in capsys.readouterr().err


def test_bad_data_and_options_are_refused(tmp_path, capsys):
    write_treebank(tmp_path, train="(3 it")
    assert train("nested-rnn", tmp_path) == 1
    assert "train.txt:17: " in capsys.readouterr().err
    assert train("nested-rnn", tmp_path, "--documents=0") == 1
    assert "--documents 0\n  hint: choose at least 1" in capsys.readouterr().err
