"""TopK, and pools that tell the places of what they take."""

import numpy as np
import opgraft
import pytest
from compare import Net, left, normal
from opgraft import Tensor, nn, ops

X = normal(4, 7, 9)


def sorted_along(x, k, axis, largest):
    order = np.argsort(-x if largest else x, axis=axis, kind="stable").take(range(k), axis)
    return np.take_along_axis(x, order, axis), order


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("axis", [None, -1, 0, 1])
def test_topk(axis, largest, tmp_path):
    want = sorted_along(X, 3, -1 if axis is None else axis, largest)
    write = lambda x: ops.topk(x, 3, axis, largest)  # noqa: E731
    for got in (write(Tensor(X)), Tensor(X).topk(3, axis, largest)):
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a.asnumpy(), b)
        assert got[1].dtype == opgraft.int32
    turned = ["Transpose"] * (axis in (0, 1))
    names = left(write, [X], tmp_path)
    assert sorted(names) == sorted([*turned * 3, *["Neg"] * (2 * (not largest)), "TopK"])


def test_topk_of_the_primitive():
    for got, want in zip(ops.TopK(sorted=True)(Tensor(X), 2), sorted_along(X, 2, -1, True), strict=True):
        np.testing.assert_array_equal(got.asnumpy(), want)


def test_more_than_there_are_of_an_open_row(tmp_path):
    spec = Tensor(shape=[None, None], dtype=opgraft.float32)
    net = Net(lambda x: ops.topk(x, 4))
    cell = nn.GraphCell(opgraft.load(opgraft.export(net, spec, file_name=tmp_path / "net")))
    for got, want in zip(cell(Tensor(X[0])), sorted_along(X[0], 4, -1, True), strict=True):
        np.testing.assert_array_equal(got.asnumpy(), want)
    with pytest.raises(ValueError, match="TopK: k must be at most x's last dimension 3, got 4"):
        cell(Tensor(X[0, :, :3].copy()))


def windows(x, kernel, stride, pad):
    """The largest and its place, window by window."""
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)), constant_values=-np.inf)
    at = np.pad(np.arange(7 * 9).reshape(7, 9), pad)
    rows, columns = (range(0, n - kernel + 1, stride) for n in x.shape[2:])
    y, places = [], []
    for i in rows:
        for j in columns:
            seen = x[:, :, i : i + kernel, j : j + kernel].reshape(*x.shape[:2], -1)
            y.append(seen.max(-1))
            places.append(at[i : i + kernel, j : j + kernel].reshape(-1)[seen.argmax(-1)])
    shape = (*x.shape[:2], len(rows), len(columns))
    return [np.stack(t, -1).reshape(shape) for t in (y, places)]


@pytest.mark.parametrize("kernel,stride,pad", [(3, 2, 1), (2, 1, 0), (2, None, 1)])
def test_max_pool2d(kernel, stride, pad, tmp_path):
    x = normal(2, 3, 7, 9)
    want = windows(x, kernel, stride or kernel, pad)
    for a, b in zip(ops.max_pool2d(Tensor(x), kernel, stride, pad, return_indices=True), want, strict=True):
        np.testing.assert_array_equal(a.asnumpy(), b)
    y, places = ops.MaxPoolWithArgmaxV2(kernel, stride, pad, argmax_type=opgraft.int32)(Tensor(x))
    assert places.dtype == opgraft.int32
    np.testing.assert_array_equal(places.asnumpy(), want[1])
    # Where nobody reads the places, the pool with vectors.
    write = lambda x: ops.max_pool2d(x, kernel, stride, pad)  # noqa: E731
    np.testing.assert_array_equal(write(Tensor(x)).asnumpy(), want[0])
    assert left(write, [x], tmp_path) == ["PaddedMaxPool"]


def test_places_of_another_dtype_are_refused():
    with pytest.raises(ValueError, match="MaxPoolWithArgmaxV2: argmax_type must be int32 or int64, got float32"):
        ops.MaxPoolWithArgmaxV2(2, argmax_type=opgraft.float32)
