"""Attention over heads, with a mask."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

ms.set_device("CPU")


class Attention(nn.Cell):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.query, self.key, self.value, self.out = (nn.Dense(width, width) for _ in range(4))

    def construct(self, x, mask):
        b, s, w = x.shape

        def split(y):
            return y.reshape(b, s, self.heads, self.size).transpose(0, 2, 1, 3)

        q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))
        scores = ops.matmul(q, k.transpose(0, 1, 3, 2)) / self.size**0.5 + mask
        return self.out(ops.matmul(ops.softmax(scores, -1), v).transpose(0, 2, 1, 3).reshape(b, s, w))


net = Attention(8, 2)
rng = np.random.default_rng(3)
for p in net.get_parameters():
    p.set_data(Tensor(rng.standard_normal(p.shape).astype(np.float32) * 0.4))
x = Tensor(rng.standard_normal((2, 5, 8)).astype(np.float32))
mask = Tensor(np.triu(np.full((5, 5), -1e4, np.float32), 1))
for mode in (ms.PYNATIVE_MODE, ms.GRAPH_MODE):
    ms.set_context(mode=mode)
    print(net(x, mask).asnumpy())
