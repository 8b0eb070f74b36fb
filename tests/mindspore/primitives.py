"""What people write in MindSpore, and the primitives it is exported as: rows of (expression, primitives, inputs).

`inputs` takes a size: dimensions that it decides are left open in the second export of a row.
"""

import numpy as np
from helpers import module_from
from models import normal


def positive(*shape):
    return np.abs(normal(*shape)) + 0.5


def whole(*shape, dtype=np.int32):
    return np.arange(np.prod(shape), dtype=dtype).reshape(shape) % 7 - 3


def one(n):
    return [normal(n, 4)]


def two(n):
    return [normal(n, 4), normal(n, 4, seed=1)]


def cube(n):
    return [normal(n, 3, 4)]


def half(n):
    return [normal(n, 4).astype(np.float16)]


# What small exports are made of, in all forms met.
LISTED = [
    ("x + y", "Add", lambda n: [normal(n, 4), normal(4)]),
    ("ops.bias_add(x, y)", "BiasAdd", lambda n: [normal(n, 4), normal(4)]),
    ("ops.BiasAdd()(x, y)", "BiasAdd", lambda n: [normal(n, 4, 2, 3), normal(4)]),
    ("ops.cat((x, y), -1)", "MakeTuple Concat", two),
    ("ops.Concat(1)((x, y, x))", "MakeTuple Concat", two),
    ("ops.depend(x * 2, x + 1)", "Depend Muls", one),
    ("x / 2.5", "Divs", one),
    ("x.astype(ms.float16) / 2", "Divs", one),
    ("ops.erf(x)", "Erf", one),
    ("ops.LayerNorm(1, 1)(x, y, z)[0]", "LayerNorm TupleGetItem", lambda n: [normal(n, 4), normal(4), normal(4)]),
    ("ops.LayerNorm(-1, -1, 1e-3)(x, y, z)[1]", "LayerNorm", lambda n: [normal(n, 4), normal(4), normal(4)]),
    ("self.p * x + self.p", "Load", one),
    ("ops.MatMul()(x, y)", "MatMul", lambda n: [normal(n, 4), normal(4, 5)]),
    ("ops.MatMul(transpose_b=True)(x, y)", "MatMul", lambda n: [normal(n, 4), normal(5, 4)]),
    ("ops.MatMul(transpose_a=True)(x, y)", "MatMul", lambda n: [normal(4, n), normal(4, 5)]),
    ("ops.matmul(x, y)", "MatMulExt", lambda n: [normal(n, 4), normal(4, 5)]),
    ("x @ y", "MatMulExt", lambda n: [normal(2, n, 4), normal(4, 5)]),
    ("mint.matmul(x, y)", "MatMulExt", lambda n: [normal(n, 1, 3, 4), normal(2, 4, 5)]),
    ("mint.matmul(x, y)", "MatMulExt", lambda n: [normal(n, 4), normal(4)]),
    ("mint.matmul(x, y)", "MatMulExt", lambda n: [normal(4), normal(4, 5)]),
    ("mint.matmul(x, y)", "MatMulExt", lambda n: [normal(4), normal(4)]),
    ("mint.matmul(x, y)", "MatMulExt", lambda n: [normal(4), normal(n, 4, 5)]),
    ("x * y", "Mul", two),
    ("x * 2.5", "Muls", one),
    ("x * 3", "Muls", lambda n: [whole(n, 4)]),
    ("-x", "Neg", one),
    ("x.mean()", "ReduceMean", one),
    ("x.mean((0, 1))", "ReduceMean", cube),
    ("ops.ReduceMean(keep_dims=True)(x, -1)", "ReduceMean", one),
    ("x.reshape(-1, 2)", "Reshape", one),
    ("ops.reshape(x, (2, 6))", "Reshape", lambda n: [normal(3, 4)]),
    ("x.reshape(x.shape[0], 2, -1)", "Reshape", cube),
    ("ops.rsqrt(x)", "Rsqrt", lambda n: [positive(n, 4)]),
    ("ops.silu(x)", "SiLU", one),
    ("ops.softmax(x)", "Softmax", one),
    ("ops.Softmax((0,))(x)", "Softmax", one),
    ("ops.softmax(x, 1, dtype=ms.float32)", "Softmax", half),
    ("ops.square(x)", "Square", one),
    ("ops.abs(x)", "Abs", one),
    ("ops.cos(x)", "Cos", one),
    ("ops.sin(x)", "Sin", one),
    ("x[1:, ::2]", "StridedSlice", one),
    ("x[:, -1]", "StridedSlice", one),
    ("x[..., :2]", "StridedSlice", cube),
    ("x[:, None, 1:3]", "StridedSlice", one),
    ("x.sum()", "SumExt", one),
    ("x.sum(-1)", "SumExt", one),
    ("x.sum((0, 2), keepdims=True)", "SumExt", cube),
    ("mint.sum(x, dim=1, keepdim=True, dtype=ms.float16)", "SumExt", one),
    ("mint.sum(x, 1, dtype=ms.float32)", "SumExt", half),
    ("ops.sum(x, dim=0)", "SumExt", lambda n: [whole(n, 4)]),
    ("ops.sum(x, dim=1, dtype=ms.float32)", "SumExt", lambda n: [whole(n, 4)]),
    ("ops.tanh(x)", "Tanh", one),
    ("x.transpose(1, 0, 2)", "Transpose", cube),
    ("x.T", "Transpose", one),
    ("ops.split(x, 2, 1)[1]", "Split TupleGetItem", one),
]

