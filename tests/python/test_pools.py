"""Means over the whole of height and width: the ways they are written, and windows that cover x; windows three wide."""

import ml_dtypes
import numpy as np
import opgraft
import pytest
from compare import close
from opgraft import Tensor, _core, nn, ops, rewrite
from targets import every_other_kernel, run_again

SHAPE = (2, 5, 9, 7)


def normal(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


class Net(nn.Cell):
    def __init__(self, f):
        super().__init__()
        self.f, self.pool, self.whole = f, nn.AdaptiveAvgPool2d(1), nn.AvgPool2d((9, 7))

    def construct(self, x):
        return self.f(self, x)


# name: (what is written, the operator that runs it); the last two as ONNX files have a GlobalAveragePool.
GLOBAL = {
    "a layer": (lambda net, x: net.pool(x), ["ReduceMean"]),
    "a function": (lambda net, x: ops.adaptive_avg_pool2d(x, (1, 1)), ["ReduceMean"]),
    "a window for each column": (lambda net, x: ops.adaptive_avg_pool2d(x, (1, 7)), ["AdaptiveAvgPool2D"]),
    "a window as large as x": (lambda net, x: net.whole(x), ["AvgPool"]),
    "a mean": (lambda net, x: ops.mean(x, (2, 3), True), ["ReduceMean"]),
    "a method": (lambda net, x: x.mean((-2, -1), True), ["ReduceMean"]),
    "ONNX, a mean and Flatten": (lambda net, x: ops.flatten(ops.mean(x, (2, 3), True)), ["ReduceMean", "Flatten"]),
    "ONNX, a window": (lambda net, x: ops.AvgPool((9, 7), (9, 7), "valid")(x), ["AvgPool"]),
}


@pytest.mark.parametrize("name", GLOBAL)
def test_a_mean_over_height_and_width(name, tmp_path):
    f, operators = GLOBAL[name]
    x = normal(*SHAPE)
    graph = opgraft.load(opgraft.export(Net(f), Tensor(x), file_name=tmp_path / "net"))
    rewrite.substitute(graph)
    assert [n["op"] for n in graph.nodes] == operators, str(graph)
    got = nn.GraphCell(graph)(Tensor(x)).asnumpy()
    want = x.astype(np.float64).mean(2 if "column" in name else (2, 3), keepdims=True)
    for result in (got, Net(f)(Tensor(x)).asnumpy()):
        close(result, want.reshape(got.shape), 63, np.abs(x).max())  # a sum of 63 terms


@pytest.mark.parametrize("size,counts", [(3, (3, 3)), ((4, None), (4, 7)), ((9, 1), (9, 1)), ((2, 10), (2, 10))])
def test_windows_cover_x(size, counts):
    x = normal(*SHAPE)
    for given in (x, x[0]):
        got = nn.AdaptiveAvgPool2d(size)(Tensor(given)).asnumpy()
        edges = [[(i * m // n, -(-(i + 1) * m // n)) for i in range(n)] for m, n in zip(SHAPE[2:], counts)]
        want = [given[..., a:b, c:d].astype(np.float64).mean((-2, -1)) for a, b in edges[0] for c, d in edges[1]]
        close(got, np.stack(want, -1).reshape(*given.shape[:-2], *counts), 63, np.abs(x).max())


def means(x, kernel, stride, same):
    """Of windows three wide, one column apart, padding not counted; by the formula, in float64."""
    h, w = x.shape[2:]
    out = (-(-h // stride), w) if same else ((h - kernel) // stride + 1, w - 2)
    top = max((out[0] - 1) * stride + kernel - h, 0) // 2 if same else 0
    want = np.empty((*x.shape[:2], *out))
    for i in range(out[0]):
        rows = slice(max(i * stride - top, 0), i * stride - top + kernel)
        for j in range(out[1]):
            left = j - 1 if same else j
            want[:, :, i, j] = x[:, :, rows, max(left, 0) : left + 3].astype(np.float64).mean((2, 3))
    return want


@pytest.mark.parametrize("same", [True, False], ids=["SAME", "VALID"])
@pytest.mark.parametrize("kernel,stride", [(1, 1), (2, 1), (3, 1), (3, 2), (5, 1)])
def test_means_of_three_columns_at_every_width(kernel, stride, same):
    attrs = {"kernel_size": [kernel, 3], "strides": [stride, 1], "pad_mode": "SAME" if same else "VALID"}

    def pool(x):
        return _core.run_op(_core.resolve("AvgPool"), [x], attrs)[0]

    for w in range(1 if same else 3, 70):
        x = normal(2, 2, 6, w)
        got = pool(x)
        close(got, means(x, kernel, stride, same), 3 * kernel, np.abs(x).max())
        for half in (np.float16, ml_dtypes.bfloat16):  # summed in float32, rounded once
            short = x.astype(half)
            np.testing.assert_array_equal(pool(short), pool(short.astype(np.float32)).astype(half))
        x[0, 0, 2, w // 2], x[1, 1, 3, -1] = np.inf, np.nan  # and no further than their windows
        want, got = means(x, kernel, stride, same), pool(x)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        np.testing.assert_array_equal(np.isposinf(got), np.isposinf(want))


@every_other_kernel
def test_every_target_makes_them(target):
    run_again(__file__, target, "three_columns")


def test_open_dimensions(tmp_path):
    """What -1 names, and what is counted, is known when the model runs."""
    net = Net(lambda net, x: ops.adaptive_avg_pool2d(x, (3, None)))
    spec = Tensor(shape=(None, 5, None, None), dtype=opgraft.float32)
    graph = opgraft.load(opgraft.export(net, spec, file_name=tmp_path / "net"))
    cell = nn.GraphCell(graph)
    for shape in ((1, 5, 6, 4), (2, 5, 7, 1)):
        x = Tensor(normal(*shape))
        np.testing.assert_array_equal(cell(x).asnumpy(), ops.adaptive_avg_pool2d(x, (3, None)).asnumpy())


@pytest.mark.parametrize("size,error,message", [
    (0, ValueError, "output_size must be positive"), ((1, 2, 3), ValueError, "output_size must be positive"),
    (1.5, TypeError, "output_size must be an int or a tuple of ints"),
])  # fmt: skip
def test_sizes_that_are_none(size, error, message):
    with pytest.raises(error, match=f"AdaptiveAvgPool2D: {message}"):
        nn.AdaptiveAvgPool2d(size)
