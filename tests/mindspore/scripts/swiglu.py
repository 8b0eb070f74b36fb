"""The SwiGLU cell, plain, exported, loaded."""

import os
import tempfile

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

ms.set_device("CPU")
ms.set_context(mode=ms.GRAPH_MODE)


class SwiGLU(nn.Cell):
    def __init__(self):
        super().__init__()
        self.silu = nn.SiLU()

    def construct(self, x):
        return x[:, ::2] * self.silu(x[:, 1::2])


net = SwiGLU()
x = Tensor(np.linspace(-3, 3, 24, dtype=np.float32).reshape(3, 8))
print(net(x).asnumpy())
with tempfile.TemporaryDirectory() as folder:
    ms.export(net, x, file_name=os.path.join(folder, "swiglu"), file_format="MINDIR")
    loaded = nn.GraphCell(ms.load(os.path.join(folder, "swiglu.mindir")))
    print(loaded(x).asnumpy())
print(ops.mul(x, ops.sigmoid(x)).asnumpy().sum())
