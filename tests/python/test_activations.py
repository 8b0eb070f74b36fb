"""GELU, SiLU and SwiGLU: the spellings that are replaced and what is not taken for them, gradients against differences
of the formulas, NaN of every kind."""

import ml_dtypes
import numpy as np
import opgraft
import pytest
from compare import SILU, TANH, Net, U, cases, close, graft, normal, stays
from opgraft import Tensor, _core, ops, rewrite


def left(write, folder, *given):
    """The operators that are there when all is substituted in the exported model."""
    graph = opgraft.load(opgraft.export(Net(write), *map(Tensor, given), file_name=folder / "net"))
    rewrite.substitute(graph)
    return [n["op"] for n in graph.nodes]


def p(name, *inputs, **attrs):
    """A primitive as it stands, numbers as constants of float32."""
    return ops.primitive(name, *[np.float32(x) if isinstance(x, float) else x for x in inputs], **attrs)


ROOT2, K = 1.4142135623730951, 0.7978845608028654
CUBES = {
    "pow": lambda x: p("Pow", x, 3.0),
    "product": lambda x: x * x * x,
    "square": lambda x: x * p("Square", x),
    "pow 2": lambda x: x * p("Pow", x, 2.0),
}
INNER = {
    **{name: lambda x, k, cube=cube: k * (x + 0.044715 * cube(x)) for name, cube in CUBES.items()},
    "factored": lambda x, k: k * x * (1.0 + 0.044715 * x * x),
    "factored last": lambda x, k: x * (1.0 + 0.044715 * p("Square", x)) * k,
}
OUTER = {
    "half at x": lambda x, t: 0.5 * x * (1.0 + t),
    "half of the sum": lambda x, t: x * (0.5 * (1.0 + t)),
    "half last": lambda x, t: x * (1.0 + t) * 0.5,
    "x over two": lambda x, t: x / 2.0 * (1.0 + t),
    "the sum over two": lambda x, t: x * ((1.0 + t) / 2.0),
    "all over two": lambda x, t: x * (1.0 + t) / 2.0,
    "distribution": lambda x, t: x * (0.5 * t + 0.5),
}
# As people write it and as torch's exporters do: Div by the root of 2, Pow 3, the sum with 1 either way round.
GELUS = {
    "half first": ("none", lambda x: 0.5 * x * (1.0 + ops.erf(x / ROOT2))),
    "half last": ("none", lambda x: x * (ops.erf(x * (1 / ROOT2)) + 1.0) * 0.5),
    "onnx": ("none", lambda x: p("Mul", p("Mul", x, p("Add", p("Erf", p("Div", x, ROOT2)), 1.0)), 0.5)),
    "half of the sum": ("none", lambda x: x * (0.5 * (1.0 + ops.erf(x / ROOT2)))),
    "over two": ("none", lambda x: x * (1.0 + ops.erf(x / ROOT2)) / 2.0),
    "two below x": ("none", lambda x: x / 2.0 * (1.0 + ops.erf(x * (1 / ROOT2)))),
    "distribution": ("none", lambda x: x * (0.5 + 0.5 * ops.erf(x / ROOT2))),
    **{
        f"tanh {name}": ("tanh", lambda x, cube=cube: 0.5 * x * (1.0 + ops.tanh(K * (x + 0.044715 * cube(x)))))
        for name, cube in CUBES.items()
    },
    "tanh half last": ("tanh", lambda x: x * (1.0 + ops.tanh(K * (x + 0.044715 * CUBES["pow"](x)))) * 0.5),
    "tanh half of the sum": ("tanh", lambda x: x * (0.5 * (1.0 + ops.tanh(K * (x + 0.044715 * CUBES["pow"](x)))))),
    "tanh onnx": ("tanh", lambda x: p("Mul", p("Mul", 0.5, x), p("Add", p("Tanh", p("Mul", p("Add", x, p("Mul",
                  p("Pow", x, 3.0), 0.044715)), K)), 1.0))),
    "tanh factored": ("tanh", lambda x: 0.5 * x * (1.0 + ops.tanh(K * x * (1.0 + 0.044715 * x * x)))),
    "mint": ("none", lambda x: ops.primitive("GeluExt", x)),
    "mint tanh": ("tanh", lambda x: ops.primitive("GeluExt", x, approximate="tanh")),
    "tanh factored last": ("tanh", lambda x: 0.5 * x * (1.0 + ops.tanh(x * (1.0 + 0.044715 * (x * x)) * K))),
}  # fmt: skip


