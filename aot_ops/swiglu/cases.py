"""Cases of SwiGLU and SwiGLUInterleaved.

A case is {"op", "inputs", "attrs", "rtol", "atol"}. An input is (dtype, shape), drawn from a seeded normal
distribution, (dtype, shape, "special") with inf, -inf, nan, 0 and large values mixed in, (dtype, shape, (low, high))
drawn uniformly, or (dtype, [values]) as given. REFERENCE maps an op to its formula over float64 arrays.
The kernel is compared with the scalar twin, which computes in double precision, and with REFERENCE. A tolerance is
|got - want| <= atol + rtol * |want| + BOUND[op](u, *inputs, **attrs), with u the unit roundoff of the inputs' type
(2^-24, 2^-11, 2^-8), inputs in float64 and one bound per output; an op that BOUND does not name has none. A rtol
counts roundings: one to float32 costs 2^-24; a half type is rounded to once, by the kernel and by the twin.
"""

import numpy as np


def silu(x):
    return x / (1.0 + np.exp(-x))


def slope(x):
    """SiLU's derivative, 0 and 1 at -inf and inf: beyond 800 the rest is below float64's smallest number."""
    x = np.clip(x, -800, 800)
    s = 1 / (1 + np.exp(-x))
    return s * (1 + x / (1 + np.exp(x)))


def gradients(x, gate, dy):
    return [dy * silu(gate), dy * x * slope(gate)]


def turns(x, gate_first):
    return (x[..., 1::2], x[..., ::2]) if gate_first else (x[..., ::2], x[..., 1::2])


def in_turn(of_x, of_gate, gate_first):
    both = np.stack([of_gate, of_x] if gate_first else [of_x, of_gate], -1)
    return both.reshape(twice(of_x.shape))


def interleaved(x, gate_first=False):
    half, gate = turns(x, gate_first)
    return half * silu(gate)


def interleaved_gradient(x, dy, gate_first=False):
    return in_turn(*gradients(*turns(x, gate_first), dy), gate_first)


def halves(x, dim, gate_first):
    first, second = np.split(x, 2, dim)
    return (second, first) if gate_first else (first, second)


def halves_gradient(x, dy, dim=-1, gate_first=True):
    dx, dgate = gradients(*halves(x, dim, gate_first), dy)
    return np.concatenate([dgate, dx] if gate_first else [dx, dgate], dim)


def swiglu_halves(x, dim=-1, gate_first=True):
    half, gate = halves(x, dim, gate_first)
    return half * silu(gate)


REFERENCE = {
    "SwiGLU": lambda x, gate: x * silu(gate),
    "SwiGLUGrad": gradients,
    "SwiGLUInterleaved": interleaved,
    "SwiGLUInterleavedGrad": interleaved_gradient,
    "Swiglu": swiglu_halves,
    "SwigluGrad": halves_gradient,
}


ZERO = 2.0**-120  # for gates below -87.33 the logistic function is not normal and off by up to 2^-127, times 88


def slope_bound(u, x, gate, dy):
    """SiLU' = s (1 + gate (1 - s)) cancels near -1.28: s and 1 - s are off by s (1 - s) times e^-gate's 4 roundings
    (half types: 3.7e-6), and the quotient, the products round, 4; the rest is relative."""
    g = np.clip(gate, -800, 800)
    s = 1 / (1 + np.exp(-g))
    rest = 1 / (1 + np.exp(g))
    off = 4 * 2.0**-24 + (4e-6 if u > 2.0**-24 else 0.0)
    slope_off = s * rest * (off * np.abs(1 + g * rest) + np.abs(g) * (off * s + 4 * 2.0**-24))
    return np.abs(dy * x) * (slope_off + ZERO)


def interleaved_bound(u, x, dy, gate_first=False):
    return in_turn(ZERO * np.abs(dy), slope_bound(u, *turns(x, gate_first), dy), gate_first)


def halves_bound(u, x, dy, dim=-1, gate_first=True):
    bound = slope_bound(u, *halves(x, dim, gate_first), dy)
    dx = ZERO * np.abs(dy)
    return np.concatenate([bound, dx] if gate_first else [dx, bound], dim)


BOUND = {
    "SwiGLU": lambda u, x, gate: ZERO * np.abs(x),
    "SwiGLUInterleaved": lambda u, x, gate_first=False: ZERO * np.abs(turns(x, gate_first)[0]),
    "Swiglu": lambda u, x, dim=-1, gate_first=True: ZERO * np.abs(halves(x, dim, gate_first)[0]),
    "SwiGLUGrad": lambda u, x, gate, dy: [ZERO * np.abs(dy), slope_bound(u, x, gate, dy)],
    "SwiGLUInterleavedGrad": interleaved_bound,
    "SwigluGrad": halves_bound,
}

