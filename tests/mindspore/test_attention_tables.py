"""Attention of models that MindSpore exported: GPT-2's first mask, a constant triangle of bools, and shifted windows of
images however many."""

import mindspore as ms
import numpy as np
import opgraft
import pytest
from helpers import close, normal, optimize, taken
from mindspore import Tensor, nn, ops
from opgraft import _core, rewrite

B, H, S, T, D = 2, 3, 5, 7, 16
TRIANGLE = np.tri(S, T, T - S, dtype=np.float32)[None, None]


def given(*more):
    return [normal(B, H, S, D), normal(B, H, T, D, seed=1), normal(B, H, T, D, seed=2), *more]


class GPT2(nn.Cell):
    def __init__(self, longest=2 * T):
        super().__init__()
        self.table = Tensor(np.tri(longest, dtype=np.float32)[None, None])

    def construct(self, q, k, v, mask=None):
        s = ops.matmul(q, k.swapaxes(-1, -2)) / D**0.5
        nd, ns = s.shape[-2], s.shape[-1]
        b = self.table[:, :, ns - nd : ns, :ns]
        s = s * b - 1e4 * (1 - b)
        if mask is not None:
            s = s + mask
        return ops.matmul(ops.softmax(s, -1), v)


def optimised(x, folder):
    """MindSpore's result, that of the model as `opgraft optimize` writes it, in opgraft and in MindSpore, and the
    attributes of the one operator that is left: the table is cut to size there first."""
    ms.set_context(mode=ms.GRAPH_MODE)
    net, tensors, out = GPT2(), [Tensor(y) for y in x], folder / "out.mindir"
    ms.export(net, *tensors, file_name=str(folder / "net"), file_format="MINDIR")
    np.savez(folder / "x.npz", **dict(zip(("q", "k", "v", "mask"), x, strict=False)))
    said = optimize(folder / "net.mindir", "-o", out, "--prove", folder / "x.npz")
    graph = opgraft.load(out)
    assert [n["op"] for n in graph.nodes] == ["ScaledDotProductAttention"], f"{said}\n{graph}"
    got = opgraft.nn.GraphCell(graph)(*map(opgraft.Tensor, x)).asnumpy()
    np.testing.assert_array_equal(nn.GraphCell(ms.load(str(out)))(*tensors).asnumpy(), got)
    return net(*tensors).asnumpy(), got, graph.nodes[0]["attrs"]


def test_the_table_of_gpt2_is_causal(tmp_path):
    want, got, attrs = optimised(given(), tmp_path)
    assert attrs["is_causal"]
    close(got, want)


def test_the_table_of_gpt2_before_a_mask_of_padding(tmp_path):
    padding = np.zeros((B, 1, 1, T), np.float32)
    padding[0, ..., :4] = -1e4  # all that the first two queries see
    x = given(padding)
    want, got, attrs = optimised(x, tmp_path)
    assert not attrs["is_causal"] and attrs["fill"] == -1e4
    assert np.abs(got - want).max() <= 2 * 1e4 * 2.0**-23 * np.abs(x[2]).max()  # scores round as 10^4


class Chosen(nn.Cell):
    def __init__(self, low):
        super().__init__()
        self.low, self.seen = Tensor(low, ms.float32), Tensor(TRIANGLE == 1)

    def construct(self, q, k, v):
        s = ops.where(self.seen, ops.matmul(q, k.swapaxes(-1, -2)) / D**0.5, self.low)
        return ops.matmul(ops.softmax(s, -1), v)


@pytest.mark.parametrize("low", [float(np.finfo(np.float32).min), -1e4])
def test_a_constant_triangle_of_bools_is_causal(low, tmp_path):
    want, got, attrs = taken(Chosen(low), given(), tmp_path)
    assert attrs["is_causal"]
    close(got, want)


SIDE, WINDOW, WIDTH = 4, 2, H * D
WINDOWS, PLACES = (SIDE // WINDOW) ** 2, WINDOW**2


class Swin(nn.Cell):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Dense(WIDTH, 3 * WIDTH)
        self.bias = Tensor(normal(H, PLACES, PLACES, seed=3))
        self.mask = Tensor(np.where(normal(WINDOWS, PLACES, PLACES, seed=4) > 1, np.float32(-100), np.float32(0)))

    def construct(self, x):
        n = SIDE // WINDOW
        x = x.reshape(x.shape[0], n, WINDOW, n, WINDOW, WIDTH).transpose(0, 1, 3, 2, 4, 5).reshape(-1, PLACES, WIDTH)
        b = x.shape[0]
        qkv = self.qkv(x).reshape(b, PLACES, 3, H, D).transpose(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        s = ops.matmul(q * D**-0.5, k.swapaxes(-2, -1)) + self.bias.expand_dims(0)
        s = s.reshape(b // WINDOWS, WINDOWS, H, PLACES, PLACES) + self.mask.expand_dims(1).expand_dims(0)
        s = s.reshape(-1, H, PLACES, PLACES)
        return ops.matmul(ops.softmax(s, -1), v).swapaxes(1, 2).reshape(b, PLACES, WIDTH)


def test_shifted_windows_of_images_however_many(tmp_path):
    net = Swin()
    ms.export(net, Tensor(shape=[None, SIDE, SIDE, WIDTH], dtype=ms.float32), file_name=str(tmp_path / "net"),
              file_format="MINDIR")  # fmt: skip
    graph = opgraft.load(tmp_path / "net.mindir")
    inputs = [normal(n, SIDE, SIDE, WIDTH, seed=n) for n in (2, 1, 3)]
    report = rewrite.substitute(graph, prove=[[inputs[0]]])
    names = [n["op"] for n in graph.nodes]
    assert "ScaledDotProductAttention" in names and "Softmax" not in names, f"{report}\n{graph}"
    _core.write_mindir(graph, str(tmp_path / "grafted.mindir"))
    grafted = ms.nn.GraphCell(ms.load(str(tmp_path / "grafted.mindir")))
    for x in inputs:
        want = net(Tensor(x)).asnumpy()
        got = opgraft.nn.GraphCell(graph)(opgraft.Tensor(x)).asnumpy()
        assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()  # scores of -100 round as these
        close(grafted(Tensor(x)).asnumpy(), got)
