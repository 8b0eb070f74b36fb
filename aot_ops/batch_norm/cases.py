"""Cases of BatchNorm; the format is that of swiglu/cases.py."""

import numpy as np


def batch_norm(x, scale, bias, mean, variance, epsilon=1e-5, data_format="NCHW", **_):
    channels = (-1, *[1] * (x.ndim - 2 if data_format == "NCHW" else 0))
    at = [v.reshape(channels) for v in (mean, scale / np.sqrt(variance + epsilon), bias)]
    return (x - at[0]) * at[1] + at[2], mean, variance, mean, variance


def bound(u, x, scale, bias, mean, variance, **attrs):
    """The difference and the factor round, then the sum: three roundings of the first term, one of the result."""
    y, term = (batch_norm(x, scale, b, mean, variance, **attrs)[0] for b in (bias, 0 * bias))
    return [2.0**-24 * (3 * np.abs(term) + np.abs(y)), 0.0, 0.0, 0.0, 0.0]


REFERENCE = {"BatchNorm": batch_norm}
BOUND = {"BatchNorm": bound}
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

X, C = ("float32", (2, 4, 3, 3)), ("float32", (4,))


def refused(error, inputs, **attrs):
    return {"op": "BatchNorm", "inputs": inputs, "attrs": attrs, "error": error}


REFUSED = [
    refused(r"BatchNorm: mean.shape must be \(4,\), got \(3,\)", [X, C, C, ("float32", (3,)), C]),
    refused(r"BatchNorm: x must have at least 2 dimensions, got shape \(4,\)", [C, C, C, C, C]),
    refused("BatchNorm: x.dtype must be one of float32, float16, bfloat16, got int32", [("int32", (2, 4)), C, C, C, C]),
    refused("bias.dtype must equal scale.dtype float32, got float16", [X, C, ("float16", (4,)), C, C]),
    refused("is_training must be false: opgraft runs inference", [X, C, C, C, C], is_training=True),
    refused(r"scale.shape must be \(3,\), got \(4,\)", [X, C, C, C, C], data_format="NHWC"),
    refused("data_format must be NCHW or NHWC, got 'NCDHW'", [X, C, C, C, C], data_format="NCDHW"),
]
