"""jit of a function and of a method."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

ms.set_device("CPU")


@ms.jit
def f(x, y):
    return ops.tanh(x) * y + ops.exp(-x)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.act = nn.ReLU()

    @ms.jit
    def construct(self, x):
        return self.act(x - 1) + x


for n in (2, 3):
    x = Tensor(np.linspace(-1, 2, n, dtype=np.float32))
    print(f(x, x).asnumpy(), Net()(x).asnumpy())
