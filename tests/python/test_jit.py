"""jit and graph mode: when a function is traced again, and that what runs is what would run eagerly."""

import threading

import numpy as np
import opgraft
import pytest
from compare import TANH, close
from opgraft import Parameter, Tensor, jit, nn, ops


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


def counted(function):
    """A jit function and the list of (dtype, rank) it was traced with."""
    seen = []

    def inner(x, *rest):
        seen.append((str(x.dtype), len(x.shape)))
        return function(x, *rest)

    return jit(inner), seen


def test_traced_once_for_a_size_and_once_for_all_others():
    f, seen = counted(lambda x: ops.tanh(x) * x.shape[0])
    for n in (2, 2, 5, 3, 7, 2, 100):
        x = np.linspace(-1, 1, n, dtype=np.float32)
        close(f(x).asnumpy(), np.tanh(x, dtype=np.float64) * n, TANH + 1)
    assert len(seen) == 2


def test_traced_again_for_a_dtype_a_rank_and_a_constant():
    f, seen = counted(lambda x, k=1: x * k)
    for x in (ones(3), ones(3, dtype=np.float16), ones(3, 1), ones(3), ones(3, dtype=np.int64)):
        assert f(x).asnumpy().dtype == x.dtype
    assert seen == [("float32", 1), ("float16", 1), ("float32", 2), ("int64", 1)]
    assert f(ones(3), 2).asnumpy()[0] == 2 and f(ones(3, dtype=np.int64), 1.5).dtype == np.float32
    assert f(ones(3, dtype=np.int64), 1).dtype == np.int64  # 1, 1.0 and True are different constants
    assert f(ones(3, dtype=np.int64), 1.0).dtype == np.float32
    assert len(seen) == 8  # an argument left to its default is another signature


def test_several_inputs_and_sizes_that_go_together():
    f, seen = counted(lambda x, y: x + ops.mean(y, 0))
    for n, m in [(2, 3), (4, 5), (6, 6), (4, 3), (1, 7)]:
        got = f(ones(n, m), np.arange(8 * m, dtype=np.float32).reshape(8, m))
        # Sums of whole numbers, an eighth of one: exact.
        np.testing.assert_array_equal(got.asnumpy(), 1 + np.tile(np.arange(m) + 3.5 * m, (n, 1)))
    assert len(seen) == 2


def test_a_function_that_needs_numbers_is_traced_for_each():
    f, seen = counted(lambda x: sum((x[i] for i in range(x.shape[0])), start=Tensor(0.0)))
    for n in (2, 3, 4, 3):
        assert f(ones(n, 2)).asnumpy().tolist() == [n, n]
    concrete = [n for n, s in zip((2, 3, 4), seen) if s]
    assert concrete == [2, 3, 4] and len(seen) == 4  # one more for the attempt to leave the size open


def test_methods_have_a_cache_of_their_own():
    class Scaled:
        def __init__(self, factor):
            self.factor, self.traced = factor, 0

        @jit
        def run(self, x):
            """Scales."""
            self.traced += 1
            return x * self.factor

    a, b = Scaled(2.0), Scaled(3.0)
    for _ in range(2):
        assert a.run(ones(2)).asnumpy().tolist() == [2, 2] and b.run(ones(2)).asnumpy().tolist() == [3, 3]
    assert (a.traced, b.traced) == (1, 1) and Scaled.run.__doc__ == "Scales." and a.run.__name__ == "run"


def test_structures_in_and_out():
    @jit
    def f(pair, *, table, scale=2):
        a, b = pair
        return {"sum": a + b, "rest": [table["w"] * scale, (a,)], "n": scale}

    out = f((ones(2), ones(2)), table={"w": ones(3)})
    assert out["sum"].asnumpy().tolist() == [2, 2] and out["rest"][0].shape == (3,) and out["n"] == 2
    assert isinstance(out["rest"], list) and isinstance(out["rest"][1], tuple)


def test_a_parameters_new_data_is_seen():
    w = Parameter(ones(2), name="w")
    f = jit(lambda x: x * w)
    assert f(ones(2)).asnumpy().tolist() == [1, 1]
    w.set_data(np.array([3.0, 4.0]))
    assert f(ones(2)).asnumpy().tolist() == [3, 4]

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.dense = nn.Dense(2, 2, has_bias=False)

        @jit
        def construct(self, x):
            return self.dense(x)

    net = Net()
    before = net(ones(1, 2)).asnumpy()
    net.dense.weight.set_data(2 * net.dense.weight.asnumpy())
    np.testing.assert_array_equal(net(ones(1, 2)).asnumpy(), 2 * before)  # a factor of 2 rounds nothing


def test_jit_inside_jit_and_cells():
    inner = jit(lambda x: ops.relu(x) + 1)
    outer = jit(lambda x: inner(inner(x)) * 2)
    assert outer(ones(2)).asnumpy().tolist() == [6, 6]

    class Net(nn.Cell):
        def construct(self, x):
            return inner(x)

    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    assert Net()(ones(2)).asnumpy().tolist() == [2, 2]


def test_graph_mode_traces_cells_as_jit_does():
    class Net(nn.Cell):
        traced = 0

        def construct(self, x):
            Net.traced += isinstance(x._array, type(None))
            return ops.tanh(x)

    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    net = Net()
    for n in (2, 3, 4, 5, 2):
        close(net(ones(n)).asnumpy(), np.tanh(ones(n), dtype=np.float64), TANH)
    assert Net.traced == 2


def test_threads_share_a_graph():
    f, results = jit(lambda x: ops.tanh(x) + 1), {}
    f(ones(4))

    def work(k):
        results[k] = [f(np.full(4, k, np.float32)).asnumpy() for _ in range(50)]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    for k, found in results.items():
        assert len(found) == 50
        for a in found:
            close(a, np.full(4, np.tanh(k) + 1), TANH + 1)


@pytest.mark.parametrize("function,error,match", [
    (lambda x: x.asnumpy(), ValueError, r"Tensor.asnumpy: the value is not known while a graph is traced"),
    (lambda x: x if x.mean() > 0 else -x, ValueError, "Tensor.__bool__: the value is not known"),
    (lambda x: np.tanh(x), ValueError, "the value is not known while a graph is traced"),
])  # fmt: skip
def test_values_are_not_known_while_tracing(function, error, match):
    with pytest.raises(error, match=match):
        jit(function)(ones(2))


def test_refusals():
    with pytest.raises(TypeError, match="jit: function must be callable, got int"):
        jit(3)
    with pytest.raises(TypeError, match="an argument must be a tensor or a constant that can be hashed, got set"):
        jit(lambda x, s: x)(ones(2), {1})
    leaked = []
    jit(lambda x: leaked.append(x) or x)(ones(2))
    with pytest.raises(RuntimeError, match="a value of another trace was used"):
        jit(lambda x: x + leaked[0])(ones(2))
