"""Cases of the operators with tensors of eight bits; the format is that of swiglu/cases.py."""

import numpy as np

ACTIVATIONS = {
    "none": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x**3))),
}


def swap(x, yes):
    return np.swapaxes(x, -1, -2) if yes else x


def by_column(s):
    return np.reshape(s, (1, -1))


def weight_quant(x, weight, scale, offset=None, _scale=None, _offset=None, bias=0.0, transpose_x=False,
                 transpose_weight=False, subtract_offset=False, divide=False, activation="none"):  # fmt: skip
    w = swap(weight, transpose_weight).astype(float)
    if offset is not None and offset.size:
        w = w + by_column(-offset if subtract_offset else offset)
    y = swap(x, transpose_x) @ (w / by_column(scale) if divide else w * by_column(scale)) + bias
    return ACTIVATIONS[activation](y)


def weight_quant_bound(u, x, weight, scale, offset=None, *rest, transpose_x=False, transpose_weight=False,
                       subtract_offset=False, divide=False, activation="none"):  # fmt: skip
    """The products' sum as matmul/cases.py derives it; one rounding each of the scale's product and of the bias' sum;
    an offset is a rounded sum of x (in double), times the offset, added: two roundings of what they are. A weight
    without a sign is 128 less there, and its offset 128 more. 1 over a scale rounds once. An activation has a slope of
    at most 1.13, and errs by 8 roundings of its result and 2.1e-7 (dense/cases.py)."""
    x, w = swap(x, transpose_x), swap(weight, transpose_weight).astype(float)
    if weight.dtype == np.uint8:
        w, none = w - 128, offset is None or not offset.size
        offset = 128 + (np.zeros(1) if none else -offset if subtract_offset else offset)
    scale = np.abs(by_column(scale))
    scale = 1 / scale if divide else scale
    sums = 8 * 2.0**-24 * np.sqrt(x.shape[-1] * (x**2 @ w**2) / 6) * scale
    bias = rest[2] if len(rest) > 2 else 0.0
    y = np.abs(weight_quant(x, w, scale)) + np.abs(bias)
    if offset is not None and offset.size:
        y = y + 2 * np.abs(x.sum(-1, keepdims=True) * by_column(offset)) * scale
    error = sums + (4 if divide else 3) * 2.0**-24 * y
    return error if activation in ("none", "relu") else 1.13 * error + (2.1e-7 + 8 * 2.0**-24) * y


def quant_product(x1, x2, scale, offset=None, bias=None, token=None, transpose_x1=False, transpose_x2=False,
                  dtype="float16", x1_offset=0.0, x2_offset=0.0, x1_scale=1.0):  # fmt: skip
    x1, x2 = x1.astype(np.int64) - int(x1_offset), x2.astype(np.int64) - int(x2_offset)
    y = swap(x1, transpose_x1) @ swap(x2, transpose_x2)
    if bias is not None and bias.size:
        y = y + bias
    if dtype == "int32":
        return y
    y = y * by_column(scale) * x1_scale
    if token is not None and token.size:
        y = y * token.reshape(y.shape[:-1] + (1,))
    if offset is not None and offset.size:
        y = y + by_column(offset)
    return np.clip(np.rint(y), -128, 127) if dtype == "int8" else y


def quant_product_bound(u, *inputs, dtype="float16", **attrs):
    """The sum as float32, three scales, an offset: at most five roundings of what they are. An integer may then lie on
    the other side of a half; int32 is exact."""
    if dtype == "int32":
        return 0.0
    x1, x2, scale, offset, *rest = [*inputs, *[np.zeros(0)] * 6][:6]
    size = np.abs(quant_product(x1, x2, scale, None, *rest, **attrs))
    size = size + np.abs(by_column(offset)) if offset.size else size
    error = (5 if attrs.get("x1_scale", 1.0) != 1.0 else 4) * 2.0**-24 * size
    if dtype != "int8":
        return error
    y = quant_product(x1, x2, scale, offset, *rest, **attrs)
    return np.where(np.abs(y - np.floor(y) - 0.5) <= error, 1.0, 0.0)


def channel_scale(scale, sqrt_mode):
    return scale.astype(float) ** 2 if sqrt_mode else scale


