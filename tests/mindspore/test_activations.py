"""GELU, SiLU and SwiGLU of models that MindSpore exported; gradients in MindSpore."""

import mindspore as ms
import numpy as np
import opgraft
import opgraft.mindspore
import pytest
from cells import Written
from helpers import cases, close
from mindspore import Tensor, mint, nn, ops
from opgraft import _core, rewrite

ROOT2, K = 1.4142135623730951, 0.7978845608028654
MODES = pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE, ms.GRAPH_MODE], ids=["pynative", "graph"])


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# MindSpore parses sources: functions by name, no lambdas.
def erf_half_first(x):
    return 0.5 * x * (1 + ops.erf(x / ROOT2))


def erf_root(x):
    return x * 0.5 * (1.0 + ops.erf(x / ops.sqrt(Tensor(2.0, ms.float32))))


def erf_function(x):
    return ops.gelu(x, approximate="none")


def tanh_pow(x):
    return 0.5 * x * (1 + ops.tanh(K * (x + 0.044715 * ops.pow(x, 3))))


def tanh_product(x):
    return 0.5 * x * (1 + ops.tanh(K * (x + 0.044715 * x * x * x)))


def tanh_factored(x):
    return 0.5 * x * (1 + ops.tanh(K * x * (1 + 0.044715 * x * x)))


def tanh_power_operator(x):
    return x * 0.5 * (1.0 + ops.tanh((x + x**3 * 0.044715) * K))


def tanh_distribution(x):
    return x * (0.5 * ops.tanh(K * (x + 0.044715 * ops.pow(x, 3))) + 0.5)


def tanh_over_two(x):
    return x * (1.0 + ops.tanh(K * (x + 0.044715 * x * x * x))) / 2.0


def tanh_x_over_two(x):
    return x / 2.0 * (1.0 + ops.tanh(K * x * (1 + 0.044715 * ops.square(x))))


def tanh_by_sigmoid(x):
    return x * ops.sigmoid(2 * K * (x + 0.044715 * x * x * x))


def erf_sum_over_two(x):
    return x * ((1.0 + ops.erf(x / ROOT2)) / 2.0)


def sigmoid_of_half(x):
    return x * ops.sigmoid(K * (x + 0.044715 * x * x * x))


def silu_sigmoid(x):
    return x * ops.sigmoid(x)


def silu_exp(x):
    return x / (1 + ops.exp(-x))


def silu_inverse(x):
    return x * (1.0 / (1 + ops.exp(-x)))


def silu_reciprocal(x):
    return ops.reciprocal(1 + ops.exp(-x)) * x


def halves_product(x):
    gate, up = ops.split(x, 8, -1)
    return ops.sigmoid(gate) * (gate * up)


def interleaved_product(x):
    return ops.sigmoid(x[:, 1::2]) * (x[:, 1::2] * x[:, ::2])


def gated_quotient(x):
    return x * (x + 1.0) / (1.0 + ops.exp(-x))


def interleaved(x):
    return x[:, ::2] * ops.silu(x[:, 1::2])


def interleaved_any_rank(x):
    return ops.silu(x[..., 1::2]) * x[..., ::2]


def interleaved_gate_first(x):
    return ops.silu(x[..., ::2]) * x[..., 1::2]


def interleaved_by_sigmoid(x):
    gate = x[:, 1::2]
    return x[:, ::2] * (gate * ops.sigmoid(gate))


def halves_split(x):
    gate, up = ops.split(x, 8, -1)
    return ops.silu(gate) * up


def halves_chunk(x):
    up, gate = ops.chunk(x, 2, -1)
    return up * ops.silu(gate)


def halves_mint(x):
    gate, up = mint.chunk(x, 2, -1)
    return mint.nn.functional.silu(gate) * up


def halves_slices(x):
    return ops.silu(x[:, :8]) * x[:, 8:]


def not_gelu(x):
    return 0.5 * x * (1 + ops.erf(x / 1.5))


def quick_gelu(x):
    return x * ops.sigmoid(1.702 * x)


def every_third(x):
    return x[:, ::3] * ops.silu(x[:, 1::3])


def first_half_twice(x):
    return ops.silu(x[:, :8]) * x[:, :8]


GELU = [erf_half_first, erf_root, erf_function, tanh_pow, tanh_product, tanh_factored, tanh_power_operator,
        tanh_distribution, tanh_over_two, tanh_x_over_two, tanh_by_sigmoid, erf_sum_over_two]  # fmt: skip
INTERLEAVED = [interleaved, interleaved_any_rank, interleaved_gate_first, interleaved_by_sigmoid, interleaved_product]
HALVES = [halves_split, halves_chunk, halves_mint, halves_slices, halves_product]
SPELLED = [*[(f, "FusedGeLU") for f in GELU], (silu_sigmoid, "SiLU"), (silu_exp, "SiLU"),
           (silu_inverse, "SiLU"), (silu_reciprocal, "SiLU"), (gated_quotient, "SwiGLU"),
           *[(f, "SwiGLUInterleaved") for f in INTERLEAVED], *[(f, "Swiglu") for f in HALVES],
           (not_gelu, None), (quick_gelu, None), (sigmoid_of_half, None),
           (every_third, None), (first_half_twice, None)]  # fmt: skip