# Beyond it.
EVERYDAY = [
    ("x.mean(-1, True)", "ReduceMean", one),
    ("mint.mean(x, -1, True)", "MeanExt", one),
    ("mint.mean(x)", "MeanExt", one),
    ("ops.ReduceSum(keep_dims=True)(x, (0, 1))", "ReduceSum", cube),
    ("ops.ReduceSum()(x)", "ReduceSum", one),
    ("x.max()", "Max", one),
    ("ops.amax(x, -1)", "ReduceMax", one),
    ("mint.add(x, y)", "", two),
    ("mint.sub(x, 2.0)", "", one),
    ("ops.bmm(x, y)", "BatchMatMul", lambda n: [normal(n, 3, 4), normal(n, 4, 5)]),
    ("mint.bmm(x, y)", "BatchMatMulExt", lambda n: [normal(n, 3, 4), normal(n, 4, 5)]),
    ("mint.nn.functional.linear(x, y, z)", "Dense", lambda n: [normal(n, 4), normal(5, 4), normal(5)]),
    ("mint.nn.functional.linear(x, y)", "Dense", lambda n: [normal(n, 4), normal(5, 4)]),
    ("mint.nn.functional.silu(x)", "SiLU", one),
    ("ops.gelu(x)", "Erf", one),
    ("ops.gelu(x, approximate='tanh')", "GeLU", one),
    ("ops.pow(x, 2.0)", "Pow", one),
    ("mint.pow(x, 3)", "PowTensorScalar", one),
    ("ops.pow(x, y)", "Pow", lambda n: [positive(n, 4), normal(n, 4)]),
    ("ops.exp(x)", "Exp", one),
    ("ops.sigmoid(x)", "Sigmoid", one),
    ("mint.cat((x, y), 0)", "Concat", two),
    ("mint.chunk(x, 2, 1)[1]", "ChunkView", one),
    ("ops.where(x > 0, x, y)", "Select", two),
    ("ops.where(x < y, x, 0.5)", "Select", two),
    ("ops.masked_fill(x, x > 0, y)", "MaskedFill", lambda n: [normal(n, 4), np.float32(0.5)]),
    ("ops.where(ops.isnan(x), 0.0, x)", "IsNan Select", one),
    ("ops.where(mint.isnan(x), 0.0, x)", "NotEqual Select", one),
    ("ops.where(x != y, x, 0.5)", "NotEqual", two),
    ("x != 2.0", "NotEqual", one),
    ("mint.ne(x, 3)", "NotEqual", lambda n: [whole(n, 4)]),
    ("(x > 0) != (y > 0)", "NotEqual", two),
    ("ops.where(x >= y, x, 0.5)", "GreaterEqual", two),
    ("x >= 0.5", "GreaterEqual", one),
    ("mint.ge(x, 0.5)", "GreaterEqualScalar", half),
    ("ops.where(x <= y, x, 0.5)", "LessEqual", two),
    ("x <= 0", "LessEqual", lambda n: [whole(n, 4)]),
    ("mint.le(x, 0.5)", "LessEqual", one),
    ("ops.logical_not(x > 0)", "LogicalNot", one),
    ("ops.where(~(x > 0), x, y)", "LogicalNot", two),
    ("mint.logical_not(x > 0)", "LogicalNot", one),
    ("ops.logical_and(x > 0, y > 0)", "LogicalAnd", two),
    ("ops.logical_or(x > 0, y[0] > 0)", "LogicalOr", two),
    ("mint.logical_and(x > 0, y > 0)", "LogicalAnd", two),
    ("(x > 0) & (y > 0)", "BitwiseAnd", two),
    ("(x > 0) | (y > 0)", "BitwiseOr", two),
    ("mint.bitwise_and(x > 0, y > 0)", "BitwiseAndTensor", two),
    ("ops.unstack(x, 1)[2]", "Unstack TupleGetItem", one),
    ("ops.unbind(x, -1)[0]", "Unstack", cube),
    ("ops.Unstack(1, 4)(x)[3]", "Unstack", one),
    ("x.unbind(1)[0] + x.unbind(1)[2]", "Unstack", cube),
    ("mint.unbind(x, 1)[1]", "UnstackExtView", cube),
    ("ops.unbind(x, 0)[0] + 1", "Unstack TupleGetItem", lambda n: [normal(1, n)]),
    ("ops.unbind(x, 0)[0]", "Unstack TupleGetItem", lambda n: [whole(1, n, dtype=np.int64)]),
    ("mint.unbind(x, 1)[0]", "UnstackExtView TupleGetItem", lambda n: [whole(n, 1, dtype=np.int64)]),
    ("ops.split(x, 4, 1)[0] * 2", "Split TupleGetItem", one),
    ("ops.Split(0, 1)(x)[0]", "Split TupleGetItem", lambda n: [whole(n, dtype=np.int64)]),
    ("mint.chunk(x, 1, 1)[0]", "ChunkView", one),
    ("mint.split(x, 2, 1)[1]", "SplitTensorView", one),
    ("mint.split(x, 3, 1)[1]", "SplitTensorView", one),
    ("mint.split(x, 7, -1)[0] + y", "SplitTensorView", two),
    ("mint.split(x, [1, 3], 1)[1]", "SplitWithSizeView", one),
    ("mint.split(x, (2, 2), -1)[1]", "SplitWithSizeView", one),
    ("SplitWithSize()(x, (1, 3), 1)[1]", "SplitWithSize", one),
    ("mint.flatten(x, 1)", "FlattenExt", cube),
    ("mint.flatten(x)", "FlattenExt", cube),
    ("mint.flatten(x, 0, 1)", "FlattenExt", cube),
    ("mint.transpose(x, 0, 1)", "TransposeExtView", one),
    ("mint.transpose(x, -1, 0)", "TransposeExtView", cube),
    ("ops.narrow(x, 1, 1, 2)", "Slice", one),
    ("ops.slice(x, (0, 1), (-1, 2))", "Slice", one),
    ("ops.Slice()(x, (0, 1, 0), (2, 2, -1))", "Slice", cube),
    ("mint.narrow(x, -1, 1, 2)", "NarrowView", one),
    ("ops.erfc(x * 2)", "Erfc", one),
    ("mint.erfc(x)", "Erfc", half),
    ("ops.fast_gelu(x)", "FastGeLU", one),
    ("ops.FastGeLU()(x * 3)", "FastGeLU", half),
    ("ops.triu(x)", "Triu", one),
    ("mint.triu(x, 1)", "Triu", cube),
    ("ops.Triu(-1)(x)", "Triu", lambda n: [whole(n, 4, dtype=np.int64)]),
    ("ops.tril(x)", "Tril", one),
    ("ops.tril(x, -1)", "Tril", lambda n: [normal(n, 3, 4).astype(np.float16)]),
    ("ops.matmul(x, y)", "MatMulExt", lambda n: [normal(n, 3, 4), normal(4)]),
    ("x @ y", "MatMulExt", lambda n: [normal(4), normal(4, 5)]),
    ("ops.matmul(x, y)", "MatMulExt", lambda n: [normal(4), normal(4)]),
    ("x.masked_fill(x > 0, -1.0)", "MaskedFillScalar", one),
    ("x[y]", "LessScalar Gather", lambda n: [normal(3, 4), np.array([0, -1] * n, np.int32)]),
    ("ops.gather(x, y, -1)", "Gather", lambda n: [normal(n, 4), np.array([[0, 2]], np.int64)]),
    ("x.expand_dims(1)", "ExpandDims", one),
    ("mint.unsqueeze(x, 0)", "ExpandDimsView UpdateState Depend", one),
    ("x.squeeze(1)", "Squeeze", lambda n: [normal(n, 1, 4)]),
    ("ops.squeeze(x)", "Squeeze", lambda n: [normal(1, 3, 1)]),
    ("ops.broadcast_to(x, (2, -1, 4))", "BroadcastTo", one),
    ("mint.broadcast_to(x, (2, 3, 4))", "BroadcastToView", lambda n: [normal(3, 4)]),
    ("ops.tile(x, (2, 1))", "Tile", one),
    ("mint.permute(x, (1, 0))", "TransposeView", one),
    ("x.view(2, 6)", "Reshape", lambda n: [normal(3, 4)]),
    ("x.astype(ms.int32)", "Cast", one),
    ("1.5 / x", "Reciprocal", lambda n: [positive(n, 4)]),
    ("ops.stack((x, y), 1)", "Stack", two),
    (
        "mint.einsum('bqhd,bkhd->bhqk', x, y)",
        "BatchMatMulExt",
        lambda n: [normal(2, 3, 4, 5), normal(2, 6, 4, 5, seed=1)],
    ),
    ("ops.round(x * 3)", "Round", one),
    ("ops.Rint()(x * 3)", "Rint", one),
    ("mint.round(x * 3)", "Round", half),
    ("ops.clamp(x, -1.0, 1.0)", "ClampScalar", one),
    ("ops.clamp(x, -0.3, 1)", "ClampScalar", half),
    ("ops.clamp(x, max=0.5)", "ClampScalar", one),
    ("x.clip(0.5)", "ClampScalar", one),
    ("x.clamp(-1, 2)", "ClampScalar", lambda n: [whole(n, 4)]),
    ("ops.clamp(x, max=2)", "ClampScalar", lambda n: [whole(n, 4, dtype=np.int64)]),
    ("ops.clip_by_value(x, -1.0, 1.0)", "Maximum Minimum", one),
    ("x.max(axis=-1)", "ArgMaxWithValue", one),
    ("ops.max(x, 0, keepdims=True)[1]", "ArgMaxWithValue", one),
    ("x.min(0, keepdims=True)", "ArgMinWithValue", half),
    ("mint.max(x, 1)[0]", "MaxDim", one),
    ("mint.min(x, 1, True)[1]", "MinDim", one),
    ("ops.amin(x, -1)", "ReduceMin", one),
    ("mint.amin(x, (0, 1), True)", "ReduceMin", cube),
    ("x.min()", "Min", one),
    ("ops.log(x)", "Log", lambda n: [positive(n, 4)]),
    ("mint.log(x)", "Log", lambda n: [positive(n, 4).astype(np.float16)]),
    ("ops.log_softmax(x)", "LogSoftmax", one),
    ("ops.log_softmax(x, 0)", "LogSoftmax", cube),
    ("mint.nn.functional.log_softmax(x, -1)", "LogSoftmaxExt", one),
    ("mint.nn.functional.log_softmax(x)", "LogSoftmaxExt", one),
    ("mint.nn.functional.log_softmax(x)", "LogSoftmaxExt", cube),
    ("mint.nn.functional.log_softmax(x, 1, dtype=ms.float32)", "LogSoftmaxExt", half),
    ("ops.topk(x, 2)[0]", "TopK", one),
    ("ops.topk(x, 3)[1]", "TopK", cube),
    ("ops.topk(x, 2, 0, False)[0]", "TopK", half),
    ("ops.TopK(sorted=True)(x, 1)[1]", "TopK", lambda n: [whole(n, 4)]),
    ("ops.max_pool2d(x, 3, 2, 1)", "MaxPoolWithArgmaxV2", lambda n: [normal(n, 2, 7, 5)]),
    ("ops.max_pool2d(x, (2, 3), 1, 1, return_indices=True)[1]", "MaxPoolWithArgmaxV2", lambda n: [normal(n, 2, 7, 5)]),
    ("ops.MaxPoolWithArgmaxV2(2, argmax_type=ms.int32)(x)[1]", "MaxPoolWithArgmaxV2", lambda n: [normal(n, 2, 7, 5)]),
    ("ops.std(x, -1)", "ReduceStd", one),
    ("ops.var(x, (0, 1), 1, True)", "ReduceStd", cube),
    ("ops.adaptive_avg_pool2d(x, 1)", "AdaptiveAvgPool2D", lambda n: [normal(n, 2, 7, 5)]),
    ("nn.AdaptiveAvgPool2d((3, None))(x)", "AdaptiveAvgPool2D", lambda n: [normal(n, 2, 7, 5)]),
    ("nn.AdaptiveAvgPool2d((2, 4))(x)", "AdaptiveAvgPool2D", lambda n: [normal(2, 7, 6).astype(np.float16)]),
]

