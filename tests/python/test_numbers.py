"""Numbers beside tensors: they take the tensor's dtype, or are refused where it cannot hold them."""

import ml_dtypes
import numpy as np
import opgraft
import pytest
from opgraft import Tensor, jit, ops

I32 = Tensor(np.array([1, -5], np.int32))
F32 = Tensor(np.array([1.0, 2.0], np.float32))


@pytest.mark.parametrize("f,text", [
    (lambda: I32 > 3_000_000_000, "Greater: a number beside int32 must fit it, got 3000000000"),
    (lambda: 3_000_000_000 > I32, "Less: a number beside int32 must fit it, got 3000000000"),
    (lambda: I32 == 2**40, "Equal: a number beside int32 must fit it, got 1099511627776"),
    (lambda: I32 + np.int64(2**40), "Add: a number beside int32 must fit it, got 1099511627776"),
    (lambda: I32 * 2**70, "Mul: a number beside int32 must fit it, got 1180591620717411303424"),
    (lambda: Tensor([1]) + 2**63, "Add: a number beside int64 must fit it, got 9223372036854775808"),
    (lambda: Tensor([True]) + 2**63, "Add: a number beside int64 must fit it, got 9223372036854775808"),
    (lambda: ops.maximum(I32, -(2**31) - 1), "Maximum: a number beside int32 must fit it, got -2147483649"),
    (lambda: ops.where(Tensor([True, False]), I32, 2**31), "Select: a number beside int32 must fit it, got 2147483648"),
    (lambda: Tensor(np.array([1], np.uint8)) == -1, "Equal: a number beside uint8 must fit it, got -1"),
    (lambda: F32 * 10**400, "Mul: a number beside float32 must fit it, got 1329 bits"),
    (lambda: I32 * 10**5000, "Mul: a number beside int32 must fit it, got 16610 bits"),
])  # fmt: skip
def test_an_integer_that_does_not_fit_is_refused(f, text):
    for run in (f, lambda: jit(lambda x: f())(F32)):
        with pytest.raises(ValueError) as info:
            run()
        assert str(info.value) == text


@pytest.mark.parametrize("f,text", [
    (lambda: F32 + np.complex64(1 + 2j), "Add: a number beside float32 must be real, got (1+2j)"),
    (lambda: I32 * np.complex128(2), "Mul: a number beside int32 must be real, got (2+0j)"),
    (lambda: F32 + 1j, "unsupported operand type"),
    (lambda: ops.add(F32, 1j), "Add: expected a Tensor or a number, got complex"),
    (lambda: ops.add(F32, np.str_("1")), "Add: expected a Tensor or a number, got str_"),
    (lambda: ops.add(F32, np.datetime64(1, "s")), "Add: expected a Tensor or a number, got datetime64"),
])  # fmt: skip
def test_what_is_no_real_number_is_refused(f, text):
    with pytest.raises(TypeError) as info:
        f()
    assert text in str(info.value)


@pytest.mark.parametrize("x,number,want", [
    (I32, 2**31 - 1, np.int32), (I32, -(2**31), np.int32), (I32, np.int64(7), np.int32), (I32, True, np.int32),
    (I32, 0.5, np.float32), (I32, np.float64(0.5), np.float32), (I32, ml_dtypes.bfloat16(0.5), np.float32),
    (F32, 2**70, np.float32), (F32, np.int8(3), np.float32), (F32, np.float64(0.1), np.float32),
    (Tensor([True, False]), 2, np.int64), (Tensor([True, False]), 0.5, np.float32),
    (Tensor(np.ones(2, np.float16)), 2, np.float16), (Tensor(np.ones(2, ml_dtypes.bfloat16)), 0.5, ml_dtypes.bfloat16),
])  # fmt: skip
def test_a_number_takes_the_tensors_dtype(x, number, want):
    got = ops.maximum(x, number).asnumpy()
    assert got.dtype == want
    np.testing.assert_array_equal(got, np.maximum(x.asnumpy().astype(want), np.asarray(number).astype(want)))


@pytest.mark.parametrize("truth", [True, np.True_])
def test_a_truth_value_beside_bool_stays_one(truth):
    assert ops.where(Tensor([True, False]), Tensor([False, False]), truth).dtype == np.bool_


SUM = lambda x: x.shape[0] + x  # noqa: E731
CHOICE = lambda x: ops.where(np.zeros(1, bool), x, x.shape[0] - 1)  # noqa: E731


@pytest.mark.parametrize("function,dtype", [
    *((f, dtype) for f in (SUM, CHOICE) for dtype in (np.int32, np.int64, np.float16, np.float32, np.bool_)),
    (CHOICE, np.uint8), (CHOICE, np.int8),
])  # fmt: skip
def test_a_size_beside_a_tensor_is_a_number_like_any(function, dtype):
    f = jit(function)
    for n in (3, 4, 5):
        x = np.arange(n).astype(dtype)
        want, got = function(Tensor(x)), f(x)
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got.asnumpy(), want.asnumpy())


def test_a_size_that_may_not_fit_is_tried_for_each():
    f = jit(lambda none, x: ops.where(none, x, x.shape[0]))
    for n in (3, 255):
        got = f(np.zeros(n, bool), np.zeros(n, np.uint8)).asnumpy()
        assert got.dtype == np.uint8 and (got == n).all()
    with pytest.raises(ValueError, match="Select: a number beside uint8 must fit it, got 256"):
        f(np.zeros(256, bool), np.zeros(256, np.uint8))


@pytest.mark.parametrize("index", [[-1, 0], np.array([-1, 0]), np.array([[-1], [1]], np.int32), Tensor([-1, 0])])
def test_an_index_from_the_end_of_an_open_dimension(index):
    @jit
    def f(x):
        return x[index]

    for n in (3, 4, 5):
        a = np.arange(2 * n, dtype=np.float32).reshape(n, 2)
        np.testing.assert_array_equal(f(a).asnumpy(), a[np.asarray(index)])
    assert opgraft.jit(lambda x, i: x[i])(a, np.array([-2])).asnumpy().tolist() == a[[-2]].tolist()
