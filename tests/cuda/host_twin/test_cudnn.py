"""The host twin's cuDNN: its results, and the mistakes that it detects."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tests.cuda.twin.launch import Context

DOUBLE, PACKED, UNPACKED = 1, 1, 0
OK, BAD_PARAM, TOO_SMALL, NOT_SUPPORTED = 0, 2000, 2006, 3000
X, H = 3, 2


def made(context, name, *arguments):
    handle = ctypes.c_void_p()
    assert getattr(context.calls, name)(ctypes.byref(handle), *arguments) == OK
    return handle


class Lstm:
    """One LSTM with random weights over sequences, called as documented."""

    def __init__(self, context: Context, lengths=(3, 2), layout=PACKED, padded=0):
        self.context, self.lengths, rng = context, lengths, np.random.default_rng(0)
        self.handle = made(context, "cudnnCreate")
        dropout = made(context, "cudnnCreateDropoutDescriptor")
        share, none = ctypes.c_float(0), ctypes.c_size_t(0)
        self.call("cudnnSetDropoutDescriptor", dropout, self.handle, share, None, none, none)
        self.rnn = made(context, "cudnnCreateRNNDescriptor")
        kinds = (0, 2, 1, 0, 0, DOUBLE, DOUBLE, 0)
        self.call("cudnnSetRNNDescriptor_v8", self.rnn, *kinds, X, H, H, 1, dropout, padded)
        counts = (ctypes.c_int * len(lengths))(*lengths)
        self.of_x, self.of_y = (made(context, "cudnnCreateRNNDataDescriptor") for _ in range(2))
        for data, width in ((self.of_x, X), (self.of_y, H)):
            given = (max(lengths), len(lengths), width, counts, None)
            self.call("cudnnSetRNNDataDescriptor", data, DOUBLE, layout, *given)
        self.state = made(context, "cudnnCreateTensorDescriptor")
        sizes = (ctypes.c_int * 3)(1, len(lengths), H)
        strides = (ctypes.c_int * 3)(len(lengths) * H, H, 1)
        self.call("cudnnSetTensorNdDescriptor", self.state, DOUBLE, 3, sizes, strides)
        size = ctypes.c_size_t()
        self.call("cudnnGetRNNWeightSpaceSize", self.handle, self.rnn, ctypes.byref(size))
        rows = sum(lengths)
        self.host = rng.normal(size=(rows, X))
        self.weights = context.array(rng.normal(size=size.value // 8))
        self.grads = context.array(np.zeros(size.value // 8))
        self.x, self.dx = (context.array(a) for a in (self.host, np.zeros((rows, X))))
        self.y, self.dy = (context.array(np.ones((rows, H))) for _ in range(2))
        self.counts = context.array(lengths, "i4")
        self.work = context.array(np.zeros(64))
        self.reserve = context.array(np.zeros(5 * rows * H + 8))

    def call(self, name, *arguments):
        status = getattr(self.context.calls, name)(*arguments)
        assert status == OK, (name, status)

    def spaces(self, weights, reserve=None):
        """Return sizes and addresses of the spaces for weights, work and reserve."""
        size = self.reserve.nbytes if reserve is None else reserve
        found = [(weights.nbytes, weights), (self.work.nbytes, self.work), (size, self.reserve)]
        return [f(v) for n, a in found for f, v in ((ctypes.c_size_t, n), (at, a))]

    def forward(self, **wrong):
        none, h = None, self.state
        arguments = (self.handle, self.rnn, 1, at(self.counts), self.of_x, at(self.x))
        arguments += (self.of_y, at(self.y), h, none, none, h, none, none)
        arguments += tuple(self.spaces(self.weights, **wrong))
        return self.context.calls.cudnnRNNForward(*arguments)

    def backward_data(self):
        none, h = None, self.state
        arguments = (self.handle, self.rnn, at(self.counts), self.of_y, at(self.y), at(self.dy))
        arguments += (self.of_x, at(self.dx), h, none, none, none, h, none, none, none)
        return self.context.calls.cudnnRNNBackwardData_v8(*arguments, *self.spaces(self.weights))

    def backward_weights(self, mode=0):
        arguments = (self.handle, self.rnn, mode, at(self.counts), self.of_x, at(self.x))
        arguments += (self.state, None, self.of_y, at(self.y))
        return self.context.calls.cudnnRNNBackwardWeights_v8(*arguments, *self.spaces(self.grads))

    def matrix(self, gate, recurrent, space):
        """Return a matrix or, with None for `recurrent`, a bias."""
        where, bias = ctypes.c_void_p(), ctypes.c_void_p()
        shapes = [made(self.context, "cudnnCreateTensorDescriptor") for _ in range(2)]
        number = gate + (4 if recurrent else 0)
        given = (ctypes.c_size_t(space.nbytes), at(space), number)
        places = (shapes[0], ctypes.byref(where), shapes[1], ctypes.byref(bias))
        self.call("cudnnGetRNNWeightParams", self.handle, self.rnn, 0, *given, *places)
        start = ((bias if recurrent is None else where).value - space.address) // 8
        columns = 1 if recurrent is None else H if recurrent else X
        return space.get()[start : start + H * columns].reshape(H, columns)


def at(array):
    return ctypes.c_void_p(array.address)


def test_it_computes_an_lstm(context):
    lstm = Lstm(context, (3, 2, 1))
    assert lstm.forward() == OK
    w, u, b = ([lstm.matrix(g, r, lstm.weights) for g in range(4)] for r in (False, True, None))
    positions = [[0, 3, 5], [1, 4], [2]]  # by sequence, packed time step by time step
    y = lstm.y.get()
    for rows in positions:
        h, c = np.zeros((2, H))
        for row in rows:
            i, f, g, o = (w[n] @ lstm.host[row] + u[n] @ h + b[n][:, 0] for n in range(4))
            c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
            h = np.tanh(c) / (1 + np.exp(-o))
            np.testing.assert_allclose(y[row], h, rtol=1e-12)


def test_gradients_are_those_of_finite_differences(context):
    lstm, eps = Lstm(context), 1e-6
    assert (lstm.forward(), lstm.backward_data(), lstm.backward_weights()) == (OK, OK, OK)
    dx, grads = lstm.dx.get(), lstm.grads.get()
    for of, found in ((lstm.x, dx), (lstm.weights, grads)):
        start = of.get()
        for n in range(start.size):
            sums = []
            for step in (eps, -eps):
                moved = start.copy()
                moved.reshape(-1)[n] += step
                of.put(moved)
                assert lstm.forward() == OK
                sums.append(lstm.y.get().sum())
            of.put(start)
            assert found.reshape(-1)[n] == pytest.approx((sums[0] - sums[1]) / (2 * eps), abs=1e-7)


def test_gradients_of_weights_add(context):
    lstm = Lstm(context)
    assert (lstm.forward(), lstm.backward_data(), lstm.backward_weights()) == (OK, OK, OK)
    once = lstm.grads.get()
    assert lstm.backward_weights() == OK
    np.testing.assert_allclose(lstm.grads.get(), 2 * once)
    assert lstm.backward_weights(mode=1) == NOT_SUPPORTED


def test_padding_must_match_the_layout(context):
    assert Lstm(context, (2, 2), UNPACKED, padded=1).forward() == OK
    assert Lstm(context, (2, 2), UNPACKED, padded=0).forward() == BAD_PARAM
    assert Lstm(context, (2, 1), PACKED, padded=1).forward() == BAD_PARAM
    assert Lstm(context, (1, 2), PACKED).forward() == BAD_PARAM  # the longest must come first


def test_spaces_must_be_large_enough(context):
    lstm = Lstm(context)
    assert lstm.forward(reserve=lstm.reserve.nbytes - 8) == TOO_SMALL
    lstm.reserve = context.array(np.zeros(8))
    assert lstm.forward(reserve=1 << 20) == BAD_PARAM  # more than the space has
    sizes = [ctypes.c_size_t() for _ in range(2)]
    given = (lstm.handle, lstm.rnn, 1, lstm.of_x, *(ctypes.byref(s) for s in sizes))
    lstm.call("cudnnGetRNNTempSpaceSizes", *given)
    assert sizes[1].value == 64 + 5 * 5 * H * 8


@pytest.mark.parametrize("call", ["backward_data", "backward_weights"])
def test_calls_in_the_wrong_order_are_a_fault(twin, context, call):
    lstm = Lstm(context)
    if call == "backward_weights":
        assert lstm.forward() == OK
    assert getattr(lstm, call)() == OK
    context.calls.cuStreamSynchronize(None)
    assert "not what the call before left" in twin.fault()


def test_lengths_on_the_device_must_be_those_of_the_descriptor(twin, context):
    lstm = Lstm(context)
    lstm.counts.put(np.array([2, 2], "i4"))
    assert lstm.forward() == OK
    context.calls.cuStreamSynchronize(None)
    assert "devSeqLengths differs" in twin.fault()


def test_a_chosen_call_fails(twin, context):
    lstm = Lstm(context)
    twin.fail_cudnn(2, 5000)
    assert [lstm.forward() for _ in range(3)] == [OK, 5000, OK]
    context.calls.cudnnGetErrorString.restype = ctypes.c_char_p
    assert context.calls.cudnnGetErrorString(5000) == b"CUDNN_STATUS_EXECUTION_FAILED"
