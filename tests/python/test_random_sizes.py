"""Operators whose work is cut by sizes, at sizes that nobody chose: as test_ops, seeded. They spread over the orders of
magnitude, so that a cut, a part or a strip that only some sizes have is met by some of them."""

import math

import numpy as np
import pytest
import test_ops
from conftest import tables

MODULES = dict(tables())
MOST = 2e7  # multiply-adds of a case: the twin takes a few hundredths of a second
DTYPES = ("float32", "float32", "float16", "bfloat16")


class Sizes:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def spread(self, low, high):
        """low..high, as many below the geometric mean as above."""
        return int(math.exp(self.rng.uniform(math.log(low), math.log(high + 0.999))))

    def choose(self, *values):
        return values[self.rng.integers(len(values))]

    def pair(self, *values):
        one = self.choose(*values)
        return [one, self.choose(one, one, *values)]


def convolution(s):
    kernel, dilation, stride = s.pair(1, 1, 2, 3, 3, 5, 7), s.pair(1, 1, 1, 2, 3, 4, 8, 12), s.pair(1, 1, 2, 3)
    group, each, outputs = s.choose(1, 1, 1, 2, 3), s.spread(1, 600), s.spread(1, 150)
    if s.choose(*range(8)) == 0:  # depthwise
        group, each, outputs = s.spread(1, 150), 1, 1
    batch, height, width = s.choose(1, 1, 2, 3), s.spread(1, 150), s.spread(1, 150)
    mode = s.choose("same", "valid", "pad")
    pad = [s.spread(1, 12) - 1 for _ in range(4)] if mode == "pad" else [0] * 4
    for size, k, d, before, after in zip((height, width), kernel, dilation, pad[::2], pad[1::2], strict=True):
        if mode != "same" and size + before + after <= d * (k - 1):
            return None
    work = batch * (height + 12) * (width + 12) / math.prod(stride) * outputs * group * each * math.prod(kernel)
    attrs = {"pad_mode": mode, "pad": pad, "stride": [1, 1, *stride], "dilation": [1, 1, *dilation], "group": group}
    size = (batch, each * group, height, width), outputs * group, tuple(kernel), attrs
    conv = MODULES["conv"]
    return work, conv.case("Conv2D", s.choose(*DTYPES), *(conv.nhwc(*size) if s.choose(0, 0, 1) else size))


def product(s):
    m, n, k = s.spread(1, 1500), s.spread(1, 1500), s.spread(1, 3000)
    lead = tuple(s.spread(1, 3) for _ in range(s.choose(0, 0, 1, 2)))
    other = s.choose((), lead, tuple(s.choose(1, i) for i in lead))
    turned = s.choose(False, True), s.choose(False, True)
    op = "BatchMatMul" if other or (lead and turned[0]) else "MatMul"
    case = MODULES["matmul"].case(op, s.choose(*DTYPES), lead, other, m, n, k, *turned)
    return math.prod(lead) * m * n * k, case | {"constant": [s.choose(0, 1)]}


def attention(s):
    shared, heads = s.choose(1, 1, 2, 4), s.spread(1, 6)
    size = s.spread(1, 3), heads * shared, s.spread(1, 400), s.spread(1, 900), s.spread(1, 200)
    causal = bool(s.choose(0, 1)) and size[2] <= size[3]
    masks = [(s.choose(1, size[0]), s.choose(1, size[1]), size[2], size[3])] if s.choose(0, 0, 1) else []
    more = {"shared": shared, "is_causal": causal, "value_dim": s.choose(None, None, s.spread(1, 200))}
    return 2 * math.prod(size), MODULES["attention"].case(
        s.choose(*DTYPES), size, s.choose("BHSD", "BSE"), *masks, **more
    )


def pool(s):
    op, x = s.choose("MaxPool", "AvgPool"), (s.spread(1, 3), s.spread(1, 300), s.spread(1, 150), s.spread(1, 150))
    kernel, strides, mode = s.pair(1, 2, 3, 5, 7), s.pair(1, 2, 3), s.choose("SAME", "VALID")
    if mode == "VALID" and (x[2] < kernel[0] or x[3] < kernel[1]):
        return None
    work = 10 * math.prod(x) * math.prod(kernel) / math.prod(strides)
    return work, MODULES["pool"].case(op, s.choose(*DTYPES), x, kernel, strides, mode, last=bool(s.choose(0, 1)))


MAKE = {"conv": convolution, "matmul": product, "attention": attention, "pool": pool}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("folder", MAKE)
def test_sizes_that_nobody_chose(folder, seed):
    s, left = Sizes([seed, *folder.encode()]), 25
    while left:
        made = MAKE[folder](s)
        if made is None or made[0] > MOST:
            continue
        left -= 1
        try:
            test_ops.test_case(folder, MODULES[folder], made[1])
        except Exception as e:
            raise AssertionError(f"{made[1]}") from e
