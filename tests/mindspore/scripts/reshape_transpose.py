"""Shapes through ops and methods."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

ms.set_device("CPU")
x = Tensor(np.arange(24, dtype=np.float32).reshape(2, 3, 4))
print(ops.reshape(x, (4, 6)).asnumpy(), ops.transpose(x, (2, 0, 1)).shape)
print(ops.expand_dims(x, 1).shape, ops.squeeze(ops.expand_dims(x, 0), 0).shape)
print(
    ops.concat((x, x), 1).shape,
    ops.tile(x, (1, 2, 1)).shape,
    ops.broadcast_to(Tensor(np.ones((1, 3), np.float32)), (2, 3)).asnumpy(),
)
print(ops.split(x, 2, 2)[1].asnumpy(), ops.gather(x, Tensor(np.array([1, 0], np.int32)), 1).asnumpy())
for part in (*ops.split(x, 3, 2), *ops.split(x, [1, 3], 2), *x.split(1)):
    print(part.shape, part.asnumpy())
print(
    ops.sum(x, -1, True).asnumpy(),
    x.sum(0).asnumpy(),
    x.sum(axis=(0, 2), keepdims=True).asnumpy(),
    ops.sum(x).asnumpy(),
)
