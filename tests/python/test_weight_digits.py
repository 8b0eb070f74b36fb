"""One or two rows by a constant weight of eight bits: where the machine multiplies bytes four at a time the rows are
multiplied by their digits, and summed exactly; where it does not, or a row has none, as float32."""

import ml_dtypes
import numpy as np
import opgraft
import pytest
from opgraft import Parameter, Tensor, nn, ops
from targets import VNNI

RNG = np.random.default_rng(0)
ROWS, STEPS, COLUMNS = (1, 2), (64, 65, 71, 130, 1000, 4099), (1, 17, 32, 45, 100)


class Layer(nn.Cell):
    """x weight, [K, N] or turned, times scale."""

    def __init__(self, weight, turned=False, scale=None, offset=None):
        super().__init__()
        scale = np.ones(weight.shape[0 if turned else 1], np.float32) if scale is None else scale
        self.weight, self.scale, self.turned = Parameter(Tensor(weight)), Parameter(Tensor(scale)), turned
        self.offset = None if offset is None else Parameter(Tensor(offset))

    def construct(self, x):
        inputs = [self.weight, self.scale] + ([self.offset] if self.offset is not None else [])
        return ops.primitive("WeightQuantBatchMatmul", x, *inputs, transpose_weight=self.turned)


def planned(layer, x, folder):
    """Of a graph, which packs the weight."""
    graph = opgraft.load(opgraft.export(layer, Tensor(x), file_name=str(folder / "net")))
    return nn.GraphCell(graph)


def weights(k, n, turned=False, dtype=np.int8):
    least = np.iinfo(dtype).min
    w = RNG.integers(least, least + 256, (n, k) if turned else (k, n)).astype(dtype)
    w.flat[:: max(1, w.size // 3)] = least
    return w


def errors(x, w, y):
    """Of y in units of what float32's sums are allowed (matmul/cases.py), and where that is 0."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    bound = 8 * 2.0**-24 * np.sqrt(x.shape[-1] * (x**2 @ w**2) / 6) + 2.0**-24 * np.abs(x @ w)
    return np.abs(y.astype(np.float64) - x @ w), bound


@pytest.mark.parametrize("k", STEPS)
@pytest.mark.parametrize("m", ROWS)
def test_whole_numbers_are_summed_exactly_and_rounded_once(m, k, tmp_path):
    """Also where the sums have no room in float32's 24 bits. Weights of -128 and numbers at both ends of their range:
    no digit's sum overflows."""
    for n in COLUMNS:
        x = RNG.integers(-(2**20), 2**20, (m, k)).astype(np.float32)
        x[-1] = np.where(RNG.random(k) < 0.5, 2**20, -(2**20))
        w = weights(k, n)
        y = planned(Layer(w), x, tmp_path)(Tensor(x)).asnumpy()
        if VNNI:
            np.testing.assert_array_equal(y, (x.astype(np.int64) @ w.astype(np.int64)).astype(np.float32))
        error, bound = errors(x, w, y)
        assert (error <= bound).all()


@pytest.mark.parametrize("steps", [33 * 2**24 - 0x808080, 32 * 2**24 + 0x7F7F40], ids=["-128", "127"])
def test_the_longest_sum_of_the_largest_digits_does_not_overflow(steps, tmp_path):
    """Of 65,536 numbers whose digits below the first are -128, or 127, each times 127 + 128. One number more, whose
    digits are not multiplied, and of both signs, as equal roundings would add up."""
    k, w = 65536, np.full((65537, 3), 127, np.int8)
    x = np.full((1, k + 1), steps * 2.0**-29, np.float32)
    if VNNI:
        y = planned(Layer(w[:k]), x[:, :k], tmp_path)(Tensor(x[:, :k])).asnumpy()
        np.testing.assert_array_equal(y, (x[:, :k].astype(np.float64) @ w[:k]).astype(np.float32))
    x *= RNG.choice([-1, 1], x.shape)
    for n in (k, k + 1):
        error, bound = errors(x[:, :n], w[:n], planned(Layer(w[:n]), x[:, :n], tmp_path)(Tensor(x[:, :n])).asnumpy())
        assert (error <= bound).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("of", [np.int8, np.uint8])
@pytest.mark.parametrize("turned", [False, True])
def test_scales_and_offsets_of_any_dtype(turned, of, dtype, tmp_path):
    """As aot_ops/quant/cases.py bounds it: products, an offset times the sum of x, a scale, and the result's dtype."""
    for m in ROWS:
        for k, n in ((64, 33), (203, 70)):
            x, w = RNG.standard_normal((m, k)).astype(dtype), weights(k, n, turned, of)
            scale, offset = (RNG.uniform(a, b, n).astype(np.float32) for a, b in ((0.001, 0.01), (-8, 8)))
            y = planned(Layer(w, turned, scale, offset), x, tmp_path)(Tensor(x)).asnumpy().astype(np.float64)
            x, w = x.astype(np.float64), (w.T if turned else w).astype(np.float64)
            exact, shift = x @ (w + offset) * scale, 128 if of == np.uint8 else 0
            rounded = np.abs(x @ (w - shift)) + 3 * np.abs(x.sum(-1, keepdims=True) * (offset + shift))
            sums = 8 * 2.0**-24 * np.sqrt(k * (x**2 @ (w - shift) ** 2) / 6)
            unit = {np.float32: 2.0**-24, np.float16: 2.0**-11}.get(dtype, 2.0**-8)
            assert (np.abs(y - exact) <= (sums + 2.0**-23 * rounded) * scale + unit * np.abs(exact)).all()


FAR = {
    "one that is much larger": lambda x: np.where(np.arange(x.shape[-1]) == 7, 1e7, x),
    "one next to the largest": lambda x: np.where(np.arange(x.shape[-1]) == 7, 1e38, x),
    "next to denormal": lambda x: x * 1e-38,
    "denormal": lambda x: x * 1e-42,
    "small": lambda x: x * 1e-25,
    "large": lambda x: x * 1e30,
    "zeros": lambda x: x * 0,
    "one row of zeros": lambda x: x * np.arange(x.shape[0])[:, None],
}


@pytest.mark.parametrize("name", FAR)
def test_numbers_that_lie_far_apart_lose_nothing(name, tmp_path):
    """Columns whose weight for the largest number is 0 see the others as exactly as before."""
    for m in ROWS:
        x, w = RNG.standard_normal((m, 130)), weights(130, 45)
        w[7, ::2] = 0
        if "next to the largest" in name:  # whose sums are not finite by other weights
            w[7, 1::2] = 1
        x = FAR[name](x).astype(np.float32)
        error, bound = errors(x, w, planned(Layer(w), x, tmp_path)(Tensor(x)).asnumpy())
        least = 130 * 128 * 2.0**-149 if "denormal" in name else 0  # products of denormal numbers, rounded each
        assert (error <= bound + least).all()


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_stays_so(value, tmp_path):
    """As the sum of x's numbers times the weights has it in float64, row by row."""
    for m in ROWS:
        x, w = RNG.standard_normal((m, 71)).astype(np.float32), weights(71, 45)
        x[0, 70] = value
        w[70, 3] = 0
        with np.errstate(invalid="ignore"):
            exact = x.astype(np.float64) @ w
        y = planned(Layer(w), x, tmp_path)(Tensor(x)).asnumpy()
        np.testing.assert_array_equal(np.isnan(y[0]), np.isnan(exact[0]))
        np.testing.assert_array_equal(y[0][~np.isnan(y[0])], exact[0][~np.isnan(exact[0])])
        if m > 1:
            error, bound = errors(x[1:], w, y[1:])
            assert (error <= bound).all()
