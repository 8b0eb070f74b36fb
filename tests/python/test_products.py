"""How products are cut: an open number of rows, of which every call picks its own tiles with the same packed weight,
threads, caches, SIMD targets."""

import io
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import opgraft
import pytest
from opgraft import Parameter, Tensor, _core, nn, ops

K, N = 2100, 70  # K is worked through in pieces where there are many rows


class Layer(nn.Cell):
    def __init__(self, weight):
        super().__init__()
        self.weight = Parameter(Tensor(weight))

    def construct(self, x):
        return ops.matmul(x, self.weight)


DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=lambda d: np.dtype(d).name)


def check(got, a, b):
    """aot_ops/matmul/cases.py derives the sum's error; then the result rounds to its type, half an ulp."""
    assert got.dtype == a.dtype
    half_ulp = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[got.dtype.name]
    got, a, b = (v.astype(np.float64) for v in (got, a, b))
    want, bound = a @ b, 8 * 2.0**-24 * np.sqrt(a.shape[-1] * (a**2 @ b**2) / 6)
    assert got.shape == want.shape
    assert (np.abs(got - want) <= bound + half_ulp * (np.abs(want) + bound)).all()


@DTYPES
def test_a_dynamic_number_of_rows(dtype):
    rng = np.random.default_rng(0)
    w = rng.standard_normal((K, N)).astype(dtype)
    net = Layer(w)
    net.set_inputs(Tensor(shape=[None, K], dtype=getattr(opgraft, np.dtype(dtype).name)))
    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    for rows in (1, 2, 5, 12, 13, 16, 17, 96, 97, 250, 0, 3):
        x = rng.standard_normal((rows, K)).astype(dtype)
        check(net(Tensor(x)).asnumpy(), x, w)


@DTYPES
@pytest.mark.parametrize("turned", [False, True])
def test_the_number_of_threads_changes_no_bit_of_a_product(turned, dtype):
    """Who copies A, each thread its blocks or all together, and how B is cut depend on it, and on the sizes: two blocks
    of rows and more, many rows of few columns, a whole stripe and less, matrices one after another, what fits the
    caches and what does not."""
    rng = np.random.default_rng(0)
    try:
        for batch, m, k, n in [
            ((), 97, 1024, 65),
            ((), 700, 97, 65),
            ((), 250, 333, 700),
            ((), 700, 513, 512),
            ((3,), 130, 201, 300),
        ]:
            a = rng.standard_normal((*batch, m, k)).astype(dtype)
            b = rng.standard_normal((*batch, k, n)).astype(dtype)
            given = [np.ascontiguousarray(np.swapaxes(a, -1, -2)) if turned else a, b]
            attrs = {"transpose_a": turned, "transpose_b": False}
            alone = None
            for threads in (1, 2, 3):  # more than there may be processors, too
                _core.set_threads(threads)
                for _ in range(2):
                    got = _core.run_op(_core.resolve("BatchMatMul" if batch else "MatMul"), given, attrs)[0]
                    alone = got if alone is None else alone
                    np.testing.assert_array_equal(got.astype(np.float32), alone.astype(np.float32))
            check(alone, a, b)
    finally:
        _core.set_threads(0)


CALLS = """
import io
import sys
import numpy as np
import opgraft
from opgraft import Tensor, _core, ops

rng = np.random.default_rng(0)
for m, k, n in [(97, 2100, 70), (30, 5000, 33), (200, 600, 300)]:
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
    whole = io.BytesIO()  # NumPy asks a pipe for its position
    np.save(whole, ops.matmul(Tensor(a), Tensor(b)).asnumpy())
    sys.stdout.buffer.write(whole.getvalue())
"""


def with_environment(**given):
    """The results of CALLS in a process of its own."""
    done = subprocess.run([sys.executable, "-c", CALLS], env={**os.environ, **given}, capture_output=True)
    return done.returncode, done.stdout, done.stderr.decode()


def test_tiles_of_other_caches_give_the_same_products():
    """OPGRAFT_CACHES: sums in other pieces, hence other last bits, and right ones."""
    found = {}
    for sizes in ("4096,16384,65536", "32768,262144,4194304", "49152,2097152,33554432"):
        code, out, text = with_environment(OPGRAFT_CACHES=sizes)
        assert code == 0, text
        stream, rng = io.BytesIO(out), np.random.default_rng(0)
        found[sizes] = []
        for m, k, n in [(97, 2100, 70), (30, 5000, 33), (200, 600, 300)]:
            a, b = (rng.standard_normal(s).astype(np.float32).astype(np.float64) for s in ((m, k), (k, n)))
            found[sizes].append(np.load(stream))
            bound = 8 * 2.0**-24 * np.sqrt(k * (a**2 @ b**2) / 6)
            assert (abs(found[sizes][-1] - a @ b) <= bound + 2.0**-24 * (abs(a @ b) + bound)).all()
    small, _, large = found.values()
    assert all((s != g).any() for s, g in zip(small, large)), "the same tiles"


@pytest.mark.parametrize("sizes", ["", "1,2", "1,2,3,4", "a,b,c", "0,1,1"])
def test_wrong_cache_sizes(sizes):
    code, _, text = with_environment(OPGRAFT_CACHES=sizes)
    assert code != 0 and f"OPGRAFT_CACHES must be three sizes in bytes, L1,L2,L3, got '{sizes}'" in text


def test_a_simd_target_that_there_is_not():
    code, _, text = with_environment(OPGRAFT_SIMD="avx2")
    assert code != 0 and "MatMul: OPGRAFT_SIMD must be one of SSE4, AVX2, AVX3, AMX, got 'avx2'" in text


def test_packed_weights_keep_their_type(tmp_path):
    """A bfloat16 weight is packed as bfloat16: half the bytes to read."""
    sizes, k = {}, K // 32 * 32  # whole tiles of AMX, which pads them
    for dtype in (np.float32, ml_dtypes.bfloat16):
        x = np.ones((1, k), dtype)
        file = opgraft.export(Layer(np.ones((k, N), dtype)), Tensor(x), file_name=tmp_path / np.dtype(dtype).name)
        model = _core.Model(_core.read_mindir(str(file)))
        _core.Session(model).run([x])
        sizes[np.dtype(dtype).name] = model.stats["packed_bytes"]
    assert sizes["bfloat16"] * 2 == sizes["float32"] > 0
