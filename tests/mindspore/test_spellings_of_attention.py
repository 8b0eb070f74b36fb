"""Attention, rotary embedding and the sepia filter by further spellings than the tests of each have, in models that
MindSpore exported: one operator is left, with MindSpore's own results."""

import mindspore as ms
import numpy as np
import pytest
from cells import Written
from helpers import close, normal, swapped
from mindspore import Tensor, ops

B, H, S, T, D = 2, 3, 5, 7, 8
F32, F16 = ms.float32, ms.float16


def scores(q, k):
    return ops.matmul(q, k.swapaxes(2, 3))


def softmax_by_exp(q, k, v, m):
    s = scores(q, k) / 8.0 + m
    e = ops.exp(s - s.max(-1, keepdims=True))
    return ops.bmm(e / e.sum(-1, keepdims=True), v)


def mask_subtracted(q, k, v, m):
    return ops.bmm(ops.softmax(scores(q, k) / 8.0 - m, -1), v)


def within_a_tanh(q, k, v):
    return ops.bmm(ops.softmax(ops.tanh(scores(q, k) / 8.0 / 30.0) * 30.0, -1), v)


def heads_behind_positions(q, k, v, m):
    q, k, v = q.transpose(0, 2, 1, 3), k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    return ops.bmm(ops.softmax(scores(q, k) / 8.0 + m, -1), v).transpose(0, 2, 1, 3)


def masked_before_the_scale(q, k, v, m):
    return ops.bmm(ops.softmax((ops.bmm(q, k.swapaxes(1, 2)) + m) / 8.0, -1), v)


def keys_that_come_turned(q, k, v, m):
    return ops.bmm(ops.softmax(ops.bmm(q, k) / 8.0 + m, -1), v)


Q, K, V, MASK = normal(B, H, S, D), normal(B, H, T, D, seed=1), normal(B, H, T, D, seed=2), normal(B, 1, S, T, seed=3)
ROWS = [x.reshape(B * H, -1, D) for x in (Q, K, V)]


def turned(x):
    return np.ascontiguousarray(x.swapaxes(1, 2))


def a_mask_more_behind_the_scale(q, k, v, m, n):
    return ops.bmm(ops.softmax((scores(q, k) + m) / 8.0 + n, -1), v)


def kept_before_the_scale(q, k, v, m):
    return ops.bmm(ops.softmax(ops.where(m, scores(q, k), -1e4) / 8.0, -1), v)


def kept_behind_the_scale(q, k, v, m):
    return ops.bmm(ops.softmax(ops.where(m, ops.bmm(q, k.swapaxes(1, 2)) / 8.0, -1e4), -1), v)


def two_masks(q, k, v, m, n):
    return ops.bmm(ops.softmax(ops.bmm(q, k.swapaxes(1, 2)) / 8.0 + m + n, -1), v)


ATTENTION = {
    softmax_by_exp: [Q, K, V, MASK],
    mask_subtracted: [Q, K, V, MASK],
    within_a_tanh: [Q, K, V],
    heads_behind_positions: [turned(Q), turned(K), turned(V), MASK],
    masked_before_the_scale: [*ROWS, normal(S, T)],
    keys_that_come_turned: [ROWS[0], turned(ROWS[1]), ROWS[2], normal(S, T)],
    a_mask_more_behind_the_scale: [Q, K, V, MASK, normal(B, 1, S, T, seed=4)],
    kept_before_the_scale: [Q, K, V, MASK > 0],
    kept_behind_the_scale: [*ROWS, normal(S, T) > 0],
    two_masks: [*ROWS, normal(S, T), normal(S, T, seed=1)],
}


@pytest.mark.parametrize("write", ATTENTION, ids=lambda f: f.__name__)
def test_attention(write, tmp_path):
    (want,), (got,) = swapped(Written(write), ATTENTION[write], tmp_path, "ScaledDotProductAttention")
    close(got, want)


ANGLES = np.outer(np.arange(S), 100.0 ** (-np.arange(0, D, 2) / D)).astype(np.float32)
HALF = [np.cos(ANGLES), np.sin(ANGLES)]
TWICE = [np.repeat(t, 2, -1) for t in HALF]
WIDE = [np.concatenate([t, t], -1) for t in HALF]


