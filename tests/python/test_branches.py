"""Kernels' branches that no size of the case tables reaches, as the coverage of lines by dtype told: each by the case
that reaches it, as test_ops, on every SIMD target."""

import math

import pytest
import test_ops
from conftest import tables, told

MODULES = dict(tables())
HALF = ("float16", "bfloat16")
ALL = ("float32", *HALF)
WORDS = ("float32", "bfloat16")
attention, conv, dense, matmul, pool, rmsnorm = (
    MODULES[folder].case for folder in ("attention", "conv", "dense", "matmul", "pool", "rmsnorm")
)
quant, joint, nhwc = MODULES["quant"], MODULES["dense"].joint, MODULES["conv"].nhwc
ACTIVATIONS = MODULES["dense"].ACTIVATIONS
SAME = {"pad_mode": "same"}
APART = {"pad_mode": "pad", "pad": [30] * 4, "dilation": [30, 30]}
LIMITED = [("int8", -100, 90), ("uint8", 3, 250)]


def quantised(dtype, x, scale, of, least, most, divide):
    attrs = {"dst_type": of, "quant_min": least, "quant_max": most, "divide": divide, "round_first": not divide}
    return quant.channel_case("QuantV2", (dtype, (-20, 20)), scale, "float32", x, **attrs)


def fused(dtype, x, outputs, kernel, attrs):
    """A convolution with a bias and a residual."""
    more = (dtype, (outputs,)), (dtype, (1, outputs, *x[2:]))
    return conv("FusedConv2D", dtype, x, outputs, kernel, attrs, *more, residual=True)


def conv_alone(*given):
    return conv("Conv2D", *given)