OURS = {"FusedGeLU", "SwiGLUInterleaved", "Swiglu"}
BESIDE = {gated_quotient: ["Add"]}  # x + 1


@pytest.mark.parametrize("write,name", SPELLED, ids=[f.__name__ for f, _ in SPELLED])
def test_exported_spellings(write, name, tmp_path):
    class Net(nn.Cell):
        def construct(self, x):
            return write(x)

    ms.set_context(mode=ms.GRAPH_MODE)
    x = normal(5, 18 if write is every_third else 16)
    want = Net()(Tensor(x)).asnumpy()
    ms.export(Net(), Tensor(x), file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    report = rewrite.substitute(graph, prove=(x,))
    taken = {s["op"].split("@")[0] for s in report.swapped}
    assert taken == {name} if name else not taken & OURS, f"{report}\n{graph}"
    if name:
        assert [n["op"] for n in graph.nodes] == [*BESIDE.get(write, []), name], str(graph)
    close(_core.Session(_core.Model(graph)).run([x])[0], want)


def gelu_mint(x):
    return mint.nn.functional.gelu(x)


def gelu_mint_tanh(x):
    return mint.nn.functional.gelu(x, approximate="tanh")


@pytest.mark.parametrize("write,approximate", [(gelu_mint, "none"), (gelu_mint_tanh, "tanh")])
def test_gelu_of_mint(write, approximate, tmp_path):
    """GeluExt, which MindSpore exports but has no kernel of on CPU; it has one when it is written back."""

    class Net(nn.Cell):
        def construct(self, x):
            return write(x)

    ms.set_context(mode=ms.GRAPH_MODE)
    x = normal(5, 16) * 3
    ms.export(Net(), Tensor(x), file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    report = rewrite.substitute(graph, prove=(x,))
    assert [s["op"].split("@")[0] for s in report.swapped] == ["FusedGeLU"], f"{report}\n{graph}"
    got = _core.Session(_core.Model(graph)).run([x])[0]
    want = cases("gelu").gelu(x.astype(np.float64), approximate)
    # gelu/cases.py: 8 roundings of the result, and 2.1e-7 |x| where 1 + erf cancels.
    assert (np.abs(got - want) <= 8 * 2.0**-24 * np.abs(want) + 2.1e-7 * np.abs(x)).all()
    _core.write_mindir(graph, str(tmp_path / "written.mindir"))
    back = nn.GraphCell(ms.load(str(tmp_path / "written.mindir")))
    np.testing.assert_array_equal(back(Tensor(x)).asnumpy(), got)


def test_swiglu_of_mindspore(tmp_path):
    """MindSpore has no kernel of it on CPU, but exports it."""

    class Net(nn.Cell):
        def construct(self, x):
            return ops.swiglu(x, 0)

    ms.set_context(mode=ms.GRAPH_MODE)
    x = normal(6, 5)
    ms.export(Net(), Tensor(x), file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    got = _core.Session(_core.Model(graph)).run([x])[0]
    close(got, (ops.silu(Tensor(x[:3])) * Tensor(x[3:])).asnumpy())


class Made(nn.Cell):
    def __init__(self, name, **attrs):
        super().__init__()
        self.f = opgraft.mindspore.custom(name, **attrs)

    def construct(self, *x):
        return self.f(*x)


def separate(x, gate):
    return x * ops.silu(gate)


def tanh_function(x):  # MindSpore's Tanh is off by 1e-4, and so are gradients through it; its GeLUGrad is not
    return ops.gelu(x, approximate="tanh")


GRADIENTS = [
    ("SwiGLU", {}, separate, 2),
    ("SwiGLUInterleaved", {}, interleaved, 1),
    ("SwiGLUInterleaved", {"gate_first": True}, interleaved_gate_first, 1),
    ("Swiglu", {}, halves_split, 1),
    ("Swiglu", {"gate_first": False}, halves_chunk, 1),
    ("SiLU", {}, silu_sigmoid, 1),
    ("GeLU", {}, tanh_function, 1),
    ("GeLU", {"approximate": "none"}, erf_half_first, 1),
    ("FusedGeLU", {}, erf_half_first, 1),
    ("FusedGeLU", {"approximate": "tanh"}, tanh_function, 1),
    ("ReLU", {}, ops.relu, 1),
    ("ReLU6", {}, ops.relu6, 1),
]


@MODES
@pytest.mark.parametrize("name,attrs,write,count", GRADIENTS, ids=[f"{n}{a or ''}" for n, a, *_ in GRADIENTS])
def test_gradients(name, attrs, write, count, mode):
    ms.set_context(mode=mode)
    given = [Tensor(normal(5, 16, seed=k) * 4) for k in range(count)]
    at = tuple(range(count))
    got = ops.grad(Made(name, **attrs), at)(*given)
    want = ops.grad(Written(write), at)(*given)
    for g, w in zip(*[v if count > 1 else [v] for v in (got, want)]):
        close(g.asnumpy(), w.asnumpy())
