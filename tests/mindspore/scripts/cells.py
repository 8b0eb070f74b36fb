"""A Cell with sub-cells: Dense, LayerNorm, Embedding, an activation."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

ms.set_device("CPU")


class Block(nn.Cell):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm((width,), epsilon=1e-5)
        self.up = nn.Dense(width, 2 * width)
        self.act = nn.GELU(approximate=False)
        self.down = nn.Dense(2 * width, width)

    def construct(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 8)
        self.blocks = nn.SequentialCell(Block(8), Block(8))
        self.head = nn.Dense(8, 3, has_bias=False)

    def construct(self, ids):
        return self.head(self.blocks(self.table(ids)))


net = Net()
rng = np.random.default_rng(0)
for p in net.get_parameters():
    p.set_data(Tensor(rng.standard_normal(p.shape).astype(np.float32) * 0.3))
ids = Tensor(np.array([[1, 2, 3], [4, 0, 9]], np.int32))
for mode in (ms.PYNATIVE_MODE, ms.GRAPH_MODE):
    ms.set_context(mode=mode)
    print(net(ids).asnumpy())
print([p.name for p in net.get_parameters()])
print(nn.Dense(2, 2, "ones", 0.5)(Tensor(np.ones((1, 2), np.float32))).asnumpy())
print(nn.Embedding(3, 2, False, "ones", ms.float32, 1)(Tensor(np.arange(3, dtype=np.int32))).asnumpy())
print(nn.LayerNorm((2,), -1, -1, "zeros", "ones")(Tensor(np.ones((1, 2), np.float32))).asnumpy())
