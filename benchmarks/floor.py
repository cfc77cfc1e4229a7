"""The floor: time of a workload's matrix products alone, on the engine's kernels and PyTorch's."""

from __future__ import annotations

from benchmarks.harness import cases_from, markdown, parser_for, run
from benchmarks.products import Product, products_of
from benchmarks.workloads import WORKLOADS, Case, load


def _shown(products: list[Product]) -> str:
    counts: dict[tuple[int, int, bool], list[int]] = {}
    for product in products:
        counts.setdefault((product.k, product.n, product.gradient), []).append(product.m)
    rows = []
    for (k, n, gradient), ms in counts.items():
        flops = sum(2 * m * k * n for m in ms)
        rows.append(
            [
                "A^T B" if gradient else "A W",
                str(k),
                str(n),
                str(len(ms)),
                str(sum(ms)),
                f"{flops / 1e9:.3f}",
            ]
        )
    return markdown(["product", "K", "N", "calls", "rows in all", "GFLOP"], rows)


def main(arguments: list[str] | None = None) -> int:
    parser = parser_for(
        "floor",
        __doc__ or "",
        hidden=(150, 512),
        batch_sizes=(64,),
        runners=("floor", "floor-torch"),
    )
    parser.add_argument("--workload", choices=WORKLOADS, default="tree-lstm")
    parser.add_argument("--products", action="store_true", help="list the products only")
    given = parser.parse_args(arguments)
    embedding = 300 if given.workload == "tree-lstm" else 0
    cases = cases_from(given, Case(given.workload, 0, 0, embedding=embedding))
    if given.products:
        for case in cases:
            workload = load(case)
            products = products_of(workload, workload.batches[0], case.training)
            print(f"\n{case.title}, first batch\n\n{_shown(products)}")
        return 0
    return run(given, cases)


if __name__ == "__main__":
    raise SystemExit(main())
