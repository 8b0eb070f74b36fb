"""A Custom with Python inference functions."""

import os

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

ms.set_device("CPU")


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.custom = ops.Custom(
            os.environ["KERNELS"] + ":Three", lambda a, b: (a, a, a), lambda a, b: (a, a, a), "aot"
        )

    def construct(self, a, b):
        s, d, p = self.custom(a, b)
        return s * 2, d, p


a, b = (Tensor(np.arange(k, k + 6, dtype=np.float32).reshape(2, 3)) for k in (0, 3))
for mode in (ms.PYNATIVE_MODE, ms.GRAPH_MODE):
    ms.set_context(mode=mode)
    for y in Net()(a, b):
        print(y.asnumpy())
