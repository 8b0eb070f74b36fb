"""Further forms of attention, and of rotary embedding before it, as MindSpore's models spell them, exported by
MindSpore: heads joined with the batches, half types computed in float32, scores that a tanh bounds."""

import mindspore as ms
import numpy as np
import opgraft
import pytest
from helpers import close, normal, taken
from mindspore import Tensor, nn, ops
from opgraft import rewrite

B, H, S, T, D = 2, 3, 5, 7, 16


def given(dtype=np.float32):
    sizes = (B, H, S, D), (B, H, T, D), (B, H, T, D), (B, 1, S, T)
    return [normal(*s, seed=i).astype(dtype) for i, s in enumerate(sizes)]


class Bart(nn.Cell):
    """Heads are joined with the batches for the products, and apart for the mask."""

    def __init__(self, softmax_apart):
        super().__init__()
        self.softmax_apart = softmax_apart

    def construct(self, q, k, v, m):
        q, k, v = (x.reshape(B * H, -1, D) for x in (q, k, v))
        s = ops.bmm(q, k.swapaxes(1, 2)).reshape(B, H, S, T) + m
        if self.softmax_apart:
            w = ops.softmax(s, -1).reshape(B * H, S, T)
        else:
            w = ops.softmax(s.reshape(B * H, S, T), -1)
        return ops.bmm(w, v).reshape(B, H, S, D)


@pytest.mark.parametrize("softmax_apart", [False, True])
def test_heads_joined_with_the_batches(softmax_apart, tmp_path):
    want, got, _ = taken(Bart(softmax_apart), given(), tmp_path)
    close(got, want)


class Gemma(nn.Cell):
    def construct(self, q, k, v, m):
        s = ops.tanh(ops.matmul(q, k.swapaxes(2, 3)) * D**-0.5 / 4.0) * 4.0 + m
        return ops.matmul(ops.softmax(s, -1), v)


def test_scores_that_a_tanh_bounds(tmp_path):
    want, got, attrs = taken(Gemma(), given(), tmp_path)
    assert attrs["softcap"] == 4.0
    close(got, want)


class InFloat32(nn.Cell):
    """Of float16: the scores, or all of it, in float32."""

    def __init__(self, scores_alone):
        super().__init__()
        self.scores_alone = scores_alone

    def construct(self, q, k, v, m):
        q, k, m = (x.astype(ms.float32) for x in (q, k, m))
        w = ops.softmax(ops.matmul(q, k.swapaxes(2, 3)) * D**-0.5 + m, -1)
        if self.scores_alone:
            return ops.matmul(w.astype(ms.float16), v)
        return ops.matmul(w, v.astype(ms.float32)).astype(ms.float16)


@pytest.mark.parametrize("scores_alone", [False, True])
def test_half_types_in_float32(scores_alone, tmp_path):
    x = given(np.float16)
    want, got, _ = taken(InFloat32(scores_alone), x, tmp_path)
    assert got.dtype == want.dtype == np.float16
    # MindSpore rounds weights, of which the sum is 1, and the result to float16, the operator the result.
    assert np.abs(got.astype(np.float64) - want).max() <= 3 * 2.0**-11 * np.abs(x[2].astype(np.float64)).max()


class MindFormers(nn.Cell):
    """Of float16: q and k are divided by a root each; scores, mask and weights are of float32."""

    def construct(self, q, k, v, m):
        root = D**0.25
        s = ops.bmm(q / root, k.swapaxes(2, 3) / root).astype(ms.float32)
        w = ops.softmax(s + (1.0 - m) * -10000.0, -1)
        return ops.bmm(w.astype(ms.float16), v)


def test_a_mask_of_float32_of_half_types(tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    x = given(np.float16)
    x[3] = (x[3] > -0.5).astype(np.float32)
    net, tensors = MindFormers(), [Tensor(y) for y in x]
    want = net(*tensors).asnumpy()
    ms.export(net, *tensors, file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    rewrite.substitute(graph, prove=x)
    assert [n["op"] for n in graph.nodes] == ["Sub", "Mul", "ScaledDotProductAttention"], str(graph)
    got = opgraft.nn.GraphCell(graph)(*map(opgraft.Tensor, x)).asnumpy()
    # MindSpore rounds to float16 q, k, scores of up to 8, of which an error is twice as large a share of a weight, the
    # weights and the result.
    assert np.abs(got.astype(np.float64) - want).max() <= (2 * 3 * 8 + 3) * 2.0**-11 * np.abs(x[2].astype(float)).max()


class Layer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(H * D, H)

    def construct(self, x, m):
        return self.attention(x, x, x, attn_mask=m, need_weights=False)[0]


def test_the_layer_of_mindspore(tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    x = [normal(S, B, H * D), normal(S, S, seed=1)]
    net, tensors = Layer().set_train(False), [Tensor(y) for y in x]
    want = net(*tensors).asnumpy()
    ms.export(net, *tensors, file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    rewrite.substitute(graph, prove=[x])
    (node,) = [n for n in graph.nodes if n["op"] == "ScaledDotProductAttention"]
    assert not {"Div", "Softmax", "MatMulExt", "Transpose"} & {n["op"] for n in graph.nodes}, str(graph)
    assert node["attrs"]["layout"] == "SBHD" and node["attrs"]["heads"] == H
    np.testing.assert_allclose(node["attrs"]["scale"], D**-0.5, rtol=2.0**-22)
    close(opgraft.nn.GraphCell(graph)(*map(opgraft.Tensor, x)).asnumpy(), want)


class Promoted(nn.Cell):
    """Rotary embedding of float16 by tables of float32: x and what is turned of it are cast apart."""

    def __init__(self, pairs):
        super().__init__()
        self.pairs = pairs

    def construct(self, x, cos, sin):
        if self.pairs:
            t = ops.stack((-x[..., 1::2], x[..., ::2]), -1).reshape(B, H, S, D)
        else:
            t = ops.concat((-x[..., D // 2 :], x[..., : D // 2]), -1)
        return (x.astype(ms.float32) * cos + t.astype(ms.float32) * sin).astype(ms.float16)


@pytest.mark.parametrize("pairs", [False, True])
def test_rotary_embedding_by_tables_of_float32(pairs, tmp_path):
    angles = np.outer(np.arange(S), 100.0 ** (-np.arange(0, D, 2) / D)).astype(np.float32)
    tables = [np.repeat(f(angles), 2, -1) if pairs else np.tile(f(angles), (1, 2)) for f in (np.cos, np.sin)]
    x = normal(B, H, S, D).astype(np.float16)
    want, got, attrs = taken(Promoted(pairs), [x, *tables], tmp_path, "RotaryPositionEmbedding")
    assert attrs["mode"] == pairs
    # Both round once, of sums that differ by float32's roundings.
    assert np.abs(got.astype(np.float64) - want).max() <= 2 * 2.0**-11 * 2 * np.abs(x.astype(np.float64)).max()