@pytest.mark.parametrize("proven", [False, True])
@pytest.mark.parametrize("name", GELUS)
def test_gelu_in_the_ways_it_is_written(name, proven, tmp_path):
    approximate, write = GELUS[name]
    check_gelu(write, approximate, proven, tmp_path)


@pytest.mark.parametrize("outer", OUTER)
def test_gelu_by_any_half_of_any_inner_form(outer, tmp_path):
    for root in (lambda x: x / ROOT2, lambda x: x * (1 / ROOT2)):
        check_gelu(lambda x, root=root: OUTER[outer](x, ops.erf(root(x))), "none", True, tmp_path)
    for inner in INNER.values():
        check_gelu(lambda x, inner=inner: OUTER[outer](x, ops.tanh(inner(x, K))), "tanh", True, tmp_path)


@pytest.mark.parametrize("inner", INNER)
def test_gelu_by_sigmoid(inner, tmp_path):
    """(1 + tanh u) / 2 is the logistic function of 2 u."""
    check_gelu(lambda x: x * ops.sigmoid(INNER[inner](x, 2 * K)), "tanh", True, tmp_path)


@pytest.mark.parametrize("outer", OUTER)
def test_gelu_of_half_types(outer, tmp_path):
    """With the constants as the type rounds them there, and as they are here: of the formula, rounded once."""
    for dtype, unit in ((np.float16, 2.0**-11), (ml_dtypes.bfloat16, 2.0**-8)):
        x = normal(3, 37).astype(dtype)

        def write(x):
            return OUTER[outer](x, ops.tanh(K * (x + 0.044715 * x * x * x)))

        assert left(write, tmp_path, x) == ["FusedGeLU"]
        (got,) = graft(write, x, prove=True)[2]
        assert got.dtype == dtype
        want = cases("gelu").gelu(x.astype(np.float64), "tanh")
        # And what the operator allows float32 (gelu/cases.py).
        allowed = unit * np.abs(want) + (8 * U + 2.1e-7) * np.abs(x.astype(np.float64))
        assert (np.abs(got.astype(np.float64) - want) <= allowed).all()


def check_gelu(write, approximate, proven, folder):
    x = normal(3, 37) * 3
    names, _, (got,) = graft(write, x, prove=proven)
    assert names == ["FusedGeLU"]
    assert left(write, folder, x) == ["FusedGeLU"]
    want = cases("gelu").gelu(x.astype(np.float64), approximate)
    # gelu/cases.py: 8 roundings of the result, and 2.1e-7 |x| where 1 + erf cancels.
    close(got, want, 8 + 2.1e-7 * 2**24, np.abs(x))


@pytest.mark.parametrize("write", [
    lambda x: 0.5 * x * (1.0 + ops.erf(x / 1.5)),
    lambda x: 0.5 * x * (1.0 + ops.tanh(0.8 * (x + 0.044715 * x * x * x))),
    lambda x: 0.5 * x * (1.0 + ops.tanh(K * (x + 0.05 * x * x * x))),
    lambda x: 0.5 * x * (1.0 + ops.tanh(K * (x + 0.044715 * p("Pow", x, 2.0)))),
    lambda x: 0.25 * x * (1.0 + ops.erf(x / ROOT2)),
    lambda x: x * (0.5 + 0.25 * ops.erf(x / ROOT2)),
    lambda x: x * (0.5 - 0.5 * ops.erf(x / ROOT2)),
    lambda x: x * ((1.0 + ops.erf(x / ROOT2)) / 4.0),
    lambda x: x * (0.5 * ops.tanh(K * (x + 0.044715 * x * x * x)) + 1.0),
    lambda x: (x + 1.0) * ops.tanh(K * (x + 0.044715 * x * x * x)) / 2.0,
    lambda x: x * ops.sigmoid(K * (x + 0.044715 * x * x * x)),  # of u, not of 2 u
    lambda x: ops.sigmoid(2 * K * (x + 0.044715 * x * x * x)) * ops.exp(x),
    lambda x: x * ops.sigmoid(1.7 * x),
    lambda x: x * (2.0 / (1.0 + ops.exp(-x))),
    lambda x: x * ops.reciprocal(2.0 + ops.exp(-x)),
    lambda x: x * ops.reciprocal(1.0 + ops.exp(x)),
    lambda x: ops.exp(x) * ops.reciprocal(1.0 + ops.exp(-x)),
    lambda x: x / (1.0 + ops.exp(x)),
    lambda x: x / (2.0 + ops.exp(-x)),
    lambda x: ops.tanh(x) * ops.sigmoid(x),
])  # fmt: skip
def test_what_is_neither_gelu_nor_silu(write):
    stays(write, normal(3, 37))


