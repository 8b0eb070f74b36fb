"""Attention and the rotary embedding as torch's exporter to ONNX writes them: the scale with q and with k, each with
its root, or with q before its heads are parted, keys turned by a Transpose, repeated heads by Unsqueeze, Expand and
Reshape, what is hidden by Where, halves by Slice, Neg and Concat."""

import numpy as np
import pytest
from attention_spellings import ROOT, ROUNDINGS, B, D, H, S, T, reference, turned
from compare import Net, close, normal
from opgraft import Tensor, nn, ops, rewrite

Q, K, V, MASK = normal(B, H, S, D), normal(B, H, T, D, seed=1), normal(B, H, T, D, seed=2), normal(B, 1, S, T, seed=3)
LOW = Tensor(np.float32(-3.4028235e38))
TRIANGLE = np.tri(S, T, T - S, dtype=bool)
HIDDEN = np.where(TRIANGLE, 0, -np.inf)


def p(name, *inputs, **attrs):
    return ops.primitive(name, *inputs, **attrs)


def root():
    return Tensor(np.float32(ROOT**-0.5))


def product(a, b):
    return p("BatchMatMul", a, b, transpose_a=False, transpose_b=False)


def scores(q, k):
    return product(p("Mul", q, root()), p("Mul", turned(k), root()))


def weights(s):
    return p("Softmax", s, axis=-1)


def joined(x):
    return x.reshape(B * H, -1, x.shape[-1])


def bart(q, k, v, m):
    q = joined(p("Mul", q, Tensor(np.float32(1 / ROOT))))
    s = product(q, p("Transpose", joined(k), perm=[0, 2, 1]))
    s = p("Add", s.reshape(B, H, S, T), m).reshape(B * H, S, T)
    return product(weights(s), joined(v)).reshape(B, H, S, D)


def gemma(q, k, v, m):
    s = p("Mul", product(q, turned(k)), Tensor(np.float32(1 / ROOT)))
    s = p("Mul", p("Tanh", p("Div", s, Tensor(np.float32(30)))), Tensor(np.float32(30)))
    return product(weights(p("Add", s, m)), v)


def batch_position_head(q, k, v, m):
    q, k, v = (p("Transpose", x, perm=[0, 2, 1, 3]) for x in (q, k, v))
    return p("Transpose", product(weights(p("Add", scores(q, k), m)), v), perm=[0, 2, 1, 3])


def repeated(x):
    x = p("BroadcastTo", p("ExpandDims", x, axis=2), (B, 2, 3, T, D))
    return x.reshape(B, 6, T, D)


def groups(q, k, v, m):
    return product(weights(p("Add", scores(q, repeated(k)), m)), repeated(v))


def table_of_gpt2(q, k, v):
    return product(weights(p("Select", Tensor(TRIANGLE[None, None]), scores(q, k), LOW)), v)


def table_and_mask_of_gpt2(q, k, v, m):
    return product(weights(p("Add", p("Select", Tensor(TRIANGLE[None, None]), scores(q, k), LOW), m)), v)


def hidden_by_where(q, k, v, m):
    return product(weights(p("Select", m, LOW, scores(q, k))), v)


def behind(x):
    return np.ascontiguousarray(x.swapaxes(1, 2))


SIX, TWO, OTHER = normal(B, 6, S, D), normal(B, 2, T, D, seed=1), normal(B, 2, T, D, seed=2)
# What is given, and what attention of four dimensions gives for it.
FORMS = {
    bart: ([Q, K, V, MASK], reference(Q, K, V, MASK, 1 / ROOT)),
    batch_position_head: ([behind(Q), behind(K), behind(V), MASK], behind(reference(Q, K, V, MASK, 1 / ROOT))),
    groups: ([SIX, TWO, OTHER, MASK], reference(SIX, np.repeat(TWO, 3, 1), np.repeat(OTHER, 3, 1), MASK, 1 / ROOT)),
    table_of_gpt2: ([Q, K, V], reference(Q, K, V, HIDDEN, 1 / ROOT)),
    table_and_mask_of_gpt2: ([Q, K, V, MASK], reference(Q, K, V, HIDDEN + MASK, 1 / ROOT)),
    hidden_by_where: ([Q, K, V, MASK > 0], reference(Q, K, V, np.where(MASK > 0, -1e30, 0), 1 / ROOT)),
}


