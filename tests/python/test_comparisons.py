"""Comparisons and the logic of bools: each is one operator, with NumPy's results, also where a number is none."""

import operator

import ml_dtypes
import numpy as np
import opgraft
import pytest
from compare import Net, left
from opgraft import Tensor, _core, nn, ops, rewrite

NAN, INF = float("nan"), float("inf")
X = np.array([[1.0, NAN, INF, -INF, 0.0, 3.0]], np.float32)
Y = np.array([[NAN], [1.0], [INF], [-0.0], [3.0]], np.float32)
COMPARED = {
    "NotEqual": (operator.ne, ops.not_equal, ops.NotEqual),
    "LessEqual": (operator.le, ops.less_equal, ops.LessEqual),
    "GreaterEqual": (operator.ge, ops.greater_equal, ops.GreaterEqual),
    "Less": (operator.lt, ops.less, ops.Less),
    "Greater": (operator.gt, ops.greater, ops.Greater),
    "Equal": (operator.eq, ops.equal, ops.Equal),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", COMPARED)
def test_a_comparison_is_one_operator(name, dtype, tmp_path):
    by, function, primitive = COMPARED[name]
    x, y = X.astype(dtype), Y.astype(dtype)
    for write in (by, function, primitive()):
        assert left(write, (x, y), tmp_path) == [name]
        np.testing.assert_array_equal(write(Tensor(x), Tensor(y)).asnumpy(), by(X, Y))
    np.testing.assert_array_equal(by(Tensor(x), 3.0).asnumpy(), by(X, 3.0))
    np.testing.assert_array_equal(by(1.0, Tensor(x)).asnumpy(), by(1.0, X))


def test_whole_numbers_and_bools():
    x, y = np.arange(-3, 4), np.arange(3, -4, -1)
    for dtype in (np.int32, np.int64):
        for by, function, _ in COMPARED.values():
            np.testing.assert_array_equal(
                function(Tensor(x.astype(dtype)), Tensor(y.astype(dtype))).asnumpy(), by(x, y)
            )
    np.testing.assert_array_equal((Tensor(x > 0) != Tensor(y > 0)).asnumpy(), (x > 0) != (y > 0))


# Of another library: any byte but 0 is true.
RAW = np.array([2, 2, 1, 1, 0, 3, 255], np.uint8), np.array([1, 2, 2, 1, 1, 4, 0], np.uint8)


@pytest.mark.parametrize("name", ["LogicalAnd", "LogicalOr", "NotEqual", "Equal"])
def test_bools_of_any_byte(name):
    by = {"LogicalAnd": np.logical_and, "LogicalOr": np.logical_or, "NotEqual": np.not_equal, "Equal": np.equal}[name]
    got = _core.run_op(_core.resolve(name), [a.view(bool) for a in RAW], {})[0]
    np.testing.assert_array_equal(got.view(np.uint8), by(*(a != 0 for a in RAW)).astype(np.uint8))


P, Q = np.array([[True, False, True]]), np.array([[True], [False]])
LOGIC = {
    "LogicalAnd": (operator.and_, ops.logical_and, ops.LogicalAnd(), Tensor.logical_and),
    "LogicalOr": (operator.or_, ops.logical_or, ops.LogicalOr(), Tensor.logical_or),
}


@pytest.mark.parametrize("name", LOGIC)
def test_and_or(name, tmp_path):
    by, *spelled = LOGIC[name]
    for write in (by, *spelled):
        assert left(write, (P, Q), tmp_path) == [name]
        np.testing.assert_array_equal(write(Tensor(P), Tensor(Q)).asnumpy(), by(P, Q))
    for other in (True, False):
        np.testing.assert_array_equal(by(Tensor(P), other).asnumpy(), by(P, other))
        np.testing.assert_array_equal(by(other, Tensor(P)).asnumpy(), by(other, P))


def test_not_and_nan(tmp_path):
    for write in (operator.invert, ops.logical_not, ops.LogicalNot(), Tensor.logical_not):
        assert left(write, [P], tmp_path) == ["LogicalNot"]
        np.testing.assert_array_equal(write(Tensor(P)).asnumpy(), ~P)
    for write in (ops.isnan, ops.IsNan(), Tensor.isnan):
        assert left(write, [X], tmp_path) == ["IsNan"]
        np.testing.assert_array_equal(write(Tensor(X)).asnumpy(), np.isnan(X))


@pytest.mark.parametrize("write,said", [
    (lambda: Tensor(np.arange(3)) & 1, "LogicalAnd: x.dtype must be one of bool, got int64"),
    (lambda: Tensor(X) | Tensor(X), "LogicalOr: x.dtype must be one of bool, got float32"),
    (lambda: ~Tensor(X), "LogicalNot: x.dtype must be one of bool, got float32"),
    (lambda: Tensor(P) <= Tensor(P), "LessEqual: x.dtype must be one of .*, got bool"),
])  # fmt: skip
def test_what_is_refused(write, said):
    with pytest.raises((TypeError, ValueError), match=said):
        write()


def differs(x):
    return ops.primitive("NotEqual", x, x)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_what_differs_from_itself_is_no_number(dtype, tmp_path):
    """As mint.isnan is exported."""
    x = X.astype(dtype)
    assert left(differs, [x], tmp_path) == ["IsNan"]
    net = Net(differs)
    rewrite.substitute(net, prove=(x,))
    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    np.testing.assert_array_equal(net(x).asnumpy(), np.isnan(X))


@pytest.mark.parametrize("write,given", [
    (differs, [np.arange(3)]),
    (differs, [P]),
    (lambda x, y: ops.primitive("NotEqual", x, y), [X, X.copy()]),
    (lambda x: ops.primitive("NotEqual", x, x * 2.0), [X]),
    (lambda x: ops.primitive("Equal", x, x), [X]),
])  # fmt: skip
def test_other_comparisons_stay(write, given, tmp_path):
    assert "IsNan" not in left(write, given, tmp_path)
    graph = opgraft.load(opgraft.export(Net(write), *map(Tensor, given), file_name=str(tmp_path / "other")))
    rewrite.substitute(graph)
    np.testing.assert_array_equal(
        nn.GraphCell(graph)(*map(Tensor, given)).asnumpy(), write(*map(Tensor, given)).asnumpy()
    )
