"""The registered patterns: what they must not take for what they replace, and that a swap keeps every size working."""

import ml_dtypes
import numpy as np
import opgraft
import pytest
from compare import SILU, close
from opgraft import Parameter, Tensor, nn, ops, rewrite


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def swapped(report):
    return [s["op"].split("@")[0] for s in report.swapped]


def attention(q, k, v, scale=0.35355339):
    return ops.bmm(ops.softmax(ops.bmm(q, k, transpose_b=True) * scale, -1), v)


class Windows(nn.Cell):
    """Attention within windows of 4 tokens: the batch and the sequence are cut anew, as in Swin."""

    def construct(self, q, k, v):
        q, k, v = (y.reshape(4, 4, 2, 8).transpose(0, 2, 1, 3) for y in (q, k, v))
        return attention(q, k, v).transpose(0, 2, 1, 3).reshape(1, 16, 16)


class Heads(nn.Cell):
    def construct(self, q, k, v):
        q, k, v = (y.reshape(1, 16, 2, 8).transpose(0, 2, 1, 3) for y in (q, k, v))
        return attention(q, k, v).transpose(0, 2, 1, 3).reshape(1, 16, 16)


@pytest.mark.parametrize("model,layout", [(Windows, "BSHD"), (Heads, "BSE")])
def test_heads_are_split_from_the_last_dimension_alone(model, layout):
    x = [normal(1, 16, 16, seed=i) for i in range(3)]
    net, want = model(), model()(*x).asnumpy()
    rewrite.substitute(net, prove=tuple(x))
    (node,) = [n for n in net._grafted[0][0].graph.nodes if n["op"] == "ScaledDotProductAttention"]
    assert node["attrs"].get("layout", "BHSD") == layout
    unproven = model()
    rewrite.substitute(unproven)
    # Products of 8 terms, sums of 16 weights that are at most 1, softmax's 8 roundings; of both sides.
    close(unproven(*x).asnumpy(), want, 2 * (8 * 8 + 16 + 8), np.abs(x[2]).max())


def test_a_scale_of_zero_is_no_default():
    class Net(nn.Cell):
        def construct(self, q, k, v):
            return attention(q, k, v, 0.0)

    x = [normal(1, 2, 5, 8, seed=i) for i in range(3)]
    net = Net()
    rewrite.substitute(net)
    want = np.broadcast_to(x[2].mean(2, keepdims=True, dtype=np.float64), x[2].shape)
    close(net(*x).asnumpy(), want, 5 + 8, np.abs(x[2]).max())


@pytest.mark.parametrize("write,what", [
    (lambda x: (lambda y: y * y)(ops.silu(x)), "SwiGLU"),
    (lambda x: (lambda y: y + y)(ops.matmul(x, x)), "Dense"),
    (lambda x: (lambda p: ops.bmm(p, p))(ops.softmax(x * 2.0, -1)), "attention"),
])  # fmt: skip
def test_a_value_used_twice_is_not_taken_for_two(write, what):
    class Net(nn.Cell):
        def construct(self, x):
            return write(x)

    x = normal(2, 5, 5)
    want = Net()(x).asnumpy()
    for prove in (None, (x,)):
        net = Net()
        rewrite.substitute(net, prove=prove)
        np.testing.assert_array_equal(net(x).asnumpy(), want)


class Positions(nn.Cell):
    """A table of one row for the whole batch is added before a normalisation, as in BERT."""

    def __init__(self):
        super().__init__()
        self.gamma, self.beta = Parameter(normal(8)), Parameter(normal(8, seed=1))
        self.table = Parameter(normal(1, 5, 8, seed=2))

    def construct(self, x):
        x = x + self.table
        d = x - ops.mean(x, -1, True)
        return d * ops.rsqrt(ops.mean(d * d, -1, True) + 1e-5) * self.gamma + self.beta + x


@pytest.mark.parametrize("proven", [False, True])
def test_what_is_broadcast_over_an_open_dimension_is_left_alone(proven):
    net = Positions()
    net.set_inputs(Tensor(shape=[None, 5, 8], dtype=opgraft.float32))
    x = normal(4, 5, 8, seed=3)
    want = Positions()(x).asnumpy()
    report = rewrite.substitute(net, prove=(x[:2],) if proven else None)
    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    got = net(x).asnumpy()
    assert swapped(report) == ["FusedLayerNorm"]
    close(got, want, 2 * (2 * 8 + 8), 8 * np.abs(x).max())
    for n in (1, 3):
        np.testing.assert_array_equal(net(x[:n]).asnumpy(), got[:n])


