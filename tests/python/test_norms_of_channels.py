"""LayerNorm over the channels of images, as ConvNeXt writes it and between two transposes, becomes LayerNorm2d."""

import ml_dtypes
import numpy as np
import opgraft
import pytest
from compare import U, cases, graft, left, normal
from opgraft import Tensor, nn, ops, rewrite

EPSILON = 1e-6
TABLE = cases("layernorm2d")


def p(name, *inputs, **attrs):
    return ops.primitive(name, *[np.float32(x) if isinstance(x, float) else x for x in inputs], **attrs)


def mean(x, axis=1):
    return p("ReduceMean", x, axis=[axis], keep_dims=True)


SQUARES = {"square": lambda d: p("Square", d), "product": lambda d: d * d, "pow": lambda d: p("Pow", d, 2.0)}
ROOTS = {
    "over the root": lambda d, v: d / ops.sqrt(v),
    "times rsqrt": lambda d, v: d * ops.rsqrt(v),
    "times one over": lambda d, v: d * (1.0 / ops.sqrt(v)),
    "ONNX, times reciprocal": lambda d, v: p("Mul", d, p("Reciprocal", p("Sqrt", v))),
    "times pow": lambda d, v: d * p("Pow", v, -0.5),
}


def written(x, square="square", root="over the root", axis=1):
    d = x - mean(x, axis)
    return ROOTS[root](d, mean(SQUARES[square](d), axis) + EPSILON)


def channels(gamma, rank=4):
    """[C] with ones behind it."""
    for _ in range(rank - 2):
        gamma = ops.expand_dims(gamma, -1)
    return gamma


def is_one(write, given, folder, dtype="float32"):
    """Within the bound of the operator's cases, and as many roundings of the spelled form."""
    names, _, (got,) = graft(write, *given)
    assert names[-1] == "LayerNorm2d"
    assert [n for n in left(write, given, folder) if n != "ExpandDims"] == ["LayerNorm2d"]
    wide = [x.astype(np.float64) for x in given]
    u = TABLE.TOLERANCE[dtype]
    want = TABLE.layer_norm_2d(*wide, epsilon=EPSILON)
    off = np.abs(got.astype(np.float64) - want)
    assert (off <= TABLE.bound(u, *wide, epsilon=EPSILON) + u * np.abs(want) + 2.0**-24).all()


SHAPES = {3: (2, 24, 19), 4: (2, 24, 5, 7)}


@pytest.mark.parametrize("rank", SHAPES)
@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("square", SQUARES)
def test_the_ways_it_is_written(square, root, rank, tmp_path):
    x, g, b = normal(*SHAPES[rank]), normal(24, seed=1), normal(24, seed=2)
    is_one(lambda x: written(x, square, root), [x], tmp_path)
    is_one(lambda x, g: written(x, square, root) * channels(g, rank), [x, g], tmp_path)
    is_one(lambda x, g, b: channels(g, rank) * written(x, square, root) + channels(b, rank), [x, g, b], tmp_path)


def test_axes_counted_from_the_end(tmp_path):
    is_one(lambda x: written(x, axis=-3), [normal(*SHAPES[4])], tmp_path)


def turned(x, g, b, apart, back):
    return ops.transpose(ops.layer_norm(ops.transpose(x, apart), (24,), g, b, EPSILON), back)


TURNS = {3: ((0, 2, 1), (0, 2, 1)), 4: ((0, 2, 3, 1), (0, 3, 1, 2))}


@pytest.mark.parametrize("rank", TURNS)
def test_between_two_transposes(rank, tmp_path):
    x, g, b = normal(*SHAPES[rank]), normal(24, seed=1), normal(24, seed=2)
    is_one(lambda x, g, b: turned(x, g, b, *TURNS[rank]), [x, g, b], tmp_path)

    def layer_norm(x, g, b):
        y = p("LayerNorm", ops.transpose(x, TURNS[rank][0]), g, b,
              begin_norm_axis=-1, begin_params_axis=-1, epsilon=EPSILON)[0]  # fmt: skip
        return ops.transpose(y, TURNS[rank][1])

    is_one(layer_norm, [x, g, b], tmp_path)
    is_one(lambda x: ops.transpose(written(ops.transpose(x, TURNS[rank][0]), axis=-1), TURNS[rank][1]), [x], tmp_path)


