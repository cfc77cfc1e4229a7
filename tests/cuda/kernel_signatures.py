"""Sources, signatures and structures of the kernels in cuda/kernels, for tests."""

from __future__ import annotations

import ctypes
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "cuda" / "kernels"
OPTIONS = ["--std=c++17"]  # for every compilation by NVRTC

Address = ctypes.c_uint64
Long, Int, Double = ctypes.c_longlong, ctypes.c_int, ctypes.c_double


class Rows(ctypes.Structure):
    _fields_ = (
        ("data", Address),
        ("stride", Long),
        ("base", Long),
        ("index", Address),
        ("offsets", Address),
        ("map", ctypes.c_ubyte),
        ("half", ctypes.c_ubyte),
        ("width", Int),
    )


class Sources(ctypes.Structure):
    _fields_ = (("of", Rows * 8), ("count", Int))


class Sum(ctypes.Structure):
    _fields_ = (("out", Address), ("width", Int), ("accumulate", Int))


class Sums(ctypes.Structure):
    _fields_ = (("of", Sum * 8),)


class Piece(ctypes.Structure):
    _fields_ = (
        ("source", Address),
        ("to", Address),
        ("row_stride", Long),
        ("col_stride", Long),
        ("rows", Long),
        ("cols", Long),
        ("to_stride", Long),
    )


class UpdateChunk(ctypes.Structure):
    _fields_ = (
        ("param", Address),
        ("grad", Address),
        ("states", Address * 8),
        ("rows", Address),
        ("count", Long),
        ("width", Long),
        ("stride", Long),
        ("offset", Long),
    )


class Outcome(ctypes.Structure):
    _fields_ = (("loss", Double), ("norm", Double), ("scale", Double), ("ok", Int))


class Optimizer(ctypes.Structure):
    _fields_ = (
        ("type", Int),
        ("nesterov", Int),
        ("lr", Double),
        ("momentum", Double),
        ("beta1", Double),
        ("beta2", Double),
        ("eps", Double),
        ("weight_decay", Double),
        ("grad_scale", Double),
        ("bias1", Double),
        ("bias2", Double),
    )


class UpdateNumbers(ctypes.Structure):
    _fields_ = (("of", Double * 32),)


OUTPUT = (Address, Long, Long, Int)  # out, stride, base, half
MATMUL = (Sources, Int, Int, Address, Int, Int, *OUTPUT, Int)
MATMUL_16 = (*MATMUL, Address, Int, Address)
MATMUL_TN = (Sources, Sources, Int, Int, Int, Int, Address, Long, Int, Address, Int)
SIGNATURES: dict[str, dict[str, tuple[type, ...]]] = {
    "rows.cu": {
        "copy_rows": (Sources, Int, Int, *OUTPUT),
        "segment_max": (Rows, Int, Int, *OUTPUT),
        "segment_product": (Rows, Int, Int, *OUTPUT),
        "cross_entropy": (Rows, Address, Int, Int, *OUTPUT),
        "cross_entropy_grad": (Rows, Rows, Address, Int, Int, *OUTPUT),
        "sum_rows": (Sources, Sums, Int, Int, Address, Int),
        "sum_parts_of_rows": (Address, Int, Int, Sums),
        "sum_parts": (Address, Int, Long, Address, Long, Long, Int),
    },
    "matmul.cu": {"matmul": MATMUL, "matmul_16": MATMUL_16, "matmul_tn": MATMUL_TN},
    "matmul_mma.cu": {
        "matmul_tf32": MATMUL,
        "matmul_tf32_16": MATMUL_16,
        "matmul_tn_tf32": MATMUL_TN,
        "matmul_bf16": MATMUL,
        "matmul_bf16_16": MATMUL_16,
        "matmul_tn_bf16": MATMUL_TN,
    },
    "pack.cu": {"pack": (Address, Int), "unpack": (Address, Int)},
    "lookup.cu": {"lookup_grad": (Rows, Address, Address, Address, Int, Address, Int)},
    "update.cu": {
        "square": (Address, Int, Address),
        "compute_outcome": (Address, Int, Address, Double, Address, Address),
        "update": (Address, Int, Optimizer, Address),
    },
}


def dtypes_of(file: str) -> tuple[str, ...]:
    """Macros for a type of values; "half" is float32 that may be stored in bfloat16."""
    if file == "matmul.cu":
        return ("float32", "float64")
    return ("float32", "half") if file == "matmul_mma.cu" else ("float32", "float64", "half")


def names_of(file: str, dtype: str) -> set[str]:
    """The kernels of a file compiled for ``dtype``."""
    wanted = "bf16" if dtype == "half" else "tf32"
    names = SIGNATURES[file]
    return {name for name in names if file != "matmul_mma.cu" or wanted in name}


def source(file: str) -> str:
    return (KERNELS / file).read_text(encoding="utf-8")


def headers() -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in KERNELS.glob("*.cuh")}


def definitions(dtype: str) -> list[str]:
    real = "double" if dtype == "float64" else "float"
    return [f"-DREAL={real}", *(["-DCAVS_HALF"] if dtype == "half" else [])]
