"""Activations, gates, softmax and reductions by further spellings than the tests of each have, in models that MindSpore
exported: one operator is left, with MindSpore's own results."""

import mindspore as ms
import numpy as np
import pytest
from cells import Written
from helpers import close, normal, swapped
from mindspore import Tensor, ops

F32, F16 = ms.float32, ms.float16
ROOT = 0.7978845608028654  # sqrt(2 / pi)
largest, total = ops.ReduceMax(keep_dims=True), ops.ReduceSum(keep_dims=True)


def log_softmax(x):
    d = x - x.max(-1, keepdims=True)
    return d - ops.log(ops.exp(d).sum(-1, keepdims=True))


def log_softmax_by_primitives(x):
    d = x - largest(x, -1)
    return d - ops.log(total(ops.exp(d), -1))


def softmax_by_the_sum_inverted(x):
    e = ops.exp(x - x.max(-1, keepdims=True))
    return e * (1.0 / e.sum(-1, keepdims=True))


def softmax_by_reciprocal(x):
    e = ops.exp(x - x.max(-1, keepdims=True))
    return e * ops.reciprocal(e.sum(-1, keepdims=True))


def masked_before_the_scale(x, m):
    return ops.softmax((x + m) / 8.0, -1)


def mask_subtracted(x, m):
    return ops.softmax(x / 8.0 - m, -1)


def hsigmoid_clamped(x):
    return ops.clamp(x / 6.0 + 0.5, 0.0, 1.0)


def hsigmoid_clamped_of_a_sixth(x):
    return ops.clamp(x * (1 / 6) + 0.5, 0.0, 1.0)


def hsigmoid_within_bounds(x):
    return ops.minimum(ops.maximum(x / 6.0 + 0.5, 0.0), 1.0)


def hsigmoid_a_sixth(x):
    return ops.relu6(x + 3.0) * (1 / 6)


def hsigmoid_in_float32(x):
    y = x.astype(F32)
    return (ops.relu6(y + 3.0) / 6.0).astype(F16)


def hswish_by_hsigmoid(x):
    return x * ops.hardsigmoid(x)


def hswish_clamped(x):
    return x * ops.clamp(x / 6.0 + 0.5, 0.0, 1.0)


def hswish_a_sixth_first(x):
    return (x / 6.0) * ops.relu6(x + 3.0)


def hswish_times_a_sixth_first(x):
    return (x * (1 / 6)) * ops.relu6(x + 3.0)


def hswish_in_float32(x):
    y = x.astype(F32)
    return (y * ops.relu6(y + 3.0) / 6.0).astype(F16)


def quick_gelu_in_float32(x):
    y = x.astype(F32)
    return (y * ops.sigmoid(1.702 * y)).astype(F16)


def quick_gelu_by_exp(x):
    return x / (1 + ops.exp(-(1.702 * x)))


def relu6_the_other_way(x):
    return ops.maximum(ops.minimum(x, 6.0), 0.0)


def gelu_by_sigmoid_factored(x):
    return x * ops.sigmoid(2 * ROOT * x * (1 + 0.044715 * x * x))


def swiglu(x, y):
    return ops.silu(x) * y


def swiglu_by_sigmoid(x, y):
    return x * ops.sigmoid(x) * y


def swiglu_by_sigmoid_behind(x, y):
    return x * (ops.sigmoid(x) * y)


def swiglu_by_sigmoid_first(x, y):
    return ops.sigmoid(x) * (x * y)


def swiglu_of_gathered_parts(x):
    r = x.reshape(5, 8, 2)
    return ops.silu(ops.gather(r, Tensor(1), 2)) * ops.gather(r, Tensor(0), 2)


def swiglu_of_parts_in_float32(x):
    w = x.astype(F32)
    return (ops.silu(w[..., 1::2]) * w[..., ::2]).astype(F16)


def not_a_number(x):
    return x != x


def mean_by_a_sum(x):
    return total(x, -1) / 16


def maximum_and_its_place(x):
    return x.max(-1, keepdims=True)


def swiglu_interleaved(x):
    return ops.silu(x[..., 1::2]) * x[..., ::2]


ONE = {
    log_softmax: "LogSoftmax",
    log_softmax_by_primitives: "LogSoftmax",
    softmax_by_the_sum_inverted: "ScaledMaskedSoftmax",
    softmax_by_reciprocal: "ScaledMaskedSoftmax",
    hsigmoid_clamped: "HSigmoid",
    hsigmoid_clamped_of_a_sixth: "HSigmoid",
    hsigmoid_within_bounds: "HSigmoid",
    hsigmoid_a_sixth: "HSigmoid",
    hswish_by_hsigmoid: "HSwish",
    hswish_clamped: "HSwish",
    hswish_a_sixth_first: "HSwish",
    hswish_times_a_sixth_first: "HSwish",
    quick_gelu_by_exp: "FastGeLU",
    relu6_the_other_way: "ReLU6",
    gelu_by_sigmoid_factored: "FusedGeLU",
    swiglu_interleaved: "SwiGLUInterleaved",
    swiglu_of_gathered_parts: "SwiGLUInterleaved",
    not_a_number: "IsNan",
    mean_by_a_sum: "ReduceMean",
    maximum_and_its_place: "ReduceMax",
}
WIDENED = {
    hsigmoid_in_float32: "HSigmoid",
    hswish_in_float32: "HSwish",
    quick_gelu_in_float32: "FastGeLU",
    swiglu_of_parts_in_float32: "SwiGLUInterleaved",
}
TWO = {
    swiglu: "SwiGLU",
    swiglu_by_sigmoid: "SwiGLU",
    swiglu_by_sigmoid_behind: "SwiGLU",
    swiglu_by_sigmoid_first: "SwiGLU",
    masked_before_the_scale: "ScaledMaskedSoftmax",
    mask_subtracted: "ScaledMaskedSoftmax",
}
X, Y = 3 * normal(5, 16), normal(5, 16, seed=1)  # beyond the bounds of what is clamped


def name(write):
    return write.__name__ if callable(write) else None


@pytest.mark.parametrize("write", ONE, ids=name)
def test_of_one_tensor(write, tmp_path):
    x = X.copy()
    if write is not_a_number:
        x[1, 2:4] = np.nan
    (want,), (got,) = swapped(Written(write), [x], tmp_path, ONE[write])
    assert got.dtype == want.dtype
    if want.dtype == bool:
        np.testing.assert_array_equal(got, want)
    else:
        close(got, want)


@pytest.mark.parametrize("write", WIDENED, ids=name)
def test_of_a_half_type_in_float32(write, tmp_path):
    """One rounding each way to float16 of what is the same in float32."""
    (want,), (got,) = swapped(Written(write), [X.astype(np.float16)], tmp_path, WIDENED[write])
    assert got.dtype == want.dtype == np.float16
    assert (np.abs(got.astype(np.float64) - want) <= 2.0**-10 * np.abs(want) + 2.0**-20).all()


@pytest.mark.parametrize("write", TWO, ids=name)
def test_of_two_tensors(write, tmp_path):
    (want,), (got,) = swapped(Written(write), [X, Y], tmp_path, TWO[write])
    close(got, want)
