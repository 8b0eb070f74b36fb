"""MindSpore, graph mode. With any runtime_num_threads its caller, an actor and a thread for kernels work in turn."""

import mindspore
import ml_dtypes
import numpy as np

from . import Missing, as_list

WARM = True


def VERSION():
    return mindspore.__version__


def tensor(a):
    if a.dtype == ml_dtypes.bfloat16:
        return mindspore.Tensor(a.astype(np.float32)).astype(mindspore.bfloat16)
    return mindspore.Tensor(a)


def build(row, inputs, weights, threads, mode=mindspore.GRAPH_MODE):
    if row.mindspore is None:
        raise Missing(row.missing.get("mindspore", "no MindSpore form"))
    mindspore.set_context(mode=mode, device_target="CPU", runtime_num_threads=threads)
    mindspore.runtime.launch_blocking()
    function = row.mindspore(mindspore)

    class Net(mindspore.nn.Cell):
        def construct(self, *x):
            return function(*x)

    net = Net().set_train(False)
    held = [tensor(a) for a in weights]
    if "mindspore" in row.prepare:
        held = row.prepare["mindspore"](mindspore, *held)
    given = [*map(tensor, inputs), *held]
    if mode == mindspore.GRAPH_MODE:
        net.compile(*given)
    last = []

    def run():
        last[:] = as_list(net(*given))
        for t in last:
            t.asnumpy() if t.dtype != mindspore.bfloat16 else mindspore.runtime.synchronize()

    def fetch():
        return [(t.astype(mindspore.float32) if t.dtype == mindspore.bfloat16 else t).asnumpy() for t in last]

    return run, fetch
