"""Cases of the sparse products; the form is described in swiglu/cases.py."""

from math import erf

import numpy as np

RNG = np.random.default_rng(5)


def product(s, d):
    """s d where a zero of s adds nothing, not even 0 * inf."""
    out = np.zeros((s.shape[0], d.shape[1]))
    for r in range(s.shape[0]):
        k = np.flatnonzero(s[r])
        out[r] = (s[r, k, None] * d[k]).sum(0)
    return out


def summed(s, d):
    """What float32 sums of the products may be off: every product and every sum rounds once, 2^-24 of at most the sum
    of the absolute values (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1); 4 more where chains of
    sums are added up."""
    d = np.nan_to_num(d, nan=0.0, posinf=0.0, neginf=0.0)
    return (np.count_nonzero(s, 1).max(initial=0) + 4) * 2.0**-24 * (abs(s) @ abs(d))


def t(x, turned):
    return x.T if turned else x


def matmul(f):
    def g(a, b, transpose_a=False, transpose_b=False, a_is_sparse=False):
        a, b = t(a, transpose_a), t(b, transpose_b)
        if a_is_sparse:
            return f(a, b)
        return f(b.T, a.reshape(int(np.prod(a.shape[:-1])), a.shape[-1]).T).T.reshape(*a.shape[:-1], b.shape[1])

    return g


def matmul_grad(f):
    def g(a, b, dout, transpose_a=False, transpose_b=False, a_is_sparse=False):
        rows = int(np.prod(dout.shape[:-1]))
        b2, d = t(b, transpose_b), dout.reshape(rows, dout.shape[-1])
        a2 = t(a, transpose_a).reshape(rows, b2.shape[0])
        if a_is_sparse:
            da, db = f(d, b2.T) * (a2 != 0), f(a2.T, d)
        else:
            da, db = f(b2, d.T).T, f(a2.T, d) * (b2 != 0)
        return [t(da, transpose_a).reshape(a.shape), t(db, transpose_b)]

    return g


def from_csr(indptr, indices, values, shape):
    s = np.zeros([int(n) for n in shape])
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr).astype(int))
    np.add.at(s, (rows, indices.astype(int)), values)
    return s


def from_coo(indices, values, shape):
    s = np.zeros([int(n) for n in shape])
    np.add.at(s, (indices[:, 0].astype(int), indices[:, 1].astype(int)), values)
    return s


def csrmm(f):
    return lambda indptr, indices, values, shape, dense: f(from_csr(indptr, indices, values, shape), dense)


def csrmm_grad(f):
    def g(indptr, indices, values, dense, dout):
        shape = dout.shape[0], dense.shape[0]
        rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr).astype(int))
        every = f(dout, dense.T)
        return [0 * indptr, 0 * indices, every[rows, indices.astype(int)],
                f(from_csr(indptr, indices, values, shape).T, dout)]  # fmt: skip

    return g


def coo(f):
    def g(indices, values, shape, dense, adjoint_st=False, adjoint_dt=False):
        return f(t(from_coo(indices, values, shape), adjoint_st), t(dense, adjoint_dt))

    return g


def coo_grad(f):
    def g(indices, values, dense, dout, adjoint_st=False, adjoint_dt=False):
        d = t(dense, adjoint_dt)
        shape = (dout.shape[0], d.shape[0])
        s = t(from_coo(indices, values, shape[::-1] if adjoint_st else shape), adjoint_st)
        every = t(f(dout, d.T), adjoint_st)
        return [0 * indices, every[indices[:, 0].astype(int), indices[:, 1].astype(int)], t(f(s.T, dout), adjoint_dt)]

    return g


ACTIVATIONS = {
    "none": lambda s: s,
    "gelu": lambda s: s * (1.0 + np.vectorize(erf, otypes=[float])(s / np.sqrt(2.0))) / 2.0,
    "gelu_tanh": lambda s: s * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (s + 0.044715 * s**3))) / 2.0,
    "relu": lambda s: np.where(s < 0, 0.0, s),
    "silu": lambda s: s / (1.0 + np.exp(-s)),
}


