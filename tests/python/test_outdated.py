"""What was traced no longer runs once a Cell or a Parameter it was traced of has changed."""

import copy
import gc
import weakref

import numpy as np
import opgraft
import pytest
from opgraft import Parameter, Tensor, jit, nn, ops, rewrite

X = np.array([[-1.0, 2.0]], np.float32)


class Scale(nn.Cell):
    def __init__(self, k=1.0):
        super().__init__()
        self.k = k

    def construct(self, x):
        return x * self.k


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.inner, self.k = Scale(), 1.0

    def construct(self, x):
        return self.inner(x) * self.k


class Jitted(Net):
    @jit
    def construct(self, x):
        return self.inner(x) * self.k


class Deep(nn.Cell):
    """The Cell below another, both known to nothing above."""

    def __init__(self):
        super().__init__()
        self.list = [Net()]

    @jit
    def construct(self, x):
        return self.list[0](x)


def runners():
    """(the net to change, a function that runs it) in every way of tracing."""
    net = Net()
    yield pytest.param(net, jit(lambda x: net(x)), id="jit of a function")
    jitted = Jitted()
    yield pytest.param(jitted, jitted, id="jit of construct")
    deep = Deep()
    yield pytest.param(deep.list[0], deep, id="a cell in a list")
    outer = nn.SequentialCell(Net())
    yield pytest.param(outer[0], jit(lambda x: outer(x)), id="below a cell")


@pytest.mark.parametrize("net,run", list(runners()))
def test_a_change_of_a_cell_is_seen(net, run):
    def factor():
        return run(X).asnumpy()[0, 1] / 2

    assert factor() == 1
    net.k = 5.0
    assert factor() == 5
    net.inner.k = 2.0
    assert factor() == 10
    net.inner = Scale(3.0)
    assert factor() == 15
    rewrite.replace_cell(net, Scale, lambda cell: Scale(4.0))
    assert factor() == 20
    rewrite.substitute(net.inner, lambda x: x * 4.0, lambda x: x * 6.0)
    assert factor() == 30
    assert np.array_equal(run(X).asnumpy(), X * 30)


def test_a_function_that_changes_a_cell_is_traced_once():
    class Keeps(nn.Cell):
        def construct(self, x):
            self.last = x.shape
            return x * 2

    traced, net = [], nn.SequentialCell(Keeps())
    f = jit(lambda x: traced.append(1) or net(x))
    for _ in range(3):
        f(X)
    assert len(traced) == 1


def test_a_method_and_the_one_it_overrides_have_traces_of_their_own():
    class Base(nn.Cell):
        @jit
        def construct(self, x):
            return x * 2

    class Derived(Base):
        @jit
        def construct(self, x):
            return super().construct(x) + 1

        twice = jit(lambda self, x: x * 2)
        thrice = jit(lambda self, x: x * 3)

    net = Derived()
    for _ in range(2):
        np.testing.assert_array_equal(net(X).asnumpy(), X * 2 + 1)
        np.testing.assert_array_equal(net.twice(X).asnumpy(), X * 2)
        np.testing.assert_array_equal(net.thrice(X).asnumpy(), X * 3)


class Weighted(nn.Cell):
    def __init__(self, w):
        super().__init__()
        self.w = w

    def construct(self, x):
        return ops.silu(x) * self.w


class Listed(nn.Cell):
    def __init__(self, w):
        super().__init__()
        self.list = [w]

    def construct(self, x):
        return ops.silu(x) * self.list[0]


@pytest.mark.parametrize("make", [Weighted, Listed])
def test_new_data_of_a_shared_or_listed_parameter_is_seen(make):
    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    w = Parameter(np.ones(2, np.float32), "w")
    nets = [make(w), make(w), nn.SequentialCell(make(w))]
    before = [net(X).asnumpy() for net in nets]
    w.set_data(np.full(2, 4, np.float32))  # a power of two rounds nothing
    for net, was in zip(nets, before):
        np.testing.assert_array_equal(net(X).asnumpy(), 4 * was)


@pytest.mark.parametrize("mode", [opgraft.PYNATIVE_MODE, opgraft.GRAPH_MODE])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("make", [Weighted, Listed])
def test_new_data_after_a_proven_swap_drops_it_with_a_warning(make, mode, inside, tmp_path):
    w = Parameter(np.ones(2, np.float32), "w")
    net, last = make(w), make(w)
    half = lambda x: x * ops.sigmoid(x)  # noqa: E731
    assert rewrite.substitute(net, lambda x: ops.silu(x), half, prove=(X,)).swapped
    run = jit(lambda x: net(x)) if inside else net
    opgraft.set_context(mode=mode)
    before, want = run(X).asnumpy(), last(X).asnumpy()
    twin = copy.deepcopy(net)
    w.set_data(np.full(2, 4, np.float32))
    with pytest.warns(RuntimeWarning, match=f"{make.__name__}: changed after rewrite.substitute"):
        np.testing.assert_array_equal(run(X).asnumpy(), 4 * want)
    assert not net._grafted
    np.testing.assert_array_equal(twin(X).asnumpy(), before)  # a copy has data of its own
    assert twin._grafted
    assert rewrite.substitute(net, lambda x: ops.silu(x), half, prove=(X,)).swapped
    w.set_data(np.ones(2, np.float32))
    with pytest.warns(RuntimeWarning, match="changed after rewrite.substitute"):
        cell = nn.GraphCell(opgraft.load(opgraft.export(net, Tensor(X), file_name=tmp_path / "net")))
    np.testing.assert_array_equal(cell(X).asnumpy(), want)


def test_another_graph_in_a_loaded_model_is_seen(tmp_path):
    inner = nn.GraphCell(opgraft.load(opgraft.export(Scale(2.0), Tensor(X), file_name=tmp_path / "inner")))
    net = nn.SequentialCell(inner)
    f = jit(lambda x: net(x))
    np.testing.assert_array_equal(f(X).asnumpy(), X * 2)
    rewrite.substitute(inner, lambda x: x * 2.0, lambda x: x * 3.0)
    np.testing.assert_array_equal(f(X).asnumpy(), X * 3)


def test_what_is_traced_no_more_is_not_kept():
    f, w = jit(lambda x, k: x * w * k), Parameter(np.ones(2, np.float32), "w")
    f(X, 0)
    old = weakref.ref(w.asnumpy())
    for k in range(40):  # more than it keeps programs for
        f(X, k)
    w.set_data(np.zeros(2, np.float32))
    assert not f(X, 39).asnumpy().any()
    gc.collect()
    assert old() is None
    assert all(len(p.used.parameters) == 1 for p in f._programs._exact.values())
