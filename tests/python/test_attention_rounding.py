"""Attention of bfloat16 where the machine multiplies pairs of it: weights round to it where the model's do, stay
float32 where the model's are, and the result is no further from the exact one than the model's."""

import ml_dtypes
import numpy as np
import opgraft
import pytest
from attention_spellings import normal, reference, spread, turned
from compare import Net, U
from opgraft import Tensor, nn, ops, rewrite

B, H, D = 1, 2, 64
SIZES = [(24, 7), (30, 33), (65, 301), (3, 9)]  # queries and keys: pairs of keys, and one more
bf16, f32, u = ml_dtypes.bfloat16, opgraft.float32, 2.0**-8


def attend(q, k, v):
    return ops.matmul(ops.softmax(ops.matmul(q, turned(k)) * 0.125, -1), v)


def wide(x):
    return ops.cast(x, f32)


def heads(x, n):
    return ops.transpose(x.reshape(B, n, H, D), (0, 2, 1, 3))


def given(s, t):
    return [normal(B, H, n, D, seed=i).astype(bf16) for i, n in enumerate((s, t, t))]


def grafted(write, x, folder):
    """The attributes of the one operator that is left in the exported model, and its result."""
    graph = opgraft.load(opgraft.export(Net(write), *map(Tensor, x), file_name=str(folder / "net")))
    rewrite.substitute(graph)
    assert [n["op"] for n in graph.nodes] == ["ScaledDotProductAttention"]
    return graph.nodes[0]["attrs"], nn.GraphCell(graph)(*map(Tensor, x)).asnumpy().astype(np.float64)


def off(got, x):
    return np.abs(got - reference(*x, 0.0, 0.125))


def float32(x):
    """What float32 adds to the error: of scores up to 8, of D products, and of a sum of the weights."""
    return (16 * (D + 4) + x[1].shape[2] + 8) * U * np.abs(x[2].astype(np.float64)).max()


@pytest.mark.parametrize("size", SIZES)
def test_weights_of_bfloat16(size, tmp_path):
    x = given(*size)
    attrs, got = grafted(attend, x, tmp_path)
    want = reference(*x, 0.0, 0.125)
    assert not attrs["float_weights"]
    assert (off(got, x) <= u * (np.abs(want) + spread(*x, 0.0, 0.125)) + float32(x)).all()
    plain = Net(attend)(*map(Tensor, x)).asnumpy().astype(np.float64)
    assert np.mean(off(got, x) ** 2) < np.mean(off(plain, x) ** 2)


@pytest.mark.parametrize("joined", [False, True], ids=["heads apart", "heads joined"])
@pytest.mark.parametrize("size", SIZES)
def test_weights_of_float32_stay_as_they_are(size, joined, tmp_path):
    """One rounding, of the result."""
    s, t = size
    x = given(s, t)
    want = reference(*x, 0.0, 0.125)
    allowed = u * np.abs(want) + float32(x)

    def write(q, k, v):
        if joined:
            y = ops.transpose(attend(*(heads(wide(a), n) for a, n in ((q, s), (k, t), (v, t)))), (0, 2, 1, 3))
            return ops.cast(y.reshape(B, s, H * D), opgraft.bfloat16)
        return ops.cast(attend(wide(q), wide(k), wide(v)), opgraft.bfloat16)

    if joined:
        x = [np.ascontiguousarray(a.swapaxes(1, 2)).reshape(B, -1, H * D) for a in x]
        want, allowed = (a.swapaxes(1, 2).reshape(B, s, H * D) for a in (want, allowed))
    attrs, got = grafted(write, x, tmp_path)
    assert attrs["float_weights"] and attrs["layout"] == ("BSE" if joined else "BHSD")
    assert (np.abs(got - want) <= allowed).all()


@pytest.mark.parametrize("keys", [1, 2, 3, 300])
def test_equal_values_are_the_result(keys, tmp_path):
    """Weights are summed up as they were rounded: what all of them weigh comes out as it is."""
    x = given(40, keys)
    x[2][:] = x[2][:, :, :1]
    assert (grafted(attend, x, tmp_path)[1] == x[2][:, :, :1].astype(np.float64)).all()
