"""The programs of a session: traced and compiled for the batches that it is given."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from cavs import _engine
from cavs.compiler.options import CPU, DEVICE, CompileOptions, Passes
from cavs.compiler.pipeline import Compiled, compile_graph
from cavs.compiler.program import Program
from cavs.cuda.engine import CudaEngine
from cavs.data.features import MAX_OPTIONAL
from cavs.data.vertex_types import number_of_bits
from cavs.errors import FAULT, CompileError, DeviceError
from cavs.frontend.model import AUX, Model, require_same_parameters
from cavs.frontend.parameter import Parameter
from cavs.ir import Node, Structures, origin
from cavs.passes.hoist_products_to_leaves import multiplied_children
from cavs.passes.merge_vertices import Distinguishing
from cavs.passes.specialise import optional_features
from cavs.runtime.check import check_arity, check_batch, check_types
from cavs.runtime.encode import encode
from cavs.runtime.features import FeatureTypes, features, with_cotangents
from cavs.runtime.host_inputs import InputBatch
from cavs.runtime.interface import BatchLike, Executor, Inputs
from cavs.runtime.parameter_sync import ParameterSync
from cavs.runtime.profiler import Profiler
from cavs.runtime.recurrence import Lstms
from cavs.runtime.scheduling import Order, Sampled, Scheduling, choose, chooses, compare
from cavs.runtime.tracing import (
    decide_child_numbers,
    decide_repeated,
    decide_shape,
    fits,
    merge_features,
    must_merge_features,
    trace,
)
from cavs.runtime.variant import Build, Search, Variant, VariantKey, Variants

MIN_MERGED = 256  # vertices of a batch; below, the search for equal ones costs what it saves
MIN_LOOKUPS = 256  # vertices of a batch that decides whether indices are repeated
MAX_CHILD_NUMBERS = 4  # each doubles the number of possible kinds
MIN_READERS = 1.15  # mean number of parents that read a product at the child for it to pay


class Prepared(NamedTuple):
    """A batch ready to run: its variant, which is built; whose rows run; the engine's inputs.

    rows: the batch, or its distinct vertices.
    """

    variant: Variant
    rows: Any
    inputs: Inputs

    @property
    def executor(self) -> Executor:
        """The executor that runs it."""
        return self.variant.built.executor

    @property
    def compiled(self) -> Compiled:
        """The compiled program."""
        return self.variant.built.compiled


class ProgramCache:
    """Traces and compiles ``model``, and keeps a program for every variant.

    products: the CPU's way to compute products. scheduling: one of SCHEDULING. latest: the variant
    that was last prepared, by whether it trains.
    """

    def __init__(
        self,
        model: Model,
        parameters: Mapping[str, Parameter],
        *,
        dtype: np.dtype[Any],
        passes: Passes,
        replicated: bool,
        cuda: CudaEngine | None,
        products: str,
        variants: Variants,
        scheduling: str,
        lstms: Lstms,
        sync: ParameterSync,
        profiler: Profiler,
    ) -> None:
        self.model, self.parameters, self.dtype = model, parameters, dtype
        self.passes, self.replicated, self.cuda, self.products = passes, replicated, cuda, products
        self.scheduling = scheduling
        self.variants, self.lstms, self.sync, self.profiler = variants, lstms, sync, profiler
        self.feature_types = FeatureTypes(model)
        self.latest: dict[bool, Variant] = {}
        # On devices siblings are neighbours: the children of complete trees are then rows of a
        # matrix, and are not gathered.
        self._by_number = cuda is None

    # ---- batches that run ----------------------------------------------------------------------

    def prepare(
        self,
        batch: BatchLike,
        training: bool,
        with_loss: bool,
        record: bool = False,
        key: VariantKey | None = None,
    ) -> Prepared:
        """Return ``batch`` ready to run; record: keep the text of every pass if it compiles.

        key: of the variant, where it is not the one that runs such batches fastest.
        """
        check_batch(batch)
        self.sync.follow_others()
        while True:
            if key is None:
                searched = self.merges(batch, training)
                variant, rows = self._select(batch, training, with_loss, searched)
            else:
                searched, variant = False, self._mergeable_variant(key, batch)
                rows = self.rows_of(variant, batch)
            schedule = self._schedule(variant, rows)
            traced = variant.traced
            if schedule.max_arity > traced.fits and batch not in traced.fitting:
                check_arity(traced.graph, schedule, traced.types, batch)
                traced.fitting.add(batch)
            kinds = {k for k, _, _ in schedule.kinds}
            if must_merge_features(variant, kinds):
                merge_features(variant)
                continue
            schedule = self._ordered(variant, rows, schedule)
            decide_shape(variant.decisions, schedule, self._replicas(training))
            self._decide_repeated(variant, rows, schedule)
            if not self._is_built(variant, kinds):
                try:
                    self.compile(variant, kinds, record)
                except DeviceError as error:
                    if not (variant.key.recurrent and self.lstms.give_up(error)):
                        raise
                    continue
            self.latest[training] = variant
            of_outputs = variant.traced.graph.outputs if variant.key.outside else {}
            inputs = self._inputs(schedule, variant.built, rows, batch, of_outputs)
            prepared = Prepared(variant, rows, inputs)
            if searched:
                self._count_search(variant)
            self.lstms.clock(variant.built.executor)
            return prepared

    def prepare_known(self, batch: BatchLike, training: bool) -> None:
        """Make the schedules of ``batch`` for programs that exist; safe in another thread."""
        searched = self.merges(batch, training)
        for with_loss in (True, False):
            variant, rows = self._known(batch, training, with_loss, searched)
            build = None if variant is None else variant.build  # another thread may drop it
            if variant is not None and build is not None:
                rows = self.rows_of(variant, batch) if rows is None else rows
                self._inputs(self._schedule(variant, rows), build, rows, batch)

    def is_new(self, batch: BatchLike) -> bool:
        """True if a training step on ``batch`` would compile, or choose a policy of batching."""
        variant, rows = self._known(batch, True, True, self.merges(batch, True))
        if variant is None or variant.build is None or not self._fits(variant, batch):
            return True
        rows = self.rows_of(variant, batch) if rows is None else rows
        schedule = self._schedule(variant, rows)
        built = self._is_built(variant, {k for k, *_ in schedule.kinds})
        return not built or self._is_undecided(variant, schedule)

    def compile_for(
        self, batch: BatchLike, union: Callable[[Sequence[Any]], Sequence[Any]]
    ) -> None:
        """Compile training for ``batch`` and what ``union`` adds, see Session.compile_for."""
        absent = {n for n, s in batch.feature_schema().items() if s.has_absent}
        absent = absent.union(*(v.absent_features() for v in self.variants.values()))
        everywhere = frozenset(union(sorted(absent)))
        key = self._key(self.merges(batch, True), True, True)
        variant = self._mergeable_variant(key, batch, everywhere)
        rows = self.rows_of(variant, batch)
        schedule = self._schedule(variant, rows)
        found = {int(k) for k, _, _ in schedule.kinds}.union(variant.decisions.kinds)
        own: list[tuple[Any, ...]] = [("kind", kind) for kind in found]
        if self._is_undecided(variant, schedule):
            chosen = choose(self.scheduling, *self._orders(variant, rows))
            own.append(("policy", chosen.tasks["level"], json.dumps(chosen.to_json())))
        every = union(sorted(own))
        kinds = {value for of, value, *_ in every if of == "kind"}
        if must_merge_features(variant, kinds):
            merge_features(variant)
            self.compile_for(batch, union)
            return
        if policies := [text for of, _, *text in every if of == "policy"]:
            # All ranks take that of the one whose batch has the most tasks.
            variant.decisions.scheduling = Scheduling.from_json(json.loads(policies[-1][0]))
        self.compile(variant, kinds)

    # ---- choosing a variant --------------------------------------------------------------------

    def _select(
        self, batch: BatchLike, training: bool, with_loss: bool, merges: bool
    ) -> tuple[Variant, Any]:
        """Return the variant that runs ``batch``, traced for it, and whose rows run.

        merges: as of `merges`.
        """
        variant = self._mergeable_variant(self._key(merges, training, with_loss), batch)
        if self.lstms.take(variant, batch):
            key = VariantKey(training, with_loss, merging=False, recurrent=True)
            variant = self._variant(key, batch)
        rows = self.rows_of(variant, batch)
        if self._finds_few(variant, rows, batch):
            variant = self._variant(variant.key._replace(merging=False), batch)
            rows = self.rows_of(variant, batch)
        return variant, rows

    def _key(self, merges: bool, training: bool, with_loss: bool) -> VariantKey:
        if not merges:
            return VariantKey(training, with_loss, False)
        key = VariantKey(training, with_loss, True)
        known = self.variants.get(key)
        paused = known is not None and known.decisions.search.pause > 0
        return key._replace(merging=False) if paused else key

    def _finds_few(self, variant: Variant, rows: Any, batch: BatchLike) -> bool:
        """True if ``rows`` are the distinct vertices of ``batch``, and too few of it are equal.

        Replicas run the same program, whatever their batches look like. Where products are computed
        at the children, distinct vertices are worth it without copies.
        """
        if rows is batch or self._replicas(variant.key.training) or variant.decisions.child_numbers:
            return False
        return Search.finds_few(batch.topology.num_vertices, rows.topology.num_vertices)

    def _count_search(self, variant: Variant) -> None:
        """Count a batch that ``variant`` runs among those that are searched for equal vertices."""
        if self._replicas(variant.key.training):
            return
        known = self.variants.get(variant.key._replace(merging=True, recurrent=False))
        if known is None:
            return
        search = known.decisions.search
        if search.pause or (known.trace is not None and known.trace.distinguishing is not None):
            search.count(variant.key.merging)

    def _mergeable_variant(
        self,
        key: VariantKey,
        batch: BatchLike,
        absent: frozenset[str] = frozenset(),
    ) -> Variant:
        """Return the variant for distinct vertices if key and model allow it, else for all."""
        known = self.variants.get(key)
        variant = self._variant(key, batch, absent)
        if key.merging and variant.traced.distinguishing is None:
            like = variant if known is None else None
            variant = self._variant(key._replace(merging=False), batch, absent, like)
        return variant

    def _variant(
        self,
        key: VariantKey,
        batch: BatchLike,
        absent: frozenset[str] = frozenset(),
        like: Variant | None = None,
    ) -> Variant:
        """Return the variant, traced for what ``batch`` has and what is ``absent`` elsewhere."""
        variant = self.variants.get(key)
        if variant is None:
            variant = self.variants.setdefault(key, Variant(key))
        if absent:
            variant.expect_absent(absent)
        types = self.feature_types
        schema, structures = types.schema(batch), types.structures(batch)
        trace(variant, self.model, schema, structures, batch, like)
        return variant

    def _fits(self, variant: Variant, batch: BatchLike) -> bool:
        return fits(variant, self.feature_types.structures(batch), batch)

    def _known(
        self, batch: BatchLike, training: bool, with_loss: bool, merges: bool
    ) -> tuple[Variant | None, Any]:
        """Return the variant that runs ``batch`` if it is traced, and its rows if it was searched.

        Without rows, None: they are to be found. merges: as of `merges`.
        """
        rows = None
        key = self._key(merges, training, with_loss)
        variant = self.variants.get(key)
        traced = None if variant is None else variant.trace
        if key.merging and traced is not None and traced.distinguishing is None:
            variant = self.variants.get(key._replace(merging=False))
        elif variant is not None and key.merging and traced is not None:
            # Another thread may trace the variant now, and decide next.
            if variant.decisions.child_numbers is not None:
                rows = self.rows_of(variant, batch)
            if rows is not None and self._finds_few(variant, rows, batch):
                variant, rows = self.variants.get(key._replace(merging=False)), batch
        if variant is not None and self.lstms.settled(variant, batch):
            key = VariantKey(training, with_loss, merging=False, recurrent=True)
            variant, rows = self.variants.get(key), None
        return variant, rows

    def merges(self, batch: BatchLike, training: bool) -> bool:
        """True if equal vertices of a batch are worth a search, where the model allows it."""
        if not self.passes.merge_vertices or isinstance(batch, InputBatch):
            return False
        large = bool(batch.topology.num_vertices >= MIN_MERGED)
        return large or (training and self.replicated)

    def _replicas(self, training: bool) -> bool:
        """True if all replicas must run the same program, whatever their batches look like."""
        return self.replicated and training

    # ---- rows and inputs -----------------------------------------------------------------------

    def rows_of(self, variant: Variant, batch: BatchLike) -> Any:
        """Return the batch that the engine runs: the distinct vertices of ``batch``, or
        ``batch`` itself.
        """
        traced = variant.traced
        names = traced.distinguishing
        if traced.types or batch.type_names is not None:
            check_types(traced.graph, traced.types, batch)
        if names is None:
            return batch
        if variant.decisions.child_numbers is None:
            self._decide_products(variant, names, batch)
        return batch.merged(names, variant.decisions.child_numbers or 0)

    def _decide_products(self, variant: Variant, names: Distinguishing, batch: BatchLike) -> None:
        """Decide once, by the first batch, whether leaves have parents enough to share products.

        Those of samples of several structures do not.
        """
        graph = variant.traced.graph
        wanted = self.passes.hoist_products_to_leaves and self.passes.specialise
        wanted &= not self._replicas(variant.key.training) and variant.traced.structures is None
        numbers = multiplied_children(graph) if wanted else 0
        taken = len(optional_features(graph)) + number_of_bits(variant.traced.types)
        room = min(MAX_CHILD_NUMBERS, MAX_OPTIONAL - taken)
        if 0 < numbers <= room:
            merged = batch.merged(names, numbers)
            numbers = numbers if merged.reads_per_product >= MIN_READERS else 0
        decide_child_numbers(variant, numbers if numbers <= room else 0)

    def _deduplicates(self, key: VariantKey) -> bool:
        """True if programs of the variant may compute with the distinct indices of a batch."""
        switches = self.passes.deduplicate_lookups and self.passes.hoist_eager
        return switches and not key.training and self.cuda is None

    def _decide_repeated(self, variant: Variant, rows: Any, schedule: _engine.Schedule) -> None:
        """Decide once, by the first batch with lookups enough, which indices are repeated.

        A program that smaller batches had compiled is dropped if some are.
        """
        enough = variant.decisions.repeated is None and rows.topology.num_vertices >= MIN_LOOKUPS
        if enough and self._deduplicates(variant.key):
            read = partial(self.feature_types.rows, rows, dtype=np.dtype(np.int32))
            decide_repeated(variant, read, schedule)

    def _schedule(self, variant: Variant, rows: Any) -> _engine.Schedule:
        traced = variant.traced
        chosen = self.chosen(variant)
        policy = chosen.policy if chosen else None
        found: _engine.Schedule = rows.schedule(
            traced.optional, self._by_number, traced.types, policy=policy
        )
        return found

    def chosen(self, variant: Variant) -> Scheduling | None:
        """Return the policy of batching that was chosen, if it is still one that is wanted."""
        found = variant.decisions.scheduling
        fits = found is not None and self.scheduling in ("auto", "fewest", found.name)
        return found if fits else None

    def _ordered(self, variant: Variant, rows: Any, schedule: _engine.Schedule) -> _engine.Schedule:
        """Return the schedule in the order of the policy that is chosen, by now at the latest."""
        # Replicas, whose batches differ, choose one policy together, in `compile_for`.
        if not self._is_undecided(variant, schedule) or self._replicas(variant.key.training):
            return schedule
        chosen = choose(self.scheduling, *self._orders(variant, rows))
        variant.decisions.scheduling = chosen
        return self._schedule(variant, rows)

    def _is_undecided(self, variant: Variant, schedule: _engine.Schedule) -> bool:
        """True if a policy of batching is yet to be chosen, by the batch of ``schedule``."""
        undecided = self.chosen(variant) is None
        return undecided and chooses(self.scheduling, schedule, variant.traced.types)

    def _orders(self, variant: Variant, rows: Any) -> tuple[Order, Sampled]:
        """Return the schedule of ``rows`` by a policy, and the batch that one learns from."""
        optional, types = variant.traced.optional, variant.traced.types
        order = partial(rows.schedule, optional, self._by_number, types)
        return order, (rows.topology, rows.presence(optional, types))

    def _inputs(
        self,
        schedule: _engine.Schedule,
        build: Build,
        rows: Any,
        batch: BatchLike,
        outputs: Mapping[str, Node] = MappingProxyType({}),
    ) -> Inputs:
        """Return the engine's inputs; outputs: those whose cotangents are not known yet."""
        find = with_cotangents(self.feature_types.rows, outputs, batch) if outputs else None
        how = rows is not batch, self.dtype, find or self.feature_types.rows
        return schedule, *features(build.compiled.program, rows, *how)

    def compare_scheduling(self, batch: BatchLike, training: bool, with_loss: bool) -> Scheduling:
        """Return the policy that orders the tasks of ``batch``, and how many tasks each needs."""
        prepared = self.prepare(batch, training, with_loss)
        variant = prepared.variant
        return compare(self.chosen(variant), *self._orders(variant, prepared.rows))

    # ---- compiling -----------------------------------------------------------------------------

    def _is_built(self, variant: Variant, kinds: set[int]) -> bool:
        """True if the program covers ``kinds`` and has the gradients that are trained."""
        if variant.build is None or not kinds <= set(variant.decisions.kinds):
            return False
        if not variant.key.training:
            return True
        frozen = self._frozen()  # replicas would exchange gradients of frozen parameters in vain
        return variant.build.frozen == frozen if self.replicated else variant.build.frozen <= frozen

    def _frozen(self) -> frozenset[str]:
        return frozenset(n for n, p in self.parameters.items() if not p.trainable)

    def compile(self, variant: Variant, found: set[int], record: bool = False) -> None:
        """Compile for the kinds known and ``found``; an error leaves ``variant`` unchanged."""
        key, decisions, traced = variant.key, variant.decisions, variant.traced
        require_same_parameters(self.model, self.parameters)
        kinds = tuple(sorted(set(decisions.kinds) | found))
        with origin(""):
            options = CompileOptions(
                training=key.training,
                target=CPU if self.cuda is None else DEVICE,
                passes=self.passes,
                merging=variant.merged_structures,
                shared_children=bool(decisions.shared),
                shared_products=bool(decisions.child_numbers),
                replicated=self.replicated,
                recurrent=key.recurrent,
                shape=decisions.shape,
                structures=traced.structures or Structures(),
                record=record,
                inputs=key.inputs,
                outside=key.outside,
                repeated=(decisions.repeated or ()) if self._deduplicates(key) else (),
            )
            compiled = compile_graph(traced.graph, kinds, list(self.parameters), options)
        program = compiled.program
        if program.optional != traced.optional:
            raise CompileError(
                f"kinds of vertices are numbered by {traced.optional}, "
                f"the program reads them by {program.optional}",
                hint=FAULT,
            )
        aux = any(name.startswith(AUX) for name in program.outputs)
        build = Build(compiled, self._executor(program), self._frozen(), aux)
        decisions.recompiles += variant.build is not None and len(kinds) > len(decisions.kinds)
        decisions.kinds, variant.build = kinds, build

    def _executor(self, program: Program) -> Executor:
        executor: Executor
        arrays = self.sync.take_arrays()
        if self.cuda is None:
            executor = _engine.Executor(encode(program), arrays, self.products)
        else:
            executor = self.cuda.executor(program, encode(program), arrays)
        self.profiler.configure(executor)
        return executor

    def recorded(self, batch: BatchLike, training: bool, with_loss: bool) -> Compiled:
        """Return the program for ``batch`` with the text of every pass."""
        prepared = self.prepare(batch, training, with_loss, record=True)
        if not prepared.compiled.stages:
            self.compile(prepared.variant, set(), record=True)
        return prepared.compiled
