"""The names that opgraft shares with MindSpore take what MindSpore's take, in its order."""

import inspect

import api
import mindspore as ms
import numpy as np
import opgraft
import pytest
from helpers import HERE

LAYERS = [(n, a, b) for n, a, b in api.shared("mindspore.nn") if inspect.isclass(a) and issubclass(a, opgraft.nn.Cell)]
# Any cells or arguments by *args there; the others' own settings.
FREE = {"Cell", "CellList", "SequentialCell"}


@pytest.mark.parametrize("ours,theirs", [row[1:] for row in LAYERS if row[0] not in FREE],
                         ids=[row[0] for row in LAYERS if row[0] not in FREE])  # fmt: skip
def test_a_layer_takes_its_arguments_in_mindspores_order(ours, theirs):
    got, want = api.parameters(ours), api.parameters(theirs)
    assert got == want[: len(got)]


@pytest.mark.parametrize("name", ["split", "layer_norm", "sum", "softmax", "avg_pool2d", "conv2d", "batch_norm"])
def test_a_function_takes_its_arguments_in_mindspores_order(name):
    """The first is the tensor, which goes by position."""
    got, want = (api.parameters(getattr(module, name)) for module in api.MODULES["mindspore.ops"])
    assert got[1:] == want[1 : len(got)]


