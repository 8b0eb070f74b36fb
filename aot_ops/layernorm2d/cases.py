"""Cases of LayerNorm2d; the format is that of swiglu/cases.py."""

import numpy as np


def layer_norm_2d(x, gamma=1.0, beta=0.0, epsilon=1e-6):
    gamma, beta = (np.reshape(p, (-1, *[1] * (x.ndim - 2))) if np.ndim(p) else p for p in (gamma, beta))
    mean = x.mean(axis=1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * gamma + beta


def bound(u, x, gamma=1.0, beta=0.0, epsilon=1e-6):
    """As in layernorm/cases.py; a column of n channels goes through 32 additions at most, and n / 32 of their sums. The
    root and the quotient are those of float32."""
    gamma, beta = (np.reshape(p, (-1, *[1] * (x.ndim - 2))) if np.ndim(p) else p for p in (gamma, beta))
    error = (x.shape[1] / 32 + 32 + 12) * 2.0**-24
    unit = layer_norm_2d(x, epsilon=epsilon)
    return error * (1 + np.abs(unit)) * np.abs(gamma) + 2.0**-23 * np.abs(beta)


REFERENCE = {"LayerNorm2d": layer_norm_2d}
BOUND = {"LayerNorm2d": bound}
# One rounding to the storage type, by the kernel and by the twin; float16's smallest step.
TOLERANCE = {"float32": 2.02 * 2.0**-24, "float16": 2.02 * 2.0**-11, "bfloat16": 2.02 * 2.0**-8}
# Less than a vector of columns, several and a rest, four vectors and more; one channel, many; one column; none.
SHAPES = [(2, 3, 5, 7), (1, 96, 9, 9), (2, 70, 3, 3), (3, 8, 64), (2, 5, 2, 3, 7), (2, 1, 20), (1, 300, 17),
          (4, 33, 1, 1), (2, 768, 1), (0, 3, 4, 4), (2, 3, 0, 4), (1, 40, 131)]  # fmt: skip


def case(dtype, *shapes, **attrs):
    return {
        "op": "LayerNorm2d",
        "inputs": [s if isinstance(s[0], str) else (dtype, s) for s in shapes],
        "attrs": attrs,
        "rtol": TOLERANCE[dtype],
        "atol": 2.0**-24,
    }


CASES = [case(t, *[s, s[1:2], s[1:2]][: 1 + p]) for t in TOLERANCE for s in SHAPES for p in range(3)]
CASES += [case(t, s, ("float32", s[1:2]), ("float32", s[1:2])) for t in ("float16", "bfloat16") for s in SHAPES[:3]]
CASES += [
    # Parameters with ones, as they broadcast.
    case("float32", (2, 6, 5, 7), (6, 1, 1), (1, 6, 1, 1), epsilon=1e-3),
    case("float16", (2, 6, 20), (1, 6, 1), (6, 1)),
    # A mean far above the deviation: the values themselves are exact in float32.
    case("float32", ("float32", [[[10000.0 + (i * 7 % 13) / 4] * 20 for i in range(100)]]), (100,), (100,)),
    case("float32", ("float32", (2, 40, 33), "special"), (40,), (40,)),
    # Squares that float32 does not hold, too large or too small, beside columns of which it does.
    case(
        "float32", ("float32", [[[s * scale for scale in (1e25, 1.0, 1e30, 1e38) * 6] for s in (1.0, -2.0, 0.5) * 5]])
    ),
    case("bfloat16", ("bfloat16", (2, 9, 70), (-3e38, 3e38)), (9,)),
    *(case("float32", ("float32", (1, 9, n), (-1e-25, 1e-25)), epsilon=0.0) for n in (1, 70)),
]

REFUSED = [
    {
        "op": "LayerNorm2d",
        "inputs": [("float32", (4, 8))],
        "error": r"LayerNorm2d: x must have at least 3 dimensions, got shape \(4, 8\)",
    },
    {
        "op": "LayerNorm2d",
        "inputs": [("int32", (4, 8, 2, 2))],
        "error": "LayerNorm2d: x.dtype must be one of float32, float16, bfloat16, got int32",
    },
    {
        "op": "LayerNorm2d",
        "inputs": [("float32", (4, 8, 2, 2)), ("float32", (2,))],
        "error": r"LayerNorm2d: gamma.shape must be \(8,\), got \(2,\)",
    },
    {
        "op": "LayerNorm2d",
        "inputs": [("float32", (4, 8, 2, 2)), ("float32", (8,)), ("float32", (1, 1, 8))],
        "error": r"LayerNorm2d: beta.shape must be \(8, 1, 1\), got \(1, 1, 8\)",
    },
    {
        "op": "LayerNorm2d",
        "inputs": [("float16", (4, 8, 2, 2)), ("bfloat16", (8,))],
        "error": "LayerNorm2d: gamma.dtype must be float16 or float32, got bfloat16",
    },
    {
        "op": "LayerNorm2d",
        "inputs": [("float16", (4, 8, 2, 2)), ("float32", (8,)), ("float16", (8,))],
        "error": "LayerNorm2d: beta.dtype must equal gamma.dtype float32, got float16",
    },
]