# Refused: the primitive, and the message where it is known.
REFUSED = [
    ("ops.einsum('ij,kj->ik', x, y)", "Einsum", two),
    ("x.astype(ms.float16) * y", "Mul", two),  # in MindSpore the kernel promotes
    ("x & y", "BitwiseAnd", lambda n: [whole(n, 4), whole(n, 4)]),
    ("mint.add(x, y, alpha=2)", "AddExt", two),
    ("mint.mean(x, 1, dtype=ms.float32)", "MeanExt", half),
]


def cells(folder, rows):
    """A Cell class of each row; MindSpore reads their source."""
    text = ["import mindspore as ms", "from mindspore import Parameter, Tensor, mint, nn, ops"]
    text += ["from mindspore.ops.auto_generate import SplitWithSize"]
    for i, (expression, _, inputs) in enumerate(rows):
        text += [
            f"class Net{i}(nn.Cell):",
            "    def __init__(self):",
            "        super().__init__()",
            "        self.p = Parameter(Tensor([1.0, -2.0, 0.5, 3.0], ms.float32), name='p')",
            f"    def construct(self, {', '.join('xyz'[: len(inputs(3))])}):",
            f"        return {expression}",
        ]
    (folder / "nets.py").write_text("\n".join(text))
    module = module_from(folder / "nets.py")
    return [getattr(module, f"Net{i}") for i in range(len(rows))]
