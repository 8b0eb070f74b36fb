"""Slicing against NumPy, eagerly and traced."""

import numpy as np
import opgraft
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opgraft import Tensor


@st.composite
def sliced(draw):
    shape = draw(st.lists(st.integers(0, 5), min_size=0, max_size=4))
    dtype = draw(st.sampled_from([np.float32, np.float16, np.int32, np.bool_]))
    edge = st.one_of(st.none(), st.integers(-7, 7))
    items = []
    for n in shape[: draw(st.integers(0, len(shape)))]:
        one = st.integers(-n, n - 1) if n else st.nothing()
        cut = st.builds(slice, edge, edge, st.one_of(st.none(), st.integers(1, 4)))
        items.append(draw(st.one_of(cut, one) if n else cut))
    if draw(st.booleans()):
        items.insert(draw(st.integers(0, len(items))), Ellipsis)
    for _ in range(draw(st.integers(0, 2))):
        items.insert(draw(st.integers(0, len(items))), None)
    index = items[0] if len(items) == 1 and draw(st.booleans()) else tuple(items)
    return np.arange(int(np.prod(shape))).reshape(shape).astype(dtype), index


@settings(max_examples=400, deadline=None)
@given(sliced())
def test_slices_are_numpys(case):
    array, index = case
    try:
        want = array[index]
    except IndexError:  # an Ellipsis moved an index to a shorter dimension
        with pytest.raises(IndexError, match="out of range"):
            Tensor(array)[index]
        return
    got = Tensor(array)[index].asnumpy()
    assert got.dtype == want.dtype and got.shape == want.shape
    np.testing.assert_array_equal(got, want)


@settings(max_examples=60, deadline=None)
@given(sliced())
def test_traced_slices_are_numpys(case):
    array, index = case
    try:
        array[index]
    except IndexError:
        return
    got = opgraft.jit(lambda x: x[index])(Tensor(array)).asnumpy()
    assert got.shape == array[index].shape
    np.testing.assert_array_equal(got, array[index])


@pytest.mark.parametrize(
    "index", [np.s_[0], np.s_[-1], np.s_[1:], np.s_[..., 1], np.s_[:, ::2], np.s_[None, :, 1], np.s_[:, -2:]]
)
def test_slices_of_open_dimensions(index):
    @opgraft.jit
    def f(x):
        return x[index]

    for n in (3, 4, 5, 6):
        a = np.arange(n * n * 4, dtype=np.float32).reshape(n, n, 4)
        np.testing.assert_array_equal(f(a).asnumpy(), a[index])


def test_integer_arrays_as_index():
    a = np.arange(12, dtype=np.float32).reshape(4, 3)
    for index in ([0, 2], [-1, 1], [[3], [-4]]):
        np.testing.assert_array_equal(Tensor(a)[index].asnumpy(), a[index])
        np.testing.assert_array_equal(Tensor(a)[Tensor(index)].asnumpy(), a[index])
        np.testing.assert_array_equal(opgraft.jit(lambda x, i: x[i])(a, np.array(index)).asnumpy(), a[index])
    np.testing.assert_array_equal([row.asnumpy() for row in Tensor(a)], a)


@pytest.mark.parametrize("index,error,match", [
    (np.s_[::-1], ValueError, "slice: the step of dimension 0 must be positive, got -1"),
    (np.s_[:, ::0], ValueError, "slice: the step of dimension 1 must be positive, got 0"),
    (2, IndexError, "slice: index 2 is out of range for dimension 0 of size 2"),
    (np.s_[:, -4], IndexError, "slice: index -4 is out of range for dimension 1 of size 3"),
    (np.s_[0, 0, 0], IndexError, r"slice: at most 2 indices for shape \(2, 3\), got 3"),
    (np.s_[..., ...], IndexError, "slice: at most one Ellipsis"),
    ("a", TypeError, "slice: an index must be an int, a slice, None, Ellipsis or an integer Tensor, got str"),
    (1.0, TypeError, "got float"),
    (True, TypeError, "got bool"),
    (np.array([True, False]), TypeError, "got ndarray"),
    ([5], ValueError, r"Gather: indices\[0\] is 5, outside \[0, 2\)"),
])  # fmt: skip
def test_refusals(index, error, match):
    with pytest.raises(error, match=match):
        Tensor(np.zeros((2, 3), np.float32))[index]
