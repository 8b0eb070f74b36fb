"""Cases of BatchNorm and FusedBatchNormInference; the format is that of swiglu/cases.py."""

import numpy as np


def batch_norm(x, scale, bias, mean, variance, epsilon=1e-5, data_format="NCHW", **_):
    channels = (-1, *[1] * (x.ndim - 2 if data_format == "NCHW" else 0))
    at = [v.reshape(channels) for v in (mean, scale / np.sqrt(variance + epsilon), bias)]
    return (x - at[0]) * at[1] + at[2], mean, variance, mean, variance


def bound(u, x, scale, bias, mean, variance, **attrs):
    """The difference and the factor round, then the sum: three roundings of the first term, one of the result."""
    y, term = (batch_norm(x, scale, b, mean, variance, **attrs)[0] for b in (bias, 0 * bias))
    return [2.0**-24 * (3 * np.abs(term) + np.abs(y)), 0.0, 0.0, 0.0, 0.0]


def factor(scale, variance, epsilon=1e-5, spread="variance"):
    scale = scale if scale.size else 1.0
    return scale * variance if spread == "inverse" else scale / (
        variance if spread == "deviation" else np.sqrt(variance + epsilon))  # fmt: skip


def fused(x, scale, bias, mean, variance, **attrs):
    return (x - mean) * factor(scale, variance, **attrs) + (bias if bias.size else 0.0)


def fused_bound(u, x, scale, bias, mean, variance, **attrs):
    """As of BatchNorm."""
    y, term = (fused(x, scale, b, mean, variance, **attrs) for b in (bias, 0 * bias))
    return 2.0**-24 * (3 * np.abs(term) + np.abs(y))


REFERENCE = {"BatchNorm": batch_norm, "FusedBatchNormInference": fused}
BOUND = {"BatchNorm": bound, "FusedBatchNormInference": fused_bound}
# Two roundings to the storage type, by the kernel and by the twin; float16's smallest step.
TOLERANCE = {"float32": 2.02 * 2.0**-24, "float16": 2.02 * 2.0**-11, "bfloat16": 2.02 * 2.0**-8}
SMALLEST = 2.0**-24
SHAPES = [(2, 3, 5, 7), (1, 16, 8, 8), (4, 9), (2, 5, 33), (0, 4, 3, 3), (1, 1, 1, 1), (1, 2, 3, 1, 65), (3, 4, 0, 2)]


def case(dtype, shape, params, x=(), variance=(0.25, 2.0), **attrs):
    channels = shape[-1:] if attrs.get("data_format") == "NHWC" else shape[1:2]
    vectors = [(params, channels)] * 3 + [(params, channels, variance)]
    return {
        "op": "BatchNorm",
        "inputs": [(dtype, shape, *x), *vectors],
        "attrs": attrs,
        "rtol": TOLERANCE[dtype],
        "atol": SMALLEST,
    }


CASES = (
    [case(t, s, t) for t in TOLERANCE for s in SHAPES]
    + [case(t, s, t, data_format="NHWC") for t in TOLERANCE for s in SHAPES]
    + [case(t, SHAPES[0], "float32", epsilon=1e-3, data_format=f) for t in TOLERANCE for f in ("NCHW", "NHWC")]
    + [
        case("float32", (1, 2, 3, 5), "float32", ("special",)),
        # A variance of 0 and a mean far above the deviation.
        case("float32", (2, 3, 40), "float32", variance=(0.0, 1e-30)),
        {
            **case("float32", (2, 2, 20), "float32", ((9999.0, 10001.0),)),
            "inputs": [("float32", (2, 2, 20), (9999.0, 10001.0)), *[("float32", [1.5, 2.0])] * 2,
                       ("float32", [10000.0, 9999.5]), ("float32", [0.3, 0.6])],
        },
    ]
)  # fmt: skip


def fused_case(dtype, shape, params, scale=True, bias=True, of="float32", **attrs):
    """params: the shape of those that are given."""
    given = [(of, params if there else (0,)) for there in (scale, bias)]
    return {
        "op": "FusedBatchNormInference",
        "inputs": [(dtype, shape), *given, (of, params), (of, params, (0.25, 2.0))],
        "attrs": attrs,
        "rtol": TOLERANCE[dtype],
        "atol": SMALLEST,
    }


