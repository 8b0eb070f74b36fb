"""Sparse products in MindSpore: as Custom operators with their gradients, and its own primitives in a model file."""

import mindspore as ms
import numpy as np
import opgraft
import opgraft.mindspore
import pytest
from mindspore import Tensor, nn, ops
from opgraft import nn as ours

MODES = pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE, ms.GRAPH_MODE], ids=["pynative", "graph"])
RNG = np.random.default_rng(0)
S = (RNG.standard_normal((20, 30)) * (RNG.random((20, 30)) < 0.2)).astype(np.float32)
D, DY = RNG.standard_normal((30, 9)).astype(np.float32), RNG.standard_normal((20, 9)).astype(np.float32)
AT = np.argwhere(S)
# Sums of at most 30 products of numbers below 16: (30 + 4) roundings of 2^-24, each of at most 30 * 16.
ATOL = 34 * 2.0**-24 * 480


def close(got, want):
    np.testing.assert_allclose(got.asnumpy(), want, rtol=0, atol=ATOL)


class Net(nn.Cell):
    def __init__(self, op):
        super().__init__()
        self.op = op

    def construct(self, *inputs):
        return self.op(*inputs)


class Gradient(nn.Cell):
    """The product, and its gradients for the inputs at `places` with dy = DY."""

    def __init__(self, op, places):
        super().__init__()
        self.gradient = ops.GradOperation(get_all=True, sens_param=True)(Net(op))
        self.places = places

    def construct(self, *inputs):
        found = self.gradient(*inputs)
        return tuple([found[i] for i in self.places])


INDPTR = np.append(0, np.count_nonzero(S, 1).cumsum())


@MODES
@pytest.mark.parametrize("name,indices,attrs", [
    ("CSRMM", [INDPTR.astype(np.int32), AT[:, 1].astype(np.int32)], {"dense_shape": S.shape}),
    ("SparseTensorDenseMatmul", [AT.astype(np.int64)], {"sparse_shape": S.shape}),
])  # fmt: skip
def test_by_indices(mode, name, indices, attrs):
    ms.set_context(mode=mode)
    inputs = [Tensor(a) for a in (*indices, S[S != 0], D)]
    op = opgraft.mindspore.custom(name, **attrs)
    close(Net(op)(*inputs), S @ D)
    values, dense = Gradient(op, (len(indices), len(indices) + 1))(*inputs, Tensor(DY))
    close(values, (DY @ D.T)[S != 0])
    close(dense, S.T @ DY)


@MODES
def test_a_matrix_with_zeros(mode):
    ms.set_context(mode=mode)
    op = opgraft.mindspore.custom("SparseMatMul", a_is_sparse=True)
    close(Net(op)(Tensor(S), Tensor(D)), S @ D)
    sparse, dense = Gradient(op, (0, 1))(Tensor(S), Tensor(D), Tensor(DY))
    close(sparse, (DY @ D.T) * (S != 0))
    close(dense, S.T @ DY)


def test_bad_indices_are_mindspores_exception():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    op = opgraft.mindspore.custom("CSRMM", dense_shape=(1, 3))
    arrays = np.array([0, 1], np.int32), np.array([3], np.int32), np.ones(1, np.float32), np.ones((3, 2), np.float32)
    with pytest.raises(Exception, match=r"CSRMM: indices must be in \[0, 3\), got 3 at 0"):
        Net(op)(*map(Tensor, arrays)).asnumpy()


@pytest.mark.parametrize("st", [False, True])
@pytest.mark.parametrize("dt", [False, True])
def test_a_model_with_mindspores_primitive(st, dt, tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)

    class Sparse(nn.Cell):
        def __init__(self):
            super().__init__()
            self.op = ops.SparseTensorDenseMatmul(adjoint_st=st, adjoint_dt=dt)

        def construct(self, indices, values, dense):
            return self.op(indices, values, (20, 30), dense)

    d = RNG.standard_normal((20 if st else 30, 9)).astype(np.float32)
    given = AT.astype(np.int64), S[S != 0], np.ascontiguousarray(d.T) if dt else d
    ms.export(Sparse(), *map(Tensor, given), file_name=str(tmp_path / "net"), file_format="MINDIR")
    net = ours.GraphCell(opgraft.load(tmp_path / "net.mindir"))
    close(net(*map(opgraft.Tensor, given)), (S.T if st else S) @ d)
    close(Sparse()(*map(Tensor, given)), (S.T if st else S) @ d)