@pytest.mark.parametrize("write", [
    lambda x: x * ops.sigmoid(x),
    lambda x: ops.sigmoid(x) * x,
    lambda x: x / (1.0 + ops.exp(-x)),
    lambda x: p("Div", x, p("Add", p("Exp", p("Neg", x)), 1.0)),
    lambda x: x * ops.div(1.0, 1.0 + ops.exp(-x)),
    lambda x: x * ops.reciprocal(1.0 + ops.exp(-x)),
    lambda x: p("Mul", p("Reciprocal", p("Add", 1.0, p("Exp", p("Neg", x)))), x),
])  # fmt: skip
def test_silu_in_the_ways_it_is_written(write, tmp_path):
    x = normal(3, 37) * 8
    names, _, (got,) = graft(write, x)
    assert names == ["SiLU"]
    assert left(write, tmp_path, x) == ["SiLU"]
    close(got, cases("swiglu").silu(x.astype(np.float64)), SILU)


def gates(a, b):
    """SwiGLU of gate a and x b, as it is spelled."""
    return {
        "silu": lambda: ops.silu(a) * b,
        "silu last": lambda: b * ops.silu(a),
        "sigmoid": lambda: a * ops.sigmoid(a) * b,
        "sigmoid first": lambda: a * (ops.sigmoid(a) * b),
        "product in brackets": lambda: ops.sigmoid(a) * (a * b),
        "product in brackets, gate last": lambda: (b * a) * ops.sigmoid(a),
        "onnx": lambda: p("Mul", b, p("Mul", a, p("Sigmoid", a))),
        "exp": lambda: a / (1.0 + ops.exp(-a)) * b,
        "reciprocal": lambda: a * ops.reciprocal(1.0 + ops.exp(-a)) * b,
    }


SPELLED = ["silu", "silu last", "sigmoid", "sigmoid first", "product in brackets", "product in brackets, gate last",
           "onnx", "exp", "reciprocal"]  # fmt: skip


@pytest.mark.parametrize("spelled", [*SPELLED, "quotient of the product"])
def test_two_tensors(spelled, tmp_path):
    gate, x = normal(3, 37) * 4, normal(3, 37, seed=1)

    def write(a, b):
        return a * b / (1.0 + ops.exp(-a)) if spelled.startswith("quotient") else gates(a, b)[spelled]()

    assert left(write, tmp_path, gate, x) == ["SwiGLU"]
    names, _, (got,) = graft(write, gate, x)
    assert names == ["SwiGLU"]
    close(got, cases("swiglu").silu(gate.astype(np.float64)) * x, SILU + 1)


@pytest.mark.parametrize("write", [
    lambda a, b: ops.sigmoid(a) * (b * b),
    lambda a, b: ops.sigmoid(b) * (a * a),
    lambda a, b: a * b / (2.0 + ops.exp(-a)),
    lambda a, b: a * b / (1.0 + ops.exp(a)),
    lambda a, b: a * a / (1.0 + ops.exp(-b)),
])  # fmt: skip
def test_what_is_no_gated_unit_of_two_tensors(write):
    stays(write, normal(3, 37), normal(3, 37, seed=1))


def test_a_sigmoid_or_product_that_is_used_again_stays():
    def write(a, b):
        s, m = ops.sigmoid(a), a * b
        return s * m, s, m

    stays(write, normal(3, 37), normal(3, 37, seed=1))


def cut(x, begin, strides):
    """As an exporter of ONNX's Slice: begins written out, ends beyond every dimension, no mask for the begin."""
    rank = len(begin)
    return p("StridedSlice", x, np.array(begin), np.full(rank, 2**31 - 1), np.array(strides), begin_mask=0, end_mask=0,
             ellipsis_mask=0, new_axis_mask=0, shrink_axis_mask=0)  # fmt: skip


INTERLEAVED = {
    "rank 1": ((38,), lambda x: (x[1::2], x[::2])),
    "columns": ((5, 38), lambda x: (x[:, 1::2], x[:, ::2])),
    "ellipsis": ((2, 5, 38), lambda x: (x[..., 1::2], x[..., ::2])),
    "rank 4": ((2, 3, 5, 8), lambda x: (x[..., 1::2], x[..., 0::2])),
    "onnx": ((5, 38), lambda x: (cut(x, [0, 1], [1, 2]), cut(x, [0, 0], [1, 2]))),
}