@pytest.mark.parametrize("params", ["none", "half", "float32"])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_types_in_float32(dtype, params, tmp_path):
    half = opgraft.float16 if dtype == np.float16 else opgraft.bfloat16
    given = [normal(*SHAPES[4]).astype(dtype), normal(24, seed=1), normal(24, seed=2)]
    given = given[:1] if params == "none" else [a.astype(dtype) for a in given] if params == "half" else given

    def write(x, g=None, b=None):
        y = written(ops.cast(x, opgraft.float32))
        if g is not None:
            g, b = ((ops.cast(a, opgraft.float32) if params == "half" else a) for a in (g, b))
            y = y * channels(g) + channels(b)
        return ops.cast(y, half)

    names, _, (got,) = graft(write, *given)
    assert "LayerNorm2d" in names and got.dtype == dtype
    wide, u = [x.astype(np.float64) for x in given], TABLE.TOLERANCE[np.dtype(dtype).name]
    want = TABLE.layer_norm_2d(*wide, epsilon=EPSILON)
    off = np.abs(got.astype(np.float64) - want)
    assert (off <= TABLE.bound(u, *wide, epsilon=EPSILON) + u * np.abs(want) + 2.0**-24).all()


# y of [N, C, H, W] and C = W: what stands for the last dimension is no channel's.
WIDE = (2, 24, 5, 24)


@pytest.mark.parametrize("write,shape", [
    (lambda x, g: written(x, axis=2), SHAPES[4]),
    (lambda x, g: (x - mean(x)) / ops.sqrt(mean(p("Square", x)) + EPSILON), SHAPES[4]),
    (lambda x, g: (x - mean(x)) / ops.sqrt(mean(p("Square", x - mean(x)), 2) + EPSILON), (2, 5, 5, 7)),
    (lambda x, g: (x - mean(x)) / (ops.sqrt(mean(p("Square", x - mean(x)))) + EPSILON), SHAPES[4]),
    (lambda x, g: turned(x, g, g, (0, 2, 3, 1), (0, 2, 3, 1)), WIDE),
    (lambda x, g: turned(x, g, g, (0, 1, 3, 2), (0, 1, 3, 2)), (2, 5, 24, 7)),
], ids=["rows", "no deviation", "two axes", "outside the root", "turned elsewhere", "the sides"])  # fmt: skip
def test_what_is_another_norm(write, shape):
    names, (before,), (after,) = graft(write, normal(*shape), normal(24, seed=1), prove=False)
    assert "LayerNorm2d" not in names
    np.testing.assert_array_equal(after, before)


def test_parameters_of_the_last_dimension_stay(tmp_path):
    def write(x, g, b):
        return written(x) * g + b

    x, g, b = normal(*WIDE), normal(24, seed=1), normal(24, seed=2)
    assert left(write, (x, g, b), tmp_path) == ["LayerNorm2d", "Mul", "Add"]
    x, g, b = (a.astype(np.float64) for a in (x, g, b))
    unit = TABLE.layer_norm_2d(x, epsilon=EPSILON)
    want = unit * g + b
    off = np.abs(graft(write, *map(np.float32, (x, g, b)), prove=False)[2][0] - want)
    # The norm's error and its rounding, g times; a product and a sum round once each.
    norm = TABLE.bound(U, x, epsilon=EPSILON) + 2 * U * np.abs(unit)
    assert (off <= norm * np.abs(g) + U * np.abs(want)).all()


def test_open_sizes(tmp_path):
    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.g = opgraft.Parameter(Tensor(normal(24, seed=1)), name="g")

        def construct(self, x):
            return written(x) * channels(self.g)

    opened = Tensor(shape=[None, 24, None, None], dtype=opgraft.float32)
    graph = opgraft.load(opgraft.export(Net(), opened, file_name=str(tmp_path / "net")))
    rewrite.substitute(graph)
    assert [n["op"] for n in graph.nodes if n["op"] != "ExpandDims"] == ["LayerNorm2d"]
    for shape in ((1, 24, 1, 1), (3, 24, 4, 9)):
        x, g = normal(*shape).astype(np.float64), normal(24, seed=1).astype(np.float64)
        want = TABLE.layer_norm_2d(x, g, epsilon=EPSILON)
        off = np.abs(nn.GraphCell(graph)(Tensor(x.astype(np.float32))).asnumpy() - want)
        assert (off <= TABLE.bound(U, x, g, epsilon=EPSILON) + U * np.abs(want)).all()
