"""Convolutional networks as a MindSpore user writes them."""

import numpy as np
from mindspore import Parameter, Tensor, nn, ops


def settled(net, seed=3):
    """Parameters as after training: moving statistics that are not 0 and 1. In inference."""
    rng = np.random.default_rng(seed)
    for p in net.get_parameters():
        if p.name.endswith("moving_variance"):
            p.set_data(Tensor(rng.uniform(0.5, 2.0, p.shape).astype(np.float32)))
        elif p.name.endswith(("moving_mean", "beta", "gamma")):
            p.set_data(Tensor(rng.normal(float(p.name.endswith("gamma")), 0.2, p.shape).astype(np.float32)))
    return net.set_train(False)


class Bottleneck(nn.Cell):
    """He et al. 2016, the stride in the 3 x 3 convolution; the downsample branch where shapes change."""

    def __init__(self, inside, width, stride=1):
        super().__init__()
        out = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(inside, width, 1), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, pad_mode="pad", padding=1)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, out, 1), nn.BatchNorm2d(out)
        self.relu, self.downsample = nn.ReLU(), None
        if stride > 1 or inside != out:
            self.downsample = nn.SequentialCell(nn.Conv2d(inside, out, 1, stride), nn.BatchNorm2d(out))

    def construct(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn3(self.conv3(self.relu(self.bn2(self.conv2(y)))))
        if self.downsample is not None:
            x = self.downsample(x)
        return self.relu(y + x)


class ResNet(nn.Cell):
    def __init__(self):
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, 16, 7, 2, pad_mode="pad", padding=3), nn.BatchNorm2d(16)
        self.relu, self.pool = nn.ReLU(), nn.MaxPool2d(3, 2, pad_mode="same")
        self.blocks = nn.SequentialCell(Bottleneck(16, 8, 2), Bottleneck(32, 8))
        self.mean, self.flatten, self.head = nn.AvgPool2d(4), nn.Flatten(), nn.Dense(32, 5)
        settled(self)

    def construct(self, x):
        x = self.blocks(self.pool(self.relu(self.bn(self.stem(x)))))
        return self.head(self.flatten(self.mean(x)))


class PadPools(nn.Cell):
    """Pools with given padding, which MindSpore exports as three-dimensional ones."""

    def __init__(self):
        super().__init__()
        self.conv, self.relu = nn.Conv2d(3, 8, 3, has_bias=True), nn.ReLU()
        self.largest, self.mean = nn.MaxPool2d(3, 2, "pad", 1), nn.AvgPool2d(3, 2, "pad", 1, count_include_pad=False)

    def construct(self, x):
        return self.mean(self.largest(self.relu(self.conv(x))))


class InvertedResidual(nn.Cell):
    """Sandler et al. 2018: expand, depthwise, project without an activation."""

    def __init__(self, inside, out, stride):
        super().__init__()
        width, self.add = 6 * inside, stride == 1 and inside == out
        self.layers = nn.SequentialCell(
            nn.Conv2d(inside, width, 1), nn.BatchNorm2d(width), nn.ReLU6(),
            nn.Conv2d(width, width, 3, stride, group=width), nn.BatchNorm2d(width), nn.ReLU6(),
            nn.Conv2d(width, out, 1), nn.BatchNorm2d(out),
        )  # fmt: skip

    def construct(self, x):
        return x + self.layers(x) if self.add else self.layers(x)


class MobileNet(nn.Cell):
    def __init__(self):
        super().__init__()
        self.stem, self.relu6 = nn.Conv2d(3, 8, 3, 2, has_bias=True), nn.ReLU6()
        self.blocks = nn.SequentialCell(InvertedResidual(8, 8, 1), InvertedResidual(8, 12, 2))
        settled(self)

    def construct(self, x):
        return self.blocks(self.relu6(self.stem(x)))


class Spelled(nn.Cell):
    """What follows a convolution as exporters write it: a bias before BatchNorm, scale and shift that broadcast, clips;
    then the colours of sepia."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, has_bias=True), nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 3, 1, pad_mode="valid")
        rng = np.random.default_rng(4)
        self.scale, self.shift = (Parameter(Tensor(rng.normal(1, 0.2, (1, 3, 1, 1)).astype(np.float32)), name=n)
                                  for n in ("scale", "shift"))  # fmt: skip
        matrix = np.array([[0.393, 0.769, 0.189], [0.349, 0.686, 0.168], [0.272, 0.534, 0.131]], np.float32)
        self.colours = nn.Conv2d(3, 3, 1, pad_mode="valid", weight_init=Tensor(matrix.reshape(3, 3, 1, 1)))
        settled(self)

    def construct(self, x):
        y = ops.minimum(ops.maximum(self.norm(self.first(x)), 0.0), 6.0)
        y = ops.maximum(self.second(y) * self.scale + self.shift, 0.0)
        return ops.minimum(self.colours(y), 1.0)
