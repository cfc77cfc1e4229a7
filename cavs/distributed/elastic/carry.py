"""States that a rank carries from each batch of an epoch into the next one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavs.distributed.balance.shards import ShardedBatch
from cavs.distributed.elastic.survivors import Survivors
from cavs.errors import ConfigError, FeatureError
from cavs.train.carry import Carry
from cavs.train.engine import EvalOutcome, StepOutcome
from cavs.train.fit_options import FitOptions

Array = NDArray[Any]


class RankCarry(Carry):
    """A `Carry` whose states stay on the rank that computes their graphs.

    Its rows are those of the graphs of this rank's shard, of shape (graphs of the shard, ...).
    After a resume or a change of the ranks, every rank has the rows of all graphs for one batch.

    Raises `ConfigError` where another rank would have to continue a graph: if ranks may die
    (`elastic=True`), if the split of batches learns, or if `dev` is evaluated on several ranks.
    """

    def __init__(self, options: FitOptions, survivors: Survivors) -> None:
        super().__init__(options.carry)
        self.survivors, self.training = survivors, survivors.training
        self.session = self.training.session
        self._whole = False  # True if the rows are those of all graphs
        self._total = 0  # number of graphs of the global batch that the rows are of
        if not self.names:
            return
        session, elastic = self.session, self.training.elastic
        learns = hasattr(session.split, "update")
        evaluates = options.dev is not None and session.communicator.size > 1
        for found, cure in (
            (
                "elastic=True" * elastic,
                "leave it out, and resume from the checkpoint if a rank dies",
            ),
            ("a split that learns" * learns, "split=contiguous keeps graph i on one rank"),
            ("dev on many ranks" * evaluates, "evaluate on one process: cavs.Trainer.evaluate"),
        ):
            if found:
                raise ConfigError(f"carry={self.names!r} with {found}", hint=cure)

    def into(self, batch: Any) -> Any:
        """See `Carry`; returns this rank's part of the global batch."""
        if not self._rows:
            return batch
        with self._reporting():
            return self._into_part(self.session.shard(batch))

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Report an error to the other ranks, which are about to make the next step."""
        try:
            yield
        except Exception as error:
            self.training.report_error("batch", error)
            raise

    def _into_part(self, part: ShardedBatch) -> ShardedBatch:
        graphs = part.positions
        if self._whole and self._graphs.size == part.num_graphs:
            self._rows = {name: rows[graphs] for name, rows in self._rows.items()}
            self._graphs, self._whole = graphs, False
        return part if part.empty else replace(part, local=self._with_rows(part.local, graphs))

    def take(self, batch: Any, outcome: StepOutcome | EvalOutcome) -> None:
        """See `Carry`. A rank that has repeated the step without a dead one begins again."""
        if not self.session.roles.computes:
            return
        with self._reporting():
            self._take_part(batch, outcome)

    def _take_part(self, batch: Any, outcome: StepOutcome | EvalOutcome) -> None:
        if dropped := getattr(outcome, "dropped", ()):
            raise ConfigError(
                f"carry={self.names!r}, but a step went on without ranks {list(dropped)}, whose "
                "states are not known",
                hint="use no backup ranks",
            )
        part = self.session.shard(batch)
        if isinstance(batch, ShardedBatch) and batch.position != part.position:
            self.clear()
        else:
            self._take(outcome.aux, part.positions)
            self._whole, self._total = False, part.num_graphs

    def _other_graphs(self, graphs: Array) -> FeatureError:
        if len(graphs) != len(self._graphs):
            return super()._other_graphs(graphs)
        return FeatureError(
            f"carry={self.names!r}: this rank computed the graphs {self._graphs.tolist()!s:.80} of "
            f"a batch, and of the next one {graphs.tolist()!s:.80}, whose states other ranks have",
            hint="split batches by position alone, as split=contiguous does",
        )

    def arrays(self) -> dict[str, Array]:
        """See `Carry`. Replicas gather the rows of all graphs; all of them call it.

        Empty where a rank has died, and with it the rows of its graphs.
        """
        rank, count = self.session.position
        if self._whole or not self._rows or rank >= count:
            return super().arrays()
        gather = self.session.roles.replicas.all_gather
        order = np.argsort(np.concatenate(gather(self._graphs)))
        if order.size != self._total:
            return {}
        return {
            name: np.concatenate(gather(np.ascontiguousarray(rows)))[order]
            for name, rows in super().arrays().items()
        }

    def gathered(self) -> dict[str, Array]:
        """See `Carry`. All ranks call it; if one dies meanwhile, the others begin again."""
        if not self.names:
            return {}
        while True:
            if (found := self.survivors.run_once(self.arrays)) is not None:
                return found

    def restore(self, stored: Mapping[str, Array]) -> None:
        super().restore(stored)
        self._whole = bool(self._rows)