@pytest.mark.parametrize("gate_first", [True, False])
@pytest.mark.parametrize("spelled", SPELLED)
@pytest.mark.parametrize("name", INTERLEAVED)
def test_interleaved(name, spelled, gate_first, tmp_path):
    shape, pair = INTERLEAVED[name]
    x = normal(*shape)

    def write(x):
        odd, even = pair(x)
        return gates(even, odd)[spelled]() if gate_first else gates(odd, even)[spelled]()

    assert left(write, tmp_path, x) == ["SwiGLUInterleaved"]
    names, _, (got,) = graft(write, x, prove=False)
    assert names == ["SwiGLUInterleaved"]
    close(got, cases("swiglu").interleaved(x.astype(np.float64), gate_first), SILU + 1)


HALVES = {
    "split": ((5, 38), -1, lambda x: ops.split(x, 19, -1)),
    "split of three": ((2, 5, 38), -1, lambda x: ops.split(x, 19, 2)),
    "rows": ((6, 7), 0, lambda x: ops.split(x, 3, 0)),
    "slices": ((5, 38), -1, lambda x: (x[:, :19], x[:, 19:])),
    "slices of three": ((2, 5, 38), -1, lambda x: (x[..., :19], x[..., 19:])),
    "onnx split": ((5, 38), -1, lambda x: ops.primitive("Split", x, axis=1, output_num=2)),
}


@pytest.mark.parametrize("gate_first", [True, False])
@pytest.mark.parametrize("spelled", SPELLED)
@pytest.mark.parametrize("name", HALVES)
def test_halves(name, spelled, gate_first, tmp_path):
    shape, dim, pair = HALVES[name]
    x = normal(*shape)

    def write(x):
        first, second = pair(x)
        return gates(first, second)[spelled]() if gate_first else gates(second, first)[spelled]()

    names, _, (got,) = graft(write, x, prove=False)
    assert names == ["Swiglu"]
    assert left(write, tmp_path, x) == ["Swiglu"]
    close(got, cases("swiglu").swiglu_halves(x.astype(np.float64), dim, gate_first), SILU + 1)


@pytest.mark.parametrize("write", [
    lambda x: x[:, ::2] * ops.silu(x[:, ::2]),
    lambda x: x[:, :16:2] * ops.silu(x[:, 1:17:2]),  # not all columns
    lambda x: x[::2] * ops.silu(x[1::2]),  # rows
    lambda x: x[:3, ::2] * ops.silu(x[:3, 1::2]),
    lambda x: ops.silu(x[:, :6]) * x[:, 6:12],
    lambda x: ops.silu(x[:, :19]) * x[:, :19],
    lambda x: (lambda s: ops.silu(s[0]) * s[2])(ops.primitive("Split", x[:, :36], axis=1, output_num=3)),
    lambda x: (lambda s: ops.silu(s[0]) * s[0])(ops.split(x, 19, -1)),
    lambda x: ops.sigmoid(x[:, ::2]) * (x[:, 1::2] * x[:, 1::2]),
    lambda x: ops.sigmoid(x[:, :6]) * (x[:, :6] * x[:, 6:12]),
    lambda x: (lambda s: ops.sigmoid(s[0]) * (s[1] * s[1]))(ops.split(x, 19, -1)),
    lambda x: (lambda s: ops.silu(s[0]) * s[1] + s[1])(ops.split(x, 19, -1)),  # a half is used again
])  # fmt: skip
def test_what_is_no_gated_unit_of_one_tensor(write):
    x = normal(6, 38)
    names, before, after = graft(write, x, prove=False)
    assert not {"Swiglu", "SwiGLUInterleaved"} & set(names)
    # SwiGLU of two tensors may take it: both sides' roundings.
    close(after[0], before[0], 2 * (SILU + 1) + 1, np.abs(x).max())


@pytest.mark.parametrize("pair", [lambda x: (x[:, 1::2], x[:, ::2]), lambda x: ops.split(x, 4, -1)])
def test_open_rows(pair):
    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    net = Net(lambda x: gates(*pair(x))["silu"]())
    net.set_inputs(Tensor(shape=[None, 8], dtype=opgraft.float32))
    report = rewrite.substitute(net)
    for rows in (1, 7, 0):
        x = normal(rows, 8)
        gate, up = (np.asarray(v, np.float64) for v in pair_of(x, pair))
        close(net(x).asnumpy(), cases("swiglu").silu(gate) * up, SILU + 1)
    assert len(report.swapped) == 1, str(report)