# x, and what broadcasts to it along the second, the last or another dimension; one number; none.
FUSED = [
    ((2, 3, 5, 7), (1, 3, 1, 1)), ((2, 3, 5, 7), (3, 1, 1)), ((1, 16, 8, 8), (16, 1, 1)), ((4, 9), (9,)),
    ((4, 9), (1, 9)), ((4, 9), (4, 1)), ((2, 5, 33), (5, 1)), ((2, 5, 33), (33,)), ((3, 2, 4, 5), (3, 1, 1, 1)),
    ((3, 2, 4, 5), (1, 1, 4, 1)), ((7,), (7,)), ((2, 1, 3, 65), (1, 1, 1)), ((5, 1), (1,)),
    ((0, 4, 3, 3), (1, 4, 1, 1)), ((3, 4, 0, 2), (4, 1, 1)), ((1, 1, 1, 1), (1, 1, 1, 1)), ((2, 0, 3), (0, 1)),
]  # fmt: skip
CASES += (
    [fused_case(t, *s, of=t) for t in TOLERANCE for s in FUSED]
    + [fused_case(t, *FUSED[0], s, b) for t in TOLERANCE for s in (False, True) for b in (False, True)]
    + [
        fused_case("float32", *s, scale, spread=spread)
        for s in FUSED[:6]
        for scale in (False, True)
        for spread in ("deviation", "inverse")
    ]
    + [fused_case("float32", *FUSED[0], epsilon=1e-2)]
)

X, C = ("float32", (2, 4, 3, 3)), ("float32", (4,))
B, ONE, NONE = (("float32", s) for s in ((4, 1, 1), (1, 1, 1), (0,)))


def refused(error, inputs, op="BatchNorm", **attrs):
    return {"op": op, "inputs": inputs, "attrs": attrs, "error": error}


REFUSED = [
    refused(r"BatchNorm: mean.shape must be \(4,\), got \(3,\)", [X, C, C, ("float32", (3,)), C]),
    refused(r"BatchNorm: x must have at least 2 dimensions, got shape \(4,\)", [C, C, C, C, C]),
    refused("BatchNorm: x.dtype must be one of float32, float16, bfloat16, got int32", [("int32", (2, 4)), C, C, C, C]),
    refused("bias.dtype must equal scale.dtype float32, got float16", [X, C, ("float16", (4,)), C, C]),
    refused("is_training must be false: opgraft runs inference", [X, C, C, C, C], is_training=True),
    refused(r"scale.shape must be \(3,\), got \(4,\)", [X, C, C, C, C], data_format="NHWC"),
    refused("data_format must be NCHW or NHWC, got 'NCDHW'", [X, C, C, C, C], data_format="NCDHW"),
] + [
    refused(f"FusedBatchNormInference: {error}", inputs, "FusedBatchNormInference", **attrs)
    for error, inputs, attrs in (
        (r"mean.shape must be 1 but for dimension 3 of x \(2, 4, 3, 3\), got \(4,\)", [X, C, C, C, C], {}),
        (
            r"mean.shape must be 1 but for dimension 0 .*, got \(2, 4, 1, 1\)",
            [X, NONE, NONE, ("float32", (2, 4, 1, 1)), B],
            {},
        ),
        (r"scale.shape must be 1 but for dimension 1 .*, got \(3, 1\)", [X, ("float32", (3, 1)), B, B, B], {}),
        (r"variance.shape must be 1 but for dimension 1 .*, got \(0,\)", [X, NONE, NONE, B, NONE], {}),
        (r"mean must have 1 to 4 dimensions, got shape \(\)", [X, NONE, NONE, ("float32", ()), B], {}),
        (r"mean.shape must be 1 but for dimension 3 .*, got \(1, 1, 1\)", [X, NONE, NONE, ONE, B], {}),
        ("bias.dtype must equal scale.dtype float32, got float16", [X, B, ("float16", (4, 1, 1)), B, B], {}),
        ("x.dtype must be one of float32, float16, bfloat16, got int32", [("int32", (2, 4, 3, 3)), B, B, B, B], {}),
        ("spread must be one of variance, deviation, inverse, got 'root'", [X, B, B, B, B], {"spread": "root"}),
    )
]
