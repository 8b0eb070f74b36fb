"""Gradients of sparse products whose sparse operand is a constant: it is checked, sorted and packed once."""

import numpy as np
import opgraft
import pytest
from opgraft import Parameter, Tensor, _core, nn, ops
from test_sparse import DTYPES, KINDS, close, csr, exact, pattern

ROWS, COLUMNS, N = 130, 200, 37


@pytest.fixture(autouse=True)
def _planned(_eager):
    opgraft.set_context(mode=opgraft.GRAPH_MODE)


class Of(nn.Cell):
    """An operator whose first inputs are constants, or those that are named by their position."""

    def __init__(self, op, constants, **attrs):
        super().__init__()
        constants = constants if isinstance(constants, dict) else dict(enumerate(constants))
        self.op, self.attrs, self.at = op, attrs, sorted(constants)
        for k, a in constants.items():
            setattr(self, f"constant{k}", Parameter(Tensor(a)))

    def construct(self, *given):
        given = list(given)
        for k in self.at:
            given.insert(k, getattr(self, f"constant{k}"))
        return ops.primitive(self.op, *given, **self.attrs)


def matrix(kind, of=np.float32, shape=(ROWS, COLUMNS)):
    return np.where(pattern(kind, *shape), np.random.default_rng(1).standard_normal(shape), 0).astype(of)


def operands(s, of=np.float32, n=N):
    rng = np.random.default_rng(2)
    return rng.standard_normal((s.shape[1], n)).astype(of), rng.standard_normal((s.shape[0], n)).astype(of)


def gradients(s, d, dy):
    """Of the dense operand and of s, where it is not zero, each with what float32 sums may be off."""
    of_s, off = exact(dy, d.T)
    return exact(s.T, dy), (of_s * (s != 0), off)


def at_values(of_s, s):
    return tuple(a[s != 0] for a in of_s)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_constant_matrix(kind, dtype):
    of, u = DTYPES[dtype]
    s = matrix(kind, of)
    d, dy = operands(s, of)
    of_d, of_s = gradients(s, d, dy)
    ds, dd = Of("SparseMatMulGrad", [s], a_is_sparse=True)(Tensor(d), Tensor(dy))
    close(dd.asnumpy(), *of_d, u)
    close(ds.asnumpy(), *of_s, u)
    turned = [Tensor(np.ascontiguousarray(a.T)) for a in (d, dy)]
    dd, ds = Of("SparseMatMulGrad", {1: s}, transpose_b=True)(*turned)
    close(dd.asnumpy().T, *of_d, u)
    close(ds.asnumpy(), *of_s, u)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_constant_arrays(kind, dtype):
    of, u = DTYPES[dtype]
    s = matrix(kind, of)
    d, dy = operands(s, of)
    of_d, of_s = gradients(s, d, dy)
    dp, di, dv, dd = Of("CSRMMGrad", csr(s))(Tensor(d), Tensor(dy))
    close(dd.asnumpy(), *of_d, u)
    close(dv.asnumpy(), *at_values(of_s, s), u)
    assert not dp.asnumpy().any() and not di.asnumpy().any()


def coordinates(s, turned):
    """In no order."""
    at = np.argwhere(s)
    order = np.random.default_rng(3).permutation(len(at))
    return at[order][:, :: -1 if turned else 1].astype(np.int32), s[s != 0][order], order


