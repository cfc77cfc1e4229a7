"""The lattice LSTM, on the drawn lattices of `benchmarks.lattice_lstm`."""

from __future__ import annotations

from benchmarks.lattice_lstm import drawn, graph, new_model, plain
from benchmarks.model_case import ModelCase, Sizes

HIDDEN = 128


def case(sizes: Sizes) -> ModelCase:
    """Return the tagger of characters with batches of drawn lattices."""
    lattices = drawn(sizes.batches * sizes.batch_size)
    size = sizes.batch_size
    batches = [lattices[i : i + size] for i in range(0, len(lattices), size)]
    return ModelCase(
        model=lambda: new_model(HIDDEN),
        batches=[[graph(lattice) for lattice in batch] for batch in batches],
        units=sum(len(lattice.chars) for lattice in lattices),
        unit="characters",
        hidden=HIDDEN,
        rivals={"torch": "lattice_torch", "dynet": "lattice_dynet"},
        plain=plain(batches),
        lr=1e-4,  # gradients of long lattices are large: with 0.01 rounding decides the losses
    )
