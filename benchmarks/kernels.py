"""Speed of the CPU kernels on one core, against its measured multiply-add ceiling."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.options import OptionParser, positive
from cavs import _engine

KERNELS = _engine.kernels
UNITS = KERNELS.narrow_tables()  # instruction sets for narrow numbers
CODE = KERNELS.MapOpcode


def best_seconds(run: Callable[[], None], budget: float) -> float:
    """Return the shortest time of as many runs as fit into `budget` seconds, at least five.

    It is processor time of the thread, which other processes disturb less.
    """
    best = float("inf")
    end = time.perf_counter() + budget
    runs = 0
    while runs < 5 or time.perf_counter() < end:
        start = time.thread_time()
        run()
        best = min(best, time.thread_time() - start)
        runs += 1
    return best


def product_error(table: Any, source: Any, dtype: str) -> float:
    """Return the relative norm of the difference of a product to the exact one."""
    rng = np.random.default_rng(0)
    a, w = (rng.standard_normal(shape).astype(dtype) for shape in ((64, 300), (300, 750)))
    packed, c = table.packed(300, 750), np.zeros((64, 750), dtype)
    table.pack([(w, 0, 0)], 300, 750, packed)
    table.matmul([source(a)], 0, 64, packed, 750, c)
    exact = a.astype(np.longdouble) @ w.astype(np.longdouble)
    return float(np.linalg.norm(c - exact) / np.linalg.norm(exact))


def report_products(table: Any, source: Any, dtype: str, budget: float) -> None:
    """Print the speed of both products over the shapes of a Tree-LSTM and an LSTM."""
    peak = table.peak_gflops()
    print(f"{table.name} {dtype}: ceiling {peak:.0f} GFLOP/s")
    print(f"products are within {product_error(table, source, dtype):.1e} (relative norm)")
    rng = np.random.default_rng(0)
    print("\nmatmul  (GFLOP/s, % of the ceiling)")
    rows = (1, 2, 4, 8, 16, 64, 256, 1024)
    print("     N     K " + "".join(f"{f'M={m}':>13}" for m in rows))
    for n, k in ((450, 150), (750, 300), (450, 300), (512, 512), (2560, 1024)):
        w = rng.standard_normal((k, n)).astype(dtype)
        packed = table.packed(k, n)
        table.pack([(w, 0, 0)], k, n, packed)
        line = f"{n:6}{k:6} "
        for m in rows:
            a, c = rng.standard_normal((m, k)).astype(dtype), np.zeros((m, n), dtype)
            repeat = max(1, 4_000_000 // (m * n * k))
            time_one = (
                best_seconds(
                    partial(table.matmul, [source(a)], 0, m, packed, n, c, repeat=repeat), budget
                )
                / repeat
            )
            speed = 2e-9 * m * n * k / time_one
            line += f"{speed:7.0f} {100 * speed / peak:4.0f}%"
        print(line)
    print("\nmatmul_tn")
    rows = (16, 64, 256, 1024, 4096)
    print("     K     N " + "".join(f"{f'M={m}':>13}" for m in rows))
    for k, n in ((150, 450), (300, 750), (300, 450), (1024, 2560)):
        line = f"{k:6}{n:6} "
        for m in rows:
            a, b = (rng.standard_normal((m, x)).astype(dtype) for x in (k, n))
            out = np.zeros((k, n), dtype)
            repeat = max(1, 4_000_000 // (m * n * k))
            time_one = (
                best_seconds(
                    partial(table.matmul_tn, [source(a)], [source(b)], 0, m, out, repeat=repeat),
                    budget,
                )
                / repeat
            )
            speed = 2e-9 * m * n * k / time_one
            line += f"{speed:7.0f} {100 * speed / peak:4.0f}%"
        print(line)


def tree_lstm_ops() -> list[tuple[Any, ...]]:
    """Return the pointwise block of a binary Tree-LSTM: i, o, u, two forget gates and cells."""
    return [
        (CODE.SIGMOID, 7, 0, 0, 0, 0.0),
        (CODE.TANH, 8, 2, 0, 0, 0.0),
        (CODE.MUL, 7, 7, 8, 0, 0.0),
        (CODE.SIGMOID, 8, 3, 0, 0, 0.0),
        (CODE.FMA, 7, 8, 5, 7, 0.0),
        (CODE.SIGMOID, 8, 4, 0, 0, 0.0),
        (CODE.FMA, 9, 8, 6, 7, 0.0),
        (CODE.SIGMOID, 8, 1, 0, 0, 0.0),
        (CODE.TANH, 7, 9, 0, 0, 0.0),
        (CODE.MUL, 10, 8, 7, 0, 0.0),
    ]


def report_map(table: Any, source: Any, store: Any, dtype: str, budget: float) -> None:
    """Print nanoseconds per element of the fused Tree-LSTM block, and of single operations."""
    rng = np.random.default_rng(0)
    print("\nmap, Tree-LSTM pointwise block")
    for rows, h in ((1, 150), (64, 150), (64, 512), (2560, 150), (4096, 512)):
        gates = rng.standard_normal((rows, 5 * h)).astype(dtype)
        cells = rng.standard_normal((rows, 2 * h)).astype(dtype)
        out = np.zeros((rows, 2 * h), dtype)
        loads = [(source(gates, column=i * h, width=h), 0, False) for i in range(5)]
        loads += [(source(cells, column=i * h, width=h), 0, False) for i in range(2)]
        stores = [store(out, 9), store(out, 10, column=h)]
        repeat = max(1, 200_000 // (rows * h))
        seconds = best_seconds(
            partial(table.map, loads, tree_lstm_ops(), stores, 11, 1, h, 0, rows, repeat=repeat),
            budget,
        )
        print(f"{rows:6} x {h:4}: {1e9 * seconds / (rows * h * repeat):.3f} ns/element")
    print("\nmap, one operation on 64 x 512 values (ns/element)")
    x = rng.uniform(0.1, 2, (64, 512)).astype(dtype)
    y = np.zeros_like(x)
    for code in (
        CODE.COPY,
        CODE.ADD,
        CODE.DIV,
        CODE.SQRT,
        CODE.EXP,
        CODE.LOG,
        CODE.TANH,
        CODE.SIGMOID,
        CODE.UNIFORM,
    ):
        seconds = best_seconds(
            partial(
                table.map,
                [(source(x), 0, False)],
                [(code, 1, 0, 0, 0, 0.0)],
                [store(y, 1)],
                2,
                1,
                512,
                0,
                64,
                repeat=8,
            ),
            budget / 2,
        )
        print(f"  {code.name:8} {1e9 * seconds / (8 * x.size):.3f}")


def main() -> None:
    """Parse the arguments and print the tables."""
    parser = OptionParser("benchmarks.kernels", __doc__ or "")
    isas = [*KERNELS.supported_isas(), *UNITS]
    parser.add_argument("--isa", default=_engine.isa(), choices=isas, help="instruction set")
    parser.add_argument("--dtype", default="float32", choices=("float32", "float64"))
    parser.add_argument("--seconds", type=positive, default=0.03, help="time for each figure")
    parser.add_argument("--only", choices=("products", "map"), help="print one part")
    arguments = parser.parse_args()
    dtype = arguments.dtype
    if arguments.isa in UNITS:
        if dtype != "float32":
            parser.error(f"{arguments.isa} is for float32")
        table = UNITS[arguments.isa]
    else:
        table = getattr(KERNELS, f"table_{dtype}")(arguments.isa)
    source, store = (getattr(KERNELS, f"{x}_{dtype}") for x in ("Source", "Store"))
    if arguments.only != "map":
        report_products(table, source, dtype, arguments.seconds)
    if arguments.only != "products":
        report_map(table, source, store, dtype, arguments.seconds)


if __name__ == "__main__":
    main()