def constant(case):
    """With the second input as a constant, too, which is packed."""
    return case | {"constant": [1]}


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
        constant(quant.weight_case("float32", (m,), 700, 16)) for m in (1441, 1442, 1443, 1444)
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
        fused(t, (1, 6, 3, w), o, (k, k), SAME)
        for t in WORDS
        for k in (1, 3)
        for w in (8, 24, 40)
        for o in (1, 2, 3, 6, 7, 8, 13)
    ],
    ("conv", "tiles across ends of lines"): [
        conv("Conv2D", t, (1, 6, 17, 14), o, (3, 3), {}) for t in WORDS for o in (1, 2, 3)
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
# What is compiled for AVX-512, for its products of bytes and of bfloat16, and for AMX alone.
BRANCHES |= {
    ("matmul", "a last block of rows too few for tiles"): [
        matmul("MatMul", "bfloat16", (), (), *s, False, False) for s in ((961, 33, 40), (962, 33, 40), (961, 33, 2100))
    ],
    ("matmul", "pieces of K of several panels"): [
        matmul("MatMul", t, (), (), 33, 200, k, False, False) for t, k in zip(ALL, (2700, 2700, 4100), strict=True)
    ],
    ("matmul", "rows a page apart"): [matmul("MatMul", "bfloat16", (), (), 20, 33, 2048, False, False)],
    ("matmul", "threads that copy for themselves"): [
        matmul("MatMul", t, (), (), 200, 520, 20, False, False) for t in ALL
    ],
    ("dense", "a last block of rows too few for tiles"): [
        joint("bfloat16", (961,), 40, (33, 33), b, b) for b in (False, True)
    ],
    ("dense", "sums in pieces of K by tiles"): [
        joint("bfloat16", (70,), 3400, (33,) * n, b, b) for n, b in ((2, False), (3, True))
    ],
    ("quant", "pairs of a weight"): [
        quant.weight_case("bfloat16", (70,), 131, 45, 7, offset=False, tx=x, tw=w, activation=a)
        for x in (False, True)
        for w in (False, True)
        for a in ("none", "silu")
    ]
    + [quant.weight_case("bfloat16", (70,), 3400, 33, 7, offset=False)],
    ("quant", "digits"): [
        constant(quant.weight_case(t, (m,), 130, 45, 7, tx=x, tw=w, of=of, activation="silu", subtract_offset=True))
        for t in ALL
        for m in (1, 2)
        for x in (False, True)
        for w in (False, True)
        for of in (("int8", -128), ("uint8", 0))
    ],
    ("quant", "digits and a divisor"): [
        constant(quant.weight_case(t, (2,), 130, 45, 7, offset=False, divide=True)) for t in ALL
    ],
    ("attention", "tiles of keys, some hidden"): [
        attention(t, (1, 2, 30, 600, 24), "BHSD", ("float32", (30, 600)), softcap=c, mask_scale=0.5)
        for t in ALL
        for c in (math.nan, 2.0)
    ]
    + [attention(t, (1, 1, 30, 560, 8), "BHSD", (t, [-math.inf] * 520 + [0.0] * 40)) for t in ALL],
    ("attention", "rows that see nothing"): [
        attention(t, (1, 2, 30, 300, 8), layout, mask, nan_to_zero=True)
        for t in ALL
        for layout in ("BHSD", "BSE")
        for mask in (
            (t, [[-math.inf] * 300] + [[0.5] * 300] * 29),
            ("bool", [[False] * 300] + [[True] * 300] * 29),
            (t, (30, 300), "special"),
        )
    ],
    ("attention", "a cache that holds nothing"): [
        MODULES["attention"].filled(t, (2, 3, 1, 9, 70, 8), [0, 44]) for t in ALL
    ],
    ("attention", "heads of no elements"): [
        attention(t, (1, 2, 30, 5, 0), "BHSD", value_dim=9, scale=1.0) for t in ALL
    ],
    ("conv", "taps far apart whose channels fill no tile"): [
        conv("Conv2D", t, *x)
        for t in ALL
        for x in (
            ((1, 33, 3, 40), 17, (3, 3), APART),
            ((1, 34, 3, 40), 66, (3, 3), APART | {"group": 2}),
            nhwc((1, 64, 3, 40), 66, (3, 3), APART | {"group": 2}),
        )
    ],
    ("conv", "strides over vectors"): [
        conv("Conv2D", t, (1, c, 5, 150), 20, (k, k), SAME | {"stride": [1, 1, s, s]})
        for t in HALF
        for c in (1, 5, 33)
        for k in (1, 3)
        for s in (2, 3)
    ],
    ("conv", "columns in parts"): [conv("Conv2D", t, (1, 1024, 2, 3), 520, (1, 1), {}) for t in ALL],
    ("conv", "many channels of groups, last"): [
        conv("Conv2D", t, *nhwc((1, 576, 5, 6), 64, (2, 2), {"group": 2})) for t in ALL
    ],
    ("conv", "Winograd's tiles of few outputs"): [
        conv("Conv2D", t, (1, 64, *s), o, (3, 3), SAME)
        for t in ("float32", "float16")
        for o in (35, 37, 38, 39)
        for s in ((9, 11), (5, 5))
    ],
    ("conv", "Winograd, columns apart"): [
        conv("Conv2D", "float32", (1, 64, 5, 40), 33, (3, 3), SAME | {"dilation": [1, 1, 1, d]}) for d in (4, 5, 6, 7)
    ],
    ("conv", "tiles stored straight"): [
        conv("Conv2D", t, (1, 6, 9, 16), o, (1, 1), SAME) for t in WORDS for o in (2, 3, 4, 6, 7, 16)
    ]
    + [fused(t, (1, 6, 9, 16), o, (1, 1), SAME) for t in WORDS for o in (1, 4, 5, 6, 7, 9, 16, 34, 35, 37)]
    + [conv("Conv2D", t, (1, 6, 4, 33), 37, (3, 3), SAME) for t in WORDS],
    ("conv", "tiles stored with gaps"): [
        conv("Conv2D", t, (1, 6, *s), o, (3, 3), SAME)
        for t in WORDS
        for s, outputs in (((3, 40), (4, 5, 6, 7, 9)), ((17, 14), (34, 35, 37, 38)))
        for o in outputs
    ],
    ("conv", "taps read where x lies, with masks"): [
        make("float32", (1, 12, *s), o, k, SAME | attrs)
        for make in (conv_alone, fused)
        for s, k, attrs in (
            ((7, 7), (3, 3), {}),
            ((5, 41), (5, 3), {}),
            ((1, 70), (1, 4), {}),
            ((9, 14), (2, 2), {"dilation": [1, 1, 2, 3]}),
            ((33, 3), (3, 5), {}),
        )
        for o in (1, 5, 13, 40)
    ],
    ("conv", "channels as they lie"): [
        make(*nhwc((2, c, *s), o, (k, k), SAME))
        for t in WORDS
        for make in (
            lambda *of, t=t: conv_alone(t, *of),
            lambda *of, t=t: MODULES["conv"].follow("FusedConv2D", t, *of, True, "relu6"),
        )
        for c, s, k in ((6, (5, 9), 1), (512, (2, 3), 1), (10, (1, 37), 3), (34, (7, 12), 3))
        for o in (3, 16, 17, 32, 75)
    ],
    ("conv", "channels in lanes, turned"): [
        conv("Conv2D", "float32", (1, 6, *s), o, (3, 3), attrs)
        for s, o, attrs in (((3, 40), 16, SAME), ((5, 24), 48, {}), ((4, 33), 48, SAME), ((8, 31), 48, {}))
    ],
    ("conv", "depthwise, four whole vectors"): [
        conv("Conv2D", t, *nhwc((1, 72, 5, 6), 72, (3, 3), {"group": 72} | SAME)) for t in ALL
    ],
}


@pytest.mark.parametrize("folder,what", BRANCHES)
def test_a_branch(folder, what):
    for case in BRANCHES[folder, what]:
        with told(case):
            test_ops.test_case(folder, MODULES[folder], case)