def pair_of(x, pair):
    return [v.asnumpy() for v in pair(Tensor(x))]


FORWARD = {
    "GeLUGrad": lambda x, **attrs: cases("gelu").gelu(x, attrs.get("approximate", "tanh")),
    "SiLUGrad": lambda x: cases("swiglu").silu(x),
}


STEP = 1e-5
# A central difference: STEP^2 / 6 of a third derivative below 2, and float64's rounding of f <= 9 twice, over 2 STEP.
DIFFERENCE = STEP**2 / 3 + 9 * 2.0**-52 / STEP


def difference(f, x):
    return (f(x + STEP) - f(x - STEP)) / (2 * STEP)


@pytest.mark.parametrize("name,attrs", [("GeLUGrad", {}), ("GeLUGrad", {"approximate": "none"}), ("SiLUGrad", {})])
def test_slopes_are_differences_of_the_formula(name, attrs):
    x = np.linspace(-9, 9, 1001, dtype=np.float32)
    got = _core.run_op(_core.resolve(name), [x, np.ones_like(x)], attrs)[0]
    wide, table = x.astype(np.float64), cases("activation_grad")
    want = difference(lambda v: FORWARD[name](v, **attrs), wide)
    allowed = table.BOUND[name](U, wide, 1.0, **attrs) + table.TOLERANCE["float32"] * np.abs(want) + DIFFERENCE
    assert (np.abs(got - want) <= allowed).all()


def test_swiglu_gradients_are_differences_of_the_formula():
    table = cases("swiglu")
    given = [normal(400, seed=k) for k in range(3)]
    x, gate, dy = (a.astype(np.float64) for a in given)
    got = _core.run_op(_core.resolve("SwiGLUGrad"), given, {})
    close(got[0], dy * table.silu(gate), SILU + 1)
    want = dy * x * difference(table.silu, gate)
    allowed = (
        table.slope_bound(U, x, gate, dy) + table.TOLERANCE["float32"] * np.abs(want) + DIFFERENCE * np.abs(dy * x)
    )
    assert (np.abs(got[1] - want) <= allowed).all()


HALF_OPS = [("SwiGLU", 2, (0, 1)), ("SiLU", 1, (0,)), ("GeLU", 1, (0,)), ("FusedGeLU", 1, (0,)), ("Sigmoid", 1, (0,)),
            ("Exp", 1, (0,)), ("Tanh", 1, (0,)), ("Erf", 1, (0,)), ("SiLUGrad", 2, (0, 1)), ("GeLUGrad", 2, (0, 1)),
            ("Cast", 1, (0,))]  # fmt: skip


@pytest.mark.parametrize("name,count,places", HALF_OPS, ids=[n for n, *_ in HALF_OPS])
def test_every_nan_of_bfloat16_stays_one(name, count, places):
    bits = np.concatenate([np.arange(0x7F81, 0x8000), np.arange(0xFF81, 0x10000)]).astype(np.uint16)
    nan = np.tile(bits, 3).view(ml_dtypes.bfloat16)
    for place in places:
        given = [np.ones_like(nan)] * count
        given[place] = nan
        attrs = {"dtype": "bfloat16"} if name == "Cast" else {}
        assert np.isnan(_core.run_op(_core.resolve(name), given, attrs)[0].astype(np.float32)).all()


@pytest.mark.parametrize("name,roundings", [("Exp", 4), ("Sigmoid", 6), ("SiLU", 7), ("Tanh", TANH)])
def test_all_magnitudes(name, roundings):
    """Every 1009th float32 from the smallest to the largest and their negatives."""
    bits = np.arange(0, 0x7F800000, 1009, dtype=np.uint32).view(np.float32)
    x = np.concatenate([bits, -bits])
    got = _core.run_op(_core.resolve(name), [x], {})[0].astype(np.float64)
    with np.errstate(all="ignore"):
        want = cases("elementwise").REFERENCE[name](x.astype(np.float64))
        want = np.where(np.isinf(want.astype(np.float32)), np.inf * np.sign(want), want)
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite])
    # Below the smallest normal number 0 is right; SiLU below -87.33 is off by up to 2^-120 (activations-inl.h).
    floor = 2.0**-120 if name == "SiLU" else 2.0**-126
    assert (np.abs(got - want)[finite] <= roundings * 2.0**-24 * np.abs(want[finite]) + floor).all()
