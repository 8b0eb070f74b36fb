"""Models as a MindSpore user writes them, by name: (cell, inputs by size)."""

import mindspore as ms
import numpy as np
from conv_models import MobileNet, PadPools, ResNet, Spelled
from mindspore import Parameter, Tensor, nn, ops


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Mlp(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.SequentialCell(nn.Dense(16, 32), nn.ReLU(), nn.Dense(32, 32), nn.GELU(), nn.Dense(32, 8))

    def construct(self, x):
        return self.layers(x)


class BertLayer(nn.Cell):
    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.query, self.key, self.value, self.dense = (nn.Dense(width, width) for _ in range(4))
        self.norm, self.norm2 = nn.LayerNorm((width,)), nn.LayerNorm((width,))
        self.up, self.down = nn.Dense(width, 4 * width), nn.Dense(4 * width, width)
        self.gelu, self.softmax = nn.GELU(approximate=False), nn.Softmax(-1)
        self.bmm, self.bmm_t = ops.BatchMatMul(), ops.BatchMatMul(transpose_b=True)

    def construct(self, x, mask):
        b, s, w = x.shape

        def split(y):
            return y.reshape(b, s, self.heads, self.size).transpose(0, 2, 1, 3)

        q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))
        scores = self.bmm_t(q, k) / 2.8284271247461903 + mask
        y = self.bmm(self.softmax(scores), v).transpose(0, 2, 1, 3).reshape(b, s, w)
        x = self.norm(x + self.dense(y))
        return self.norm2(x + self.down(self.gelu(self.up(x))))


class RmsNorm(nn.Cell):
    def __init__(self, width):
        super().__init__()
        self.weight = Parameter(Tensor(normal(width, seed=7)), name="weight")
        self.mean, self.rsqrt, self.square = ops.ReduceMean(keep_dims=True), ops.Rsqrt(), ops.Square()

    def construct(self, x):
        return x * self.rsqrt(self.mean(self.square(x), -1) + 1e-6) * self.weight


class LlamaBlock(nn.Cell):
    def __init__(self, width=32, heads=4, length=6):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.norm, self.norm2 = RmsNorm(width), RmsNorm(width)
        self.q, self.k, self.v, self.o = (nn.Dense(width, width, has_bias=False) for _ in range(4))
        self.gate, self.up = nn.Dense(width, 64, has_bias=False), nn.Dense(width, 64, has_bias=False)
        self.down, self.silu = nn.Dense(64, width, has_bias=False), nn.SiLU()
        angles = np.outer(np.arange(length), 10000.0 ** (-np.arange(0, self.size, 2) / self.size))
        angles = np.concatenate([angles, angles], -1).astype(np.float32)
        self.cos, self.sin = Tensor(np.cos(angles)), Tensor(np.sin(angles))
        self.mask = Tensor(np.triu(np.full((length, length), -1e4, np.float32), 1))
        self.softmax, self.cat = nn.Softmax(-1), ops.Concat(-1)
        self.bmm, self.bmm_t = ops.BatchMatMul(), ops.BatchMatMul(transpose_b=True)

    def rotate(self, x):
        half = self.size // 2
        turned = self.cat((-x[..., half:], x[..., :half]))
        return x * self.cos + turned * self.sin

    def construct(self, x):
        b, s, w = x.shape
        h = self.norm(x)
        q, k, v = (f(h).reshape(b, s, self.heads, self.size).transpose(0, 2, 1, 3) for f in (self.q, self.k, self.v))
        scores = self.bmm_t(self.rotate(q), self.rotate(k)) * 0.35355339 + self.mask
        y = self.bmm(self.softmax(scores), v).transpose(0, 2, 1, 3).reshape(b, s, w)
        x = x + self.o(y)
        h = self.norm2(x)
        return x + self.down(self.silu(self.gate(h)) * self.up(h))


# name: (cell, inputs for given sizes, open placeholders or None, sizes to run)
def f32(*shape):
    return Tensor(shape=shape, dtype=ms.float32)


MODELS = {
    "mlp": (Mlp, lambda n: [normal(n, 16)], None, [(4,)]),
    "mlp, open batch": (Mlp, lambda n: [normal(n, 16)], [f32(None, 16)], [(4,), (7,), (1,)]),
    "bert layer": (BertLayer, lambda b, s: [normal(b, s, 32), np.zeros((b, 1, 1, s), np.float32)], None, [(2, 6)]),
    "bert layer, open batch and sequence": (
        BertLayer, lambda b, s: [normal(b, s, 32), np.zeros((b, 1, 1, s), np.float32)],
        [f32(None, None, 32), f32(None, 1, 1, None)], [(2, 6), (3, 4), (1, 1)]),
    "llama block": (LlamaBlock, lambda b: [normal(b, 6, 32)], None, [(2,)]),
    "resnet bottleneck": (ResNet, lambda n: [normal(n, 3, 32, 32)], None, [(2,)]),
    "resnet bottleneck, open batch": (
        ResNet, lambda n: [normal(n, 3, 32, 32)], [f32(None, 3, 32, 32)], [(2,), (1,), (5,)]),
    "pools with padding": (PadPools, lambda n: [normal(n, 3, 19, 20)], None, [(2,)]),
    "mobilenet block": (MobileNet, lambda n: [normal(n, 3, 20, 22)], None, [(2,)]),
    "convolutions as exporters spell them": (Spelled, lambda n: [normal(n, 3, 9, 11)], None, [(2,)]),
}  # fmt: skip
