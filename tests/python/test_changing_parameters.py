"""A Parameter that something else updates is read anew at every call, whatever was computed, packed or traced of it
before."""

import numpy as np
import opgraft
import pytest
from compare import U, normal
from opgraft import Parameter, Tensor, nn, ops

READERS = {
    "add": (lambda x, p: x + p, lambda x, p: x + p),
    "matmul": (lambda x, p: ops.matmul(x, p), lambda x, p: x @ p),
    "matmul of its transpose": (lambda x, p: ops.matmul(x, ops.transpose(p, (1, 0))), lambda x, p: x @ p.T),
    "transpose": (lambda x, p: x * 0.0 + ops.transpose(p, (1, 0)), lambda x, p: 0 * x + p.T),
    "reshape": (lambda x, p: x + ops.reshape(ops.reshape(p, (-1,)), (16, 16)), lambda x, p: x + p),
    "exp": (lambda x, p: x + ops.exp(p), lambda x, p: x + np.exp(p)),
    "number": (lambda x, p: x * p[0, 0], lambda x, p: x * p[0, 0]),
}


class Reads(nn.Cell):
    def __init__(self, parameter, f):
        super().__init__()
        self.p, self.f = parameter, f

    def construct(self, x):
        return self.f(x, self.p)


class Updates(nn.Cell):
    def __init__(self, parameter):
        super().__init__()
        self.p = parameter

    def construct(self, x):
        return ops.assign(self.p, x) * 1.0


@pytest.fixture
def graph_mode():
    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    yield
    opgraft.set_context(mode=opgraft.PYNATIVE_MODE)


# A jit function updates Parameters that have names; a Cell's get one.
@pytest.mark.parametrize("how,name", [("eager", "p"), ("eager", ""), ("jit", "p"), ("cell", "p"), ("cell", ""),
                                      ("set_data", "p"), ("set_data", "")])  # fmt: skip
def test_what_reads_it_sees_each_update(how, name, graph_mode):
    p = Parameter(normal(16, 16), name=name)
    cell = Updates(p)
    update = {
        "eager": lambda v: ops.assign(p, v),
        "jit": opgraft.jit(lambda v: ops.assign(p, v) * 1.0),
        "cell": cell,
        "set_data": lambda v: p.set_data(v.asnumpy()),
    }[how]
    cells = {key: Reads(p, f) for key, (f, _) in READERS.items()}
    functions = {key: opgraft.jit(lambda x, f=f: f(x, p)) for key, (f, _) in READERS.items()}
    x = normal(16, 16, seed=1)
    for seed in range(2, 6):
        for key, (_, formula) in READERS.items():
            now, wide = p.asnumpy().astype(np.float64), x.astype(np.float64)
            want, size = formula(wide, now), formula(np.abs(wide), np.abs(now))
            for reader in (cells[key], functions[key]):
                # Sums of 16 products; exp is off by 2.
                assert (np.abs(reader(Tensor(x)).asnumpy() - want) <= 20 * U * size).all(), (key, seed)
        update(Tensor(normal(16, 16, seed=seed)))
