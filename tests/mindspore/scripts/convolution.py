"""Conv2d, BatchNorm2d, ReLU, MaxPool2d and Flatten: an image classifier, with a depthwise block."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

ms.set_device("CPU")


class Block(nn.Cell):
    def __init__(self, inside, outside, stride, group=1):
        super().__init__()
        self.conv = nn.Conv2d(inside, outside, 3, stride, pad_mode="same", group=group)
        self.norm = nn.BatchNorm2d(outside, eps=1e-3)
        self.act = nn.ReLU6() if group > 1 else nn.ReLU()

    def construct(self, x):
        return self.act(self.norm(self.conv(x)))


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 5, 2, pad_mode="pad", padding=(2, 1, 0, 3), has_bias=True)
        self.pool = nn.MaxPool2d(3, 2, pad_mode="same")
        self.blocks = nn.SequentialCell(Block(8, 8, 1, group=8), Block(8, 12, 2), nn.MaxPool2d((2, 1), 1))
        self.valid = nn.Conv2d(12, 6, (1, 3), pad_mode="valid", dilation=(1, 2), group=3)
        self.mean = nn.AvgPool2d(2, 1, pad_mode="same")
        self.flatten = nn.Flatten()
        self.head = nn.Dense(54, 4)

    def construct(self, x):
        x = self.blocks(self.pool(self.first(x)))
        return self.head(self.flatten(self.mean(self.valid(x))))


net = Net()
net.set_train(False)
rng = np.random.default_rng(0)
for p in net.get_parameters():
    value = rng.standard_normal(p.shape).astype(np.float32) * 0.4
    p.set_data(Tensor(np.abs(value) + np.float32(0.5) if p.name.endswith("moving_variance") else value))
x = Tensor(rng.standard_normal((2, 3, 32, 57)).astype(np.float32))
for mode in (ms.PYNATIVE_MODE, ms.GRAPH_MODE):
    ms.set_context(mode=mode)
    print(net(x).shape, net(x).asnumpy())
print([(p.name, p.shape, p.requires_grad) for p in net.get_parameters()])
print([p.name for p in net.trainable_params()])
ms.set_context(mode=ms.PYNATIVE_MODE)
y, kernel = Tensor(rng.standard_normal((1, 2, 6, 7)).astype(np.float32)), rng.standard_normal((4, 1, 3, 3))
kernel = Tensor(kernel.astype(np.float32))
print(ops.Conv2D(4, 3, pad_mode="same", stride=2, group=2)(y, kernel).asnumpy())
print(ops.conv2d(y, kernel, padding=1, pad_mode="pad", groups=2).asnumpy()[0, 0])
print(ops.MaxPool(2, 2)(y).asnumpy(), ops.AvgPool((2, 3), 2, "same")(y).asnumpy())
print(ops.ReLU6()(y * 9).asnumpy()[0, 0], ops.Flatten()(y).shape, ops.flatten(y, start_dim=2).shape)
print(nn.MaxPool2d(2)(y[0]).shape, nn.Flatten(0, 1)(y).shape)
padded = nn.MaxPool2d((3, 2), 2, "pad", 1, (1, 2), return_indices=True, ceil_mode=True)(y)
print([t.shape for t in padded], padded[0].asnumpy()[0, 0], padded[1].asnumpy()[0, 1])
for include, divisor in ((True, None), (False, None), (True, 7)):
    print(nn.AvgPool2d((3, 2), (2, 3), "pad", (1, 0), True, include, divisor)(y).asnumpy()[0, 1])
ones = Tensor(np.ones(2, np.float32))
print(ops.BatchNorm(epsilon=1e-3)(y, ones, ones, ones, ones)[0].asnumpy()[0, 1])


def refused(make, *args, **kwargs):
    try:
        make(*args, **kwargs)
    except (TypeError, ValueError) as e:
        print(make.__name__, args, kwargs, type(e).__name__)


for kwargs in (
    {"padding": 1}, {"pad_mode": "full"}, {"pad_mode": "pad", "padding": (1, 2)}, {"pad_mode": "pad", "padding": -1},
    {"group": 2}, {"data_format": "NCDHW"}, {"stride": 1.5}, {"stride": 0}, {"has_bias": 1}, {"dilation": (0, 1)},
):  # fmt: skip
    refused(nn.Conv2d, 3, 4, 3, **kwargs)
refused(nn.BatchNorm2d, 0)
refused(nn.BatchNorm2d, 3, momentum=1.5)
refused(nn.BatchNorm2d, 3, data_format="NCDHW")
refused(nn.MaxPool2d, 0)
refused(nn.MaxPool2d, 2, pad_mode="full")
refused(nn.MaxPool2d, 2, padding=1)
refused(nn.MaxPool2d, 2, pad_mode="pad", padding=(1, 1, 1))
refused(nn.AvgPool2d, 2, pad_mode="pad", divisor_override=0)
refused(nn.AvgPool2d, 2, data_format="NCDHW")
refused(nn.AvgPool2d, 2, pad_mode="pad", data_format="NHWC")