def pairs_gathered(x, c, s):
    r = x.reshape(B, H, S, D // 2, 2)
    a, b = ops.gather(r, Tensor(0), 4), ops.gather(r, Tensor(1), 4)
    return ops.stack((a * c - b * s, b * c + a * s), -1).reshape(B, H, S, D)


def pairs_split(x, c, s):
    a, b = ops.split(x.reshape(B, H, S, D // 2, 2), 1, -1)
    a, b = a.squeeze(-1), b.squeeze(-1)
    return ops.stack((a * c - b * s, b * c + a * s), -1).reshape(B, H, S, D)


def pairs_of_gpt_j(x, c, s):
    return x * c + ops.stack((-x[..., 1::2], x[..., ::2]), -1).reshape(B, H, S, D) * s


def minus_the_pairs(x, c, s):
    return x * c - ops.stack((x[..., 1::2], -x[..., ::2]), -1).reshape(B, H, S, D) * s


def halves_times_minus_one(x, c, s):
    return x * c + ops.concat((x[..., D // 2 :] * -1.0, x[..., : D // 2]), -1) * s


def halves_in_float32(x, c, s):
    a, b = x[..., : D // 2].astype(F32), x[..., D // 2 :].astype(F32)
    return ops.concat((a * c - b * s, b * c + a * s), -1).astype(F16)


ROTARY = {
    pairs_gathered: HALF,
    pairs_split: HALF,
    pairs_of_gpt_j: TWICE,
    minus_the_pairs: TWICE,
    halves_times_minus_one: WIDE,
    halves_in_float32: HALF,
}


@pytest.mark.parametrize("write", ROTARY, ids=lambda f: f.__name__)
def test_rotary_embedding(write, tmp_path):
    half = write is halves_in_float32
    given = [Q.astype(np.float16) if half else Q, *ROTARY[write]]
    (want,), (got,) = swapped(Written(write), given, tmp_path, "RotaryPositionEmbedding")
    assert got.dtype == want.dtype
    if half:
        assert (np.abs(got.astype(np.float64) - want) <= 2.0**-10 * np.abs(want) + 2.0**-20).all()
    else:
        close(got, want)


def matrix_turned(x, c, s, m):
    return x * c + ops.matmul(x, m.T) * s


def rows_of_a_matrix(x, c, s, m):
    return x * c + ops.MatMul()(x.reshape(-1, D), m).reshape(B, H, S, D) * s


def rows_of_a_matrix_turned(x, c, s, m):
    return x * c + ops.MatMul(transpose_b=True)(x.reshape(-1, D), m).reshape(B, H, S, D) * s


@pytest.mark.parametrize("write", [matrix_turned, rows_of_a_matrix, rows_of_a_matrix_turned], ids=lambda f: f.__name__)
def test_rotary_embedding_by_a_matrix(write, tmp_path):
    m, first = np.zeros((D, D), np.float32), np.arange(D // 2)
    m[first, first + D // 2], m[first + D // 2, first] = 1, -1
    net = Written(write, Tensor(m if write is rows_of_a_matrix else m.T.copy()))
    (want,), (got,) = swapped(net, [Q, *WIDE], tmp_path, "RotaryPositionEmbedding")
    close(got, want)


IMAGES = np.random.default_rng(0).random((2, 3, 5, 7), np.float32)


def mixed(r, g, b):
    return 0.393 * r + 0.769 * g + 0.189 * b, 0.349 * r + 0.686 * g + 0.168 * b, 0.272 * r + 0.534 * g + 0.131 * b


def planes_split(x):
    r, g, b = ops.split(x, 1, 1)
    p, q, t = mixed(r, g, b)
    return ops.cat((ops.minimum(p, 1.0), ops.minimum(q, 1.0), ops.minimum(t, 1.0)), 1)


def planes_expanded(x):
    p, q, t = mixed(x[:, 0], x[:, 1], x[:, 2])
    return ops.minimum(ops.cat((p.expand_dims(1), q.expand_dims(1), t.expand_dims(1)), 1), 1.0)


def each_plane_within_bounds(x):
    p, q, t = mixed(x[:, 0], x[:, 1], x[:, 2])
    p, q, t = ops.maximum(p, 0.0), ops.maximum(q, 0.0), ops.maximum(t, 0.0)
    return ops.stack((ops.minimum(p, 1.0), ops.minimum(q, 1.0), ops.minimum(t, 1.0)), 1)


def one_image(x):
    p, q, t = mixed(x[0], x[1], x[2])
    return ops.minimum(ops.stack((p, q, t), 0), 1.0)


SEPIA = {planes_split: IMAGES, planes_expanded: IMAGES, each_plane_within_bounds: IMAGES, one_image: IMAGES[0]}


@pytest.mark.parametrize("write", SEPIA, ids=lambda f: f.__name__)
def test_sepia(write, tmp_path):
    (want,), (got,) = swapped(Written(write), [SEPIA[write]], tmp_path, "Sepia")
    close(got, want)
    assert 0.05 < (want == 1).mean() < 0.95  # both sides of the bound are met


def pixels_by_a_layer(x, m):
    return ops.minimum(ops.relu(ms.mint.nn.functional.linear(x, m)), 1.0)


def test_sepia_of_pixels_by_a_layer(tmp_path):
    m = np.array([[0.393, 0.769, 0.189], [0.349, 0.686, 0.168], [0.272, 0.534, 0.131]], np.float32)
    x = np.ascontiguousarray(np.moveaxis(IMAGES, 1, -1))
    (want,), (got,) = swapped(Written(pixels_by_a_layer, Tensor(m)), [x], tmp_path, "Sepia")
    close(got, want)