def grafted(write, given):
    """The Cell, and the operators that are left of it but for views."""
    net = Net(write)
    rewrite.substitute(net, prove=[list(map(Tensor, given))])
    return net, [n["op"] for n in net._grafted[0][0].graph.nodes if n["op"] != "Reshape"]


@pytest.mark.parametrize("write", FORMS, ids=lambda f: f.__name__)
def test_attention(write):
    given, want = FORMS[write]
    net, names = grafted(write, given)
    assert names == ["Mul"] * (write is bart) + ["ScaledDotProductAttention"]
    close(net(*map(Tensor, given)).asnumpy(), want, ROUNDINGS, np.abs(given[2]).max())


def test_attention_within_a_tanh():
    net, names = grafted(gemma, [Q, K, V, MASK])
    assert names == ["ScaledDotProductAttention"]
    s = 30 * np.tanh(Q.astype(np.float64) @ K.swapaxes(-1, -2) / ROOT / 30) + MASK
    e = np.exp(s - s.max(-1, keepdims=True))
    want = e / e.sum(-1, keepdims=True) @ V
    close(net(*map(Tensor, (Q, K, V, MASK))).asnumpy(), want, 2 * ROUNDINGS, np.abs(V).max())


ANGLES = np.outer(np.arange(S), 100.0 ** (-np.arange(0, D, 2) / D)).astype(np.float32)
COS, SIN = (f(np.concatenate([ANGLES, ANGLES], -1)).astype(np.float32) for f in (np.cos, np.sin))


def cut(x, begin, end):
    return ops.strided_slice(x, (0, 0, 0, begin), (0, 0, 0, end), (1, 1, 1, 1), begin_mask=7, end_mask=7)


def turn(x, cos, sin):
    half = p("Concat", p("Neg", cut(x, D // 2, 2**31 - 1)), cut(x, 0, D // 2), axis=-1)
    return p("Add", p("Mul", x, cos), p("Mul", half, sin))


def test_rotary_embedding_of_query_and_key():
    class Both(nn.Cell):
        def __init__(self):
            super().__init__()
            self.cos, self.sin = Tensor(COS), Tensor(SIN)

        def construct(self, q, k):
            return turn(q, self.cos, self.sin), turn(k, self.cos, self.sin)

    k = K[:, :, :S].copy()
    net = Both()
    rewrite.substitute(net, prove=[[Tensor(Q), Tensor(k)]])
    assert [n["op"] for n in net._grafted[0][0].graph.nodes] == ["ApplyRotaryPosEmb"]
    for x, y in zip((Q, k), net(Tensor(Q), Tensor(k)), strict=True):
        x = x.astype(np.float64)
        want = x * COS + np.concatenate([-x[..., D // 2 :], x[..., : D // 2]], -1) * SIN
        close(y.asnumpy(), want, 4, np.abs(x).max() * 2)


# Swin's windows: scores of five dimensions, to which a mask is added that repeats with the images.
WINDOWS = 3


def windows(q, k, v, bias, mask):
    s = p("Add", scores(q, k), bias).reshape(-1, WINDOWS, H, S, S)
    return product(weights(p("Add", s, mask).reshape(-1, H, S, S)), v)


def test_shifted_windows():
    images = 2 * WINDOWS
    q, k, v = (normal(images, H, S, D, seed=i) for i in range(3))
    bias, mask = normal(1, H, S, S, seed=3), normal(1, WINDOWS, 1, S, S, seed=4)
    given = [q, k, v, bias, mask]
    net, names = grafted(windows, given)
    assert names == ["ScaledDotProductAttention"]
    want = reference(q, k, v, bias + np.tile(mask[0], (2, 1, 1, 1)), 1 / ROOT)
    close(net(*map(Tensor, given)).asnumpy(), want, ROUNDINGS, np.abs(v).max())