A = np.arange(24, dtype=np.float32).reshape(2, 3, 4) - 7
INDEX = np.array([[1, 0], [0, 1]], np.int32)
CALLS = {  # with the arguments that a reader of MindSpore's documentation gives
    "gelu": lambda m: m.ops.gelu(m.Tensor(A)),
    "GeLU": lambda m: m.ops.GeLU()(m.Tensor(A)),
    "split by size": lambda m: m.ops.split(m.Tensor(A), 3, 2),
    "split by sections": lambda m: m.ops.split(m.Tensor(A), [1, 2], 1),
    "Split": lambda m: m.ops.Split(2, 2)(m.Tensor(A)),
    "Tensor.split": lambda m: m.Tensor(A).split(2, 1),
    "sum": lambda m: m.ops.sum(m.Tensor(A), (0, 2), True),
    "sum of integers": lambda m: m.ops.sum(m.Tensor(INDEX), 1),
    "Tensor.sum": lambda m: m.Tensor(A).sum(1, keepdims=True),
    "mean": lambda m: m.ops.mean(m.Tensor(A), 1, True),
    "Tensor.mean": lambda m: m.Tensor(A).mean((0, 1)),
    "ReduceSum": lambda m: m.ops.ReduceSum(True)(m.Tensor(A), 1),
    "BiasAdd": lambda m: m.ops.BiasAdd("NHWC")(m.Tensor(A[None]), m.Tensor(A[0, 0])),
    "softmax": lambda m: m.ops.softmax(m.Tensor(A), 1),
    "softmax in another dtype": lambda m: m.ops.softmax(m.Tensor(A), 0, dtype=m.float16),
    "Softmax": lambda m: m.ops.Softmax(0)(m.Tensor(A)),
    "StridedSlice": lambda m: m.ops.StridedSlice(1, 2, 0, 0, 0)(m.Tensor(A), (1, 1, 0), (2, 2, 2), (1, 1, 1)),
    "Gather": lambda m: m.ops.Gather()(m.Tensor(A), m.Tensor(INDEX), 1),
    "Flatten": lambda m: m.ops.Flatten()(m.Tensor(A)),
    "Flatten of a vector": lambda m: m.ops.Flatten()(m.Tensor(A[0, 0])),
    "flatten": lambda m: m.ops.flatten(m.Tensor(A), start_dim=0, end_dim=1),
    "Squeeze": lambda m: m.ops.Squeeze(0)(m.Tensor(A[:1])),
    "Concat": lambda m: m.ops.Concat(1)((m.Tensor(A), m.Tensor(A))),
    "Stack": lambda m: m.ops.Stack(-1)((m.Tensor(A), m.Tensor(A))),
    "stack": lambda m: m.ops.stack((m.Tensor(A), m.Tensor(A)), 1),
    "MatMul": lambda m: m.ops.MatMul(False, True)(m.Tensor(A[0]), m.Tensor(A[1])),
    "avg_pool2d": lambda m: m.ops.avg_pool2d(m.Tensor(A[None]), 2, 2, 1, True, False),
    "Dense": lambda m: m.nn.Dense(4, 2, "ones", 0.5, True, "relu")(m.Tensor(A)),
    "Dense of float16": lambda m: m.nn.Dense(4, 2, m.Tensor(np.ones((2, 4), np.float16)), has_bias=False)(
        m.Tensor(A.astype(np.float16))
    ),
    "LayerNorm": lambda m: m.nn.LayerNorm((4,), -1, -1, 2, "ones", 1e-3)(m.Tensor(A)),
    "round": lambda m: m.ops.round(m.Tensor(A / 2)),
    "Round": lambda m: m.ops.Round()(m.Tensor(A / 2)),
    "Rint": lambda m: m.ops.Rint()(m.Tensor(A / 2)),
    "Tensor.round": lambda m: m.Tensor(A / 2).round(),
    "clamp": lambda m: m.ops.clamp(m.Tensor(A), -2, 5.5),
    "clip, from below": lambda m: m.ops.clip(m.Tensor(A), 1),
    "Tensor.clamp": lambda m: m.Tensor(A).clamp(max=3),
    "clamp of integers": lambda m: m.ops.clamp(m.Tensor(INDEX), 1, 3),
    "clamp of integers by fractions": lambda m: m.ops.clamp(m.Tensor(INDEX), 0.5, 3),
    "clamp by tensors": lambda m: m.ops.clamp(m.Tensor(A), m.Tensor(A[0]), m.Tensor(A[1])),
    "clip_by_value": lambda m: m.ops.clip_by_value(m.Tensor(A), -2, 5.5),
    "not equal": lambda m: m.Tensor(A) != 3.0,
    "NotEqual": lambda m: m.ops.NotEqual()(m.Tensor(A), m.Tensor(A[0])),
    "less_equal": lambda m: m.ops.less_equal(m.Tensor(A), m.Tensor(A[1])),
    "greater or equal": lambda m: m.Tensor(INDEX) >= 1,
    "isnan": lambda m: m.ops.isnan(m.Tensor(A / (A % 3))),
    "Tensor.isnan": lambda m: m.Tensor(A / (A % 3)).isnan(),
    "logical_and": lambda m: m.ops.logical_and(m.Tensor(A > 0), m.Tensor(A < 5)),
    "LogicalOr": lambda m: m.ops.LogicalOr()(m.Tensor(A > 0), m.Tensor(A[0] < 5)),
    "bools by operators": lambda m: ~(m.Tensor(A > 0) & m.Tensor(A < 5)) | m.Tensor(A == 2),
    "Tensor.logical_not": lambda m: m.Tensor(A > 0).logical_not(),
    "unbind": lambda m: m.ops.unbind(m.Tensor(A), 1),
    "unstack": lambda m: m.ops.unstack(m.Tensor(A), -1),
    "Unstack": lambda m: m.ops.Unstack(0, 2)(m.Tensor(A)),
    "Tensor.unbind": lambda m: m.Tensor(A).unbind(2),
    "unbind of one": lambda m: m.ops.unbind(m.Tensor(A[:1]), 0),
    "narrow": lambda m: m.ops.narrow(m.Tensor(A), 2, 1, 2),
    "slice": lambda m: m.ops.slice(m.Tensor(A), (0, 1, 2), (2, -1, 1)),
    "triu": lambda m: m.ops.triu(m.Tensor(A), 1),
    "Tril": lambda m: m.ops.Tril(-1)(m.Tensor(INDEX)),
    "erfc": lambda m: m.ops.erfc(m.Tensor(A / 8)),
    "fast_gelu": lambda m: m.ops.fast_gelu(m.Tensor(A / 4)),
    "FastGelu": lambda m: m.nn.FastGelu()(m.Tensor(A / 4)),
    "hardswish": lambda m: m.ops.hardswish(m.Tensor(A / 4 - 3)),
    "HSwish": lambda m: m.nn.HSwish()(m.Tensor(A / 4 - 3)),
    "hardsigmoid": lambda m: m.ops.hardsigmoid(m.Tensor(A / 4 - 3)),
    "HSigmoid": lambda m: m.nn.HSigmoid()(m.Tensor(A / 4 - 3)),
    "matmul with a vector": lambda m: m.ops.matmul(m.Tensor(A), m.Tensor(A[0, 0])),
    "Tensor.matmul": lambda m: m.Tensor(A).matmul(m.Tensor(A[0, 0])),
    "Tensor.narrow": lambda m: m.Tensor(A).narrow(1, 0, 2),
    "Tensor.tril": lambda m: m.Tensor(A).tril(1),
    "a vector by an operator": lambda m: m.Tensor(A[0, :, 0]) @ m.Tensor(A),
    "a vector by another": lambda m: m.ops.matmul(m.Tensor(A[0, 0]), m.Tensor(A[1, 1])),
    "log": lambda m: m.ops.log(m.Tensor(A + 8)),
    "Tensor.log": lambda m: m.Tensor(A + 8).log(),
    "log_softmax": lambda m: m.ops.log_softmax(m.Tensor(A), 1),
    "LogSoftmax": lambda m: m.ops.LogSoftmax(0)(m.Tensor(A)),
    "std": lambda m: m.ops.std(m.Tensor(A), 1, 1, True),
    "var": lambda m: m.ops.var(m.Tensor(A), (0, 2)),
    "std_mean": lambda m: m.ops.std_mean(m.Tensor(A), None, True),
    "var_mean": lambda m: m.ops.var_mean(m.Tensor(A), -1, 0, True),
    "Tensor.std": lambda m: m.Tensor(A).std(1, 1, True),
    "Tensor.var": lambda m: m.Tensor(A).var(-1),
    "topk": lambda m: m.ops.topk(m.Tensor(A % 5 + A / 64), 2),
    "topk, the smallest": lambda m: m.ops.topk(m.Tensor(A % 5 + A / 64), 2, 1, False),
    "TopK": lambda m: m.ops.TopK(True)(m.Tensor(A % 5 + A / 64), 3),
    "Tensor.topk": lambda m: m.Tensor(A % 5 + A / 64).topk(2, -1, True),
    "max_pool2d": lambda m: m.ops.max_pool2d(m.Tensor(A[None]), 2, 1, 1, return_indices=True),
    "max_pool2d up to the end": lambda m: m.ops.max_pool2d(m.Tensor(A[None]), (3, 2), ceil_mode=True),
    "MaxPoolWithArgmaxV2": lambda m: m.ops.MaxPoolWithArgmaxV2(2, 1, 0, (1, 2), False, m.int32)(m.Tensor(A[None])),
    "Embedding": lambda m: m.nn.Embedding(3, 2, False, "ones", m.float32, 1)(m.Tensor(INDEX)),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_same_call_gives_the_same(name):
    """float32: within 100 roundings (SumExt and Softmax add up to 24 terms); float16 within 4."""
    got, want = (CALLS[name](m) for m in (opgraft, ms))
    got, want = ([t.asnumpy() for t in (r if isinstance(r, tuple) else (r,))] for r in (got, want))
    assert len(got) == len(want)
    for g, w in zip(got, want):
        assert g.dtype == w.dtype and g.shape == w.shape
        tolerance = {"float32": 100 * 2.0**-24, "float16": 4 * 2.0**-11}.get(str(w.dtype), 0)
        np.testing.assert_allclose(g, w, rtol=tolerance, atol=tolerance * np.abs(w).max())


@pytest.mark.parametrize("call", [
    lambda m: m.ops.Gather(1)(m.Tensor(A), m.Tensor(INDEX), 1),
    lambda m: m.ops.Softmax(0, 1), lambda m: m.ops.split(m.Tensor(A), [1, 1], 1),
    lambda m: m.ops.clamp(m.Tensor(A)), lambda m: m.ops.round(m.Tensor(A), decimals=2),
], ids=["Gather by batches", "too many attributes", "sections of another sum", "no limit",
        "decimals"])  # fmt: skip
def test_what_is_not_taken_is_refused(call):
    with pytest.raises((TypeError, ValueError)):
        call(opgraft)


def test_the_list_is_as_written():
    assert (HERE.parents[1] / "docs" / "mindspore_api.md").read_text() == api.document()
