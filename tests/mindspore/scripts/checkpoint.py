"""Weights saved and loaded."""

import os
import tempfile

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

ms.set_device("CPU")
net, other = nn.Dense(4, 3), nn.Dense(4, 3)
rng = np.random.default_rng(1)
for p in net.get_parameters():
    p.set_data(Tensor(rng.standard_normal(p.shape).astype(np.float32)))
x = Tensor(np.ones((2, 4), np.float32))
with tempfile.TemporaryDirectory() as folder:
    file = os.path.join(folder, "net.safetensors")
    ms.save_checkpoint(net, file, format="safetensors")
    weights = ms.load_checkpoint(file, format="safetensors")
    print(sorted(weights))
    print(ms.load_param_into_net(other, weights))
    file = os.path.join(folder, "net.ckpt")
    ms.save_checkpoint(net, file, append_dict={"epoch": 3, "rate": 0.5, "note": "a text"}, crc_check=True)
    more = ms.load_checkpoint(file, crc_check=True)
    print(sorted(more), more["note"], more["epoch"].asnumpy(), more["rate"].asnumpy())
    ms.save_checkpoint([{"name": "bias", "data": net.bias}], file)
    alone = ms.load_checkpoint(file)
    print({name: p.shape for name, p in alone.items()}, alone["bias"].asnumpy())
print(np.array_equal(net(x).asnumpy(), other(x).asnumpy()), other(x).asnumpy())
