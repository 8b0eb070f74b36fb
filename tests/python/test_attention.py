"""Attention keeps no matrix of scores: what memory a call takes."""

import subprocess
import sys

import numpy as np
import opgraft
import pytest
from opgraft import Tensor, nn, ops

HEADS, DIM = 4, 64

# The process's peak, before a call and after it.
CALL = """
import resource, sys
import numpy as np
import opgraft
from opgraft import Tensor, ops

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

op, queries, keys, causal = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "causal"
rng = np.random.default_rng(0)
q, k, v = (Tensor(rng.standard_normal((1, h, n, 64), np.float32)) for h, n in ((4, queries), (2, keys), (2, keys)))
if op == "CachedAttention":
    args, attrs = (q, k, v, Tensor(np.array([keys], np.int32))), {}
else:
    args, attrs = (q, k, v), {"is_causal": causal}
ops.primitive(op, *(a[:, :, :1] if a.ndim == 4 else np.minimum(a.asnumpy(), 1) for a in args), **attrs)  # loads it
before = peak()
y = ops.primitive(op, *args, **attrs).asnumpy()
assert y.shape == (1, 4, queries, 64) and np.isfinite(y).all()
print(peak() - before)
"""


class Attention(nn.Cell):
    def __init__(self, causal):
        super().__init__()
        self.causal = causal

    def construct(self, q, k, v):
        return ops.primitive("ScaledDotProductAttention", q, k, v, is_causal=self.causal)


@pytest.mark.parametrize("op,queries,keys,form", [
    ("ScaledDotProductAttention", 4096, 4096, "full"),
    ("ScaledDotProductAttention", 4096, 4096, "causal"),
    ("CachedAttention", 4096, 4096, "causal"),
    ("CachedAttention", 1, 500_000, "causal"),
    ("ScaledDotProductAttention", 1, 500_000, "full"),
])  # fmt: skip
def test_a_call_takes_no_memory_for_scores(op, queries, keys, form):
    command = [sys.executable, "-c", CALL, op, str(queries), str(keys), form]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    taken = int(done.stdout)
    result = HEADS * queries * DIM * 4
    packed = 2 * 2 * keys * DIM * 4 if queries > 1 else 0  # keys and values, where many queries read them
    scores = HEADS * queries * keys * 4
    # Twice the result, which is copied out of its tensor; 4 MiB for threads' stacks and tables.
    limit = 2 * result + packed + (4 << 20)
    assert taken <= limit < scores, f"{taken} bytes, scores are {scores}"


@pytest.mark.parametrize("causal", [False, True])
def test_the_plan_grows_with_the_length_not_its_square(causal):
    opgraft.set_context(mode=opgraft.GRAPH_MODE)

    def arena(n):
        x = [np.zeros((1, HEADS, n, DIM), np.float32)] * 3
        session = Attention(causal).session(*map(Tensor, x))
        session.run(x)
        return session.arena_bytes

    # Of keys and values, packed for the products.
    assert [arena(n) for n in (256, 512, 1024)] == [2 * HEADS * n * DIM * 4 for n in (256, 512, 1024)]
