"""Sparse matrices by MindSpore's names, and products with them."""

import numpy as np

from .primitive import primitive
from .primitive import tensor as _tensor
from .tensor import Tensor


def sparse_matmul(a, b, transpose_a=False, transpose_b=False, a_is_sparse=False):
    """a b as `matmul` of two dimensions; b, or a with `a_is_sparse`, is mostly zeros. As a constant of a model it is
    packed once, by its density and structure. A zero adds nothing, not even 0 * inf."""
    a, b = (_tensor(t, f"sparse_matmul: {n}") for t, n in ((a, "a"), (b, "b")))
    return primitive("SparseMatMul", a, b, transpose_a=bool(transpose_a), transpose_b=bool(transpose_b),
                     a_is_sparse=bool(a_is_sparse))  # fmt: skip


def sparse_dense(x, weight, bias=None, transpose_b=True, activation="none"):
    """act(x weight^T + bias) over the last dimension of x, (..., K): a layer of which the weight, (N, K), or (K, N)
    without `transpose_b`, is mostly zeros, packed as `sparse_matmul` says. activation: none, gelu, gelu_tanh, relu or
    silu."""
    given = [_tensor(t, f"sparse_dense: {n}") for t, n in ((x, "x"), (weight, "weight"))]
    given += [] if bias is None else [_tensor(bias, "sparse_dense: bias")]
    return primitive("SparseDense", *given, transpose_b=bool(transpose_b), activation=activation)


def sparse_tensor_dense_matmul(indices, values, sparse_shape, dense, adjoint_st=False, adjoint_dt=False):
    """The sparse matrix of sparse_shape with values (n,) at indices (n, 2), or its transpose, times dense or its
    transpose. What is named twice adds up."""
    given = (_tensor(t, f"SparseTensorDenseMatmul: {n}") for t, n in ((indices, "indices"), (values, "values")))
    return primitive("SparseTensorDenseMatmul", *given, _shape(sparse_shape),
                     _tensor(dense, "SparseTensorDenseMatmul: dense"), adjoint_st=bool(adjoint_st),
                     adjoint_dt=bool(adjoint_dt))  # fmt: skip


def _shape(shape):
    return tuple(int(n) for n in (shape.asnumpy() if isinstance(shape, Tensor) else shape))


class _Sparse:
    def __init__(self, shape, **tensors):
        self.shape = _shape(shape)
        kind = type(self).__name__
        if len(self.shape) != 2 or min(self.shape) < 0:
            raise ValueError(f"{kind}: shape must be two sizes, got {self.shape}")
        self._tensors = {name: _tensor(t, f"{kind}: {name}") for name, t in tensors.items()}
        for name, t in self._tensors.items():
            if name != "values" and t.dtype not in (np.int32, np.int64):
                raise TypeError(f"{kind}: {name}.dtype must be int32 or int64, got {t.dtype}")

    values = property(lambda self: self._tensors["values"])
    indices = property(lambda self: self._tensors["indices"])
    dtype = property(lambda self: self.values.dtype)
    size = property(lambda self: self.values.shape[0])
    ndim = property(lambda self: 2)

    def to_tuple(self):
        return (*self._tensors.values(), self.shape)

    def __repr__(self):
        return f"{type(self).__name__}(shape={self.shape}, {', '.join(f'{k}={v!r}' for k, v in self._tensors.items())})"


class CSRTensor(_Sparse):
    """A sparse matrix by rows: row r has values[indptr[r]:indptr[r + 1]] at the columns indices[…]."""

    def __init__(self, indptr, indices, values, shape):
        super().__init__(shape, indptr=indptr, indices=indices, values=values)

    indptr = property(lambda self: self._tensors["indptr"])

    def mm(self, matrix):
        """The product with a dense matrix."""
        return primitive("CSRMM", *self._tensors.values(), self.shape, _tensor(matrix, "CSRTensor.mm: matrix"))

    def mv(self, dense_vector):
        """The product with a dense matrix of one column."""
        dense = _tensor(dense_vector, "CSRTensor.mv: dense_vector")
        if len(dense.shape) != 2 or dense.shape[1] != 1:
            raise ValueError(f"CSRTensor.mv: dense_vector.shape must be ({self.shape[1]}, 1), got {dense.shape}")
        return self.mm(dense)

    def to_dense(self):
        return self.mm(np.eye(self.shape[1], dtype=self.dtype))


class COOTensor(_Sparse):
    """A sparse matrix by coordinates: values (n,) at indices (n, 2)."""

    def __init__(self, indices, values, shape):
        super().__init__(shape, indices=indices, values=values)

    def to_dense(self):
        return sparse_tensor_dense_matmul(*self.to_tuple(), np.eye(self.shape[1], dtype=self.dtype))

    def to_csr(self):
        rows, columns = self.indices.asnumpy().T
        if self.size and (min(rows.min(), columns.min()) < 0 or rows.max() >= self.shape[0]):
            raise ValueError(f"COOTensor.to_csr: indices must lie in shape {self.shape}")
        order = np.argsort(rows, kind="stable")
        indptr = np.append(0, np.bincount(rows, minlength=self.shape[0]).cumsum()).astype(rows.dtype)
        return CSRTensor(indptr, columns[order], self.values.asnumpy()[order], self.shape)