def before_activation(f):
    """W x by f for each x, and the bias."""

    def g(x, weight, bias=0.0, transpose_b=True, **attrs):
        w = t(weight, not transpose_b)
        return f(w, x.reshape(int(np.prod(x.shape[:-1])), w.shape[1]).T).T.reshape(*x.shape[:-1], len(w)) + bias

    return g


def layer(x, weight, bias=0.0, transpose_b=True, activation="none"):
    return ACTIVATIONS[activation](before_activation(product)(x, weight, bias, transpose_b))


def layer_bound(u, x, weight, bias=0.0, transpose_b=True, activation="none"):
    """The sum's error, and the bias's rounding, which an activation enlarges at most 1.13 times (GELU); it errs itself
    by what gelu/cases.py derives and 8 roundings of its result."""
    s = before_activation(product)(x, weight, bias, transpose_b)
    off = before_activation(summed)(x, weight, 0.0, transpose_b) + 2.0**-24 * abs(s)
    own = 2.1e-7 * abs(s) + 8 * 2.0**-24 * abs(ACTIVATIONS[activation](s))
    return 1.13 * off + (0.0 if activation in ("none", "relu") else own)


FORMS = {"SparseMatMul": matmul, "SparseMatMulGrad": matmul_grad, "CSRMM": csrmm, "CSRMMGrad": csrmm_grad,
         "SparseTensorDenseMatmul": coo, "SparseTensorDenseMatmulGrad": coo_grad}  # fmt: skip
REFERENCE = {op: form(product) for op, form in FORMS.items()} | {"SparseDense": layer}
BOUND = {op: (lambda g: lambda u, *inputs, **attrs: g(*inputs, **attrs))(form(summed)) for op, form in FORMS.items()}
BOUND["SparseDense"] = layer_bound
# Half types are rounded to once, by the kernel and by the twin; float32 once by the twin.
TOLERANCE = {"float32": 2.0**-23, "float16": 2.02 * 2.0**-11, "bfloat16": 2.02 * 2.0**-8}
SMALLEST = 2.0**-24


def sparse(rows, columns, density):
    s = RNG.standard_normal((rows, columns)) * (RNG.random((rows, columns)) < density)
    return s.astype(np.float32)


def held(op, attrs):
    """What is the sparse operand, which also comes as a constant."""
    if op == "SparseDense":
        return [1]
    if op.startswith("SparseMatMul"):
        return [0 if attrs.get("a_is_sparse") else 1]
    return {"CSRMM": range(4), "CSRMMGrad": range(3), "SparseTensorDenseMatmul": range(3)}.get(op, range(2))


def case(op, dtype, inputs, **attrs):
    return {"op": op, "inputs": inputs, "attrs": attrs, "rtol": TOLERANCE[dtype], "atol": SMALLEST,
            "constant": held(op, attrs)}  # fmt: skip


