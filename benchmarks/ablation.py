"""Every compiler pass switched off in turn, where it matters: what each is worth.

On the treebank all are; besides, each on the workloads that it is made for, since trees of words
alone show little of some. The table says how many times longer a step takes without the pass, how
many times more it gathers and writes, and how many times more it holds at once.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import fields, replace
from typing import Any

from benchmarks.harness import batches_for, markdown, parser_for, run
from benchmarks.workloads import OWN, WORKLOADS, Case
from cavs.compiler.pipeline import Passes

PASSES = tuple(field.name for field in fields(Passes) if field.default)

# embedding 0: the width of the states
SST = Case("tree-lstm", 0, 64)
CASES: dict[Case, tuple[str, ...]] = {
    SST: PASSES,
    # Words that have many parents, in a large batch.
    Case("tree-lstm", 0, 256): ("merge_vertices", "hoist_products_to_leaves"),
    # A leaf needs no forget gate.
    Case("child-sum", 0, 64): ("specialise", "trim_products", "simplify"),
    # Three times as many edges as vertices, each with a product unless the child has it.
    Case("lattice", 0, 64, leaves=12, embedding=0): ("hoist_products_to_child",),
    # Eight products where two do, a few rows at a time.
    Case("gates", 0, 1, embedding=0): ("merge_products",),
    # Long chains, all of whose values backward reads.
    Case("gates", 0, 64, embedding=0): ("fuse", "plan_memory"),
    # A sentence at a time: tasks of one vertex, unless x @ W is done for all words at once.
    Case("var-lstm", 0, 1, embedding=0): ("hoist_eager",),
    # The state is the only value that a vertex stores.
    Case("tree-fc", 0, 64): ("hoist_cotangents", "save_memory"),
    # A label at one of 511 vertices.
    Case("root-label", 0, 64, embedding=0): ("restrict_to_labelled",),
}


def cases_of(given: Any) -> dict[Case, list[str]]:
    """Return the cases that the options select, each with its runners."""
    found: dict[Case, list[str]] = {}
    known = {case.workload for case in CASES}
    hiddens = given.hidden[:1] if given.quick else given.hidden
    others = [Case(w, 0, 64, embedding=0) for w in given.workload if w not in known]
    for base, shown in (CASES | dict.fromkeys(others, PASSES)).items():
        if given.workload and base.workload not in given.workload:
            continue
        passes = [name for name in given.passes if given.all or name in shown]
        sizes = given.batch_size or [base.batch_size]
        for hidden in hiddens if passes else ():
            for size in sizes:
                case = replace(
                    base,
                    hidden=hidden,
                    batch_size=size,
                    batches=given.batches or batches_for(size, given.quick),
                    embedding=base.embedding or hidden,
                    optimizer=given.optimizer,
                    data=given.data,
                )
                for mode in given.mode:
                    for threads in given.threads:
                        one = replace(case, training=mode == "training", threads=threads)
                        runners = found.setdefault(one, ["cavs"])
                        off = [f"cavs-without-{name}" for name in passes]
                        runners += [name for name in off if name not in runners]
    return found


def worth(measured: SequenceOf[Any]) -> str:
    """Return a row per pass and case: time and traffic without the pass over those with it."""
    rows = []
    for entry in measured:
        whole = entry["runners"].get("cavs")
        for name, runner in entry["runners"].items():
            without = name.partition("-without-")[2]
            if not without or whole is None or name not in entry["ratios"]:
                continue
            moved = [r["gather_bytes"] + r["write_bytes"] for r in (runner, whole)]
            time = entry["ratios"][name]["wall"]
            rows.append(
                [
                    without,
                    entry["title"],
                    f"{time['median']:.2f}",
                    f"{time['q25']:.2f}-{time['q75']:.2f}",
                    f"{entry['ratios'][name]['cpu']['median']:.2f}",
                    f"{moved[0] / moved[1]:.2f}",
                    f"{runner['peak_bytes'] / whole['peak_bytes']:.2f}",
                ]
            )
    rows.sort(key=lambda row: (*PASSES, row[0]).index(row[0]))
    headers = ["without", "case", "time", "quartiles", "CPU time", "bytes moved", "values at once"]
    return markdown(headers, rows)


def main(arguments: list[str] | None = None) -> int:
    parser = parser_for("ablation", __doc__ or "", hidden=(150,), batch_sizes=(), runners=())
    workloads = (*WORKLOADS, *OWN)
    add = parser.add_argument
    add("--workload", nargs="+", choices=workloads, default=[], help="these only")
    add("--passes", nargs="+", choices=PASSES, default=list(PASSES), help="these only")
    add("--all", action="store_true", help="all passes on all workloads")
    parser.set_defaults(threads=[1], mode=["training"], rounds=5)
    given = parser.parse_args(arguments)
    found = cases_of(given)
    if not found:
        parser.error("none of these passes is measured on these workloads; add --all")
    if given.runners:
        found = {case: given.runners for case in found}
    return run(given, list(found), runners=found, summarise=worth)


if __name__ == "__main__":
    raise SystemExit(main())
