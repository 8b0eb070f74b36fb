"""Swin's attention in shifted windows, of images however many: sizes are asked of what the windows are cut from."""

import numpy as np
import opgraft
import pytest
from attention_spellings import ROOT, D, H, normal, turned
from compare import U, linear
from opgraft import Tensor, _core, nn, ops, rewrite

SIDE, WINDOW = 4, 2
WINDOWS, PLACES, WIDTH = (SIDE // WINDOW) ** 2, WINDOW**2, H * D
BIAS = normal(H, PLACES, PLACES, seed=3)
MASK = np.where(normal(WINDOWS, PLACES, PLACES, seed=4) > 1, np.float32(-100), np.float32(0))


def cut(x):
    """[B, SIDE, SIDE, WIDTH] in windows, [B * WINDOWS, PLACES, WIDTH]"""
    n = SIDE // WINDOW
    x = x.reshape(x.shape[0], n, WINDOW, n, WINDOW, WIDTH)
    x = x.transpose(0, 1, 3, 2, 4, 5) if isinstance(x, np.ndarray) else ops.transpose(x, (0, 1, 3, 2, 4, 5))
    return x.reshape(-1, PLACES, WIDTH)


class Swin(nn.Cell):
    def __init__(self, images, back, windows=WINDOWS):
        super().__init__()
        self.qkv = nn.Dense(WIDTH, 3 * WIDTH)
        self.images, self.back, self.windows = images, back, windows
        self.bias, self.mask = Tensor(BIAS), Tensor(MASK[:windows])

    def construct(self, x):
        x = cut(x)
        b, n, _ = x.shape
        qkv = ops.transpose(self.qkv(x).reshape(b, n, 3, H, D), (2, 0, 3, 1, 4))
        q, k, v = qkv[0], qkv[1], qkv[2]
        s = ops.matmul(q * ROOT**-1, turned(k)) + ops.expand_dims(self.bias, 0)
        images = b // self.windows if self.images == "divided" else -1
        s = s.reshape(images, self.windows, H, n, n) + ops.expand_dims(ops.expand_dims(self.mask, 1), 0)
        s = s.reshape(b if self.back == "asked" else -1, H, n, n)
        y = ops.matmul(ops.softmax(s, -1), v)
        return ops.transpose(y, (0, 2, 1, 3)).reshape(b, n, WIDTH)


def reference(net, x, windows=WINDOWS):
    y, size = linear(cut(x), net.qkv.weight.asnumpy(), net.qkv.bias.asnumpy())
    q, k, v = y.reshape(-1, PLACES, 3, H, D).transpose(2, 0, 3, 1, 4)
    s = q @ k.swapaxes(-1, -2) / ROOT + BIAS + np.tile(MASK[:windows, None], (len(q) // windows, 1, 1, 1))
    p = np.exp(s - s.max(-1, keepdims=True))
    # q and k are off by roundings of WIDTH products each, a score by D times these and its own, 100 where it is hidden.
    off = (WIDTH + 2) * U * size.max()
    score = D * 2 * off * max(np.abs(q).max(), np.abs(k).max()) / ROOT + 2 * (D + 4) * np.abs(s).max() * U
    bound = 2 * score * np.abs(v).max() + off + (PLACES + 16) * U * np.abs(v).max()
    return (p / p.sum(-1, keepdims=True) @ v).swapaxes(1, 2).reshape(-1, PLACES, WIDTH), bound


@pytest.mark.parametrize("back", ["asked", "-1"])
@pytest.mark.parametrize("images", ["divided", "-1"])
@pytest.mark.parametrize("proven", [False, True])
def test_images_however_many(proven, images, back, tmp_path):
    net = Swin(images, back)
    opened = Tensor(shape=[None, SIDE, SIDE, WIDTH], dtype=opgraft.float32)
    graph = opgraft.load(opgraft.export(net, opened, file_name=str(tmp_path / "net")))
    inputs = {n: normal(n, SIDE, SIDE, WIDTH, seed=n) for n in (1, 2, 3)}
    report = rewrite.substitute(graph, prove=[[inputs[2]]] if proven else None)
    names = [n["op"] for n in graph.nodes]
    assert "ScaledDotProductAttention" in names and "Softmax" not in names, str(report)
    # Written to a file and read again as well: its fallback asks for sizes of its own.
    _core.write_mindir(graph, str(tmp_path / "swapped.mindir"))
    for g in (graph, opgraft.load(tmp_path / "swapped.mindir")):
        cell = nn.GraphCell(g)
        for x in inputs.values():
            want, bound = reference(net, x)
            assert np.abs(cell(Tensor(x)).asnumpy() - want).max() <= bound


def test_windows_of_which_an_image_need_not_have_a_whole_number_stay(tmp_path):
    """Three masks of four windows: only of three images and their multiples."""
    net = Swin("divided", "asked", windows=3)
    opened = Tensor(shape=[None, SIDE, SIDE, WIDTH], dtype=opgraft.float32)
    graph = opgraft.load(opgraft.export(net, opened, file_name=str(tmp_path / "net")))
    rewrite.substitute(graph)
    assert "ScaledDotProductAttention" not in [n["op"] for n in graph.nodes]
    x = normal(3, SIDE, SIDE, WIDTH)
    want, bound = reference(net, x, 3)
    assert np.abs(nn.GraphCell(graph)(Tensor(x)).asnumpy() - want).max() <= bound