def dense_cases():
    """The sparse operand as a matrix with zeros: M, K, N."""
    sizes = [(5, 7, 3), (33, 40, 17), (1, 130, 70), (12, 9, 1), (0, 4, 5), (4, 0, 5), (4, 5, 0), (64, 64, 64)]
    for dtype in TOLERANCE:
        for k, (m, inner, n) in enumerate(sizes):
            ta, tb = bool(k % 2), bool(k // 2 % 2)
            b = (dtype, (n, inner) if tb else (inner, n))
            a = (dtype, (inner, m) if ta else (m, inner))
            for of_a in (True, False):
                s = sparse(*((a if of_a else b)[1]), 0.3)
                operand = (dtype, s.tolist()) if s.size else (dtype, s.shape)
                attrs = {"transpose_a": ta, "transpose_b": tb, "a_is_sparse": of_a}
                both = [operand, b] if of_a else [a, operand]
                yield case("SparseMatMul", dtype, both, **attrs)
                yield case("SparseMatMulGrad", dtype, [*both, (dtype, (m, n))], **attrs)
    lead = [("float32", (2, 3, 20)), ("float32", sparse(20, 11, 0.2).tolist())]
    yield case("SparseMatMul", "float32", lead)
    yield case("SparseMatMulGrad", "float32", [*lead, ("float32", (2, 3, 11))])
    yield case("SparseMatMul", "float32", [("float32", sparse(9, 30, 0.3).tolist()), ("float32", (30, 20), "special")],
               a_is_sparse=True)  # fmt: skip


def layer_cases():
    """x's leading dimensions, K, N, and how many of W are not 0: sparse, or multiplied densely."""
    sizes = [((12,), 32, 64, 0.1), ((2, 7), 9, 33, 0.3), ((), 16, 5, 0.4), ((1,), 130, 70, 0.1), ((0, 3), 4, 8, 0.5),
             ((5,), 0, 3, 0.0), ((5,), 3, 0, 0.0), ((70,), 300, 90, 0.05), ((2, 1, 2, 3), 9, 17, 0.2),
             ((3,), 20, 1, 0.5), ((33,), 40, 129, 0.9)]  # fmt: skip
    for dtype in TOLERANCE:
        for i, (lead, k, n, density) in enumerate(sizes):
            for turned in (True, False):
                w = sparse(*((n, k) if turned else (k, n)), density)
                x, w = (dtype, (*lead, k)), (dtype, w.tolist() if w.size else w.shape)
                bias = [(dtype, (n,) if i % 2 or not lead else (1, n))]
                yield case("SparseDense", dtype, [x, w], transpose_b=turned)
                for activation in [*ACTIVATIONS][i % 3 :: 3]:
                    yield case("SparseDense", dtype, [x, w, *bias], transpose_b=turned, activation=activation)
        for density in (0.1, 0.9):
            for activation in ACTIVATIONS:
                w = (dtype, sparse(45, 24, density).tolist())
                yield case("SparseDense", dtype, [(dtype, (13, 24)), w, (dtype, (45,))], activation=activation)
                yield case("SparseDense", dtype, [(dtype, (13, 24)), w], activation=activation)
    for density in (0.1, 0.9):  # a zero adds nothing, not even 0 * inf
        for activation in ("none", "relu"):
            w = ("float32", sparse(20, 40, density).tolist())
            yield case("SparseDense", "float32", [("float32", (3, 40), "special"), w, ("float32", (20,))],
                       activation=activation)  # fmt: skip


def given(index, x):
    return (index, x.tolist()) if x.size else (index, x.shape)


def index_cases():
    """The sparse operand by indices: rows, columns, N, density."""
    sizes = [(5, 7, 3, 0.3), (33, 40, 17, 0.2), (1, 130, 70, 0.5), (12, 9, 1, 1.0), (0, 4, 5, 0.0), (4, 0, 5, 0.0),
             (4, 5, 0, 0.5), (64, 64, 300, 0.05), (6, 6, 9, 0.0)]  # fmt: skip
    for dtype in TOLERANCE:
        for index in ("int32", "int64"):
            for k, (rows, columns, n, density) in enumerate(sizes):
                s = sparse(rows, columns, density)
                at = np.argwhere(s)
                values, indptr = s[s != 0], np.append(0, np.count_nonzero(s, 1).cumsum())

                v = (dtype, values.tolist()) if values.size else (dtype, (0,))
                dense, dout = (dtype, (columns, n)), (dtype, (rows, n))
                arrays = [given(index, indptr), given(index, at[:, 1]), v]
                yield case("CSRMM", dtype, [*arrays, ("int64", [rows, columns]), dense])
                yield case("CSRMMGrad", dtype, [*arrays, dense, dout])
                st, dt = bool(k % 2), bool(k // 2 % 2)
                order = RNG.permutation(len(at))
                points = [given(index, at[order][:, ::-1] if st else at[order]),
                          (dtype, values[order].tolist()) if values.size else (dtype, (0,))]  # fmt: skip
                shape = ("int64", [columns, rows] if st else [rows, columns])
                dense = (dtype, (n, columns) if dt else (columns, n))
                attrs = {"adjoint_st": st, "adjoint_dt": dt}
                yield case("SparseTensorDenseMatmul", dtype, [*points, shape, dense], **attrs)
                yield case("SparseTensorDenseMatmulGrad", dtype, [*points, dense, dout], **attrs)
    # A column twice in a row adds up, rows need not be sorted, a stored zero adds nothing.
    twice = [("int32", [0, 4, 4]), ("int32", [2, 0, 2, 1]), ("float32", [1.5, -1.0, 2.25, 0.0])]
    yield case("CSRMM", "float32", [*twice, ("int64", [2, 3]), ("float32", (3, 20))])
    points = [("int32", [[1, 2], [0, 0], [1, 2]]), ("float32", [1.5, -1.0, 2.25])]
    yield case("SparseTensorDenseMatmul", "float32", [*points, ("int64", [2, 3]), ("float32", (3, 20))])
    special = [("int64", [0, 1, 3]), ("int64", [0, 1, 2]), ("float32", [1.0, -2.0, 3.0])]
    yield case("CSRMM", "float32", [*special, ("int64", [2, 3]), ("float32", (3, 9), "special")])


CASES = [*dense_cases(), *layer_cases(), *index_cases()]


def refused(op, inputs, error, **attrs):
    return {"op": op, "inputs": inputs, "attrs": attrs, "error": error}


def csr(indptr, indices, shape=(2, 3), values=2, dense=(3, 4), index="int32"):
    return [(index, indptr), (index, indices), ("float32", (values,)), ("int64", list(shape)), ("float32", dense)]


def points(at, shape=(2, 3), values=2, dense=(3, 4)):
    return [("int32", at), ("float32", (values,)), ("int64", list(shape)), ("float32", dense)]


REFUSED = [
    refused("SparseMatMul", [("float32", (4, 8)), ("float32", (7, 3))],
            r"SparseMatMul: a's K must equal b's K of 7, got 8 \(a \(4, 8\), b \(7, 3\)\)"),
    refused("SparseMatMul", [("int32", (4, 8)), ("int32", (8, 3))],
            "SparseMatMul: a.dtype must be one of float32, float16, bfloat16, got int32"),
    refused("SparseMatMul", [("float32", (2, 4, 8)), ("float32", (8, 3))],
            r"SparseMatMul: a must have 2 dimensions where it is the sparse one, got shape \(2, 4, 8\)",
            a_is_sparse=True),
    refused("SparseMatMul", [("float32", (2, 4, 8)), ("float32", (4, 3))],
            r"SparseMatMul: a must have 2 dimensions with transpose_a, got shape \(2, 4, 8\)", transpose_a=True),
    refused("SparseMatMul", [("float32", (4, 8)), ("float32", (8,))],
            r"SparseMatMul: b must have 2 dimensions, got shape \(8,\)"),
    refused("SparseMatMulGrad", [("float32", (4, 8)), ("float32", (8, 3)), ("float32", (4, 2))],
            r"SparseMatMulGrad: dout.shape must equal the product's shape \(4, 3\), got \(4, 2\)"),
    refused("SparseDense", [("float32", (4, 8)), ("float32", (7, 3))],
            r"SparseDense: x's last dimension must equal weight's K of 3, got 8"),
    refused("SparseDense", [("float32", (4, 8)), ("float32", (8,))],
            r"SparseDense: weight must have 2 dimensions, got shape \(8,\)"),
    refused("SparseDense", [("float32", (4, 8)), ("float32", (3, 8)), ("float32", (4,))],
            r"SparseDense: bias.shape must be \(3,\), got \(4,\)"),
    refused("SparseDense", [("float32", (4, 8)), ("float32", (3, 8)), ("float16", (3,))],
            "SparseDense: bias.dtype must equal x.dtype float32, got float16"),
    refused("SparseDense", [("float32", (4, 8)), ("float32", (3, 8))],
            "SparseDense: activation must be one of none, gelu, gelu_tanh, relu, silu, got 'tanh'", activation="tanh"),
    refused("CSRMM", csr([0, 1, 2], [0, 3]), r"CSRMM: indices must be in \[0, 3\), got 3 at 1"),
    refused("CSRMM", csr([0, 1, 2], [-1, 0]), r"CSRMM: indices must be in \[0, 3\), got -1 at 0"),
    refused("CSRMM", csr([0, 1, 2], [0, 2**40], index="int64"),
            r"CSRMM: indices must be in \[0, 3\), got 1099511627776 at 1"),
    refused("CSRMM", csr([1, 1, 2], [0, 1]), r"CSRMM: indptr\[0\] must be 0, got 1"),
    refused("CSRMM", csr([0, 2, 1], [0, 1]), "CSRMM: indptr must not descend, got 2 before 1 at row 1"),
    refused("CSRMM", csr([0, -5, 2], [0, 1]), "CSRMM: indptr must not descend, got 0 before -5 at row 0"),
    refused("CSRMM", csr([0, 1, 3], [0, 1]), "CSRMM: indptr's last element must be the number of values, 2, got 3"),
    refused("CSRMM", csr([0, 1, 1], [0, 1]), "CSRMM: indptr's last element must be the number of values, 2, got 1"),
    refused("CSRMM", csr([0, 2], [0, 1]),
            r"CSRMM: indptr must have one element more than the 2 rows, got shape \(2,\)"),
    refused("CSRMM", csr([0, 1, 2], [0, 1, 2]), r"CSRMM: indices.shape must equal values.shape \(2,\), got \(3,\)"),
    refused("CSRMM", csr([0, 1, 2], [0, 1], shape=(2, 3, 1)), "CSRMM: dense_shape must have 2 elements, got 3"),
    refused("CSRMM", csr([0, 1, 2], [0, 1], dense=(4, 4)),
            r"CSRMM: dense must have as many rows as the sparse matrix has columns, 3, got shape \(4, 4\)"),
    refused("CSRMM", csr([0, 1, 2], [0, 1], dense=(3,)), r"CSRMM: dense must have 2 dimensions, got shape \(3,\)"),
    refused("CSRMM", csr([0, 1, 2], [0, 1], index="int16"),
            "CSRMM: indptr.dtype must be one of int32, int64, got int16"),
    refused("CSRMMGrad", [*csr([0, 1, 2], [0, 3])[:3], ("float32", (3, 4)), ("float32", (2, 4))],
            r"CSRMMGrad: indices must be in \[0, 3\), got 3 at 1"),
    refused("CSRMMGrad", [*csr([0, 1, 2], [0, 1])[:3], ("float32", (3, 4)), ("float32", (2, 5))],
            r"CSRMMGrad: dout must have dense's 4 columns, got shape \(2, 5\)"),
    refused("SparseTensorDenseMatmul", points([[0, 0], [2, 0]]),
            r"SparseTensorDenseMatmul: indices must lie in the matrix of shape \(2, 3\), got \(2, 0\) at 1"),
    refused("SparseTensorDenseMatmul", points([[0, -1], [1, 0]]),
            r"SparseTensorDenseMatmul: indices must lie in the matrix of shape \(2, 3\), got \(0, -1\) at 0"),
    refused("SparseTensorDenseMatmul", points([[0, 1, 0], [1, 0, 0]]),
            r"SparseTensorDenseMatmul: indices.shape must be \(2, 2\) as there are values, got \(2, 3\)"),
    refused("SparseTensorDenseMatmul", points([[0, 1], [1, 0]], dense=(2, 4)),
            r"SparseTensorDenseMatmul: dense must have 3 rows, got shape \(2, 4\)"),
    refused("SparseTensorDenseMatmul", points([[0, 1], [1, 0]], shape=(2, -3)),
            "SparseTensorDenseMatmul: sparse_shape must not be negative"),
    refused("SparseTensorDenseMatmulGrad", [*points([[0, 0], [2, 0]])[:2], ("float32", (3, 4)), ("float32", (2, 4))],
            r"SparseTensorDenseMatmulGrad: indices must lie in the matrix of shape \(2, 3\), got \(2, 0\) at 1"),
]  # fmt: skip
