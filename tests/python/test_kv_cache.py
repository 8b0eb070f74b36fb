"""KVCacheAppend: what it writes and what it leaves, and the session that owns the caches."""

import numpy as np
import opgraft
import pytest
from opgraft import Parameter, Tensor, _core, nn, ops

RNG = np.random.default_rng(0)


def normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("positions", [[3, 4], [[3, 4], [0, 1]]], ids=["shared", "each"])
def test_rows_are_written_and_no_others(dtype, positions):
    dtype = opgraft.dtype.to_dtype(dtype, "dtype")
    k, v = normal(2, 3, 6, 4).astype(dtype), normal(2, 3, 6, 5).astype(dtype)
    key, value = normal(2, 3, 2, 4).astype(dtype), normal(2, 3, 2, 5).astype(dtype)
    want_k, want_v = k.copy(), v.copy()
    for b, (first, _) in enumerate(np.broadcast_to(positions, (2, 2))):
        want_k[b, :, first : first + 2], want_v[b, :, first : first + 2] = key[b], value[b]
    lengths = ops.kv_cache_append(*map(Tensor, (k, v, key, value, np.array(positions, np.int32))))
    np.testing.assert_array_equal(lengths.asnumpy(), np.broadcast_to(positions, (2, 2))[:, 1] + 1)
    assert k.tobytes() == want_k.tobytes() and v.tobytes() == want_v.tobytes()


@pytest.mark.parametrize("positions,error", [
    ([5, 6], r"position_ids must be in \[0, 6\), got 5 to 6"),
    ([-1, 0], r"position_ids must be in \[0, 6\), got -1 to 0"),
    ([2, 2], "position_ids must count on by 1, got 2 at 1 after 2"),
    ([2**31 - 1, -(2**31)], "position_ids must count on by 1"),
])  # fmt: skip
def test_what_does_not_fit_is_refused_and_nothing_is_written(positions, error):
    k, v, new = normal(1, 2, 6, 4), normal(1, 2, 6, 4), normal(1, 2, 2, 4)
    before = k.tobytes() + v.tobytes()
    with pytest.raises(ValueError, match=f"KVCacheAppend: {error}"):
        ops.kv_cache_append(*map(Tensor, (k, v, new, new, np.array(positions, np.int32))))
    assert k.tobytes() + v.tobytes() == before


class Attention(nn.Cell):
    """Attention of new tokens over caches of 64 rows; the caches are Parameters."""

    def __init__(self):
        super().__init__()
        self.k, self.v = (Parameter(np.zeros((1, 3, 64, 8), np.float32)) for _ in range(2))
        rows = opgraft.dim("rows")
        new = Tensor(shape=[1, 3, rows, 8], dtype=opgraft.float32)
        self.set_inputs(new, new, new, Tensor(shape=[rows], dtype=opgraft.int32))

    def construct(self, q, k, v, position_ids):
        return ops.cached_attention(q, self.k, self.v, ops.kv_cache_append(self.k, self.v, k, v, position_ids))


Q, K, V = (normal(1, 3, 64, 8) for _ in range(3))


def want(end):
    """Causal attention of the first `end` tokens, in float64."""
    q, k, v = (x[:, :, :end].astype(np.float64) for x in (Q, K, V))
    scores = np.where(np.tri(end, dtype=bool), q @ k.swapaxes(-1, -2) * 8**-0.5, -np.inf)
    w = np.exp(scores - scores.max(-1, keepdims=True))
    return w / w.sum(-1, keepdims=True) @ v


def step(run, begin, end):
    rows = [np.ascontiguousarray(x[:, :, begin:end]) for x in (Q, K, V)]
    y = run([*rows, np.arange(begin, end, dtype=np.int32)])
    return y[0] if isinstance(y, list) else y.asnumpy()


# A score rounds about 8 times, a weight 5 and its sum 64 times at 2^-24; values up to 4.
CLOSE = {"rtol": 0, "atol": 2.0**-24 * (2 * 8 * 8 + 80) * 4}


def test_steps_over_a_cache_are_one_prefill():
    graph = opgraft.nn.GraphCell(_traced())
    session = graph._whole.session
    parts = [
        step(session.run, *range_)
        for range_ in [(0, 10), (10, 11), (11, 12), (12, 30), *((i, i + 1) for i in range(30, 64))]
    ]
    np.testing.assert_allclose(np.concatenate(parts, 2), want(64), **CLOSE)
    assert graph._whole.model.stats["plans_made"] == 3, "one for each number of new tokens, none for the length"


def _traced():
    cell = Attention()
    leaves, structure = cell._declared
    return cell._trace([(t.dtype, t.shape) for t in leaves], structure)[0]


def test_a_cell_updates_its_parameters(tmp_path):
    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    cell = Attention()
    step(lambda x: cell(*x), 0, 4)
    np.testing.assert_array_equal(cell.k.asnumpy()[:, :, :4], K[:, :, :4])
    assert not cell.k.asnumpy()[:, :, 4:].any()
    got = step(lambda x: cell(*x), 4, 5)
    np.testing.assert_allclose(got, want(5)[:, :, 4:], **CLOSE)


def test_the_file_keeps_the_state_a_parameter(tmp_path):
    file = opgraft.export(Attention(), file_name=tmp_path / "attention")
    graph = opgraft.load(file)
    model = _core.Model(graph)
    a, b = _core.Session(model), _core.Session(model)
    step(a.run, 0, 9)
    np.testing.assert_allclose(step(b.run, 0, 3), want(3), **CLOSE)
    fork = a.fork()
    for session in (a, fork):
        np.testing.assert_allclose(step(session.run, 9, 10), want(10)[:, :, 9:], **CLOSE)
    a.reset()
    np.testing.assert_allclose(step(a.run, 0, 2), want(2), **CLOSE)


def test_a_bound_in_bytes():
    model = _core.Model(_traced())
    session = _core.Session(model)
    model.limit_state(4 * 4096)
    step(session.run, 0, 1)  # two caches; three heads of 2 KiB lie on two pages each
    used = model.state_bytes
    assert used == session.state_bytes == 4 * 4096
    other = _core.Session(model)
    with pytest.raises(MemoryError, match="KVCacheAppend: the state has reached its bound"):
        step(other.run, 0, 64)
    assert model.state_bytes == used
    model.limit_state(1 << 20)
    with pytest.raises(ValueError, match="reset"):
        step(other.run, 0, 1)
    other.reset()
    np.testing.assert_allclose(step(other.run, 0, 2), want(2), **CLOSE)