# exp is good to 2 ulp, 4 roundings; the sum, the quotient and the product round, and so does the twin: 8. Halves round
# once each, the kernel's in float32 first.
TOLERANCE = {"float32": 8 * 2.0**-24, "float16": 2.02 * 2.0**-11, "bfloat16": 2.01 * 2.0**-8}
# Half the smallest step of float16, twice; the smallest normal number of the others.
SMALLEST = {"float32": 2.0**-126, "float16": 2.0**-24, "bfloat16": 2.0**-126}
# Full vectors, partial vectors of every width, a single element, none, 0-d, several dimensions.
SHAPES = [(64,), (3, 7), (1,), (33,), (0, 5), (), (2, 3, 17), (4, 11008), (2, 1, 2, 3, 1, 9)]
SPECIAL = [float("inf"), float("-inf"), float("nan"), 0.0, -0.0, 3e38, -3e38, 1e30, -1e30, 30.0, -30.0, -88.5, 1e-40]


def twice(shape, axis=-1):
    out = list(shape)
    out[axis] *= 2
    return tuple(out)


def case(op, t, *inputs, **attrs):
    return {"op": op, "inputs": list(inputs), "attrs": attrs, "rtol": TOLERANCE[t], "atol": SMALLEST[t]}


CASES = []
for t in TOLERANCE:
    for s in SHAPES:
        CASES += [case("SwiGLU", t, (t, s), (t, s)), case("SwiGLUGrad", t, (t, s), (t, s), (t, s))]
        if not s:
            continue
        wide = twice(s)
        CASES += [case("SwiGLUInterleaved", t, (t, wide)), case("SwiGLUInterleavedGrad", t, (t, wide), (t, s))]
        CASES += [case("SwiGLUInterleaved", t, (t, wide), gate_first=True)]
        CASES += [case("SwiGLUInterleavedGrad", t, (t, wide), (t, s), gate_first=True)]
        CASES += [case("Swiglu", t, (t, wide)), case("SwigluGrad", t, (t, wide), (t, s))]
        CASES += [case("Swiglu", t, (t, wide), gate_first=False)]
        CASES += [case("SwigluGrad", t, (t, wide), (t, s), gate_first=False)]
    for dim in (0, 1, -2):
        s = (5, 3, 19)
        CASES += [case("Swiglu", t, (t, twice(s, dim)), dim=dim, gate_first=dim == 0)]
        CASES += [case("SwigluGrad", t, (t, twice(s, dim)), (t, s), dim=dim, gate_first=dim == 0)]
    CASES += [case("Swiglu", t, (t, (2, 6, 0)), dim=1), case("SwigluGrad", t, (t, (2, 6, 0)), (t, (2, 3, 0)), dim=1)]
    # Both tails, and what lies around the slope's minimum and its zero.
    for w in (100.0, 12.0, 1e-3):
        x, gate = (t, (1500,)), (t, (1500,), (-w, w))
        CASES += [case("SwiGLU", t, x, gate), case("SwiGLUGrad", t, x, gate, x)]
        CASES += [case("SwiGLUInterleaved", t, (t, (3000,), (-w, w)))]
    one = (t, (len(SPECIAL),), (0.5, 2.0))
    CASES += [case("SwiGLU", t, one, (t, SPECIAL)), case("SwiGLUGrad", t, one, (t, SPECIAL), one)]
CASES.append(case("SwiGLU", "float32", ("float32", (40,), "special"), ("float32", (40,))))

REFUSED = [
    {
        "op": "SwiGLU",
        "inputs": [("float32", (4, 8)), ("float32", (4, 7))],
        "error": r"SwiGLU: gate.shape must equal x.shape \(4, 8\), got \(4, 7\)",
    },
    {
        "op": "SwiGLU",
        "inputs": [("int32", (4,)), ("int32", (4,))],
        "error": "SwiGLU: x.dtype must be one of float32, float16, bfloat16, got int32",
    },
    {
        "op": "SwiGLU",
        "inputs": [("float32", (4,)), ("float16", (4,))],
        "error": "SwiGLU: gate.dtype must equal x.dtype float32, got float16",
    },
    {"op": "SwiGLUInterleaved", "inputs": [("float32", (4, 7))], "error": "last dimension must be even, got 7"},
    {
        "op": "SwiGLUInterleavedGrad",
        "inputs": [("float32", (4, 6)), ("float32", (4, 6))],
        "error": r"SwiGLUInterleavedGrad: dy.shape must be \(4, 3\), got \(4, 6\)",
    },
    {
        "op": "SwiGLUGrad",
        "inputs": [("float32", (4, 6)), ("float32", (4, 6)), ("float32", (4, 3))],
        "error": r"SwiGLUGrad: dy.shape must equal x.shape \(4, 6\), got \(4, 3\)",
    },
    {"op": "Swiglu", "inputs": [("float32", (4, 7))], "error": "Swiglu: input's dimension 1 must be even, got 7"},
    {
        "op": "Swiglu",
        "inputs": [("float32", ())],
        "error": r"Swiglu: input must have at least 1 dimension, got shape \(\)",
    },
    {
        "op": "Swiglu",
        "inputs": [("float32", (4, 6))],
        "attrs": {"dim": 2},
        "error": r"Swiglu: dim must be in \[-2, 2\), got 2",
    },
    {
        "op": "SwigluGrad",
        "inputs": [("float32", (4, 6)), ("float32", (2, 6))],
        "error": r"SwigluGrad: grad_output.shape must be \(4, 3\), got \(2, 6\)",
    },
]