def quant_steps(x, scale, offset, sqrt_mode, divide, round_first):
    """The scaled numbers, and with the offset what becomes an integer."""
    s = channel_scale(scale, sqrt_mode)
    scaled = x / s if divide else s * x
    return s, scaled, (np.rint(scaled) if round_first else scaled) + offset


def quant(x, scale, offset=0.0, sqrt_mode=False, divide=False, round_first=False, dst_type="int8", quant_min=-128,
          quant_max=255):  # fmt: skip
    within = np.iinfo(dst_type)
    least, most = (within.min, within.max) if (quant_min, quant_max) == (-128, 255) else (quant_min, quant_max)
    v = quant_steps(x, scale, offset, sqrt_mode, divide, round_first)[-1]
    return (np.trunc if round_first else np.rint)(np.where(np.isnan(v), 0.0, np.clip(v, least, most)))


def quant_bound(u, x, scale, offset=0.0, sqrt_mode=False, divide=False, round_first=False, dst_type="int8", **limits):
    """Three roundings of what is added: where they decide a half's side, or that of a whole number which is cut, the
    next integer. Where no step rounds there are none."""
    steps = quant_steps(x, scale, offset, sqrt_mode, divide, round_first)
    _, scaled, y = steps
    error = 3 * 2.0**-24 * (np.abs(scaled) + np.abs(offset))
    near = lambda v: np.abs(v - np.rint(v)) <= error  # noqa: E731
    close = near(scaled + 0.5) | near(y) if round_first else near(y + 0.5)
    exact = np.all([np.broadcast_to(v == np.float32(v), y.shape) for v in steps], axis=0)
    return np.where(close & ~exact, 1.0, 0.0)


def anti_quant(x, scale, offset=0.0, sqrt_mode=False, dtype="float16", subtract_offset=False):
    return channel_scale(scale, sqrt_mode) * (x - offset if subtract_offset else x + offset)


def anti_quant_bound(u, x, scale, offset=0.0, sqrt_mode=False, dtype="float16", subtract_offset=False):
    """A sum, a square, a product: a rounding each."""
    return 3 * 2.0**-24 * np.abs(channel_scale(scale, sqrt_mode)) * (np.abs(x.astype(float)) + np.abs(offset))


def dequant(x, deq_scale, sqrt_mode=False, relu_flag=False, dtype="float16"):
    y = channel_scale(deq_scale, sqrt_mode) * x
    return np.maximum(y, 0) if relu_flag else y


def dequant_bound(u, x, deq_scale, sqrt_mode=False, relu_flag=False, dtype="float16"):
    """x as float32, a square, a product: a rounding each."""
    return 3 * 2.0**-24 * np.abs(dequant(x, deq_scale, sqrt_mode))


REFERENCE = {
    "QuantV2": quant,
    "AntiQuant": anti_quant,
    "Dequant": dequant,
    "QuantBatchMatmul": quant_product,
    "WeightQuantBatchMatmul": weight_quant,
}
BOUND = {
    "QuantV2": quant_bound,
    "AntiQuant": anti_quant_bound,
    "Dequant": dequant_bound,
    "QuantBatchMatmul": quant_product_bound,
    "WeightQuantBatchMatmul": weight_quant_bound,
}
# One rounding to the storage type, by the kernel and by the twin; float16's smallest step.
TOLERANCE = {"float32": 2.02 * 2.0**-24, "float16": 2.02 * 2.0**-11, "bfloat16": 2.02 * 2.0**-8}
SMALLEST = 2.0**-24
# x's leading dimensions, K, N: whole and partial tiles, none, pieces of K.
SIZES = [((12,), 32, 64), ((2, 7), 9, 33), ((1,), 130, 70), ((1,), 900, 300), ((5,), 900, 300), ((17,), 2100, 40),
         ((0, 3), 4, 8), ((5,), 0, 3), ((5,), 3, 0), ((70,), 131, 45), ((2, 64), 96, 130),
         ((2, 1, 2, 3), 9, 17)]  # fmt: skip


