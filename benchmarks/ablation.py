"""Every compiler pass switched off in turn: what each is worth, on any workload."""

from __future__ import annotations

from dataclasses import fields

from benchmarks.harness import cases_from, parser_for, run
from benchmarks.workloads import WORKLOADS, Case


def main(arguments: list[str] | None = None) -> int:
    parser = parser_for("ablation", __doc__ or "", hidden=(150, 512), batch_sizes=(64,), runners=())
    parser.add_argument("--workload", choices=WORKLOADS, default="tree-lstm")
    parser.set_defaults(threads=[1])
    given = parser.parse_args(arguments)
    if not given.runners:
        from cavs.compiler.pipeline import Passes

        passes = [field.name for field in fields(Passes) if field.default]
        given.runners = ["cavs", *(f"cavs-without-{name}" for name in passes)]
    embedding = 300 if given.workload == "tree-lstm" else 0
    return run(given, cases_from(given, Case(given.workload, 0, 0, embedding=embedding)))


if __name__ == "__main__":
    raise SystemExit(main())
