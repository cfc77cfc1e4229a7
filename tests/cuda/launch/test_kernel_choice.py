"""The choice of kernels and grids for products and their operands."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

import cavs
from cavs import nn
from cavs.cuda.device import RENAMED
from cavs.errors import ConfigError
from tests.oracle import assert_close
from tests.runtime.trees import Classifier, graph, treebank

OWN = ("matmul", "matmul_16")


def session(device, size, hidden, dtype=np.float64, **options):
    model = Classifier(nn.ChildSumTreeLSTM(size, hidden), input_size=size)
    model.initialize(1, dtype)
    return cavs.Session(model, dtype=dtype, device=device, **options)


def log_of(twin, device, size=40, hidden=36, batch=None):
    """Return the log of a step, whose gradients must be those of the CPU."""
    batch = treebank(24) if batch is None else batch
    ours = session(device, size, hidden)
    twin.reset()
    found, gradients = ours.gradients(batch)
    log = twin.operations()
    loss, wanted = session("cpu", size, hidden).gradients(batch)
    assert found == pytest.approx(loss, rel=1e-11)
    for k, g in gradients.items():
        assert_close(g, wanted[k], 1e-10, k)
    return log


def rows_of(operation):
    begin, end = operation.arguments[1:3]
    return end - begin


@pytest.mark.parametrize("few_rows", [0, 1, 31, 33, 127, 2**31 - 1])
def test_products_of_few_rows(twin, twin_device, few_rows):
    """Up to few_rows they use tiles of 16 rows."""
    log = log_of(twin, replace(twin_device, few_rows=few_rows))
    own = [o for o in log if o.kind == "launch" and o.name in OWN]
    assert {rows_of(o) for o in own} & set(range(2, 30)), "products of many sizes"
    for o in own:
        assert (o.name == "matmul_16") == (rows_of(o) <= few_rows)


@pytest.mark.parametrize("blas_rows", [0, 16, 128])
def test_products_by_cublas(twin, twin_device, blas_rows):
    log = log_of(twin, replace(twin_device, cublas_lt=twin.cublaslt, blas_rows=blas_rows))
    own = [rows_of(o) for o in log if o.kind == "launch" and o.name in OWN]
    assert all(rows < blas_rows for rows in own)
    assert bool(own) == (blas_rows > 0)
    assert len([o for o in log if o.kind == "product"]) > 10


def test_defaults_and_invalid_numbers_of_rows(twin, twin_device):
    assert (twin_device.few_rows, twin_device.blas_rows) == (127, 128)
    for name, value in (("few_rows", -1), ("blas_rows", 1.5), ("few_rows", True)):
        with pytest.raises(ConfigError, match=f"{name} is {value}, but must be a whole number"):
            replace(twin_device, **{name: value})
    assert replace(twin_device, few_rows=np.int64(3)).native.multiprocessors == 4


def test_a_former_name_of_an_option_is_an_error(twin_device):
    for old, new in RENAMED.items():
        with pytest.raises(ConfigError, match=f"{old}: the option was renamed") as error:
            replace(twin_device, **{old: False})
        assert error.value.hint == f"write {new}"


def test_an_operand_is_copied_once(twin, twin_device):
    """Once for all products of a gradient that it is part of."""
    log = log_of(twin, replace(twin_device, cublas_lt=twin.cublaslt), batch=treebank(40))
    launches = [o for o in log if o.kind == "launch"]
    assert len([o for o in launches if o.name == "copy_rows"]) > 5
    for o, next_ in itertools.pairwise(launches):  # with products by cuBLASLt between them
        assert o.name != "copy_rows" or next_.arguments != o.arguments


@pytest.mark.parametrize("graphs", [20, 400])
def test_children_of_complete_trees_are_not_copied(twin, twin_device, graphs):
    """Left and right children alternate, so each level is a strided matrix.

    The gradient is one product of the lowest level and one of the others, if each has a thousand
    rows.
    """
    levels = [[]] * 8 + [[2 * i, 2 * i + 1] for i in range(7)]
    rng = np.random.default_rng(0)
    batch = cavs.batch([graph(levels, rng) for _ in range(graphs)])
    model = Classifier(nn.TreeFC(40), 40, 40)
    model.initialize(1, np.float64)
    where = replace(twin_device, cublas_lt=twin.cublaslt, blas_rows=16)
    ours = cavs.Session(model, dtype=np.float64, device=where)
    twin.reset()
    loss, gradients = ours.gradients(batch)
    log = twin.operations()
    own = cavs.Session(model, dtype=np.float64)
    expected, wanted = own.gradients(batch)
    assert loss == pytest.approx(expected, rel=1e-11)
    for k, g in gradients.items():
        assert_close(g, wanted[k], 1e-10, k)
    copies = [o for o in log if o.name == "copy_rows"]
    assert len(copies) == (0 if graphs == 400 else 1)


def test_wide_rows_are_split_among_blocks(twin, twin_device):
    """A few of them occupy most of the device."""
    where = replace(twin_device, cublas_lt=twin.cublaslt, blas_rows=2)
    log = log_of(twin, where, 300, 36, treebank(3, longest=12))
    wide = [o for o in log if o.name == "copy_rows" and o.arguments[4] == 300]
    assert wide
    for o in wide:  # 64 values per block, on 4 multiprocessors of 16 blocks each
        assert o.grid[1] == min(-(-300 // 64), 64 // o.grid[0])


def with_multiprocessors(twin, device, count):
    """Return a device with so many multiprocessors, which it reads when it is opened."""
    twin.set("multiprocessors", count)
    assert device.native.multiprocessors == count
    return device


@pytest.mark.parametrize("count", [2, 8, 132])
def test_the_depth_of_few_tiles_is_split(twin, twin_device, count):
    """A depth of 512 is split into parts of at least 128, for multiprocessors without a tile.

    The last block of a tile adds them, without another launch.
    """
    where = with_multiprocessors(twin, replace(twin_device), count)
    log = log_of(twin, where, 800, 36, treebank(2, longest=12))
    launches = [o for o in log if o.kind == "launch"]
    split = 0
    for o in launches:
        if o.name != "matmul_16":
            continue
        depth, columns = o.arguments[4:6]
        tiles = -(-rows_of(o) // 16) * -(-columns // 64)
        *_, partial, parts, _ = o.arguments
        most = depth // 128 if depth >= 512 else 1
        assert parts == max(1, min(count // tiles, most)) == o.grid[2]
        assert (partial != 0) == (parts > 1)
        assert parts == 1 or tiles <= count // 2  # each has a counter of its parts
        split += parts > 1
    assert bool(split) == (count > 2)


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
def test_split_products_have_the_same_bits(twin, twin_device, precision):
    """In every order of blocks and streams, after any other work."""
    batches = [treebank(2, 1, longest=12), treebank(3, 2, longest=20)]
    where = with_multiprocessors(twin, replace(twin_device), 132)
    exact = [session("cpu", 512, 40).gradients(batch) for batch in batches]

    def run(seed, order):
        twin.adversarial(seed)
        ours = session(where, 512, 40, np.float32, precision=precision)
        return {i: ours.gradients(batches[i]) for i in order}

    first, second = run(1, [0, 1]), run(2, [1, 0, 1])
    names = "matmul_16", "matmul_tf32_16", "matmul_bf16_16"
    of_few = [o.arguments for o in twin.operations() if o.name in names]
    split = [a for a in of_few if a[-2] > 1]
    assert {half for *_, half, _, _, _, _ in split} == {int(precision == "bfloat16")}
    for i, (loss, gradients) in first.items():
        assert loss == second[i][0] == pytest.approx(exact[i][0], rel=1e-2)
        for k, g in gradients.items():
            np.testing.assert_array_equal(g, second[i][1][k])
            assert np.linalg.norm(g - exact[i][1][k]) <= 2e-2 * np.linalg.norm(exact[i][1][k]), k


@pytest.mark.parametrize("second_stream", [False, True])
def test_sums_over_the_same_rows_are_one_launch(twin, twin_device, second_stream):
    """The parts of a bias, one per gate, are summed jointly on either lane."""
    model = Classifier(nn.BinaryTreeLSTM(40, 36), input_size=40)
    model.initialize(1, np.float64)
    batch = treebank(40)
    device = replace(twin_device, second_stream=second_stream)
    ours = cavs.Session(model, dtype=np.float64, device=device)
    loss, wanted = cavs.Session(model, dtype=np.float64).gradients(batch)
    for seed in range(4):
        twin.reset()
        twin.adversarial(seed)
        found, gradients = ours.gradients(batch)
        assert found == pytest.approx(loss, rel=1e-11)
        for k, g in gradients.items():
            assert_close(g, wanted[k], 1e-10, k)
        if seed == 0:  # later runs may be a graph
            log = [o for o in twin.operations() if o.kind == "launch"]
    widths = [o.arguments[2] for o in log if o.name == "sum_parts_of_rows"]
    assert max(widths) >= 3 * 36
    assert len([o for o in log if o.name == "sum_rows"]) < 16, "of 32 sums"
