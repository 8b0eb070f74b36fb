"""CLIP's quick GELU of models that MindSpore exported."""

import numpy as np
import pytest
from helpers import normal, taken
from mindspore import nn, ops


class Clip(nn.Cell):
    def construct(self, x):
        return x * ops.sigmoid(1.702 * x)


class WrittenOut(nn.Cell):
    def construct(self, x):
        return x / (1 + ops.exp(-1.702 * x))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("net", [Clip, WrittenOut])
def test_quick_gelu(net, dtype, tmp_path):
    x = (normal(5, 33) * 3).astype(dtype)
    want, got, _ = taken(net(), [x], tmp_path, "FastGeLU")
    # float32: 8 roundings and those of the exponent, up to 16. MindSpore's float16 rounds each of the four steps, that
    # of the exponent up to 16 times as large, and is 0 where the exponential is above its largest number.
    steps, least = (32 * 2.0**-24, 1e-7) if dtype == np.float32 else (20 * 2.0**-11, np.abs(x.astype(float)) / 65504)
    assert (np.abs(got.astype(np.float64) - want) <= steps * np.abs(want) + least).all()
