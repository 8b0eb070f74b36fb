"""Attention whose heads are wider than the kernel's rows on the stack: it is the one operator as well, whose kernel,
not its scalar twin, gives the result."""

import ml_dtypes
import numpy as np
import opgraft
import pytest
from attention_spellings import normal, reference, spread, turned
from compare import Net, U
from opgraft import Tensor, nn, ops, rewrite

B, H = 1, 2
# Queries, keys, and the width of keys and of values: keys in splits, in one piece, packed.
SIZES = [(1, 300, 1100, 1100), (2, 9, 1025, 8), (8, 70, 8, 1040), (30, 270, 1100, 1030)]


def taken(write, given, folder):
    """The exported model, of which one operator is left."""
    graph = opgraft.load(opgraft.export(Net(write), *given, file_name=str(folder / "net")))
    rewrite.substitute(graph)
    assert [n["op"] for n in graph.nodes] == ["ScaledDotProductAttention"]
    return nn.GraphCell(graph)


def attend(q, k, v):
    return ops.matmul(ops.softmax(ops.matmul(q, turned(k)) * 0.125, -1), v)


def given(s, t, d, e, dtype=np.float32):
    q, k, v = (normal(B, H, n, w, seed=i) for i, (n, w) in enumerate([(s, d), (t, d), (t, e)]))
    return [y.astype(dtype) for y in (q * (8 * d**-0.5), k, v)]


def check(got, x, u):
    """A score is a sum of D products, scaled; a weight is off by twice what its row's largest score is, and by 8
    roundings; the sum has T terms, and the result is rounded once; of bfloat16 weights may round as well."""
    q, k, v = (y.astype(np.float64) for y in x)
    want = reference(q, k, v, 0.0, 0.125)
    score = 0.125 * (np.abs(q) @ np.abs(k).swapaxes(-1, -2)).max() * np.sqrt(q.shape[-1])
    apart = spread(q, k, v, 0.0, 0.125) if u == 2.0**-8 else 0.0
    bound = u * (np.abs(want) + apart) + (2 * score + k.shape[-2] + 8) * U * np.abs(v).max()
    assert (np.abs(got.astype(np.float64) - want) <= bound).all()


@pytest.mark.parametrize("dtype,u", [(np.float32, U), (np.float16, 2.0**-11), (ml_dtypes.bfloat16, 2.0**-8)])
@pytest.mark.parametrize("size", SIZES)
def test_heads_of_any_width(size, dtype, u, tmp_path, capfd):
    x = given(*size, dtype)
    tensors = [Tensor(y) for y in x]
    check(taken(attend, tensors, tmp_path)(*tensors).asnumpy(), x, u)
    assert "takes over" not in capfd.readouterr().err


def test_a_width_that_is_open(tmp_path, capfd):
    cell = taken(attend, [Tensor(shape=[B, H, None, None], dtype=opgraft.float32)] * 3, tmp_path)
    for d in (64, 1100):
        x = given(3, 9, d, d)
        check(cell(*map(Tensor, x)).asnumpy(), x, U)
    assert "takes over" not in capfd.readouterr().err
