"""The host twin's cuBLASLt: products in every layout, precision and order of queues."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest

from tests.cuda.twin.launch import Array, Context

FLOAT, DOUBLE, BFLOAT16 = 0, 1, 14
COMPUTE = {"float": 68, "double": 70, "tf32": 77, "bf16": 75}


class Heuristic(ctypes.Structure):
    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class Status(Exception):
    pass


class Products:
    """cuBLASLt with one handle."""

    def __init__(self, context: Context):
        self.context = context
        self.handle = self.make("cublasLtCreate")

    def call(self, name: str, *arguments: object) -> None:
        status = getattr(self.context.calls, name)(*arguments)
        if status != 0:
            raise Status(f"{name}: {status}")

    def make(self, name: str, *arguments: object) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self.call(name, ctypes.byref(made), *arguments)
        return made

    def set(self, what: str, of: ctypes.c_void_p, attribute: int, value: object) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))  # type: ignore[arg-type]
        self.call(f"cublasLt{what}SetAttribute", of, attribute, ctypes.byref(value), size)  # type: ignore[arg-type]

    def layout(self, dtype: int, rows: int, cols: int, ld: int, order: int) -> ctypes.c_void_p:
        sizes = (ctypes.c_uint64(rows), ctypes.c_uint64(cols), ctypes.c_int64(ld))
        made = self.make("cublasLtMatrixLayoutCreate", dtype, *sizes)
        self.set("MatrixLayout", made, 1, ctypes.c_int(order))
        return made

    def matmul(
        self,
        compute: str,
        operands: tuple[tuple[Array | int, ctypes.c_void_p], ...],
        transposes: tuple[int, int] = (0, 0),
        scalars: tuple[float, float] = (1.0, 0.0),
        workspace: Array | None = None,
        alignment: int = 4,
        stream: ctypes.c_void_p | None = None,
    ) -> None:
        """D = alpha op(A) op(B) + beta C of operands A, B, C, D with their layouts."""
        scale = ctypes.c_double if compute == "double" else ctypes.c_float
        how = self.make(
            "cublasLtMatmulDescCreate", COMPUTE[compute], DOUBLE if compute == "double" else FLOAT
        )
        for attribute, value in zip((3, 4), transposes, strict=True):
            self.set("MatmulDesc", how, attribute, ctypes.c_int(value))
        preference = self.make("cublasLtMatmulPreferenceCreate")
        room = 0 if workspace is None else workspace.nbytes
        self.set("MatmulPreference", preference, 1, ctypes.c_uint64(room))
        for attribute in (5, 6, 7, 8):
            self.set("MatmulPreference", preference, attribute, ctypes.c_uint32(alignment))
        (a, la), (b, lb), (c, lc), (d, ld) = (
            (ctypes.c_void_p(x.address if isinstance(x, Array) else x), layout)
            for x, layout in operands
        )
        found, count = Heuristic(), ctypes.c_int()
        place = (ctypes.byref(found), ctypes.byref(count))
        asked = (self.handle, how, la, lb, lc, ld, preference, 1)
        self.call("cublasLtMatmulAlgoGetHeuristic", *asked, *place)
        assert (count.value, found.state) == (1, 0)
        assert found.workspace <= room
        alpha, beta = (ctypes.byref(scale(value)) for value in scalars)
        space = ctypes.c_void_p(workspace.address if workspace is not None else None)
        product = (self.handle, how, alpha, a, la, b, lb, beta, c, lc, d, ld)
        algorithm = ctypes.byref(found.algorithm)
        self.call("cublasLtMatmul", *product, algorithm, space, ctypes.c_size_t(room), stream)
        self.call("cublasLtMatmulDescDestroy", how)
        self.call("cublasLtMatmulPreferenceDestroy", preference)


@pytest.fixture
def products(context: Context) -> Iterator[Products]:
    made = Products(context)
    yield made
    made.call("cublasLtDestroy", made.handle)


def stored(matrix: np.ndarray, order: int, extra: int) -> tuple[np.ndarray, int]:
    """Return a matrix in memory and its ld: lines have ``extra`` values of NaN at the end."""
    lines = matrix if order == 1 else matrix.T
    padded = np.full((lines.shape[0], lines.shape[1] + extra), np.nan, matrix.dtype)
    padded[:, : lines.shape[1]] = lines
    return padded, padded.shape[1]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("transposes", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_products(products: Products, dtype: type, order: int, transposes: tuple[int, int]) -> None:
    m, n, k = 5, 7, 11
    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal(shape).astype(dtype) for shape in ((m, k), (k, n), (m, n)))
    code, compute = (FLOAT, "float") if dtype is np.float32 else (DOUBLE, "double")
    for beta in (0.0, 0.5):
        operands = []
        given = (a.T if transposes[0] else a, b.T if transposes[1] else b, c, np.zeros_like(c))
        for matrix in given:
            memory, ld = stored(matrix, order, 3)
            layout = products.layout(code, *matrix.shape, ld, order)
            operands.append((products.context.array(memory), layout))
        if beta == 0.0:  # C is not read
            operands[2] = operands[3]
        workspace = products.context.array(np.zeros(1 << 16, np.uint8))
        products.matmul(compute, tuple(operands), transposes, (2.0, beta), workspace)
        result = operands[3][0].get()
        assert np.isnan(result[:, -3:]).all()
        result = result[:, :-3] if order == 1 else result[:, :-3].T
        expected = 2.0 * a.astype(np.float64) @ b + beta * c
        np.testing.assert_allclose(result, expected, rtol=1e-5 if dtype is np.float32 else 1e-13)
        assert np.isnan(workspace.get()[:4].view(np.float32)).all()  # overwritten by the library
        for _, layout in operands[:2]:
            products.call("cublasLtMatrixLayoutDestroy", layout)


def simple(products: Products, dtype: int, *arrays: Array) -> tuple:
    """Square row-major operands A, B and D, with C = D."""
    n = arrays[0].shape[0]
    a, b, d = arrays
    out = FLOAT if dtype == BFLOAT16 else dtype
    place = (d, products.layout(out, n, n, n, 1))
    return (*((x, products.layout(dtype, n, n, n, 1)) for x in (a, b)), place, place)


@pytest.mark.parametrize(("compute", "bits"), [("tf32", 10), ("bf16", 7)])
def test_rounded_operands(products: Products, compute: str, bits: int) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((16, 16)).astype(np.float32) for _ in range(2))
    d = products.context.array(np.zeros_like(a))
    arrays = (products.context.array(a), products.context.array(b), d)
    products.matmul(compute, simple(products, FLOAT, *arrays))

    def rounded(x: np.ndarray) -> np.ndarray:
        mantissa, exponent = np.frexp(x.astype(np.float64))
        return np.ldexp(np.rint(mantissa * 2 ** (bits + 1)) / 2 ** (bits + 1), exponent)

    np.testing.assert_allclose(d.get(), rounded(a) @ rounded(b), rtol=1e-4, atol=1e-5)
    assert np.abs(d.get() - a @ b).max() > 2.0 ** -(bits + 4)


def test_bfloat16_operands(products: Products) -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal((8, 8)).astype(np.float32).view(np.uint32) >> 16 for _ in range(2))
    d = products.context.array(np.zeros((8, 8), np.float32))
    arrays = (products.context.array(a, np.uint16), products.context.array(b, np.uint16), d)
    products.matmul("float", simple(products, BFLOAT16, *arrays))
    wide = [(x.astype(np.uint32) << 16).view(np.float32).astype(np.float64) for x in (a, b)]
    np.testing.assert_allclose(d.get(), wide[0] @ wide[1], rtol=1e-4, atol=1e-5)


def test_refusals(products: Products) -> None:
    array = products.context.array(np.zeros((8, 8), np.float32))
    good = simple(products, FLOAT, array, array, array)
    products.matmul("float", good)
    with pytest.raises(Status, match="Matmul: 15"):  # an alignment that the address does not have
        shifted = (array.address + 4, products.layout(FLOAT, 7, 7, 8, 1))
        products.matmul("float", (shifted,) * 4, alignment=16)
    with pytest.raises(Status, match="Matmul: 7"):  # past the end of the allocation
        products.matmul("float", ((array.address + 4, good[0][1]), *good[1:]))
    with pytest.raises(Status, match="GetHeuristic: 7"):  # inner sizes differ
        products.matmul("float", ((array, products.layout(FLOAT, 8, 7, 8, 1)), *good[1:]))
    with pytest.raises(Status, match="GetHeuristic: 7"):  # rows longer than the leading dimension
        products.matmul("float", ((array, products.layout(FLOAT, 8, 8, 7, 1)), *good[1:]))
    with pytest.raises(Status, match="GetHeuristic: 15"):
        products.matmul("double", good)


def test_a_product_waits_in_its_stream(products: Products) -> None:
    context = products.context
    module = context.module(
        "fill.cu",
        """
        extern "C" __global__ void fill(float* x, int n, float value) {
          for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = value;
        }""",
    )
    stream = ctypes.c_void_p()
    context.call("cuStreamCreate", ctypes.byref(stream), 1)
    for seed in range(1, 6):
        context.twin.adversarial(seed)
        a, b, d = (context.array(np.zeros((4, 4), np.float32)) for _ in range(3))
        context.synchronize()
        for x, value in ((a, 2.0), (b, 3.0)):
            module.launch("fill", 1, 32, x, 16, value, stream=stream)
        products.matmul("float", simple(products, FLOAT, a, b, d), stream=stream)
        assert context.twin.operations()[-1].ran == -1
        context.call("cuStreamSynchronize", stream)
        assert set(d.get().flat) == {24.0}
        product = [o for o in context.twin.operations() if o.kind == "product"][-1]
        assert product.arguments == (4, 4, 4, 7)
