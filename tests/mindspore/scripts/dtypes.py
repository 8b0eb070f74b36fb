"""Casts and half types."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

ms.set_device("CPU")
x = Tensor(np.array([-2.5, -0.5, 0.0, 1.25, 3.75], np.float32))
for dtype in (ms.float16, ms.int32, ms.int64, ms.bool_, ms.int8):
    y = ops.cast(x, dtype)
    print(y.dtype == dtype, y.asnumpy())
print(ops.cast(ops.cast(x, ms.bfloat16) + 1, ms.float32).asnumpy())
print(ops.select(x > 0, x, -x).asnumpy(), ops.maximum(x, Tensor(np.float32(0))).asnumpy(), ops.equal(x, 0.0).asnumpy())
