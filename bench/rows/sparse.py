"""Sparse times dense: 2048 x 2048, mostly zeros, times 2048 x 256.

Two rows of each matrix: beside dense products of the same numbers, and beside products of sparse matrices. The sparse
matrix is a constant of the model, and peers that have a sparse form are given it before they are timed.
"""

import numpy as np

from . import Row

N, COLUMNS = 2048, 256


def random(density):
    def f(rng):
        return rng.random((N, N), np.float32) < density

    return f


def blocks(density, size):
    def f(rng):
        return np.kron(rng.random((N // size, N // size)) < density, np.ones((size, size), bool))

    return f


def zipf(density, exponent=0.6):
    """Rows whose shares fall by Zipf's law, shuffled; the largest hold every column."""

    def f(rng):
        share = np.arange(1, N + 1) ** -exponent
        share *= density * N / share.sum()
        return rng.random((N, N), np.float32) < rng.permutation(share)[:, None]

    return f


def dense_operand(rng):
    return [rng.standard_normal((N, COLUMNS), np.float32)]


def weights(pattern):
    return lambda rng: [np.where(pattern(rng), rng.standard_normal((N, N), np.float32), np.float32(0))]


def ours(opgraft):
    return lambda x, w: opgraft.ops.primitive("SparseMatMul", w, x, a_is_sparse=True)


def torch_sparse(block):
    """Rows of single elements (CSR) or of blocks (BSR), with indices that MKL reads as they are."""

    def prepare(torch, w):
        s = w.to_sparse_csr() if block == 1 else w.to_sparse_bsr((block, block))
        of = torch.sparse_csr_tensor if block == 1 else torch.sparse_bsr_tensor
        return [of(s.crow_indices().int(), s.col_indices().int(), s.values(), s.shape)]

    return prepare


def mindspore_matmul(ms):
    def f(x, w):
        return ms.ops.matmul(w, x)

    return f


def mindspore_sparse(ms):
    product = ms.ops.SparseTensorDenseMatmul()

    def f(x, indices, values):
        return product(indices, values, (N, N), x)

    return f


def coordinates(ms, w):
    w = w.asnumpy()
    return [ms.Tensor(np.argwhere(w)), ms.Tensor(w[w != 0])]


def pair(name, pattern, density, gain, fullest, quick=False, block=1):
    """The rows of one matrix; gain: how many times as fast as the best dense product it is to be; fullest: at most this
    share of a row is not zero; block: what is not zero comes in squares of so many rows."""
    # Roundings of a sum of n products with variance 1 add up as a random walk with the deviation 2^-24 n / sqrt(6); 16
    # of these, as the largest of half a million sums are themselves 5 deviations off.
    common = dict(
        op="", inputs=dense_operand, weights=weights(pattern), exact=lambda x, w: w @ x, rtol=0.0,
        atol=16 * 2.0**-24 * fullest * N / 6**0.5, flops=2.0 * density * N * N * COLUMNS, opgraft=ours,
        # Values, an index for each block of them, where each row of blocks begins; x and y.
        bytes=4.0 * (density * N * N * (1 + 1 / block**2) + N / block + 1 + 2 * N * COLUMNS),
    )  # fmt: skip
    return [
        Row(
            f"SparseMatMul {name}", **common, target=round(1 / gain, 3), mindspore_target=gain, quick=quick,
            note="peers: the dense product",
            numpy=lambda x, w: w @ x,
            torch=lambda torch: lambda x, w: w @ x,
            onnx=lambda g, x, w: g.node("MatMul", w, x),
            mindspore=mindspore_matmul,
        ),
        Row(
            f"SparseMatMul {name} beside CSR", **common, target=0.7, note="peers: products of a sparse matrix",
            torch=lambda torch: lambda x, w: w @ x, sparse=True,
            onnx=lambda g, x, w: g.node("SparseToDenseMatMul", w, x, domain="com.microsoft"),
            mindspore=mindspore_sparse, prepare={"torch": torch_sparse(block), "mindspore": coordinates},
            missing=dict.fromkeys(("numpy", "openvino"), "has no product of a sparse matrix"),
        ),
    ]  # fmt: skip


ROWS = [
    *pair("5 %", random(0.05), 0.05, 4.43, 0.08),
    *pair("10 %", random(0.1), 0.1, 3.14, 0.14, quick=True),
    *pair("20 %", random(0.2), 0.2, 2.05, 0.25),
    *pair("30 %", random(0.3), 0.3, 1.61, 0.36),
    *pair("5 % in blocks of 16", blocks(0.05, 16), 0.05, 4.43, 0.2, block=16),
    *pair("10 % Zipf rows", zipf(0.1), 0.1, 3.14, 1.0),
]