def test_a_gate_of_one_row_is_left_alone_where_rows_are_open():
    class Net(nn.Cell):
        def construct(self, x, gate):
            return ops.silu(gate) * x

    net = Net()
    net.set_inputs(Tensor(shape=[None, 8], dtype=opgraft.float32), Tensor(shape=[1, 8], dtype=opgraft.float32))
    x, gate = normal(3, 8), normal(1, 8)
    assert swapped(rewrite.substitute(net, prove=(x, gate))) == []
    d = gate.astype(np.float64)
    close(net(x, gate).asnumpy(), x * d / (1 + np.exp(-d)), SILU + 1)


@pytest.mark.parametrize("dtype,half,count", [
    (np.float16, 0.5, 1), (np.float16, 0.50048828, 0), (ml_dtypes.bfloat16, 0.5, 1), (ml_dtypes.bfloat16, 0.50390625, 0)
])  # fmt: skip
def test_a_neighbouring_constant_is_another_one(dtype, half, count):
    class Net(nn.Cell):
        def construct(self, x):
            return x * half * (ops.erf(x / 1.4142135623730951) + 1.0)

    x = normal(3, 8).astype(dtype)
    assert len(rewrite.substitute(Net(), prove=(x,)).swapped) == count


def test_sizes_that_do_not_fit_64_bits_are_refused():
    x = Tensor(np.ones((4, 3), np.float32))
    for n in (2**62 + 1, 2**62):
        with pytest.raises(ValueError, match="is more than 64 bits hold"):
            ops.tile(x, (n, 1))
    line = np.arange(5, dtype=np.float32)
    np.testing.assert_array_equal(Tensor(line)[:: 2**63 - 1].asnumpy(), line[:: 2**63 - 1])
    with pytest.raises(ValueError, match="batch_dims must be at most"):
        ops.primitive("Gather", x, Tensor(np.zeros((4, 1), np.int32)), axis=1, batch_dims=2**32 + 1)


def test_a_maximum_over_open_dimensions():
    class Net(nn.Cell):
        def construct(self, x):
            return ops.primitive("ReduceMax", x, axis=[0, 1])

    net, n = Net(), opgraft.dim("n")
    net.set_inputs(Tensor(shape=[n, n, 4], dtype=opgraft.float32))
    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    for k in (1, 5):
        x = normal(k, k, 4)
        np.testing.assert_array_equal(net(x).asnumpy(), x.max((0, 1)))


@pytest.mark.parametrize("index", ["[:-2, :n]", "[-2:, n:]", "[n - 5:]"])
def test_slices_with_numbers_below_zero_beside_open_sizes(index):
    f = opgraft.jit(lambda x, y: eval(f"x{index}", {"x": x, "n": y.shape[0]}))
    for rows, n in [(6, 3), (7, 3), (9, 4), (4, 1), (3, 2)]:
        x, y = normal(rows, 8), normal(n)
        np.testing.assert_array_equal(f(x, y).asnumpy(), eval(f"x{index}"))


def test_statistics_of_rows_without_elements_are_nan():
    empty = np.zeros((0, 5), np.float32)
    _, mean, variance = ops.primitive("LayerNorm", np.zeros((64, 0, 5), np.float32), empty, empty,
                                      begin_norm_axis=1, begin_params_axis=1)  # fmt: skip
    assert np.isnan(mean.asnumpy()).all() and np.isnan(variance.asnumpy()).all()


@pytest.mark.parametrize("written", [-1, 2])
@pytest.mark.parametrize("spelled", [-1, 2])
def test_an_axis_may_be_counted_from_either_end(written, spelled):
    class Net(nn.Cell):
        def construct(self, x):
            return ops.softmax(x, written)

    for axis, count in [(spelled, 1), (1, 0), (-2, 0)]:
        report = rewrite.substitute(
            Net(),
            lambda x, axis=axis: ops.softmax(x, axis),
            lambda x, axis=axis: ops.Custom.from_op("Softmax", axis=axis)(x),
            prove=(normal(2, 3, 3),),
        )
        assert len(report.swapped) == count, str(report)


@pytest.mark.parametrize("axis", [-1, 2])
def test_registered_patterns_take_the_last_axis_either_way(axis):
    class Net(nn.Cell):
        def construct(self, x, gamma, beta):
            d = x - ops.mean(x, axis, True)
            return d * ops.rsqrt(ops.mean(d * d, axis, True) + 1e-5) * gamma + beta

    given = normal(2, 3, 8), normal(8, seed=1), normal(8, seed=2)
    assert swapped(rewrite.substitute(Net(), prove=given)) == ["FusedLayerNorm"]
