"""Sparse products with a constant sparse operand: packed at plan time by density and structure."""

import ml_dtypes
import numpy as np
import opgraft
import pytest
from opgraft import Parameter, Tensor, _core, nn, ops

DTYPES = {
    "float32": (np.float32, 2.0**-24),
    "float16": (np.float16, 2.0**-11),
    "bfloat16": (ml_dtypes.bfloat16, 2.0**-8),
}


def pattern(kind, rows, columns):
    """A 0/1 matrix; every form that packing tells apart."""
    rng = np.random.default_rng(3)
    if kind == "blocks":
        coarse = rng.random((rows // 16 + 1, columns // 16 + 1)) < 0.1
        return np.kron(coarse, np.ones((16, 16), bool))[:rows, :columns]
    if kind == "zipf":  # rows from nearly full to nearly empty, shuffled
        density = np.minimum(1.0, 2.0 / np.arange(1, rows + 1))[:, None]
        return rng.permutation(rng.random((rows, columns)) < density)
    if kind == "one row":  # so large that its columns are shared out
        return (np.arange(rows)[:, None] == rows // 2) & (np.arange(columns) != 3)
    if kind == "mixed":  # full rows among sparse ones
        return (rng.random((rows, columns)) < 0.1) | (np.arange(rows)[:, None] % 9 < 4)
    return rng.random((rows, columns)) < {"none": 0.0, "5 %": 0.05, "30 %": 0.3, "70 %": 0.7, "all": 1.0}[kind]


@pytest.fixture(autouse=True)
def _planned(_eager):
    opgraft.set_context(mode=opgraft.GRAPH_MODE)


KINDS = ["none", "5 %", "30 %", "70 %", "all", "blocks", "zipf", "mixed", "one row"]


def exact(s, d):
    """The product in float64, and how far float32 sums may be from it: one rounding a product and a sum, 2^-24 of the
    sum of absolute values each, and 4 where chains meet."""
    s, d = s.astype(np.float64), d.astype(np.float64)
    return s @ d, (np.count_nonzero(s, 1).max(initial=0) + 4) * 2.0**-24 * (abs(s) @ abs(d))


def close(got, want, bound, u):
    got = np.asarray(got).astype(np.float64)
    assert got.shape == want.shape
    # Half types round once more; float16's smallest step.
    assert (abs(got - want) <= bound + u * abs(want) + 2.0**-25).all(), abs(got - want).max()


class Times(nn.Cell):
    """The sparse constant on one side of the product."""

    def __init__(self, s, of_a, **attrs):
        super().__init__()
        self.s, self.of_a = Parameter(Tensor(s)), of_a
        self.attrs = attrs | {"a_is_sparse": of_a}

    def construct(self, x):
        operands = (self.s, x) if self.of_a else (x, self.s)
        return ops.primitive("SparseMatMul", *operands, **self.attrs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_packed_product(kind, dtype):
    of, u = DTYPES[dtype]
    rng = np.random.default_rng(0)
    rows, inner = 270, 389  # no multiple of a group, a block or a vector
    s = np.where(pattern(kind, rows, inner), rng.standard_normal((rows, inner)), 0).astype(of)
    left = Times(s, True)
    right = Times(s, False, transpose_b=True)
    turned = Times(np.ascontiguousarray(s.T), True, transpose_a=True, transpose_b=True)
    for n in (1, 7, 16, 33, 64, 100, 300, 0):  # one model, any width
        d = rng.standard_normal((inner, n)).astype(of)
        want, bound = exact(s, d)
        close(left(Tensor(d)).asnumpy(), want, bound, u)
        rows_of_x = np.ascontiguousarray(d.T)
        close(right(Tensor(rows_of_x)).asnumpy(), want.T, bound.T, u)
        close(turned(Tensor(rows_of_x)).asnumpy(), want, bound, u)


@pytest.mark.parametrize("density", [0.002, 0.02, 0.06, 0.2])
def test_sums_in_the_result_and_beside_it_are_the_same_bits(density):
    rng = np.random.default_rng(1)
    s = np.where(rng.random((300, 3000)) < density, rng.standard_normal((300, 3000)), 0).astype(np.float32)
    d = rng.standard_normal((3000, 65)).astype(np.float32)
    times = Times(s, True)
    beside = times(Tensor(d)).asnumpy()  # rows that begin anywhere
    close(beside, *exact(s, d), 2.0**-24)
    for n in (64, 16, 48):
        np.testing.assert_array_equal(times(Tensor(np.ascontiguousarray(d[:, :n]))).asnumpy(), beside[:, :n])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["30 %", "zipf", "blocks"])
def test_the_number_of_threads_changes_no_bit(kind, dtype):
    """One takes task by task, several take strips of columns, where there are enough."""
    of, u = DTYPES[dtype]
    rng = np.random.default_rng(2)
    s = np.where(pattern(kind, 270, 389), rng.standard_normal((270, 389)), 0).astype(of)
    times = Times(s, True)
    try:
        for n in (33, 128, 300, 700):
            d = rng.standard_normal((389, n)).astype(of)
            found = []
            for threads in (1, 2, 3, 7):
                _core.set_threads(threads)
                found += [times(Tensor(d)).asnumpy().astype(np.float32) for _ in range(2)]
            close(found[0], *exact(s, d), u)
            assert all(np.array_equal(got, found[0]) for got in found)
    finally:
        _core.set_threads(0)


@pytest.mark.parametrize("columns", [10, 30, 40, 50])
@pytest.mark.parametrize("kind", KINDS)
def test_zeros_do_not_meet_infinity(kind, columns):
    s = np.where(pattern(kind, 100, 300), 1.5, 0).astype(np.float32)
    d = np.ones((300, columns), np.float32)
    d[::7, ::5], d[1::11, 3] = np.inf, np.nan
    want = np.stack([(s[r, k, None] * d[k]).sum(0) for r in range(100) for k in [np.flatnonzero(s[r])]])
    # 1.5 times small whole numbers: exact.
    np.testing.assert_array_equal(Times(s, True)(Tensor(d)).asnumpy(), want)
    # Only what a full row meets is not finite, NaN from no 0 * inf.
    assert np.isfinite(want).all() == (kind == "none")


def csr(s):
    at = np.argwhere(s)
    return np.append(0, np.count_nonzero(s, 1).cumsum()).astype(np.int32), at[:, 1].astype(np.int32), s[s != 0]


class Csr(nn.Cell):
    def __init__(self, arrays, shape):
        super().__init__()
        self.indptr, self.indices, self.values = (Parameter(Tensor(a)) for a in arrays)
        self.shape = shape

    def construct(self, d):
        return ops.primitive("CSRMM", self.indptr, self.indices, self.values, self.shape, d)


@pytest.mark.parametrize("kind", KINDS)
def test_constant_arrays(kind):
    rng = np.random.default_rng(1)
    s = np.where(pattern(kind, 130, 200), rng.standard_normal((130, 200)), 0).astype(np.float32)
    d = rng.standard_normal((200, 90)).astype(np.float32)
    close(Csr(csr(s), (130, 200))(Tensor(d)).asnumpy(), *exact(s, d), 2.0**-24)


@pytest.mark.parametrize("n", [1, 40, 300, 333])
def test_a_large_row_among_arrays_of_a_call(n):
    """One row is more than a thread's share of the work: its columns are shared out."""
    rng = np.random.default_rng(6)
    s = np.where(rng.random((40, 6000)) < 0.002, rng.standard_normal((40, 6000)), 0).astype(np.float32)
    s[17] = rng.standard_normal(6000)
    d = rng.standard_normal((6000, n)).astype(np.float32)
    got = _core.run_op(_core.resolve("CSRMM"), [*csr(s), np.array(s.shape), d], {})[0]
    close(got, *exact(s, d), 2.0**-24)


def test_two_matrices_that_share_their_values():
    """The packed form is kept by its values: that of another matrix with the same values must not be taken."""
    s = np.eye(40, dtype=np.float32)
    indptr, indices, values = csr(s)
    d = np.random.default_rng(2).standard_normal((40, 30)).astype(np.float32)

    class Both(nn.Cell):
        def __init__(self):
            super().__init__()
            self.values, self.indptr = Parameter(Tensor(values)), Parameter(Tensor(indptr))
            self.one, self.other = Parameter(Tensor(indices)), Parameter(Tensor(indices[::-1].copy()))

        def construct(self, d):
            a = ops.primitive("CSRMM", self.indptr, self.one, self.values, (40, 40), d)
            return a - ops.primitive("CSRMM", self.indptr, self.other, self.values, (40, 40), d)

    np.testing.assert_array_equal(Both()(Tensor(d)).asnumpy(), d - d[::-1])


def test_coordinates_with_repeats():
    rng = np.random.default_rng(4)
    at = rng.integers(0, 50, (400, 2)).astype(np.int64)
    values = rng.standard_normal(400).astype(np.float32)
    s, absolute = np.zeros((50, 50)), np.zeros((50, 50))
    np.add.at(s, tuple(at.T), values.astype(np.float64))
    np.add.at(absolute, tuple(at.T), abs(values).astype(np.float64))
    d = rng.standard_normal((50, 70)).astype(np.float32)

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.at, self.values = Parameter(Tensor(at)), Parameter(Tensor(values))

        def construct(self, d):
            return ops.primitive("SparseTensorDenseMatmul", self.at, self.values, (50, 50), d)

    bound = (400 + 4) * 2.0**-24 * (absolute @ abs(d).astype(np.float64))
    close(Net()(Tensor(d)).asnumpy(), s @ d, bound, 2.0**-24)


def test_constant_indices_are_checked():
    net = Csr((np.array([0, 1, 2], np.int32), np.array([0, 9], np.int32), np.ones(2, np.float32)), (2, 3))
    with pytest.raises(ValueError, match=r"CSRMM: indices must be in \[0, 3\), got 9 at 1"):
        net(Tensor(np.ones((3, 4), np.float32)))
    opgraft.set_context(mode=opgraft.PYNATIVE_MODE)
    with pytest.raises(ValueError, match=r"CSRMM: indices must be in \[0, 3\), got 9 at 1"):
        net(Tensor(np.ones((3, 4), np.float32)))


def test_huge_stated_shapes_take_no_memory():
    """A shape that no memory holds, with no column of the dense operand: nothing to compute, nothing to allocate."""
    at, values = np.zeros((1, 2), np.int64), np.ones(1, np.float32)
    d = np.zeros((2**30, 0), np.float32)
    got = _core.run_op(_core.resolve("SparseTensorDenseMatmul"), [at, values, np.array([2**40, 2**30]), d], {})[0]
    assert got.shape == (2**40, 0)
    grads = _core.run_op(
        _core.resolve("SparseTensorDenseMatmulGrad"), [at, values, d, np.zeros((2**40, 0), np.float32)], {}
    )
    np.testing.assert_array_equal(grads[1], [0.0])


def test_matrices_by_mindspores_names():
    rng = np.random.default_rng(7)
    s = np.where(pattern("30 %", 20, 30), rng.standard_normal((20, 30)), 0).astype(np.float32)
    d = rng.standard_normal((30, 9)).astype(np.float32)
    a = opgraft.CSRTensor(*csr(s), (20, 30))
    assert (a.shape, a.dtype, a.size, a.ndim) == ((20, 30), np.float32, np.count_nonzero(s), 2)
    np.testing.assert_array_equal(a.to_dense().asnumpy(), s)
    close(a.mm(Tensor(d)).asnumpy(), *exact(s, d), 2.0**-24)
    close(a.mv(Tensor(d[:, :1])).asnumpy(), *exact(s, d[:, :1]), 2.0**-24)
    order = rng.permutation(a.size)
    b = opgraft.COOTensor(np.argwhere(s)[order], s[s != 0][order], (20, 30))
    np.testing.assert_array_equal(b.to_dense().asnumpy(), s)
    np.testing.assert_array_equal(b.to_csr().to_dense().asnumpy(), s)
    got = ops.SparseTensorDenseMatmul(adjoint_st=True)(*b.to_tuple(), Tensor(d[:20]))
    close(got.asnumpy(), *exact(s.T, d[:20]), 2.0**-24)
    with pytest.raises(ValueError, match=r"CSRTensor: shape must be two sizes, got \(20,\)"):
        opgraft.CSRTensor(*csr(s), (20,))
    with pytest.raises(ValueError, match=r"CSRTensor.mv: dense_vector.shape must be \(30, 1\), got \(30, 9\)"):
        a.mv(Tensor(d))
    with pytest.raises(TypeError, match="COOTensor: indices.dtype must be int32 or int64, got float32"):
        opgraft.COOTensor(np.zeros((1, 2), np.float32), np.ones(1, np.float32), (2, 2))


def test_a_rule_grafts_pruned_layers():
    """MatMul gives way to SparseMatMul by a rule of the user's; the packed form of a full weight is the dense one."""
    rng = np.random.default_rng(8)
    pruned = np.where(pattern("5 %", 256, 512), rng.standard_normal((256, 512)), 0).astype(np.float32)

    class Layers(nn.Cell):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Dense(512, 256, has_bias=False), nn.Dense(256, 64, has_bias=False)
            self.first.weight.set_data(Tensor(pruned))

        def construct(self, x):
            return self.second(ops.relu(self.first(x)))

    net = Layers()
    x = Tensor(rng.standard_normal((32, 512)).astype(np.float32))
    before = net(x).asnumpy()
    report = opgraft.rewrite.substitute(
        net,
        lambda x, w: ops.MatMul(transpose_b=True)(x, w),
        lambda x, w: ops.sparse_matmul(x, w, transpose_b=True),
        prove=[[x]],
    )
    assert len(report.swapped) == 2 and not report.left, report
    hidden, error = exact(x.asnumpy(), pruned.T)
    want, more = exact(np.maximum(hidden, 0), net.second.weight.asnumpy().T)
    # The first product's error goes through the second, which rounds it, too (260 times 2^-24); relu adds none.
    bound = more + (1 + 2.0**-15) * (error @ abs(net.second.weight.asnumpy().T))
    for y in (before, net(x).asnumpy()):
        close(y, want, bound, 2.0**-24)


class Pruned(nn.Cell):
    """A product as frameworks spell it: MatMul of a weight (N, K) and BiasAdd, of (K, N) as ONNX keeps it with an Add,
    MatMulExt, the primitive Dense, and the weight on the left."""

    def __init__(self, weight, spelling):
        super().__init__()
        self.weight, self.spelling = Parameter(Tensor(weight), name="weight"), spelling
        self.bias = Parameter(Tensor(np.arange(weight.shape[1], dtype=np.float32)), name="bias")
        self.dense = nn.Dense(*weight.shape)
        self.dense.weight.set_data(Tensor(weight.T.copy()))

    def construct(self, x):
        if self.spelling == "nn.Dense":
            return self.dense(x)
        if self.spelling == "Dense":
            return ops.primitive("Dense", x, self.dense.weight, self.dense.bias)
        if self.spelling == "left":
            return ops.matmul(self.weight, x, transpose_a=True, transpose_b=True)
        if self.spelling == "MatMulExt":
            return ops.primitive("MatMulExt", x, self.weight)
        return ops.matmul(x, self.weight) + self.bias


# Where it gains: the more vectors are multiplied at once, the fuller the weight may be. An open number is many.
GAINS = [
    (0.015, 1, True), (0.03, 3, False), (0.05, 8, True), (0.095, 8, True), (0.105, 8, False), (0.095, None, True),
    (0.105, None, False), (0.29, 32, True), (0.29, 30, False), (0.31, 64, False), (1.0, 64, False),
]  # fmt: skip


@pytest.mark.parametrize("density,rows,swapped", GAINS)
@pytest.mark.parametrize("spelling,dimensions", [
    *((s, d) for s in ("nn.Dense", "ONNX", "MatMulExt", "Dense") for d in (2, 3)), ("left", 2),
])  # fmt: skip
def test_a_pruned_weight_is_swapped(density, rows, swapped, spelling, dimensions):
    given = rows or 12
    lead = (given,) if dimensions == 2 else (1, given) if given % 2 else (2, given // 2)
    rng = np.random.default_rng(5)
    w = rng.standard_normal((400, 390)).astype(np.float32)
    w.ravel()[rng.permutation(w.size)[: round(w.size * (1 - density))]] = 0
    net, x = Pruned(w, spelling), rng.standard_normal((*lead, 400)).astype(np.float32)
    biased = spelling not in ("MatMulExt", "left")
    bias = (net.bias if spelling == "ONNX" else net.dense.bias).asnumpy() if biased else 0.0
    net.set_inputs(Tensor(x) if rows else Tensor(shape=[None, *x.shape[1:]], dtype=opgraft.float32))
    report = opgraft.rewrite.substitute(net, prove=[[Tensor(x)]])
    op = "SparseDense" if biased else "SparseMatMul"
    assert [entry["op"] for entry in report.swapped if "Sparse" in entry["op"]] == [f"{op}@1.0.0"] * swapped
    assert not any("Sparse" in entry["op"] for entry in report.left)
    want = x.astype(np.float64) @ w
    bound = (np.count_nonzero(w, 0).max() + 5) * 2.0**-24 * (abs(x.astype(np.float64)) @ abs(w) + abs(bias))
    want = want + bias
    if spelling == "left":
        want, bound = want.T, bound.T
    close(net(Tensor(x)).asnumpy(), want, bound, 2.0**-24)


# The dense product of half types is faster, that of bfloat16 where the CPU has vdpbf16ps by twice.
@pytest.mark.parametrize("how", ["b", "a", "layer"])
@pytest.mark.parametrize("dtype,density,rows,swapped", [
    ("float16", 0.015, 1, False), ("float16", 0.095, 8, True), ("float16", 0.105, 8, False),
    ("float16", 0.095, None, True), ("float16", 0.29, 32, True), ("float16", 0.31, 32, False),
    ("bfloat16", 0.015, 1, False), ("bfloat16", 0.015, 8, True), ("bfloat16", 0.025, 8, False),
    ("bfloat16", 0.015, None, True), ("bfloat16", 0.035, 32, True), ("bfloat16", 0.045, 32, False),
])  # fmt: skip
def test_a_pruned_weight_of_a_half_type_is_swapped(dtype, density, rows, swapped, how):
    of, u = DTYPES[dtype]
    rng = np.random.default_rng(6)
    w = rng.standard_normal((260, 300)).astype(of)
    w.ravel()[rng.permutation(w.size)[: round(w.size * (1 - density))]] = 0

    class Layer(nn.Cell):
        def __init__(self):
            super().__init__()
            self.w = Parameter(Tensor(w))

        def construct(self, x):
            if how == "layer":
                return ops.primitive("Dense", x, self.w)
            return ops.matmul(self.w, x, transpose_b=True) if how == "a" else ops.matmul(x, self.w, transpose_b=True)

    x = rng.standard_normal((rows or 12, 300)).astype(of)
    net = Layer()
    net.set_inputs(Tensor(x) if rows else Tensor(shape=[None, 300], dtype=getattr(opgraft, dtype)))
    report = opgraft.rewrite.substitute(net, prove=[[Tensor(x)]])
    assert ("Sparse" in str(report.swapped)) == swapped and not report.left
    want, bound = exact(w, x.T) if how == "a" else (a.T for a in exact(w, x.T))
    close(net(Tensor(x)).asnumpy(), want, bound, u)


# Of a small matrix what is spared is less than what the packed form takes: the shorter side, the density, the vectors.
SMALL = [
    (390, 0.015, 1, True), (380, 0.015, 1, False), (260, 0.09, 8, True), (250, 0.09, 8, False), (260, 0.09, None, True),
    (250, 0.09, None, False), (130, 0.09, 16, True), (130, 0.09, 15, False), (120, 0.09, 16, False),
    (70, 0.09, 48, True), (70, 0.09, 47, False), (60, 0.09, 100, False), (130, 0.29, 32, True), (120, 0.29, 64, False),
]  # fmt: skip


@pytest.mark.parametrize("spelling", ["MatMulExt", "Dense"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("side,density,rows,swapped", SMALL)
def test_a_small_matrix_stays_dense(side, density, rows, swapped, turned, spelling):
    rng = np.random.default_rng(7)
    w = rng.standard_normal((side, 400)[:: -1 if turned else 1]).astype(np.float32)
    w.ravel()[rng.permutation(w.size)[: round(w.size * (1 - density))]] = 0
    net, x = Pruned(w, spelling), rng.standard_normal((rows or 12, len(w))).astype(np.float32)
    bias = net.dense.bias.asnumpy() if spelling == "Dense" else np.zeros(1)
    net.set_inputs(Tensor(x) if rows else Tensor(shape=[None, len(w)], dtype=opgraft.float32))
    report = opgraft.rewrite.substitute(net, prove=[[Tensor(x)]])
    assert ("Sparse" in str(report.swapped)) == swapped
    bound = (len(w) + 6) * 2.0**-24 * (abs(x.astype(np.float64)) @ abs(w) + abs(bias))
    close(net(Tensor(x)).asnumpy(), x.astype(np.float64) @ w + bias, bound, 2.0**-24)
