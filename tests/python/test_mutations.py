"""Graphs that rules fit, changed at random (mutations.py), keep their results when all that fits is swapped without a
proof: a rule asks for all that it depends on."""

import random

import numpy as np
import opgraft
import pytest
from compare import Net, normal
from mutations import check
from opgraft import Tensor, _core, ops, rewrite

W, B = Tensor(normal(24, 16, seed=1)), Tensor(normal(16, seed=2))
GAMMA, BETA = Tensor(normal(24, seed=3)), Tensor(normal(24, seed=4))
LONG = Tensor(normal(270, seed=6))
PRUNED = Tensor(np.where(np.random.default_rng(0).random((260, 270)) < 0.05, normal(260, 270), 0).astype(np.float32))
KERNEL, CHANNELS = Tensor(normal(6, 4, 3, 3)), Tensor(abs(normal(6)) + 0.5)
COS, SIN = Tensor(normal(7, 8)), Tensor(normal(7, 8, seed=5))


def layer_norm(x):
    d = x - ops.mean(x, -1, True)
    return d / ops.sqrt(ops.mean(d * d, -1, True) + 1e-5) * GAMMA + BETA


def add_rms_norm(x, residual):
    s = x + residual
    return s * ops.rsqrt(ops.mean(ops.square(s), -1, True) + 1e-6) * GAMMA, s


def gelu(x):
    return ops.gelu(ops.matmul(x, W) + B, approximate="tanh")


def written_gelu(x):
    return 0.5 * x * (1.0 + ops.erf(x / 1.4142135))


def swiglu(x):
    gate, up = ops.split(x, 12, -1)
    return gate * ops.sigmoid(gate) * up


def softmax(x, mask):
    return ops.softmax(x * 0.125 + mask, -1)


def attention(q, k, v, mask):
    scores = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) / 2.8284271 + mask
    return ops.matmul(ops.softmax(scores, -1), v)


def heads(x):
    q, k, v = (ops.transpose(ops.reshape(ops.matmul(x, w), (2, 7, 2, 8)), (0, 2, 1, 3)) for w in (W, W * 0.5, W * 0.25))
    y = ops.matmul(ops.softmax(ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) * 0.3535534, -1), v)
    return ops.reshape(ops.transpose(y, (0, 2, 1, 3)), (2, 7, 16))


def rotary(x):
    first, second = ops.split(x, 4, -1)
    return x * COS + ops.concat([-second, first], -1) * SIN


def pruned(x):
    return ops.relu(ops.matmul(x, PRUNED) + LONG)


def convolution(x):
    y = ops.Conv2D(6, 3, pad_mode="same")(x, KERNEL)
    return ops.relu(ops.BatchNorm(epsilon=1e-5)(y, CHANNELS, CHANNELS * 0.1, CHANNELS * 0.2, CHANNELS)[0])


def weights_of_eight_bits(x, w):
    return ops.matmul(x, ops.cast(w, opgraft.float32) * 0.01)


WRITTEN = [
    (layer_norm, normal(2, 5, 24)), (add_rms_norm, normal(2, 5, 24), normal(2, 5, 24, seed=1)),
    (gelu, normal(2, 5, 24)), (written_gelu, normal(5, 24)), (swiglu, normal(2, 5, 24)),
    (softmax, normal(2, 3, 5, 7), normal(2, 1, 5, 7)),
    (attention, normal(2, 3, 5, 8), normal(2, 3, 7, 8), normal(2, 3, 7, 8), normal(2, 1, 5, 7)),
    (heads, normal(2, 7, 24)), (rotary, normal(2, 3, 7, 8)), (pruned, normal(12, 260)),
    (convolution, normal(2, 4, 9, 9)),
    (weights_of_eight_bits, normal(5, 24), np.arange(24 * 16).reshape(24, 16).astype(np.int8)),
]  # fmt: skip


@pytest.mark.parametrize("write,given", [(f, x) for f, *x in WRITTEN], ids=[f.__name__ for f, *_ in WRITTEN])
def test_a_changed_graph_keeps_its_results(write, given, tmp_path):
    graph = opgraft.load(opgraft.export(Net(write), *map(Tensor, given), file_name=str(tmp_path / "net")))
    rules, rng, seen = _core.rules(), random.Random(write.__name__), set()
    valid = fits = 0
    for _ in range(400):
        is_one, fit, found = check(graph, rules, given, rng, seen)
        assert found is None, found
        valid, fits = valid + is_one, fits + fit
        if valid == 40:
            break
    assert valid == 40 and fits >= 10, (valid, fits)


def test_a_rule_that_asks_too_little_is_found(tmp_path):
    """A mean of four numbers, taken for one of any number."""
    net = Net(lambda x: ops.mean(x, -1, True) + 1.0)
    graph = opgraft.load(opgraft.export(net, Tensor(normal(3, 4)), file_name=str(tmp_path / "net")))
    source = rewrite._sources(lambda x: ops.mean(x, -1, True), lambda x: ops.sum(x, -1, True) * 0.25)
    rng, seen = random.Random(0), set()
    found = [check(graph, source.of(graph), [normal(3, 4)], rng, seen)[2] for _ in range(60)]
    assert 5 <= sum(f is not None for f in found) < 60
    assert any("apart by" in f for f in found if f)
