"""Products whose number of rows is open: every call picks its own tiles, with the same packed weight."""

import ml_dtypes
import numpy as np
import opgraft
import pytest
from opgraft import Parameter, Tensor, nn, ops

K, N = 2100, 70  # K is worked through in pieces where there are many rows


class Layer(nn.Cell):
    def __init__(self, weight):
        super().__init__()
        self.weight = Parameter(Tensor(weight))

    def construct(self, x):
        return ops.matmul(x, self.weight)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=lambda d: np.dtype(d).name)
def test_a_dynamic_number_of_rows(dtype):
    rng = np.random.default_rng(0)
    w = rng.standard_normal((K, N)).astype(dtype)
    net = Layer(w)
    net.set_inputs(Tensor(shape=[None, K], dtype=getattr(opgraft, np.dtype(dtype).name)))
    for rows in (1, 2, 5, 12, 13, 16, 17, 96, 97, 250, 0, 3):
        x = rng.standard_normal((rows, K)).astype(dtype)
        a, b = x.astype(np.float64), w.astype(np.float64)
        want = a @ b
        # aot_ops/matmul/cases.py derives the sum's error; then the result rounds to its type, half an ulp.
        bound = 8 * 2.0**-24 * np.sqrt(K * (a**2 @ b**2) / 6)
        half_ulp = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[np.dtype(dtype).name]
        got = net(Tensor(x)).asnumpy().astype(np.float64)
        assert got.shape == want.shape
        assert (np.abs(got - want) <= bound + half_ulp * (np.abs(want) + bound)).all()


def test_packed_weights_keep_their_type():
    """A bfloat16 weight is packed as bfloat16: half the bytes to read."""
    sizes = {}
    for dtype in (np.float32, ml_dtypes.bfloat16):
        net = Layer(np.ones((K, N), dtype))
        session = net.session(Tensor(np.ones((1, K), dtype)))
        session.run([np.ones((1, K), dtype)])
        sizes[np.dtype(dtype).name] = session.stats()["packed_bytes"]
    assert sizes["bfloat16"] * 2 == sizes["float32"] > 0
