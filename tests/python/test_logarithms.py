"""Log and LogSoftmax: the functions, and the formula that becomes the operator."""

import numpy as np
import pytest
from compare import U, cases, close, graft, left, normal
from opgraft import Tensor, ops

X = normal(3, 5, 24)
LOG = cases("log_softmax")


def by_hand(x, axis=-1, most=lambda x, axis: ops.primitive("ReduceMax", x, axis=[axis], keep_dims=True)):
    d = x - most(x, axis)
    return d - ops.log(ops.reduce_sum(ops.exp(d), axis, True))


@pytest.mark.parametrize("axis", [-1, 1, 0])
@pytest.mark.parametrize("write", [ops.log_softmax, lambda x, axis: ops.LogSoftmax(axis)(x), by_hand])
def test_log_softmax(write, axis, tmp_path):
    assert left(lambda x: write(x, axis), [X], tmp_path) == ["LogSoftmax"]
    _, before, after = graft(lambda x: write(x, axis), X)
    wide = X.astype(np.float64)
    want, bound = LOG.log_softmax(wide, axis), LOG.bound(U, wide, axis)
    for got in (before[0], after[0]):  # three roundings more, of the steps
        assert (np.abs(got - want) <= bound + 3 * U * np.abs(want)).all()


NEAR = {
    "another maximum": lambda x: by_hand(x, -1, lambda x, _: ops.primitive("ReduceMax", x, axis=[1], keep_dims=True)),
    "a mean": lambda x: by_hand(x, -1, lambda x, axis: ops.mean(x, axis, True)),
    "sums along two axes": lambda x: (lambda d: d - ops.log(ops.reduce_sum(ops.exp(d), (1, 2), True)))(
        x - ops.primitive("ReduceMax", x, axis=[2], keep_dims=True)),
    "the logarithm of Softmax": lambda x: ops.log(ops.softmax(x, -1)),
}  # fmt: skip


@pytest.mark.parametrize("name", NEAR)
def test_what_only_looks_like_it_stays(name):
    names, before, after = graft(NEAR[name], X)
    assert "LogSoftmax" not in names
    np.testing.assert_array_equal(after[0], before[0])


def test_a_weight_too_small_for_a_number():
    got = ops.log_softmax(Tensor(np.array([0.0, 500.0, -500.0], np.float32))).asnumpy()
    np.testing.assert_array_equal(got, [-500.0, 0.0, -1000.0])


def test_log():
    x = np.abs(X) + 0.01
    for got in (ops.log(Tensor(x)), ops.Log()(Tensor(x)), Tensor(x).log()):
        close(got.asnumpy(), np.log(x.astype(np.float64)), cases("elementwise").ROUNDINGS["Log"])
