"""set_inputs, and a model file with an open dimension."""

import os
import tempfile

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

ms.set_device("CPU")
ms.set_context(mode=ms.GRAPH_MODE)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(4, 2)

    def construct(self, x):
        return ops.softmax(self.dense(x), -1)


net = Net()
rng = np.random.default_rng(2)
for p in net.get_parameters():
    p.set_data(Tensor(rng.standard_normal(p.shape).astype(np.float32)))
net.set_inputs(Tensor(shape=[None, 4], dtype=ms.float32))
xs = [Tensor(rng.standard_normal((n, 4)).astype(np.float32)) for n in (1, 3, 5)]
for x in xs:
    print(net(x).asnumpy())
with tempfile.TemporaryDirectory() as folder:
    ms.export(
        net, Tensor(shape=[None, 4], dtype=ms.float32), file_name=os.path.join(folder, "net"), file_format="MINDIR"
    )
    loaded = nn.GraphCell(ms.load(os.path.join(folder, "net.mindir")))
    for x in xs:
        print(loaded(x).asnumpy())