def weight_case(dtype, lead, k, n, inputs=3, scale_dtype="float32", per="channel", offset=True, tx=False, tw=False,
                of=("int8", -128), **more):  # fmt: skip
    flat = {"channel": (n,), "tensor": (1,), "scalar": (), "2d": (n, 1) if tw else (1, n), "row": (1, n)}[per]
    shapes = [
        (dtype, (k, *lead) if tx else (*lead, k)),
        (of[0], (n, k) if tw else (k, n), (of[1], of[1] + 256)),
        (scale_dtype, flat, (100.0, 1000.0) if more.get("divide") else (0.001, 0.01)),
        (scale_dtype, flat if offset else (0,), (-8, 8)),
        *[(scale_dtype, (0,))] * 2,
        (dtype, (n,)),
    ]
    return {
        "op": "WeightQuantBatchMatmul",
        "inputs": shapes[:inputs],
        "attrs": {"transpose_x": tx, "transpose_weight": tw, **more},
        "rtol": TOLERANCE[dtype],
        "atol": SMALLEST,
    }


def quant_case(dtype, lead, k, n, inputs=3, scale=None, offset=0, bias=True, token=True, ta=False, tb=False,
               x1="int8", x2="int8", **more):  # fmt: skip
    """`scale`, `offset`: how many elements, or a shape; None: N. `token`: a scale for each row; "rank": as [..., 1]."""
    rows = int(np.prod(lead))
    full = 128 if dtype != "int8" else 4  # so that most results of eight bits are within their range
    shapes = [
        (x1, (k, *lead) if ta else (*lead, k), (-full, full) if x1 == "int8" else (0, 2 * full)),
        (x2, (n, k) if tb else (k, n), (-full, full) if x2 == "int8" else (0, 2 * full)),
        (
            "float32",
            scale if isinstance(scale, tuple) else (0 if dtype == "int32" else n if scale is None else scale,),
            (0.01, 0.6),
        ),
        ("float32", (n if offset is None else offset,), (-20, 20)),
        ("int32", (n if bias else 0,), (-300, 300)),
        ("float32", (*lead, 1) if token == "rank" else (rows if token and dtype != "int32" else 0,), (0.1, 1.0)),
    ]
    return {
        "op": "QuantBatchMatmul",
        "inputs": shapes[:inputs],
        "attrs": {"transpose_x1": ta, "transpose_x2": tb, "dtype": dtype, **more},
        "rtol": TOLERANCE.get(dtype, 0.0),
        "atol": SMALLEST if dtype == "float16" else 0.0,
    }


