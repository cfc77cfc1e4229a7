"""Arrays that the wrappers of the kernels refuse, as the kernels themselves check nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels.support import DTYPES, KERNELS, Case, RowMap

ISA = KERNELS.supported_isas()[-1]


@pytest.fixture(params=DTYPES)
def case(request: pytest.FixtureRequest) -> Case:
    return Case(ISA, request.param)


def source(case: Case, data: np.ndarray, **options: Any) -> Any:
    return getattr(KERNELS, f"Source_{case.dtype}")(data, **options)


def test_rows_are_a_matrix(case: Case) -> None:
    for shape in ((6,), (1, 2, 3), ()):
        with pytest.raises(ValueError, match="rows must be a 2-D array"):
            source(case, np.zeros(shape, case.dtype))
    rows = source(case, np.ones((2, 3), case.dtype))
    with pytest.raises(ValueError, match="rows must be a 2-D array"):
        case.table.copy_rows(rows, 0, 2, np.zeros(6, case.dtype))


def test_columns_of_a_row_are_contiguous(case: Case) -> None:
    wide = np.arange(12, dtype=case.dtype).reshape(2, 6)
    with pytest.raises(ValueError, match="the columns of a row must be contiguous"):
        source(case, wide[:, ::2])
    with pytest.raises(ValueError, match="the columns of a row must be contiguous"):
        source(case, np.asfortranarray(wide))
    out = np.zeros((2, 3), case.dtype)
    case.table.copy_rows(source(case, wide[:, 2:5]), 0, 2, out)  # rows may have gaps between them
    np.testing.assert_array_equal(out, wide[:, 2:5])


def test_a_row_map_has_its_array(case: Case) -> None:
    data, index = np.zeros((3, 2), case.dtype), np.zeros(3, np.int32)
    needed = "this row map needs an index or offsets"
    with pytest.raises(ValueError, match=needed):
        source(case, data, map=RowMap.INDEX)
    with pytest.raises(ValueError, match=needed):
        source(case, data, map=RowMap.INDEX, offsets=index)
    with pytest.raises(ValueError, match=needed):
        source(case, data, map=RowMap.SEGMENT_SUM, index=index)


def test_arrays_of_another_dtype_are_not_converted(case: Case) -> None:
    other = "float64" if case.dtype == "float32" else "float32"
    with pytest.raises(TypeError, match="incompatible constructor arguments"):
        source(case, np.zeros((2, 2), other))


@pytest.mark.parametrize("threads", [0, -1])
def test_a_product_has_a_thread(case: Case, threads: int) -> None:
    a, c = np.ones((2, 3), case.dtype), np.zeros((2, 4), case.dtype)
    packed = case.table.packed(3, 4)
    with pytest.raises(ValueError, match="threads must be at least 1"):
        case.table.matmul([source(case, a)], 0, 2, packed, 4, c, threads=threads)
    with pytest.raises(ValueError, match="threads must be at least 1"):
        out = np.zeros((3, 4), case.dtype)
        pair = [source(case, a)], [source(case, c)]
        case.table.matmul_tn(*pair, 0, 2, out, threads=threads)
