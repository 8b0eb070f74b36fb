"""Results that go past the caches are the same bits. Where they do is said in aot_ops/common/streams.h; caches of a few
bytes send all float32 results there that no operator reads, on the processors that do so at all. Here at any size and
in place; tests/cpp/streams_test.cc has large ones, and what lies beside them."""

import os
import subprocess
import sys

CALLS = """
import hashlib, numpy as np, opgraft
from opgraft import _core
opgraft.set_context(mode=opgraft.GRAPH_MODE)
rng = np.random.default_rng(0)
def a(*shape):  # begins at any element
    return placed(shape, np.float32)
def placed(shape, dtype):
    n = int(np.prod(shape))
    return (9 * rng.standard_normal(n + 5, np.float32)).astype(dtype)[rng.integers(5):][:n].reshape(shape)
def at_line(shape, dtype):  # whole vectors may go past the caches from the first element on
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.full(size + 64, 77, np.uint8)
    begin = -memory.ctypes.data % 64
    return memory[begin : begin + size].view(dtype).reshape(shape)
class One(opgraft.nn.Cell):
    def __init__(self, op, attrs):
        super().__init__()
        self.op, self.attrs = op, attrs
    def construct(self, *x):
        return opgraft.ops.primitive(self.op, *x, **self.attrs)
def run(op, *inputs, **attrs):
    made = _core.run_op(_core.resolve(op), inputs, attrs)
    session = One(op, attrs).session(*map(opgraft.Tensor, inputs))
    for place in (placed, at_line):
        results = [place(m.shape, m.dtype) for m in made]
        session.run_into(inputs, results)  # results that leave a graph
        for m, p in zip(made, results):
            assert (m == p).all(), op
    for m in made:
        print(op, hashlib.sha256(m.tobytes()).hexdigest())
for n in (1, 15, 70_001, 300_000):
    for op in ("Add", "Sub", "Mul", "Div", "Maximum", "Minimum", "SwiGLU"):
        run(op, a(n), a(n))
    run("Add", a(n), a(1))
    run("SwiGLUInterleaved", a(2 * n))
    for op in ("ReLU", "ReLU6", "SiLU", "Exp", "Neg", "FusedGeLU"):
        run(op, a(n))
    run("FusedGeLU", a(n), approximate="tanh")
for dtype in (np.float32, np.float16, np.int8, np.int64):
    for shape, perm in (((30, 7, 640), (1, 0, 2)), ((30, 7, 641), (1, 0, 2)), ((3, 192, 128), (0, 2, 1)),
                        ((3, 192, 131), (0, 2, 1)), ((3, 190, 64), (0, 2, 1)), ((5, 64, 3, 64), (2, 0, 3, 1))):
        run("Transpose", placed(shape, dtype), perm=perm)
for n in (64, 1001):
    run("FusedRmsNorm", a(50, n), a(n))
    run("FusedLayerNorm", a(50, n), a(n), a(n))
    for dtype in ("float32", "float16"):
        run("AntiQuant", placed((50, n), np.int8), a(n), a(n), dtype=dtype)
        for relu in (False, True):
            run("Dequant", placed((50, n), np.int32), a(n), dtype=dtype, relu_flag=relu)
run("Mul", a(50, 3001), a(3001))
run("Swiglu", a(30, 4002), dim=-1)
run("Sub", a(50, 1), a(50, 3001))
x = a(70_000)
_core.run_into(_core.resolve("Add"), [x, x], [x], {})  # in place
print(hashlib.sha256(x.tobytes()).hexdigest())
"""


def printed(**env):
    done = subprocess.run([sys.executable, "-c", CALLS], env=os.environ | env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_results_that_go_past_the_caches_are_the_same_bits():
    usual = printed()
    assert len(usual.splitlines()) > 60
    assert printed(OPGRAFT_CACHES="32768,16,1048576") == usual
