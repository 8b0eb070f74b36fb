"""ConvNeXt's norm over channels, of models that MindSpore exported."""

import mindspore as ms
import numpy as np
import pytest
from helpers import close, normal, taken
from mindspore import Parameter, Tensor, nn, ops

C = 24


class ConvNeXt(nn.Cell):
    """As its authors have it; between transposes as timm has it."""

    def __init__(self):
        super().__init__()
        self.gamma, self.beta = Parameter(Tensor(normal(C, 1, 1, seed=1))), Parameter(Tensor(normal(C, 1, 1, seed=2)))

    def construct(self, x):
        u = x.mean(1, keep_dims=True)
        s = (x - u).pow(2).mean(1, keep_dims=True)
        return self.gamma * ((x - u) / ops.sqrt(s + 1e-6)) + self.beta


class Transposed(nn.Cell):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm((C,), epsilon=1e-6)

    def construct(self, x):
        return self.norm(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


@pytest.mark.parametrize("net", [ConvNeXt, Transposed])
@pytest.mark.parametrize("shape", [(2, C, 5, 7), (1, C, 1, 1)])
def test_norms_of_channels(net, shape, tmp_path):
    want, got, attrs = taken(net(), [normal(*shape)], tmp_path, "LayerNorm2d")
    assert attrs["epsilon"] == pytest.approx(1e-6)
    close(got, want)


def test_half_types_in_float32(tmp_path):
    class Net(ConvNeXt):
        def construct(self, x):
            y = x.astype(ms.float32)
            u = y.mean(1, keep_dims=True)
            s = (y - u).pow(2).mean(1, keep_dims=True)
            return (self.gamma * ((y - u) / ops.sqrt(s + 1e-6)) + self.beta).astype(ms.float16)

    want, got, _ = taken(Net(), [normal(2, C, 5, 7).astype(np.float16)], tmp_path, "LayerNorm2d")
    assert (np.abs(got.astype(np.float64) - want) <= 2.0**-10 * np.abs(want) + 2.0**-20).all()
