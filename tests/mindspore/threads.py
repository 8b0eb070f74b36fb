"""Runs a graph of two Customs of at_work, neither of which needs the other, in MindSpore, for half a second:
threads.py FILE.so MINDSPORE'S_THREADS ACTORS
Prints as JSON what threads_at_work of at_work.cc says, how many workers the pool has, and how long these ran, in
seconds.
"""

import ctypes
import json
import pathlib
import sys
import time

import mindspore as ms
import numpy as np
import opgraft
import opgraft.mindspore


def workers():
    """Nanoseconds that each of the pool's threads ran."""
    tasks = pathlib.Path("/proc/self/task").iterdir()
    return [
        int((t / "schedstat").read_text().split()[0]) for t in tasks if (t / "comm").read_text().strip() == "opgraft"
    ]


class Two(ms.nn.Cell):
    def __init__(self):
        super().__init__()
        self.one, self.other = (opgraft.mindspore.custom("AtWork", microseconds=us) for us in (60, 90))

    def construct(self, x):
        return self.one(x) + self.other(x)


def main(so, threads, actors):
    opgraft._core.load(so)
    ms.set_device("CPU")
    ms.set_context(mode=ms.GRAPH_MODE, runtime_num_threads=int(threads), inter_op_parallel_num=int(actors))
    net, x = Two(), ms.Tensor(np.arange(6, dtype=np.float32))
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        np.testing.assert_array_equal(net(x).asnumpy(), 2 * x.asnumpy())
    said = [ctypes.c_int() for _ in range(3)]
    ctypes.CDLL(so).threads_at_work(*map(ctypes.byref, said))
    together, chunks, beside = (n.value for n in said)
    ran = workers()
    print(json.dumps({"together": together, "chunks": chunks, "beside": beside, "workers": len(ran),
                      "ran": sum(ran) / 1e9}))  # fmt: skip


main(*sys.argv[1:])
