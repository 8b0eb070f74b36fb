"""Kernels' branches that no size of the case tables reaches, as the coverage of lines by dtype told: each by the case
that reaches it, as test_ops, on every SIMD target."""

import pytest
import test_ops
from conftest import tables

MODULES = dict(tables())
HALF = ("float16", "bfloat16")
ALL = ("float32", *HALF)
attention, conv, dense, matmul, pool, rmsnorm = (
    MODULES[folder].case for folder in ("attention", "conv", "dense", "matmul", "pool", "rmsnorm")
)
quant, joint, nhwc = MODULES["quant"], MODULES["dense"].joint, MODULES["conv"].nhwc
ACTIVATIONS = MODULES["dense"].ACTIVATIONS
SAME = {"pad_mode": "same"}
LIMITED = [("int8", -100, 90), ("uint8", 3, 250)]


def residual(columns, outputs, kernel):
    more = ("float32", (outputs,)), ("float32", (1, outputs, 3, columns))
    return conv("FusedConv2D", "float32", (1, 6, 3, columns), outputs, (kernel,) * 2, SAME, *more, residual=True)


def quantised(dtype, x, scale, of, least, most, divide):
    attrs = {"dst_type": of, "quant_min": least, "quant_max": most, "divide": divide, "round_first": not divide}
    return quant.channel_case("QuantV2", (dtype, (-20, 20)), scale, "float32", x, **attrs)


def largest(op, dtype):
    return {"op": op, "inputs": [(dtype, (200000,), "special")], "attrs": {"axis": [0]}, "rtol": 0.0, "atol": 0.0}


def softmax(dtype, shape, axis):
    one = next(c for c in MODULES["softmax"].CASES if c["op"] == "Softmax" and c["inputs"][0][0] == dtype)
    return one | {"inputs": [(dtype, shape)], "attrs": {"axis": axis}}


BRANCHES = {
    # float32 sums of half types: of K in pieces, and of weights read in place by several threads.
    ("dense", "sums in pieces of K"): [joint(t, (40,), 2500, (33, 33), b, b) for t in ALL for b in (False, True)],
    ("dense", "sums of strips"): [joint(t, (1,), 700, (520, 520), b, False) for t in ALL for b in (False, True)],
    ("dense", "activations of whole panels"): [
        dense("Dense", t, (13,), 24, 48, 2, True, a) for t in ALL for a in ACTIVATIONS
    ],
    ("matmul", "pieces of K in place"): [matmul("MatMul", t, (), (), 2, 520, 1800, False, False) for t in ALL],
    ("quant", "pieces of K in place"): [quant.weight_case(t, (m,), 1800, 520) for t in ALL for m in (2, 7)],
    ("quant", "a last tile that adds to sums"): [
        quant.weight_case("float32", (m,), 700, 16) | {"constant": [1]} for m in (1441, 1442, 1443, 1444)
    ],
    ("quant", "limits by half a rule"): [
        quantised(t, x, s, *of, d)
        for t in ALL
        for of in LIMITED
        for d in (False, True)
        for x, s in (((20, 13), (13,)), ((3, 5, 40), (5, 1)))
    ],
    ("conv", "Winograd's last tile of outputs"): [conv("Conv2D", t, (1, 32, 9, 11), 65, (3, 3), SAME) for t in ALL],
    ("conv", "depthwise, whole vectors"): [
        conv("Conv2D", t, *nhwc((1, 40, 9, 7), 40, (3, 3), {"group": 40} | SAME)) for t in ALL
    ],
    ("conv", "a residual to each tile"): [
        residual(w, o, k) for k in (1, 3) for w in (8, 24, 40) for o in (1, 2, 3, 6, 7, 8, 13)
    ],
    ("conv", "tiles across ends of lines"): [
        conv("Conv2D", "float32", (1, 6, 17, 14), o, (3, 3), {}) for o in (1, 2, 3)
    ],
    ("pool", "windows far wider than x"): [
        pool(op, t, (1, 2, 3, 5), [2, 9000], [1, 1], "SAME") for op in ("AvgPool", "MaxPool") for t in HALF
    ],
    ("attention", "scores within a tanh"): [attention(t, (1, 2, 37, 45, 24), "BHSD", softcap=5.0) for t in ALL],
    ("attention", "one query, partial vectors"): [
        attention(t, (1, 2, 1, 70, 24), "BHSD", value_dim=v) for t in ALL for v in (29, 60)
    ],
    ("reduce", "NaN in a part among others"): [largest(op, t) for op in ("ReduceMax", "ReduceMin") for t in ALL],
    ("softmax", "columns too long to keep"): [softmax(t, (9000, 11), 0) for t in ALL],
    ("rmsnorm", "gamma of float32"): [
        rmsnorm("FusedRmsNorm", t, [(r, k), ("float32", (k,))])
        for t in HALF
        for r, k in ((40, 7), (40, 33), (40, 128), (3, 4100))
    ],
    ("rmsnorm", "its gradient"): [
        rmsnorm("FusedRmsNormGrad", t, [(40, 33), (40, 33), ("float32", (33,))]) for t in HALF
    ],
}


@pytest.mark.parametrize("folder,what", BRANCHES)
def test_a_branch(folder, what):
    for case in BRANCHES[folder, what]:
        try:
            test_ops.test_case(folder, MODULES[folder], case)
        except Exception as e:
            raise AssertionError(f"{case}") from e