OUTPUTS = ("float16", "bfloat16", "float32", "int8", "int32")
CASES = (
    [quant_case(t, *s, tb=tb) for t in OUTPUTS for s in SIZES for tb in (False, True)]
    + [quant_case(t, (29,), 23, 45, i, scale, None if t == "int8" else 0, ta=ta) for t in OUTPUTS for i in (3, 4, 5, 6)
       for scale in (None, 1) for ta in (False, True)]
    + [quant_case("int8", (13,), 24, 45, 6, None, offset, bias, token) for offset in (0, 1, None)
       for bias in (False, True) for token in (False, True)]
    # Not MindSpore's: a zero point, a factor more, an offset of what is no int8, a scale of two dimensions.
    + [quant_case(t, *s, tb=tb, x1_offset=z, x1_scale=f) for t in OUTPUTS for s in SIZES[:5] + SIZES[7:]
       for tb in (False, True)
       for z, f in (((-2.0, 1.0), (3.0, 0.7)) if t == "int8" else ((-128.0, 1.0), (17.0, 0.7), (127.0, 0.7)))]
    + [quant_case(t, (13,), 24, 45, 6, None, offset, bias, x1_offset=3.0) for t in OUTPUTS[:3] for offset in (1, None)
       for bias in (False, True)]
    + [quant_case("float32", (13,), 24, 45, 3, s, tb=tb) for tb, s in ((False, (1, 45)), (True, (45, 1)))]
    + [quant_case(t, *s, tb=tb, x1="uint8", x1_offset=z) for t in OUTPUTS for s in SIZES for tb in (False, True)
       for z in ((0.0, 3.0) if t == "int8" else (0.0, 128.0, 255.0))]
    + [quant_case(t, (29,), 23, 45, 6, x1="uint8", ta=True, x1_offset=7.0) for t in OUTPUTS]
    # Weights with a zero point, of bytes without a sign or with one.
    + [quant_case(t, *s, tb=tb, x1=x1, x1_offset=3.0, x2=x2, x2_offset=z) for t in OUTPUTS for s in SIZES
       for tb in (False, True) for x1 in ("int8", "uint8")
       for x2, z in ((("int8", -2.0), ("uint8", 3.0)) if t == "int8"
                     else (("int8", -128.0), ("uint8", 0.0), ("uint8", 128.0), ("uint8", 255.0)))]
    + [quant_case(t, (29,), 23, 45, 6, ta=True, x2="uint8", x2_offset=7.0) for t in OUTPUTS]
    + [quant_case("float32", lead, 24, 45, 6, token="rank", x1=x1) for lead in ((13,), (2, 5), (0, 3))
       for x1 in ("int8", "uint8")]
) + (
    [weight_case(t, *s, tw=tw) for t in TOLERANCE for s in SIZES for tw in (False, True)]
    + [weight_case(t, (19,), 24, 45, i, t, per, o, False, tw) for t in TOLERANCE for i in (3, 4, 7)
       for per in ("channel", "tensor", "2d") for o in (False, True) for tw in (False, True)]
    + [weight_case(t, (3,), 24, 45, 7) for t in TOLERANCE]
    + [weight_case(t, (m,), 24, 45, 4, per=per, tw=tw, subtract_offset=True) for t in TOLERANCE for m in (3, 29)
       for per in ("channel", "scalar", "2d") for tw in (False, True)]
    + [weight_case(t, (m,), 24, 45, tx=True, tw=tw) for t in TOLERANCE for m in (3, 29) for tw in (False, True)]
    # Not MindSpore's: without a sign, divided by the scale, the scale of a weight [N, K] as (1, N).
    + [weight_case(t, *s, tw=tw, of=("uint8", 0)) for t in TOLERANCE for s in SIZES for tw in (False, True)]
    + [weight_case(t, (m,), 24, 45, i, t, per, i > 3, tw=tw, of=("uint8", 0), subtract_offset=s) for t in TOLERANCE
       for m in (1, 29) for i in (4, 7) for per in ("scalar", "row") for tw in (False, True) for s in (False, True)]
    + [weight_case(t, (m,), 24, 45, i, t, per, tw=True, of=w, divide=True) for t in TOLERANCE for m in (1, 29)
       for i in (3, 7) for per in ("channel", "scalar", "row") for w in (("int8", -128), ("uint8", 0))]
    + [weight_case(t, (m,), 24, 45, 7, activation=a) for t in TOLERANCE for m in (1, 29) for a in ACTIVATIONS]
)  # fmt: skip


def refused(error, *inputs, op="WeightQuantBatchMatmul", **attrs):
    return {"op": op, "inputs": list(inputs), "attrs": attrs, "error": error}


# x and the scale: one for all, on the last axis, on another, on none of many; no elements.
CHANNELS = [((64,), (1,)), ((6, 33), (33,)), ((3, 33), (1, 33)), ((5, 7, 9), (7, 1)), ((4, 70), (4, 1)), ((2, 3), ()),
            ((), ()), ((0, 5), (5,)), ((5, 0), (5, 1)), ((2, 0), (1, 0)), ((1, 1000), (1000,))]  # fmt: skip


def channel_case(op, x, shape, scale_dtype, of, sqrt=False, **attrs):
    offset = (-9, 9) if attrs.get("dst_type") != "uint8" else (110, 140)
    inputs = [None, (scale_dtype, shape, (0.1, 9.0)), (scale_dtype, shape, offset)]
    out = attrs.get("dtype")
    return {
        "op": op,
        "inputs": [(x[0], of, x[1]), *inputs[1 : 2 if op == "Dequant" else 3]],
        "attrs": {"sqrt_mode": sqrt, **attrs},
        "rtol": TOLERANCE.get(out, 0.0),
        "atol": SMALLEST if out == "float16" else 0.0,
    }


