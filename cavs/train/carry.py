"""States that are carried from each batch of an epoch into the next one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavs.config import require
from cavs.errors import CheckpointError, ConfigError, FeatureError
from cavs.train.engine import EvalOutcome, StepOutcome

Array = NDArray[Any]
CARRIED = "@carry/"  # begins the names of carried rows in a checkpoint, and of no parameter


def check_carry(carry: object) -> None:
    """Raise `ConfigError` unless `carry` maps features to outputs, or is None."""
    named = carry is None or isinstance(carry, Mapping)
    need = "a dict of names: the feature of graphs, and the output of Model.loss that it gets"
    require(named, "carry", carry, need)
    for name, output in (carry or {}).items():  # type: ignore[attr-defined]
        require(isinstance(name, str) and isinstance(output, str), "carry", carry, need)


class Carry:
    """Writes outputs of each step into features of the graphs of the next batch.

    Graph i of a batch continues graph i of the batch before. The first batch of an epoch has the
    features that its graphs bring. An output is an array of shape (graphs, ...) in the dtype of the
    session, and replaces a feature of graphs of the same row shape.

    Args:
        names: The output of ``Model.loss`` that each feature of graphs gets; empty or None: nothing
            is carried.
    """

    def __init__(self, names: Mapping[str, str] | None) -> None:
        self.names = dict(names or {})
        self._rows: dict[str, Array] = {}  # for the next batch, by feature
        self._graphs: Array = np.zeros(0, np.int64)  # their numbers in the global batch

    def __bool__(self) -> bool:
        return bool(self.names)

    def clear(self) -> None:
        """Let the next batch, the first one of an epoch, continue no other."""
        self._rows = {}

    def into(self, batch: Any) -> Any:
        """Return `batch` with the states that the last step has left.

        Raises `FeatureError` if it has another number of graphs than the batch before.
        """
        if not self._rows:
            return batch
        return self._with_rows(batch, np.arange(batch.num_graphs))

    def take(self, batch: Any, outcome: StepOutcome | EvalOutcome) -> None:
        """Store outputs of a step, or of an evaluation, for the next one.

        Raises `ConfigError` if an output is missing, or has not one row for each graph of `batch`.
        """
        self._take(outcome.aux, np.arange(batch.num_graphs))

    def _with_rows(self, batch: Any, graphs: Array) -> Any:
        """Return the batch of `graphs` with their rows; FeatureError if there are none of them."""
        if not np.array_equal(graphs, self._graphs):
            raise self._other_graphs(graphs)
        return batch.with_graph_features(self._rows)

    def _other_graphs(self, graphs: Array) -> FeatureError:
        return FeatureError(
            f"carry={self.names!r}: a batch of {len(graphs)} graphs follows one of "
            f"{len(self._graphs)}, whose states it is to continue graph by graph",
            hint="all batches of an epoch need the same number of graphs: drop_last=True, or "
            "cavs.data.parallel_chains, which cuts a text into as many chains for each batch",
        )

    def _take(self, aux: Mapping[str, Array], graphs: Array) -> None:
        rows = {}
        for feature, name in self.names.items():
            if name not in aux:
                raise ConfigError(
                    f"carry={self.names!r}, but Model.loss returns no value {name!r} with the "
                    f"loss; it returns {', '.join(map(repr, aux)) or 'none'}",
                    hint=f"end it with: return loss, {{{name!r}: final.h}}",
                )
            if len(aux[name]) != len(graphs):
                raise ConfigError(
                    f"carry={self.names!r}: {name!r} has {len(aux[name])} rows in a batch of "
                    f"{len(graphs)} graphs",
                    hint="return one row per graph, such as final states or ops.sum_roots(h)",
                )
            rows[feature] = aux[name]
        self._rows, self._graphs = rows, graphs

    # ---- checkpoints ---------------------------------------------------------------------------

    def arrays(self) -> dict[str, Array]:
        """Return the rows of all graphs of the last batch, as checkpoints store them."""
        return {f"{CARRIED}{name}": rows for name, rows in self._rows.items()}

    def gathered(self) -> dict[str, Array]:
        """Return `arrays` where no work of all ranks surrounds the call."""
        return self.arrays()

    def restore(self, stored: Mapping[str, Array]) -> None:
        """Continue from the `arrays` among `stored`, if any.

        Raises `CheckpointError` if they are of another `carry`.
        """
        rows = {k.removeprefix(CARRIED): a for k, a in stored.items() if k.startswith(CARRIED)}
        if rows and rows.keys() != self.names.keys():
            raise CheckpointError(
                f"the run has stopped within an epoch, where it carried {', '.join(sorted(rows))} "
                f"into the next batch; this one carries {', '.join(sorted(self.names)) or 'none'}",
                hint="resume with the same carry=",
            )
        self._rows = rows
        self._graphs = np.arange(max(map(len, rows.values()), default=0))


def carried(stored: Mapping[str, Array]) -> dict[str, Array]:
    """Return the carried rows among the arrays of a checkpoint, as `Carry.arrays` does."""
    return {name: rows for name, rows in stored.items() if name.startswith(CARRIED)}