@pytest.mark.parametrize("adjoint_dt", [False, True])
@pytest.mark.parametrize("adjoint_st", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_constant_coordinates(kind, adjoint_st, adjoint_dt):
    s = matrix(kind)
    d, dy = operands(s)
    of_d, of_s = gradients(s, d, dy)
    at, values, order = coordinates(s, adjoint_st)
    net = Of("SparseTensorDenseMatmulGrad", [at, values], adjoint_st=adjoint_st, adjoint_dt=adjoint_dt)
    di, dv, dd = net(Tensor(np.ascontiguousarray(d.T)) if adjoint_dt else Tensor(d), Tensor(dy))
    close(dd.asnumpy().T if adjoint_dt else dd.asnumpy(), *of_d, 2.0**-24)
    close(dv.asnumpy(), *(a[order] for a in at_values(of_s, s)), 2.0**-24)
    assert not di.asnumpy().any()


def run(op, inputs, **attrs):
    return _core.run_op(_core.resolve(op), inputs, attrs)


# Too sparse to be packed: held as arrays, or only checked.
@pytest.mark.parametrize("dtype", DTYPES)
def test_hardly_any_values(dtype):
    of, u = DTYPES[dtype]
    rng = np.random.default_rng(4)
    rows, columns, entries = 60_000, 50_000, 3000
    r, k = np.sort(rng.integers(0, rows, entries)), rng.integers(0, columns, entries)
    indptr, indices = np.searchsorted(r, np.arange(rows + 1)).astype(np.int64), k.astype(np.int64)
    values = rng.standard_normal(entries).astype(of)
    d, dy = rng.standard_normal((columns, 9)).astype(of), rng.standard_normal((rows, 9)).astype(of)
    shape = np.array([rows, columns])
    at = np.stack([r, k], 1)
    # The sums of a call are made in the same order: the same bits.
    for op, constants, given in [
        ("CSRMM", [indptr, indices, values, shape], [d]),
        ("CSRMMGrad", [indptr, indices, values], [d, dy]),
        ("SparseTensorDenseMatmul", [at, values, shape], [d]),
        ("SparseTensorDenseMatmulGrad", [at, values], [d, dy]),
    ]:
        got = Of(op, constants)(*map(Tensor, given))
        for y, want in zip(got if isinstance(got, tuple) else (got,), run(op, [*constants, *given]), strict=True):
            np.testing.assert_array_equal(y.asnumpy(), want)


def test_a_matrix_of_another_shape_is_made_anew():
    """Of one model, the dense operand says how many columns the matrix has: what was made of fewer is not taken."""
    s = matrix("5 %")
    indptr, indices, values = csr(s)
    at = np.argwhere(s).astype(np.int32)
    for net in (Of("CSRMMGrad", [indptr, indices, values]), Of("SparseTensorDenseMatmulGrad", [at, values])):
        d = Tensor(shape=[None, N], dtype=opgraft.float32)
        session = net.session(d, Tensor(np.zeros((ROWS, N), np.float32)))
        for columns in (COLUMNS, COLUMNS + 100, COLUMNS):
            wider = np.zeros((ROWS, columns), np.float32)
            wider[:, :COLUMNS] = s
            d, dy = operands(wider)
            got = session.run([d, dy])
            of_d, of_s = gradients(wider, d, dy)
            close(got[-1], *of_d, 2.0**-24)
            close(got[-2], *at_values(of_s, wider), 2.0**-24)
        with pytest.raises(ValueError, match=r"Grad: indices must "):
            session.run([d[:100], dy])


@pytest.mark.parametrize("entries", [3, 1500])
def test_made_once_for_all_shapes_and_sessions(entries, tmp_path):
    s = np.zeros((3000, 4000), np.float32)
    s.reshape(-1)[:: s.size // entries] = 2
    indptr, indices, values = csr(s)
    at = np.argwhere(s)
    for op, constants in [
        ("CSRMM", [indptr, indices, values, np.array(s.shape)]),
        ("CSRMMGrad", [indptr, indices, values]),
        ("SparseTensorDenseMatmul", [at, values, np.array(s.shape)]),
        ("SparseTensorDenseMatmulGrad", [at, values]),
    ]:
        given = [Tensor(shape=[n, None], dtype=opgraft.float32) for n in s.shape[::-1]][: 1 + op.endswith("Grad")]
        file = opgraft.export(Of(op, constants), *given, file_name=str(tmp_path / op))
        model = _core.Model(_core.read_mindir(str(file)))
        made = []
        for n in (5, 16):
            _core.Session(model).run(list(operands(s, n=n)[: len(given)]))
            made.append(model.stats["packed_bytes"])
        assert made[0] == made[1] >= 64, op


@pytest.mark.parametrize("op", ["SparseMatMul", "SparseMatMulGrad", "CSRMM", "SparseTensorDenseMatmul"])
def test_a_run_reads_what_was_packed_when_it_was_planned(op):
    """The same bits after the matrix has been overwritten, the gradient of the dense operand as well, and of another
    size of it: that plan has the same packed matrix."""
    s = matrix("5 %")
    d, dy = operands(s)
    exactly = exact(s.T, dy) if op.endswith("Grad") else exact(s, d)
    indptr, indices, values = csr(s)
    constants, attrs, held = {
        "CSRMM": ([indptr, indices, values, np.array(s.shape)], {}, 2),
        "SparseTensorDenseMatmul": ([np.argwhere(s), values, np.array(s.shape)], {}, 1),
    }.get(op, ([s], {"a_is_sparse": True}, 0))
    net, given = Of(op, constants, **attrs), [d, dy] if op.endswith("Grad") else [d]
    net.set_inputs(*(Tensor(shape=[len(a), None], dtype=opgraft.float32) for a in given))
    session = net.session(*map(Tensor, given))
    want = session.run(given)[-1].copy()
    getattr(net, f"constant{held}")._array[...] = np.nan  # in the memory that the model holds
    assert session.run(given)[-1].tobytes() == want.tobytes() and want.any()
    wider = session.run([np.concatenate([a, a], 1) for a in given])[-1]
    close(wider, *(np.concatenate([a, a], 1) for a in exactly), 2.0**-24)


def test_huge_stated_shapes_take_no_memory():
    at, values, d = np.zeros((1, 2), np.int64), np.ones(1, np.float32), np.zeros((2**30, 0), np.float32)
    shape = np.array([2**40, 2**30])
    assert Of("SparseTensorDenseMatmul", [at, values, shape])(Tensor(d)).shape == (2**40, 0)
    net = Of("SparseTensorDenseMatmulGrad", [at, values])
    np.testing.assert_array_equal(net(Tensor(d), Tensor(np.zeros((2**40, 0), np.float32)))[1].asnumpy(), [0])


def test_matrices_that_share_their_values():
    s = np.eye(40, dtype=np.float32)
    indptr, indices, values = csr(s)
    d, dy = operands(s)

    class Both(nn.Cell):
        def __init__(self):
            super().__init__()
            self.values, self.indptr = Parameter(Tensor(values)), Parameter(Tensor(indptr))
            self.one, self.other = Parameter(Tensor(indices)), Parameter(Tensor(indices[::-1].copy()))

        def construct(self, d, dy):
            a, b = (ops.primitive("CSRMMGrad", self.indptr, i, self.values, d, dy)[3] for i in (self.one, self.other))
            return a - b

    np.testing.assert_array_equal(Both()(Tensor(d), Tensor(dy)).asnumpy(), dy - dy[::-1])


def test_shapes_that_share_their_values():
    """The same arrays stated as two shapes, in one model."""
    s = matrix("30 %", shape=(40, 60))
    arrays = csr(s)
    d = np.random.default_rng(5).standard_normal((60 + 300, 20)).astype(np.float32)

    class Both(nn.Cell):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (Parameter(Tensor(a)) for a in arrays)

        def construct(self, d, e):
            return tuple(ops.primitive("CSRMM", self.a, self.b, self.c, (40, x.shape[0]), x) for x in (d, e))

    for y in Both()(Tensor(d), Tensor(d[:60])):
        close(y.asnumpy(), *exact(s, d[:60]), 2.0**-24)


@pytest.mark.parametrize(
    "op,constants,rest,said",
    [
        ("CSRMMGrad", [[0, 1, 2], [0, 3]], [(3, 4), (2, 4)], r"indices must be in \[0, 3\), got 3 at 1"),
        ("CSRMMGrad", [[0, 2, 1], [0, 1]], [(3, 4), (2, 4)], "indptr must not descend, got 2 before 1 at row 1"),
        ("SparseTensorDenseMatmulGrad", [[[0, 0], [2, 0]]], [(3, 4), (2, 4)],
         r"indices must lie in the matrix of shape \(2, 3\), got \(2, 0\) at 1"),
    ],
)  # fmt: skip
def test_constant_indices_are_checked(op, constants, rest, said):
    net = Of(op, [*(np.array(a, np.int32) for a in constants), np.ones(2, np.float32)])
    given = [Tensor(np.ones(shape, np.float32)) for shape in rest]
    with pytest.raises(ValueError, match=f"{op}: {said}"):
        net(*given)


def test_indices_that_follow_from_an_open_dimension_are_not_held():
    """They are a plan's, and go with it; what is packed stays with the model."""
    g = _core.Graph("m")
    m = g.symbol("m")
    x, z = g.add_input("x", 43, [64, 4]), g.add_input("z", 43, [m, 1])
    one = lambda op, inputs, attrs={}: g.add_node(op, inputs, attrs)[1][0]  # noqa: E731
    last = one("ScalarSub", [one("TupleGetItem", [one("Shape", [z])], {"index": 0}), g.add_constant(np.array(1))])
    indptr, values = g.add_constant(np.array([0, 1])), g.add_constant(np.array([1.0], np.float32))
    g.set_outputs(
        [one("CSRMM", [indptr, one("MakeTuple", [last]), values, g.add_constant(np.array([1, 64])), x])], ["y"]
    )
    model, rows = _core.Model(g), np.arange(256, dtype=np.float32).reshape(64, 4)
    session = _core.Session(model)
    for m in list(range(1, 65)) * 2:  # more than plans are kept
        np.testing.assert_array_equal(session.run([rows, np.zeros((m, 1), np.float32)])[0], rows[m - 1 : m])
    assert model.stats["packed_bytes"] == 0
