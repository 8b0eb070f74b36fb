"""Cases of LayerNorm, FusedLayerNorm, AddLayerNorm and the gradients; the format is that of swiglu/cases.py."""

import numpy as np


def layer_norm(x, gamma=1.0, beta=0.0, begin_norm_axis=-1, begin_params_axis=-1, epsilon=1e-5):
    axes = tuple(range(begin_norm_axis % x.ndim, x.ndim))
    mean = x.mean(axis=axes, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=axes, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * gamma + beta, mean, variance


def add_layer_norm(x, residual, gamma=1.0, beta=0.0, epsilon=1e-5):
    return layer_norm(x + residual, gamma, beta, epsilon=epsilon)[0], x + residual


def gradients(dy, x, mean, variance, gamma, dsum, epsilon, begin_norm_axis=-1, begin_params_axis=-1):
    """Of x, gamma and beta; and what their roundings are relative to: sums of magnitudes, h as 1 + |h|, for its own
    rounding is relative to the mean deviation."""
    axes = tuple(range(begin_norm_axis % x.ndim, x.ndim))
    over = tuple(range(begin_params_axis % x.ndim))
    n = np.prod([float(x.shape[a]) for a in axes])
    rstd = 1 / np.sqrt(variance + epsilon)
    h, g = (x - mean) * rstd, dy * gamma
    average = lambda v: v.sum(axis=axes, keepdims=True) / n  # noqa: E731
    dx = rstd * (g - average(g) - h * average(g * h)) + dsum
    large = 1 + np.abs(h)
    scale = rstd * (np.abs(g) + average(np.abs(g)) + large * average(np.abs(g) * large)) + np.abs(dsum)
    exact = [dx, (dy * h).sum(axis=over), dy.sum(axis=over)]
    return exact, [scale, (np.abs(dy) * large).sum(axis=over), np.abs(dy).sum(axis=over)], n


def gradient(dy, x, gamma=1.0, dsum=0.0, epsilon=1e-5):
    return gradients(dy, x, *layer_norm(x, epsilon=epsilon)[1:], gamma, dsum, epsilon)[0]


def given(x, dy, variance, mean, gamma, epsilon=1e-7, **axes):
    own = layer_norm(x, begin_norm_axis=axes.get("begin_norm_axis", -1))[2]
    return gradients(dy, x, mean, np.where(np.isinf(variance), own, variance), gamma, 0.0, epsilon, **axes)


def given_ext(dy, x, mean, rstd, gamma=1.0, beta=0.0, normalized_shape=(), output_mask=()):
    """gradients() takes a variance."""
    n = -len(normalized_shape)
    return gradients(dy, x, mean, 1 / rstd**2, gamma, 0.0, 0.0, begin_norm_axis=n, begin_params_axis=n)


def layer_norm_ext(x, weight=1.0, bias=0.0, normalized_shape=(), eps=1e-5):
    y, mean, variance = layer_norm(x, weight, bias, begin_norm_axis=-len(normalized_shape), epsilon=eps)
    return y, mean, 1 / np.sqrt(variance + eps)


REFERENCE = {
    "LayerNormExt": layer_norm_ext,
    "LayerNormGrad": lambda *inputs, **attrs: given(*inputs, **attrs)[0],
    "LayerNormGradExt": lambda *inputs, **attrs: given_ext(*inputs, **attrs)[0],
    "FusedLayerNormGrad": gradient,
    "AddLayerNormGrad": lambda dy, s, dsum, gamma=1.0, **attrs: gradient(dy, s, gamma, dsum, **attrs),
    "LayerNorm": layer_norm,
    "FusedLayerNorm": lambda *inputs, **attrs: layer_norm(*inputs, **attrs)[0],
    "AddLayerNorm": add_layer_norm,
}
# One rounding to the storage type, by the kernel and by the twin; float16's smallest step.
TOLERANCE = {"float32": 2.02 * 2.0**-24, "float16": 2.02 * 2.0**-11, "bfloat16": 2.02 * 2.0**-8}
SMALLEST = 2.0**-24


def norm_bounds(x, gamma=1.0, beta=0.0, shaken=0.0, begin_norm_axis=-1, begin_params_axis=-1, epsilon=1e-5):
    """Bounds of y, mean and variance in float32. A row of n numbers goes through at most n / 8 + 8 additions in a lane
    (SSE4 has four, two chains); two sweeps leave the mean's error relative to the mean deviation, not to the mean, and
    the variance's relative to itself. In the normalised row that is (n / 8 + 8) 2^-24 of 1 + |row|, then gamma
    multiplies it and beta's sum rounds. `shaken` is how far x itself may be off: it moves a row by three times itself,
    the mean's and the deviation's part included."""
    axes = tuple(range(begin_norm_axis % x.ndim, x.ndim))
    n = np.prod([x.shape[a] for a in axes])
    y, mean, variance = layer_norm(x, 1.0, 0.0, begin_norm_axis, begin_params_axis, epsilon)
    error = (n / 8 + 8) * 2.0**-24
    off = shaken / np.sqrt(variance + epsilon)
    moved = 3 * np.max(off * np.ones_like(x), axis=axes, keepdims=True, initial=0.0)
    bound = (error + moved) * (1 + np.abs(y)) * np.abs(gamma) + 2.0**-23 * np.abs(beta)
    spread = np.mean(np.abs(x - mean), axis=axes, keepdims=True)
    return [bound, error * spread + 2.0**-24 * np.abs(mean), error * variance]


def ext_bounds(u, x, weight=1.0, bias=0.0, normalized_shape=(), eps=1e-5):
    """The root halves the variance's relative error, and is rounded."""
    n = len(normalized_shape)
    y, mean, variance = norm_bounds(x, weight, bias, 0.0, begin_norm_axis=-n, epsilon=eps)
    rstd = layer_norm_ext(x, weight, bias, normalized_shape, eps)[2]
    return [y, mean, variance / 2 * rstd**3 + 2.0**-24 * rstd]


def add_bounds(u, x, residual, gamma=1.0, beta=0.0, epsilon=1e-5):
    """The op normalises the sum as it is stored, rounded to the type; REFERENCE does not round it."""
    s = x + residual
    return [norm_bounds(s, gamma, beta, u * np.abs(s), epsilon=epsilon)[0], u * np.abs(s)]


def errors(magnitudes, n, rows):
    """h is off by n / 8 + 8 roundings (norm_bounds), the means of g and g h by as many additions, twice where h stands
    in both; 16 more for products and rstd. The sums over rows have at most 8 or rows / 32 additions in a block, and 32
    of blocks."""
    error, total = (n / 2 + 32) * 2.0**-24, (rows / 32 + 48) * 2.0**-24
    return [error * magnitudes[0], (error + total) * magnitudes[1], total * magnitudes[2]]


def gradient_bounds(u, dy, x, gamma=1.0, dsum=0.0, epsilon=1e-5):
    _, magnitudes, n = gradients(dy, x, *layer_norm(x, epsilon=epsilon)[1:], gamma, dsum, epsilon)
    return errors(magnitudes, n, x.size / n if n else 0)


def given_bounds(u, *inputs, of=given, **attrs):
    _, magnitudes, n = of(*inputs, **attrs)
    return errors(magnitudes, n, inputs[0].size / n if n else 0)


BOUND = {
    "LayerNormExt": ext_bounds,
    "LayerNormGrad": given_bounds,
    "LayerNormGradExt": lambda *inputs, **attrs: given_bounds(*inputs, of=given_ext, **attrs),
    "FusedLayerNormGrad": gradient_bounds,
    "AddLayerNormGrad": lambda u, dy, s, dsum, gamma=1.0, **attrs: gradient_bounds(u, dy, s, gamma, dsum, **attrs),
    "LayerNorm": lambda u, *inputs, **attrs: norm_bounds(*inputs, **attrs),
    "FusedLayerNorm": lambda u, *inputs, **attrs: norm_bounds(*inputs, **attrs)[0],
    "AddLayerNorm": add_bounds,
}
SHAPES = [(4, 64), (3, 7), (1, 2), (5, 33), (0, 5), (16,), (2, 3, 17), (9, 384), (3, 1000), (2, 1, 2, 3, 1, 9)]


def case(op, dtype, shapes, **attrs):
    return {
        "op": op,
        "inputs": [s if isinstance(s[0], str) else (dtype, s) for s in shapes],
        "attrs": attrs,
        "rtol": TOLERANCE[dtype],
        "atol": SMALLEST,
    }


CASES = (
    [case("LayerNorm", t, [s, s[-1:], s[-1:]]) for t in TOLERANCE for s in SHAPES]
    + [case("FusedLayerNorm", t, [s, s[-1:], s[-1:]], epsilon=1e-6) for t in TOLERANCE for s in SHAPES]
    + [case("AddLayerNorm", t, [s, s, s[-1:], s[-1:]][:k]) for t in TOLERANCE for s in SHAPES for k in (2, 3, 4)]
    + [case("FusedLayerNorm", t, [s, s[-1:]][:k], epsilon=1e-6) for t in TOLERANCE for s in SHAPES for k in (1, 2)]
    + [
        # Parameters with ones before them, as they broadcast.
        case("FusedLayerNorm", "float32", [(2, 3, 17), (1, 1, 17), (1, 17)]),
        case("AddLayerNorm", "float16", [(2, 3, 17), (2, 3, 17), (1, 1, 17)]),
    ]
    + [
        c
        for t in ("float16", "bfloat16")
        for c in (
            case("FusedLayerNorm", t, [(5, 70), ("float32", (70,)), ("float32", (70,))]),
            case("AddLayerNorm", t, [(5, 70), (5, 70), ("float32", (70,)), ("float32", (70,))]),
        )
    ]
    + [
        case("LayerNorm", "float32", [(4, 3, 10), (3, 10), (3, 10)], begin_norm_axis=1, begin_params_axis=1),
        case("LayerNorm", "float32", [(4, 3, 10), (10,), (10,)], begin_norm_axis=1, begin_params_axis=2),
        # A mean far above the deviation: the values themselves are exact in float32.
        case(
            "FusedLayerNorm",
            "float32",
            [("float32", [[10000.0 + (i * 7 % 13) / 4 for i in range(100)]]), (100,), (100,)],
        ),
        case("FusedLayerNorm", "float32", [("float32", (3, 40), "special"), (40,), (40,)]),
    ]
)

CASES += [
    case("LayerNormExt", t, [s, s[-k:], s[-k:]][: 1 + params], normalized_shape=list(s[-k:]), eps=1e-4)
    for t in TOLERANCE
    for s in SHAPES
    for k in (1, len(s))
    for params in range(3)
]

# For the sums over rows: several blocks, the last one short.
ROWS = [(70, 33), (300, 16), (2, 4096), (9, 5, 24)]


def with_statistics(dtype, shape, params=None, **attrs):
    """Any mean, and variances that are no less than 1."""
    axes = attrs.get("begin_norm_axis", -1) % len(shape)
    rows = (*shape[:axes], *(1 for _ in shape[axes:]))
    variance = (1 + np.arange(np.prod(rows)) % 7).reshape(rows).tolist() if 0 not in rows else rows
    return case("LayerNormGrad", dtype, [shape, shape, ("float32", variance), ("float32", rows), params or shape[-1:]],
                **attrs)  # fmt: skip


def ext_gradient(dtype, shape, k, params):
    """Over k dimensions, with any mean and with rstd of 0.4 to 1."""
    rows = (*shape[:-k], *[1] * k)
    statistics = [("float32", rows), ("float32", rows, (0.4, 1.0))]
    return case("LayerNormGradExt", dtype, [shape, shape, *statistics, shape[-k:], shape[-k:]][: 4 + params],
                normalized_shape=list(shape[-k:]))  # fmt: skip


CASES += [
    ext_gradient(t, s, k, 2)
    for t in TOLERANCE
    for s in (SHAPES + ROWS if t == "float32" else SHAPES[2::3] + ROWS[:1])
    for k in sorted({1, len(s)})
]
CASES += [ext_gradient("float32", s, len(s), params) for s in (SHAPES[1], SHAPES[6], ROWS[0]) for params in range(2)]
CASES += [dict(c, attrs=c["attrs"] | {"output_mask": [1, 0, 0]}) for c in CASES[-1:]]
CASES += (
    [with_statistics(t, s) for t in TOLERANCE for s in SHAPES + ROWS]
    + [
        with_statistics("float32", (40, 3, 10), (3, 10), begin_norm_axis=1, begin_params_axis=1),
        with_statistics("float32", (40, 3, 10), (10,), begin_norm_axis=1, begin_params_axis=2, epsilon=1e-3),
        with_statistics("float16", (2, 3, 4, 10), (4, 10), begin_norm_axis=-3, begin_params_axis=-2),
    ]
    + [case("FusedLayerNormGrad", t, [s, s, s[-1:]]) for t in TOLERANCE for s in SHAPES + ROWS]
    + [case("AddLayerNormGrad", t, [s, s, s, s[-1:]], epsilon=1e-3) for t in TOLERANCE for s in SHAPES + ROWS]
    + [case("AddLayerNormGrad", t, [s, s, s]) for t in TOLERANCE for s in SHAPES]
    + [case("FusedLayerNormGrad", t, [s, s]) for t in TOLERANCE for s in SHAPES]
    + [case("FusedLayerNormGrad", "bfloat16", [(5, 70), (5, 70), ("float32", (70,))])]
)

# Rows whose squares float32 does not hold, between rows of which it does: above, also with sums that overflow, and
# below. In the gradients products that overflow, too.
PLAIN = [1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, -3.0] * 5
ROWS_BEYOND = [[v * scale for v in PLAIN] for scale in (1e25, 1.0, 1e30, 1e38, 1e20)] + [[3e38] * 37 + [-3e38] * 3]
HUGE, POSITIVE = ((3, 100), (-3e38, 3e38)), ((3, 100), (1e38, 3e38))
CASES += [
    c
    for t in ("float32", "bfloat16")
    for x in ((ROWS_BEYOND,), HUGE, POSITIVE)
    for n in (40 if isinstance(x[0], list) else 100,)
    for c in (
        case("LayerNorm", t, [(t, *x), (n,), (n,)]),
        case("LayerNormExt", t, [(t, *x), (n,)], normalized_shape=[n]),
        case("FusedLayerNorm", t, [(t, *x)]),
        case("FusedLayerNorm", t, [(t, *x), ("float32", (n,)), ("float32", (n,))]),
    )
]
CASES += [
    case("LayerNorm", "float32", [("float32", (3, 4, 10), (-1e25, 1e25)), (10,), (10,)], begin_norm_axis=1),
    *(case("AddLayerNorm", t, [(t, (3, 70), (-1e30, 1e30)), (t, (3, 70), (-1e25, 1e25)), (70,), (70,)])
      for t in ("float32", "bfloat16")),
    case("AddLayerNorm", "float32", [("float32", (3, 70), (-2e38, 2e38)), ("float32", (3, 70), (0.0, 1e38))]),
    *(case("FusedLayerNorm", "float32", [("float32", (3, 40), (-scale, scale)), (40,)], epsilon=0.0)
      for scale in (1e-25, 1e-36, 1e-40)),
    case("LayerNormExt", "float32", [("float32", (3, 40), (-1e-25, 1e-25))], normalized_shape=[40], eps=0.0),
]  # fmt: skip


def beyond(op, dy, x, *more, dtype="float32", **attrs):
    """Rows of dy and x up to these numbers, or between two."""
    rows = [(dtype, (3, 70), v if isinstance(v, tuple) else (-v, v)) for v in (dy, x)]
    return case(op, dtype, [*(rows if op != "LayerNormGrad" else rows[::-1]), *more], **attrs)


CASES += [
    c
    for t in ("float32", "bfloat16")
    for large in ((t, (70,), (1e15, 2e15)),)
    for c in (
        beyond("FusedLayerNormGrad", 1e25, 1e25, (70,), dtype=t),
        beyond("FusedLayerNormGrad", 1.0, 3e38, dtype=t),
        beyond("FusedLayerNormGrad", 1e30, (1e38, 3e38), large, dtype=t),
        beyond("FusedLayerNormGrad", 1e25, 1.0, large, dtype=t),
        beyond("FusedLayerNormGrad", (1e36, 1e37), 1e5, dtype=t),
        beyond("AddLayerNormGrad", 1e25, 1e25, (3, 70), (70,), dtype=t),
    )
]
CASES += [beyond("FusedLayerNormGrad", 1e-10, x, epsilon=0.0) for x in (1e-25, 1e-40)]
MEAN, VARIANCE = ("float32", (3, 1), (-1e24, 1e24)), ("float32", [[np.inf], [1e38], [np.inf]])
CASES += [
    beyond("LayerNormGrad", 1e25, 1e25, VARIANCE, MEAN, (70,)),
    beyond("LayerNormGrad", 1e25, 1e5, ("float32", (3, 1), (1e10, 2e10)), (3, 1), ("float32", (70,), (1e15, 2e15))),
    beyond("LayerNormGradExt", 1e36, 3e38, ("float32", (3, 1), (-3e38, 3e38)), ("float32", (3, 1), (2e-38, 3e-38)),
           normalized_shape=[70]),
]  # fmt: skip

REFUSED = [
    {
        "op": "AddLayerNormGrad",
        "inputs": [("float32", (4, 8)), ("float32", (4, 8)), ("float32", (4, 1))],
        "error": r"AddLayerNormGrad: dsum.shape must equal dy.shape \(4, 8\), got \(4, 1\)",
    },
    {
        "op": "LayerNormExt",
        "inputs": [("float32", (4, 8))],
        "attrs": {"normalized_shape": [4]},
        "error": r"LayerNormExt: normalized_shape must be the last dimensions of input.shape \(4, 8\), got \(4,\)",
    },
    {
        "op": "LayerNormExt",
        "inputs": [("float32", (4, 8)), ("float32", (4, 8))],
        "attrs": {"normalized_shape": [8]},
        "error": r"LayerNormExt: weight.shape must be \(8,\), got \(4, 8\)",
    },
    {
        "op": "LayerNormGradExt",
        "inputs": [("float32", (4, 8)), ("float32", (4, 8)), ("float32", (4, 1)), ("float32", (1, 4))],
        "attrs": {"normalized_shape": [8]},
        "error": r"LayerNormGradExt: rstd.shape must be \(4, 1\), got \(1, 4\)",
    },
    {
        "op": "LayerNormGradExt",
        "inputs": [("float32", (4, 8)), ("float32", (4, 8)), ("float32", (4, 1)), ("float16", (4, 1))],
        "attrs": {"normalized_shape": [8]},
        "error": "LayerNormGradExt: rstd.dtype must be one of float32, got float16",
    },
    {
        "op": "LayerNormGradExt",
        "inputs": [("float32", (4, 8)), ("float32", (4, 8)), *[("float32", (4, 1))] * 2, ("float32", (4, 8))],
        "attrs": {"normalized_shape": [8]},
        "error": r"LayerNormGradExt: gamma.shape must be \(8,\), got \(4, 8\)",
    },
    {
        "op": "LayerNormGradExt",
        "inputs": [("float32", (4, 8)), ("float32", (4, 8)), *[("float32", (4, 1))] * 2],
        "attrs": {"normalized_shape": [8], "output_mask": [1, 1]},
        "error": r"LayerNormGradExt: output_mask must be 3 numbers of 0 or 1, got \(1, 1\)",
    },
    {
        "op": "LayerNormGradExt",
        "inputs": [("float32", (4, 8)), ("float32", (4, 8)), *[("float32", (4, 1))] * 2],
        "attrs": {"normalized_shape": [4]},
        "error": r"LayerNormGradExt: normalized_shape must be the last dimensions of x.shape \(4, 8\), got \(4,\)",
    },
    {
        "op": "LayerNormGrad",
        "inputs": [("float32", (4, 8)), ("float32", (4, 8)), ("float32", (4,)), ("float32", (4, 1)), ("float32", (8,))],
        "error": r"LayerNormGrad: variance.shape must be \(4, 1\), got \(4,\)",
    },
    {
        "op": "FusedLayerNormGrad",
        "inputs": [("float32", (4, 8)), ("float32", (4, 8)), ("float32", (4, 8))],
        "error": r"FusedLayerNormGrad: gamma.shape must be \(8,\), got \(4, 8\)",
    },
    {
        "op": "LayerNorm",
        "inputs": [("float32", (4, 8)), ("float32", (7,)), ("float32", (8,))],
        "error": r"LayerNorm: gamma.shape must be \(8,\), got \(7,\)",
    },
    {
        "op": "LayerNorm",
        "inputs": [("int32", (4, 8)), ("int32", (8,)), ("int32", (8,))],
        "error": "LayerNorm: x.dtype must be one of float32, float16, bfloat16, got int32",
    },
    {
        "op": "LayerNorm",
        "inputs": [("float32", (4, 8)), ("float32", (8,)), ("float32", (8,))],
        "attrs": {"begin_norm_axis": 2},
        "error": r"begin_norm_axis must be in \[-2, 2\), got 2",
    },
    {
        "op": "FusedLayerNorm",
        "inputs": [("float32", (4, 8)), ("float32", (8,)), ("float16", (8,))],
        "error": "FusedLayerNorm: beta.dtype must equal x.dtype float32, got float16",
    },
    {
        "op": "FusedLayerNorm",
        "inputs": [("float16", (4, 8)), ("float32", (8,)), ("float16", (8,))],
        "error": "FusedLayerNorm: beta.dtype must equal gamma.dtype float32, got float16",
    },
    {
        "op": "AddLayerNorm",
        "inputs": [("float32", (4, 8)), ("float32", (4, 7)), ("float32", (8,)), ("float32", (8,))],
        "error": r"AddLayerNorm: residual.shape must equal x.shape \(4, 8\), got \(4, 7\)",
    },
]
