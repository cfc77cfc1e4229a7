"""Options and target of a compilation, and the switches of the passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from cavs.compiler.memory import Shape
from cavs.errors import ConfigError, user_line
from cavs.ir import Structures
from cavs.passes.deduplicate_lookups import RepeatedIndex

# Former names of switches, each with the present one.
RENAMED = {
    "at_labelled": "restrict_to_labelled",
    "at_child": "hoist_products_to_child",
    "at_nth_child": "hoist_products_to_leaves",
    "cotangents_at_child": "hoist_cotangents",
    "trim": "trim_products",
    "frugal": "save_memory",
    "partition": "hoist_eager and hoist_lazy",
}


@dataclass(frozen=True)
class Passes:
    """A switch for each pass that can be ablated; without it the plain way is compiled."""

    merge_vertices: bool = True
    restrict_to_labelled: bool = True
    hoist_products_to_child: bool = True
    hoist_products_to_leaves: bool = True
    hoist_cotangents: bool = True
    simplify: bool = True
    specialise: bool = True
    trim_products: bool = True
    merge_products: bool = True
    deduplicate_lookups: bool = True
    hoist_eager: bool = True
    hoist_lazy: bool = True
    fuse: bool = True
    plan_memory: bool = True
    save_memory: bool = True

    def __new__(cls, *positional: object, **switches: object) -> Passes:
        """Refuse a switch of a former name with its present one."""
        for old in RENAMED.keys() & switches:
            raise ConfigError(
                f"{old}: the pass and its switch were renamed",
                where=user_line(),
                hint=f"write {RENAMED[old]}",
            )
        return super().__new__(cls)


class Target(NamedTuple):
    """The machine that a program is compiled for.

    concurrent_sums: sums over rows run concurrently with loops, so that a sum does not reuse rows
    of values that a loop still writes. copies_outputs: outputs may be copied to the caller chunk by
    chunk. passes: those of a session that is given none.
    """

    name: str
    concurrent_sums: bool
    copies_outputs: bool
    passes: Passes


# On a device a launch costs more than what it computes: merged vertices are of more kinds, so that
# a level is three times as many tasks.
CPU = Target("cpu", concurrent_sums=False, copies_outputs=True, passes=Passes())
DEVICE = Target(
    "device", concurrent_sums=True, copies_outputs=False, passes=Passes(merge_vertices=False)
)


def default_passes(device: object) -> Passes:
    """Return the passes of a session on ``device``, "cpu" or another; the same object each time."""
    return (CPU if device == "cpu" else DEVICE).passes


class CompileOptions(NamedTuple):
    """How a traced model is compiled.

    training: with the gradients of all trainable parameters. merging: structures whose rows are
    distinct vertices, with the features of `cavs.passes.merge_vertices`; "" stands for graphs.
    shared_children: edges outnumber vertices. shared_products: leaves have so many parents that
    products of single children are computed at the leaves. replicated: batches of a training are
    parts of global ones, see `cavs.passes.scale_for_replicas`. recurrent: LSTMs over chains run as
    a whole, on devices alone, see `cavs.passes.match_recurrences`. shape: of the graphs; a step
    that would hold much more than backward reads is compiled to hold less. structures: of the
    samples, with their links. record: the text of every pass is kept. inputs: with cotangents of
    float features. outside: the caller computes a loss from the outputs, and gives their
    cotangents. repeated: index features with so few values that products of looked-up rows may be
    computed once for each, in a program without gradients.
    """

    training: bool
    target: Target = CPU
    passes: Passes = CPU.passes
    merging: tuple[str, ...] = ()
    shared_children: bool = False
    shared_products: bool = False
    replicated: bool = False
    recurrent: bool = False
    shape: Shape | None = None
    structures: Structures = Structures()
    record: bool = False
    inputs: bool = False
    outside: bool = False
    repeated: tuple[RepeatedIndex, ...] = ()