CASES += (
    [channel_case("QuantV2", (t, (-20, 20)), s, t, x, q) for t in TOLERANCE for x, s in CHANNELS for q in (False, True)]
    + [channel_case("QuantV2", (t, (-20, 20)), s, "float32", x, divide=d, round_first=f) for t in TOLERANCE
       for x, s in CHANNELS for d in (False, True) for f in (False, True)]
    + [channel_case("QuantV2", (t, (-20, 20)), s, "float32", x, divide=d, round_first=f, dst_type="uint8")
       for t in TOLERANCE for x, s in CHANNELS for d in (False, True) for f in (False, True)]
    + [channel_case("AntiQuant", ("uint8", (0, 256)), s, "float32", x, dtype=t, subtract_offset=z)
       for t in TOLERANCE for x, s in CHANNELS for z in (False, True)]
    + [{"op": "QuantV2", "inputs": [("float32", (5, 33), (-90, 90)), ("float32", (33,), (0.1, 0.9))],
        "attrs": {"divide": d}, "rtol": 0.0, "atol": 0.0} for d in (False, True)]
    + [channel_case("AntiQuant", ("int8", (-128, 128)), s, d, x, q, dtype=t) for t in TOLERANCE for x, s in CHANNELS
       for d, q in (("float32", False), ("float16", True), (t, False))]
    + [channel_case("AntiQuant", ("int8", (-128, 128)), s, "float32", x, dtype=t, subtract_offset=True)
       for t in TOLERANCE for x, s in CHANNELS]
    + [{"op": "AntiQuant", "inputs": [("int8", (5, 33), (-128, 128)), ("float32", (33,), (0.1, 9.0))],
        "attrs": {"dtype": t}, "rtol": TOLERANCE[t], "atol": SMALLEST} for t in TOLERANCE]
    + [channel_case("Dequant", ("int32", (-2000, 2000)), s, d, x, q, dtype=t, relu_flag=r) for t in TOLERANCE
       for x, s in CHANNELS for d, q, r in (("float32", False, False), ("float16", True, True), (t, False, True))]
    # Halves go to the even neighbour, before an odd offset or after it; what is beyond saturates.
    + [{"op": "QuantV2", "inputs": [("float32", [-300.0, -128.5, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 126.5, 127.5, 300.0]),
                                    ("float32", [2.0 if d else 0.5]), ("float32", [o])],
        "attrs": {"divide": d, "round_first": f}, "rtol": 0.0, "atol": 0.0}
       for o in (0.0, 3.0, -2.5) for d in (False, True) for f in (False, True)]
    + [{"op": "QuantV2", "inputs": [("float32", [-300.0, -128.5, -2.5, -0.5, 0.5, 1.5, 2.5, 254.5, 255.5, 300.0]),
                                    ("float32", [2.0 if d else 0.5]), ("float32", [o])],
        "attrs": {"divide": d, "round_first": f, "dst_type": "uint8"}, "rtol": 0.0, "atol": 0.0}
       for o in (0.0, 3.0, 127.5) for d in (False, True) for f in (False, True)]
    + [{"op": "QuantV2", "inputs": [("float32", (40,), "special"), ("float32", [2.0]), ("float32", [0.5])],
        "attrs": {"dst_type": "uint8"}, "rtol": 0.0, "atol": 0.0}]
    + [{"op": "QuantV2", "inputs": [("float32", [-300.0, -128.5, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 126.5, 127.5, 300.0]),
                                    ("float32", [1.0]), ("float32", [0.0])], "attrs": {}, "rtol": 0.0, "atol": 0.0},
       {"op": "QuantV2", "inputs": [("float32", (40,), "special"), ("float32", [2.0]), ("float32", [0.5])], "attrs": {},
        "rtol": 0.0, "atol": 0.0}]
)  # fmt: skip
# Limits within the dtype's own: seven bits and less, halves, what is no number; zero points in int32.
CASES += [
    channel_case("QuantV2", (t, (-20, 20)), s, "float32", x, dst_type=d, quant_min=least, quant_max=most, **more)
    for t in TOLERANCE for x, s in CHANNELS
    for d, least, most in (("int8", -127.0, 127.0), ("int8", -8.0, 7.0), ("uint8", 1.0, 127.0))
    for more in ({}, {"divide": True, "round_first": True})
] + [
    {"op": "QuantV2", "inputs": [("float32", [-300.0, -127.5, -2.5, 0.5, 1.5, 126.5, 127.5, np.nan, np.inf, -np.inf]),
                                 ("float32", [1.0])], "attrs": {"quant_min": -127.0, "quant_max": 127.0}, "rtol": 0.0,
     "atol": 0.0}
]  # fmt: skip
CASES += [
    {**channel_case("AntiQuant", (of, r), s, "float32", x, dtype=t, subtract_offset=z),
     "inputs": [(of, x, r), ("float32", s, (0.1, 9.0)), ("int32", s, (-9, 130))]}
    for of, r in (("int8", (-128, 128)), ("uint8", (0, 256))) for t in TOLERANCE for x, s in CHANNELS
    for z in (False, True)
] + [
    {**weight_case(t, (m,), 24, 45, 4, tw=tw, subtract_offset=True),
     "inputs": [(t, (m, 24)), (of, (45, 24) if tw else (24, 45), (least, least + 256)),
                ("float32", (45,), (0.001, 0.01)), ("int32", zero, (least, least + 256))]}
    for t in TOLERANCE for m in (1, 29) for tw in (False, True) for zero in ((45,), ())
    for of, least in (("int8", -128), ("uint8", 0))
]  # fmt: skip


