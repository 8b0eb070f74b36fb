"""Slices in a Cell, in both modes."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

ms.set_device("CPU")


class Net(nn.Cell):
    def construct(self, x):
        return x[0], x[1:, ::2], x[..., 1], x[:, None, 2:4], x[-1:, :-1]


x = Tensor(np.arange(20, dtype=np.float32).reshape(4, 5))
for mode in (ms.PYNATIVE_MODE, ms.GRAPH_MODE):
    ms.set_context(mode=mode)
    for y in Net()(x):
        print(y.shape, y.asnumpy())
