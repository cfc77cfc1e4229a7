"""The four workloads of the Cavs paper: cases, samples, and the parameters all runners start from.

tree-lstm   binary Tree-LSTM on the Stanford Sentiment Treebank, a label at every vertex
tree-fc     h = tanh(x + [h_l, h_r] W + b) on complete binary trees, a label at the root
var-lstm    LSTM over sentences of WikiText-2
fixed-lstm  LSTM over chunks of WikiText-2 of one length

Every model ends in ``Linear(hidden, classes)`` and the mean cross entropy over labelled vertices.
The parameters, as every runner gives and takes them (h: hidden, e: embedding):

tree-lstm   embedding [V, e], W [e, 3h] (i, o, u), U [2h, 5h] (i, o, u, f_l, f_r; rows h_l, h_r),
            b [5h] (a leaf uses its first 3h), W_out [h, classes], b_out [classes]
tree-fc     embedding [V, h], W [2h, h], b [h], W_out, b_out; at a leaf h = tanh(x + b)
LSTMs       embedding [V, e], W [e, 4h], U [h, 4h], b [4h] (i, f, g, o), W_out, b_out

Others are of cavs alone, and show what its passes are worth:

child-sum   child-sum Tree-LSTM on the treebank
lattice     the same on lattices, whose vertices share their children
gates       LSTM over sentences with a matrix for each gate
root-label  Tree-FC with a label at every vertex, -1 at all but the root
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.samples import (
    RANDOM,
    Sample,
    Sequence,
    complete_tree,
    data_folder,
    lattice,
    random_text,
    random_trees,
    sentiment_trees,
    wikitext,
)

Floats = npt.NDArray[np.float32]
Parameters = dict[str, Floats]

WORKLOADS = ("tree-lstm", "tree-fc", "var-lstm", "fixed-lstm")
# Workloads of cavs alone, and the workload whose samples they use; lattices have their own.
OWN = {
    "child-sum": "tree-lstm",
    "lattice": "lattice",
    "gates": "var-lstm",
    "root-label": "tree-fc",
}


@dataclass(frozen=True)
class Case:
    """One point of the measurements."""

    workload: str
    hidden: int
    batch_size: int
    training: bool = True
    threads: int = 1
    batches: int = 4
    embedding: int = 300  # unused by tree-fc, where the embedding of a leaf is its state
    classes: int = 5  # 0, LSTMs only: the next token, among the whole vocabulary
    length: int = 64  # fixed-lstm
    leaves: int = 256  # tree-fc, lattice
    vocabulary: int = 10_000  # tree-fc and LSTMs; tree-lstm has the treebank's
    optimizer: str = "adagrad"  # or "sgd"
    lr: float = 0.01
    seed: int = 1
    data: str = ""  # the folder, or "random": drawn trees and sentences of like sizes
    device: str = "cpu"  # or "cuda"
    precision: str = "fp32"  # precision of products; "tf32" and "bf16" on a device only

    @property
    def title(self) -> str:
        mode = "training" if self.training else "inference"
        where = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        if self.device != "cpu":
            where = f"{self.device} {self.precision}"
        return f"{self.workload} {mode}, h {self.hidden}, bs {self.batch_size}, {where}"

    def record(self) -> dict[str, Any]:
        """Return the case as JSON values, without the folder of the data."""
        return {k: v for k, v in asdict(self).items() if k != "data"}


@dataclass(frozen=True)
class Sizes:
    """Widths of a model."""

    vocabulary: int
    embedding: int
    hidden: int
    classes: int


@dataclass(frozen=True)
class Workload:
    """The input of a runner: batches of samples and the widths of the model."""

    case: Case
    sizes: Sizes
    batches: SequenceOf[SequenceOf[Sample]]

    @property
    def vertices(self) -> list[int]:
        """Number of vertices of each batch."""
        return [sum(len(sample) for sample in batch) for batch in self.batches]


def _sequence(tokens: npt.NDArray[np.int32], classes: int) -> Sequence:
    """Tokens but the last, each labelled by its successor (modulo `classes`, unless 0)."""
    label = tokens[1:] % classes if classes else tokens[1:]
    return Sequence(tokens[:-1].copy(), label.astype(np.int32))


# Folders of samples; those of other workloads are synthetic.
_FOLDERS = {"tree-lstm": "sst", "var-lstm": "wikitext2", "fixed-lstm": "wikitext2"}


def missing_data(workloads: Iterable[str], data: str) -> str:
    """Name the files that workloads read and the folder `data` (empty: $CAVS_DATA) lacks."""
    names = dict.fromkeys(_FOLDERS.get(OWN.get(name, name)) for name in workloads)
    for name in filter(None, names if data != RANDOM else ()):
        try:
            data_folder(name, data)
        except FileNotFoundError as error:
            return str(error)
    return ""


def _samples(case: Case, count: int) -> tuple[list[Sample], int]:
    random = np.random.default_rng(case.seed)
    samples: list[Sample]
    kind = OWN.get(case.workload, case.workload)
    if kind == "tree-lstm":
        drawn = case.data == RANDOM
        trees, vocabulary = random_trees(count) if drawn else sentiment_trees(case.data)
        samples = [trees[i] for i in random.permutation(len(trees))[:count]]
    elif kind in ("tree-fc", "lattice"):
        vocabulary = case.vocabulary
        make = {"tree-fc": complete_tree, "lattice": lattice}[kind]
        samples = [
            make(
                case.leaves,
                random.integers(0, vocabulary, case.leaves).astype(np.int32),
                int(random.integers(case.classes)),
            )
            for _ in range(count)
        ]
    elif kind in ("var-lstm", "fixed-lstm"):
        if case.data == RANDOM:
            sentences, vocabulary = random_text(max(count * case.length, 1000), case.vocabulary)
        else:
            sentences, vocabulary = wikitext(case.data, case.vocabulary)
        if kind == "fixed-lstm":
            text = np.concatenate(sentences)
            whole = len(text) // (case.length + 1)
            chunks = text[: whole * (case.length + 1)].reshape(whole, -1)
            sentences = list(chunks)
        order = random.permutation(len(sentences))[:count]
        samples = [_sequence(sentences[i], case.classes) for i in order]
    else:
        known = ", ".join((*WORKLOADS, *OWN))
        raise ValueError(f"workload {case.workload!r}; there are {known}")
    if len(samples) < count:
        raise ValueError(f"{case.workload}: {count} samples wanted, the data has {len(samples)}")
    return samples, vocabulary


def load(case: Case) -> Workload:
    """Return the samples of a case, the same for every runner."""
    count = case.batch_size * case.batches
    samples, vocabulary = _samples(case, count)
    like_fc = OWN.get(case.workload, case.workload) == "tree-fc"
    embedding = case.hidden if like_fc else case.embedding
    size = case.batch_size
    return Workload(
        case,
        Sizes(vocabulary, embedding, case.hidden, case.classes or vocabulary),
        [samples[i : i + size] for i in range(0, count, size)],
    )


def initial_parameters(workload: Workload) -> Parameters:
    """Return the initial parameters of all runners: uniform in +-1/sqrt(rows), embedding +-0.5."""
    sizes, kind = workload.sizes, workload.case.workload
    h, e = sizes.hidden, sizes.embedding
    shapes: dict[str, tuple[int, ...]]
    if kind == "tree-lstm":
        shapes = {"W": (e, 3 * h), "U": (2 * h, 5 * h), "b": (5 * h,)}
    elif kind in ("tree-fc", "root-label"):
        shapes = {"W": (2 * h, h), "b": (h,)}
    elif kind in ("child-sum", "lattice"):
        shapes = {"W": (e, 4 * h), "U": (h, 3 * h), "U_f": (h, h), "b": (4 * h,)}
    elif kind == "gates":
        shapes = {f"W_{gate}": (e, h) for gate in "ifgo"} | {f"U_{gate}": (h, h) for gate in "ifgo"}
        shapes["b"] = (4 * h,)
    else:
        shapes = {"W": (e, 4 * h), "U": (h, 4 * h), "b": (4 * h,)}
    shapes |= {
        "embedding": (sizes.vocabulary, e),
        "W_out": (h, sizes.classes),
        "b_out": (sizes.classes,),
    }
    random = np.random.default_rng(workload.case.seed)
    result: Parameters = {}
    for name, shape in shapes.items():
        bound = 0.5 if name == "embedding" else shape[0] ** -0.5
        result[name] = random.uniform(-bound, bound, shape).astype(np.float32)
    return result