A, B = ("int8", (4, 8)), ("int8", (8, 3))
X, W, S = ("float32", (4, 8)), ("int8", (8, 3)), ("float32", (3,))
REFUSED = [
    refused(r"WeightQuantBatchMatmul: x's K must equal weight's K of 7, got 8 \(x \(4, 8\), weight \(7, 3\)\)",
            X, ("int8", (7, 3)), S),
    refused("WeightQuantBatchMatmul: weight.dtype must be one of int8, uint8, got float32", X, ("float32", (8, 3)), S),
    refused(r"WeightQuantBatchMatmul: antiquant_scale.shape must be \(\), \(1,\), \(3,\) or \(1, 3\), got \(8,\)",
            X, W, ("float32", (8,))),
    refused(r"WeightQuantBatchMatmul: antiquant_offset.shape must be \(\), \(1,\), \(3,\) or \(3, 1\), got \(1, 8\)",
            X, ("int8", (3, 8)), S, ("float32", (1, 8)), transpose_weight=True),
    refused("WeightQuantBatchMatmul: antiquant_scale.dtype must equal x.dtype float32, got float16",
            X, W, ("float16", (3,))),
    refused(r"WeightQuantBatchMatmul: bias.shape must be \(3,\), got \(4,\)",
            X, W, S, *[("float32", (0,))] * 3, ("float32", (4,))),
    refused(r"WeightQuantBatchMatmul: quant_scale must have no elements, got shape \(3,\)",
            X, W, S, ("float32", (0,)), S),
    refused("WeightQuantBatchMatmul: antiquant_group_size must be 0, got 32", X, W, S, antiquant_group_size=32),
    refused("WeightQuantBatchMatmul: activation must be one of .*, got 'tanh'", X, W, S, activation="tanh"),
    refused(r"WeightQuantBatchMatmul: x must have 2 dimensions with transpose_x, got shape \(2, 4, 8\)",
            ("float32", (2, 4, 8)), W, S, transpose_x=True),
    refused(r"QuantBatchMatmul: x1's K must equal x2's K of 7, got 8 \(x1 \(4, 8\), x2 \(7, 3\)\)",
            A, ("int8", (7, 3)), S, op="QuantBatchMatmul"),
    refused("QuantBatchMatmul: x1.dtype must be one of int8, uint8, got float32", X, B, S, op="QuantBatchMatmul"),
    refused(r"QuantBatchMatmul: scale.shape must be \(\), \(1,\) or \(3,\), got \(8,\)", A, B, ("float32", (8,)),
            op="QuantBatchMatmul"),
    refused(r"QuantBatchMatmul: bias.shape must be \(3,\), got \(1,\)", A, B, S, ("float32", (0,)), ("int32", (1,)),
            op="QuantBatchMatmul"),
    refused(r"QuantBatchMatmul: pertokenScaleOptional.shape must be \(4,\), got \(3,\)", A, B, S, ("float32", (0,)),
            ("int32", (0,)), S, op="QuantBatchMatmul"),
    refused("QuantBatchMatmul: dtype must be one of float16, bfloat16, float32, int8, int32, got 'uint8'", A, B, S,
            op="QuantBatchMatmul", dtype="uint8"),
    refused("QuantBatchMatmul: scale must have no elements where dtype is int32", A, B, S, op="QuantBatchMatmul",
            dtype="int32"),
    refused("QuantBatchMatmul: offset must have no elements where dtype is int32", A, B, ("float32", (0,)), S,
            op="QuantBatchMatmul", dtype="int32"),
    refused("QuantBatchMatmul: x1_offset must be a whole number from -128 to 127, got 128", A, B, S,
            op="QuantBatchMatmul", x1_offset=128.0),
    refused("QuantBatchMatmul: x2_offset must be a whole number from -128 to 127, got 128", A, B, S,
            op="QuantBatchMatmul", x2_offset=128.0),
    refused("QuantBatchMatmul: x2.dtype must be one of int8, uint8, got int32", A, ("int32", (8, 3)), S,
            op="QuantBatchMatmul"),
    refused("QuantBatchMatmul: x1_offset must be a whole number from 0 to 255, got -1", ("uint8", (4, 8)), B, S,
            op="QuantBatchMatmul", x1_offset=-1.0),
    refused(r"QuantBatchMatmul: pertokenScaleOptional.shape must be x1.shape \(4, 8\) with the last dimension as 1, "
            r"got \(3, 1\)", A, B, S, ("float32", (0,)), ("int32", (0,)), ("float32", (3, 1)), op="QuantBatchMatmul"),
    refused("QuantBatchMatmul: x1_offset must be a whole number from -128 to 127, got 0.5", A, B, S,
            op="QuantBatchMatmul", x1_offset=0.5),
    refused(r"QuantBatchMatmul: scale.shape must be \(\), \(1,\) or \(3,\), got \(3, 1\)", A, B, ("float32", (3, 1)),
            op="QuantBatchMatmul"),
    refused("QuantV2: x.dtype must be one of float32, float16, bfloat16, got int8", A, S, S, op="QuantV2"),
    refused(r"QuantV2: scale.shape must be x.shape \(4, 8\) with all dimensions but one as 1, got \(3,\)", X, S, S,
            op="QuantV2"),
    refused("QuantV2: rounding_mode must be ROUND, got 'FLOOR'", X, ("float32", (8,)), ("float32", (8,)),
            op="QuantV2", rounding_mode="FLOOR"),
    refused("QuantV2: quant_min and quant_max must be whole numbers in order from -128 to 127, got 0.0+ and 255", X,
            ("float32", (8,)), op="QuantV2", quant_min=0.0),
    refused("QuantV2: quant_min and quant_max must be whole numbers in order from 0 to 255, got 0.50+ and 9", X,
            ("float32", (8,)), op="QuantV2", quant_min=0.5, quant_max=9.0, dst_type="uint8"),
    refused("AntiQuant: offset.dtype must be one of float32, float16, bfloat16, int32, got int8", A,
            ("float32", (8,)), ("int8", (8,)), op="AntiQuant"),
    refused("QuantV2: dst_type must be int8 or uint8, got 'int32'", X, ("float32", (8,)), ("float32", (8,)),
            op="QuantV2", dst_type="int32"),
    refused("AntiQuant: x.dtype must be one of int8, uint8, got float32", X, ("float32", (8,)), op="AntiQuant"),
    refused(r"AntiQuant: offset must have the axis of scale, got shapes \(4, 1\) and \(8,\)", A, ("float32", (8,)),
            ("float32", (4, 1)), op="AntiQuant"),
    refused("Dequant: x.dtype must be one of int32, got int8", A, ("float32", (8,)), op="Dequant"),
    refused("Dequant: dtype must be one of float16, bfloat16, float32, got 'int8'", ("int32", (4, 8)),
            ("float32", (8,)), op="Dequant", dtype="int8"),
]  # fmt: skip
