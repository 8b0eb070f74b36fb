"""Tensor and Parameter: arithmetic, comparison, slicing, shapes."""

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor

ms.set_device("CPU")
x = Tensor(np.arange(12, dtype=np.float32).reshape(3, 4))
w = Parameter(Tensor(np.ones((4,), np.float32) * 0.5), name="w")
print((x * w + 1).asnumpy())
print((x - 2.0).asnumpy(), (1.0 / (x + 1)).asnumpy())
print(x[1].asnumpy(), x[:, 1:3].asnumpy(), x[..., -1].asnumpy(), x[0, 2].asnumpy())
print(x.shape, x.dtype == ms.float32, w.name, x.ndim, x.size)
print((x > 4).asnumpy().sum(), x.reshape(2, 6).asnumpy(), x.transpose(1, 0).asnumpy())
print(x.sum().asnumpy(), x.mean(0).asnumpy(), x.astype(ms.int32).asnumpy())
