"""What tests of operators made for MindSpore share: their sources compiled, and a Cell around one."""

import os
import pathlib

import numpy as np
import opgraft
import pytest
from opgraft import Tensor, nn, ops
from opgraft.compile import compile_source

SOURCES = pathlib.Path(__file__).resolve().parents[1] / "custom_ops"
x = np.arange(6, dtype=np.float32).reshape(2, 3)


def so(name):
    return compile_source(SOURCES / f"{name}.cc")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """For a module that imports it: what its tests compile lies in a folder of its own."""
    before = os.environ.get("OPGRAFT_CACHE")
    os.environ["OPGRAFT_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    os.environ.pop("OPGRAFT_CACHE")
    if before is not None:
        os.environ["OPGRAFT_CACHE"] = before


# Without MindSpore's header, whose classes opgraft's copy of it refuses to lay out otherwise.
TAKES_VECTORS = """#include <cstdint>
#include <vector>
extern "C" std::vector<int64_t> OpInferShape(int *n, int64_t **s, void *) { return {s[0], s[0] + n[0]}; }
extern "C" int OpInferType(std::vector<int> types, void *) { return types[0]; }
extern "C" int Op(int, void **params, int *, int64_t **, const char **, void *, void *) {
  for (int i = 0; i < 6; ++i) static_cast<float *>(params[1])[i] = 2 * static_cast<float *>(params[0])[i];
  return 0;
}
"""


class Net(nn.Cell):
    def __init__(self, custom):
        super().__init__()
        self.custom = custom

    def construct(self, a):
        return ops.add(self.custom(ops.add(a, a)), a)


def graph_mode(net, value):
    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    return net(Tensor(value)).asnumpy()
