"""A Custom with attributes by reg_info, and inference by the file."""

import os

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.ops import CustomRegOp, DataType

ms.set_device("CPU")


class Net(nn.Cell):
    def __init__(self, axis, keep):
        super().__init__()
        info = (
            CustomRegOp(f"Reduce{axis}{keep}")
            .input(0, "x")
            .output(0, "y")
            .attr("axis", "required", "int", value=axis)
            .attr("keep_dim", "required", "bool", value=keep)
            .dtype_format(DataType.F32_Default, DataType.F32_Default)
            .target("CPU")
            .get_op_info()
        )
        self.reduce = ops.Custom(os.environ["KERNELS"] + ":Reduce", None, None, "aot", reg_info=info)

    def construct(self, x):
        return self.reduce(x)


x = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
for axis in (0, 1):
    net = Net(axis, axis == 1)
    print(net(x).asnumpy(), net(x).shape)
