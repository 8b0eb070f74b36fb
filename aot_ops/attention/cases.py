"""Cases of ScaledDotProductAttention and CachedAttention; the format is that of swiglu/cases.py."""

import numpy as np


def weights(q, k, masks, scale, is_causal, fill=-np.inf, hides=False, nan_to_zero=False, softcap=np.nan):
    """Scores, those that are computed and count, and softmax's weights; a row without keys has none."""
    s, t = q.shape[-2], k.shape[-2]
    scores = q @ k.swapaxes(-1, -2) * (1.0 / np.sqrt(q.shape[-1]) if np.isnan(scale) else scale)
    scores = scores if np.isnan(softcap) else softcap * np.tanh(scores / softcap)
    kept = np.ones(scores.shape, bool)
    for mask in map(np.asarray, masks):
        if mask.ndim == 5:  # for the batches in turn
            mask = np.tile(mask[0], (len(q) // mask.shape[1], 1, 1, 1))
        if mask.dtype == bool:
            kept = (mask != hides) | np.zeros(scores.shape, bool)
            scores = np.where(kept, scores, np.float32(fill))
        else:
            scores = scores + mask
    seen = np.broadcast_to(np.tri(s, t, t - s, dtype=bool) | (not is_causal), scores.shape)
    scores = np.where(seen, scores, -np.inf)
    w = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-np.inf))
    w = np.where(seen.any(-1, keepdims=True), w / w.sum(axis=-1, keepdims=True), 0.0)
    if nan_to_zero:
        w = np.where(np.isnan(w), 0.0, w)
    return scores, seen & kept & np.isfinite(scores), w


def by_heads(f):
    """f on [B, H, S, D] with as many heads of keys as of queries, for every layout."""

    def g(q, k, v, *masks, heads=0, layout="BHSD", mask_scale=1.0, k_transposed=False, **attrs):
        k = k.swapaxes(-1, -2) if k_transposed else k
        if masks and np.asarray(masks[0]).dtype == bool:
            attrs["fill"] = np.float32(attrs.get("fill", -np.inf)) * mask_scale
        elif masks:
            masks = masks[0] * mask_scale, *masks[1:]
        if layout == "BSHD":
            q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
        elif layout == "SBHD":
            b = q.shape[1] // heads if q.ndim == 3 else q.shape[1]
            q, k, v = (x.reshape(len(x), b, -1, x.shape[-1]) if q.ndim == 3 else x for x in (q, k, v))
            q, k, v = (x.transpose(1, 2, 0, 3) for x in (q, k, v))
        elif layout != "BHSD":
            size = q.shape[2] // heads
            shared = k.shape[2] // size
            q, k, v = (x.reshape(*x.shape[:2], n, x.shape[2] // n).transpose(0, 2, 1, 3)
                       for x, n in ((q, heads), (k, shared), (v, shared)))  # fmt: skip
        if q.shape[1] == 1:  # [B, S, T]
            masks = [m[:, None] if np.ndim(m) == 3 else m for m in masks]
        group = q.shape[1] // max(k.shape[1], 1)
        if masks and np.ndim(masks[0]) == 5:  # [B, Hkv, G, S, T]
            m = np.broadcast_to(masks[0], (len(q), k.shape[1], group, q.shape[2], k.shape[2]))
            masks = m.reshape(*q.shape[:3], k.shape[2]), *masks[1:]
        y = f(q, np.repeat(k, group, 1), np.repeat(v, group, 1), masks, **attrs)
        shape = y.shape[0], y.shape[2], y.shape[1] * y.shape[3]
        if layout == "BSHD":
            return y.swapaxes(1, 2)
        if layout == "SBHD":
            return y.transpose(2, 0, 1, 3)
        return y if layout == "BHSD" else y.transpose(0, 2, 1, 3).reshape(shape)

    return g


@by_heads
def attention(q, k, v, masks, scale=np.nan, is_causal=False, float_weights=False, **chosen):
    return weights(q, k, masks, scale, is_causal, **chosen)[2] @ v


@by_heads
def error(q, k, v, masks, u=0.0, scale=np.nan, is_causal=False, softcap=np.nan, float_weights=False, **chosen):
    """A score is a float32 sum of D products, with the error that matmul/cases.py derives, and rounds when scaled,
    masked (twice by two masks) and reduced by the maximum; a weight takes over the largest error of its row's scores
    twice (numerator and sum), exp's 4 roundings and those of a sum of T terms in at least four lanes; the weighted sum
    of |v| makes one rounding per term. A tanh is off by 5, and the factors around it round three times. Weights may
    round to bfloat16 (u = 2^-8) before they are summed up: of weights w (1 + e), |e| <= u, the mean y of v is off by
    sum(w e (v - y)) / (1 + sum(w e)), at most u / (1 - u) of v's mean distance from y: of the root of its square's."""
    s, seen, w = weights(q, k, masks, scale, is_causal, softcap=softcap, **chosen)
    scale = 1.0 / np.sqrt(q.shape[-1]) if np.isnan(scale) else scale
    products = scale * 8 * np.sqrt(q.shape[-1] * (q**2 @ k.swapaxes(-1, -2) ** 2) / 6)
    size = np.where(seen, np.abs(q @ k.swapaxes(-1, -2) * scale) + 2 * np.abs(s), 0.0)
    for _ in masks[1:]:  # what the second is added to: a score and the first
        first = masks[0]
        with_first = np.abs(np.where(np.isfinite(first), first, 0.0)) if first.dtype != bool else 0.0
        size = size + np.where(seen, np.abs(q @ k.swapaxes(-1, -2) * scale) + with_first, 0.0)
    off = np.where(seen, products + 2 * size + 8 * np.nan_to_num(softcap), 0.0)
    score = np.max(off, axis=-1, keepdims=True, initial=0.0)
    apart = np.sqrt(np.maximum(w @ v**2 - (w @ v) ** 2, 0.0)) if u == 2.0**-8 and not float_weights else 0.0
    return w @ np.abs(v) * 2.0**-24 * (2 * score + 1.25 * k.shape[-2] + 16) + 1.01 * u * apart


def cached(f):
    """Of each batch the keys that are there; what lies behind them is not read."""

    def g(q, k, v, lengths, **attrs):
        rows = [f(q[b : b + 1], *(x[b : b + 1, :, : int(n)] for x in (k, v)), is_causal=True, **attrs)
                for b, n in enumerate(lengths)]  # fmt: skip
        return np.concatenate([np.zeros((0, *q.shape[1:3], v.shape[3])), *rows])

    return g


REFERENCE = {"ScaledDotProductAttention": attention, "CachedAttention": cached(attention)}
BOUND = {
    "ScaledDotProductAttention": lambda u, *inputs, **attrs: error(*inputs, u=u, **attrs),
    "CachedAttention": lambda u, *inputs, **attrs: cached(error)(*inputs, u=u, **attrs),
}
# One rounding to the storage type, by the kernel and by the twin; float16's smallest step.
TOLERANCE = {"float32": 2.02 * 2.0**-24, "float16": 2.02 * 2.0**-11, "bfloat16": 2.02 * 2.0**-8}
SMALLEST = 2.0**-24
# B, H, S, T, D: partial tiles of queries and keys, several key tiles, few queries (read without packing), none.
SIZES = [
    (2, 3, 5, 7, 9), (1, 2, 24, 32, 32), (2, 2, 128, 128, 32), (1, 1, 50, 300, 64), (1, 2, 1, 77, 40),
    (2, 2, 1, 300, 32), (1, 3, 2, 513, 128), (1, 2, 4, 9, 100), (1, 1, 1, 1, 3), (1, 2, 1, 0, 8),
    (1, 1, 30, 600, 100), (0, 2, 3, 4, 5), (1, 2, 0, 4, 8), (1, 1, 3, 1, 1)
]  # fmt: skip


def case(dtype, size, layout, *masks, shared=1, value_dim=None, **attrs):
    """shared: query heads that read one head of keys"""
    b, h, s, t, d = size
    n, e = h // shared, d if value_dim is None else value_dim
    if layout == "BHSD":
        shapes = [(b, h, s, d), (b, n, t, d), (b, n, t, e)]
    elif layout == "BSHD":
        shapes = [(b, s, h, d), (b, t, n, d), (b, t, n, e)]
    elif layout == "SBHD":
        shapes = [(s, b, h, d), (t, b, n, d), (t, b, n, e)]
        shapes = [(x, b * y, z) for x, _, y, z in shapes] if "heads" in attrs else shapes
    else:
        shapes = [(b, s, h * d), (b, t, n * d), (b, t, n * e)]
        attrs["heads"] = h
    if attrs.get("k_transposed"):
        *lead, t, d = shapes[1]
        shapes[1] = (*lead, d, t)
    inputs = [(dtype, x) for x in shapes] + [m if m and isinstance(m[0], str) else (dtype, m) for m in masks]
    attrs, op = {**attrs, "layout": layout}, "ScaledDotProductAttention"
    return {"op": op, "inputs": inputs, "attrs": attrs, "rtol": TOLERANCE[dtype], "atol": SMALLEST}


INF = float("inf")
MASKS = [(2, 1, 1, 7), (2, 1, 5, 7), (5, 7), (7,), (3, 1, 1), (2, 3, 5, 7)]
CASES = (
    [case(t, s, layout) for t in TOLERANCE for s in SIZES for layout in ("BHSD", "BSE")]
    + [case("float32", (2, 3, 5, 7, 9), "BHSD", m, scale=0.25) for m in [*MASKS, ()]]
    + [case(t, (2, 4, 40, 33, 16), "BSE", (2, 1, 1, 33)) for t in TOLERANCE]
    + [case(t, (2, 3, 2, 33, 24), layout, (2, 1, 2, 33)) for t in TOLERANCE for layout in ("BHSD", "BSE")]
    # The first key tile masked out entirely, then a row with no key at all: NaN, as softmax gives.
    + [case("float32", (1, 1, s, 300, 8), "BHSD", ("float32", [-INF] * 270 + [0.0] * 30)) for s in (4, 6)]
    + [case("float32", (1, 1, 2, 3, 8), "BHSD", ("float32", [[0.0, -INF, 0.5], [-INF, -INF, -INF]]))]
    + [case("float32", (1, 1, 5, 3, 8), "BHSD", ("float32", [[0.0, -INF, 0.5]] * 4 + [[-INF] * 3]))]
)

# B, H, S, T, D and query heads of one head of keys: one row and several, more than a tile holds, keys in splits.
GROUPS = [
    ((2, 4, 1, 70, 24), 2), ((1, 8, 1, 1100, 128), 4), ((1, 6, 2, 600, 40), 3), ((2, 20, 1, 65, 17), 20),
    ((1, 40, 2, 530, 64), 40), ((2, 6, 5, 130, 32), 3), ((1, 4, 30, 300, 33), 2), ((1, 4, 1, 0, 8), 2)
]  # fmt: skip
CASES += (
    [case(t, s, layout, shared=n) for t in TOLERANCE for s, n in GROUPS for layout in ("BHSD", "BSE")]
    + [case(t, s, layout, is_causal=True) for t in TOLERANCE for s in SIZES for layout in ("BHSD", "BSE")]
    + [case("float32", s, layout, shared=n, is_causal=True) for s, n in GROUPS for layout in ("BHSD", "BSE")]
    + [case("float32", (1, 0, 3, 4, 8), "BHSD")]
    # More queries than keys: the first ones see none. With a mask.
    + [case(t, (2, 4, s, 9, 8), "BHSD", (2, 1, s, 9), is_causal=True, shared=2) for t in TOLERANCE for s in (2, 13, 40)]
    # A split of the keys masked out entirely; all of them.
    + [case("float32", (1, 2, 1, 1024, 8), "BHSD", ("float32", [-INF] * 600 + [0.5] * 424))]
    + [case("float32", (1, 2, 1, 1024, 8), "BHSD", ("float32", [-INF] * 1024))]
)

LOW = -3.4028234663852886e38  # all hidden: equal weights
SEES_ONE = [[True] + [False] * 299]
# Bools choose: the scores, or a number.
CASES += (
    [
        case("float32", (2, 3, 5, 7, 9), "BHSD", ("bool", m), scale=0.25, hides=hides, fill=LOW)
        for m in [*MASKS, True]
        for hides in (False, True)
    ]
    + [
        case(t, size, layout, ("bool", (2, 1, 1, size[3])), fill=-1e4, shared=shared)
        for t in TOLERANCE
        for size, shared in [((2, 4, 40, 333, 16), 2), ((2, 6, 2, 133, 24), 3), ((2, 2, 1, 300, 32), 1)]
        for layout in ("BHSD", "BSE")
    ]
    + [case(t, (1, 2, s, 70, 8), "BHSD", ("bool", (1, 2, s, 70)), hides=True) for t in TOLERANCE for s in (2, 30)]
    + [case("float32", (1, 2, s, 70, 8), "BHSD", ("bool", (s, 70)), is_causal=True, fill=0.5) for s in (2, 30)]
    + [
        case("float32", (1, 1, s, 300, 8), "BHSD", ("bool", [[False] * 300] * (s - 1) + SEES_ONE), fill=fill)
        for s in (2, 6)
        for fill in (-INF, LOW, -1e4)
    ]
)
# Two masks: added both, one of them of bools, broadcasting in their own ways; for the batches in turn, as windows are.
CASES += (
    [
        case(t, size, layout, a, b, fill=LOW, hides=hides)
        for t, size, layout in [
            ("float32", (2, 3, 30, 70, 9), "BHSD"),
            ("float16", (2, 3, 30, 70, 8), "BSE"),
            ("bfloat16", (2, 3, 2, 70, 16), "BHSD"),
            ("float32", (2, 3, 2, 300, 16), "BSE"),
        ]
        for a, b, hides in [
            ((3, size[2], 1), (2, 1, 1, size[3]), False),
            ((size[3],), (), False),
            (("bool", (size[2], size[3])), (2, 1, 1, size[3]), False),
            ((3, 1, size[3]), ("bool", (2, 1, size[2], size[3])), True),
        ]
    ]
    + [
        case("float32", (6, 2, s, s, 16), layout, (1, 2, s, s), mask)
        for s in (2, 49)
        for layout in ("BHSD", "BSE")
        for mask in [(1, 3, 1, s, s), (1, 6, 2, 1, s), (1, 1, 1, s, 1), ("bool", (1, 2, 1, s, s))]
    ]
    + [case("float32", (0, 2, 3, 4, 8), "BHSD", (2, 3, 4), (1, 3, 1, 3, 4))]
    # Of one head the first dimension may be the batches'.
    + [
        case("float32", (6, 1, s, 9, 16), layout, (6, s, 9), m)
        for s in (2, 30)
        for layout in ("BHSD", "BSE")
        for m in ((6, 1, 9), (1, s, 1), ("bool", (6, s, 1)))
    ]
    + [case("float32", (1, 2, s, 9, 16), "BHSD", (2, 1, 9), (s, 9), is_causal=True) for s in (2, 13)]
)
# Masks whose heads are in two dimensions: of keys, and of the queries that share one of these.
CASES += [
    case(t, (2, 6, s, 70, 9), layout, m, shared=3, fill=-1e4, **attrs)
    for t in TOLERANCE
    for s in (1, 2, 30)
    for layout in ("BHSD", "BSE")
    for m, attrs in [((2, 2, 3, s, 70), {"is_causal": True}), ((1, 2, 1, s, 1), {"mask_scale": 0.125}),
                     (("bool", (1, 1, 3, s, 70)), {}), (("bool", (2, 2, 1, 1, 70)), {"hides": True})]
] + [
    case("float32", (b, 4, 3, 5, 8), "BHSD", m, *m2, shared=n)
    for b, n, m, *m2 in [(4, 2, (1, 2, 2, 3, 5), (1, 2, 1, 3, 5)), (0, 2, (1, 2, 2, 1, 5)), (2, 1, (2, 4, 1, 3, 5))]
]  # fmt: skip
# Wider than the stack has room for: of few queries, their keys in splits or not, and of packed keys.
WIDE = [(s, n, d, e) for s, n in ((1, 9), (2, 300), (30, 270)) for d, e in ((1100, None), (9, 1030), (1200, 40))]
# Values of another width than keys, as DeepSeek's latent attention has them.
CASES += (
    [
        case(t, size, layout, value_dim=e)
        for t in TOLERANCE
        for size in [(2, 3, 5, 7, 9), (1, 2, 50, 300, 24), (1, 2, 1, 300, 192), (2, 2, 30, 33, 40)]
        for e in (1, 33, 128)
        for layout in ("BHSD", "BSE")
    ]
    + [case("float32", s, layout, shared=n, value_dim=2 * s[-1]) for s, n in GROUPS for layout in ("BHSD", "BSE")]
    + [case("float32", (2, 4, s, 33, 16), "BSE", (2, 1, 1, 33), is_causal=True, value_dim=40) for s in (2, 30)]
    + [case(t, (1, 2, s, 70, 576), "BHSD", shared=2, value_dim=512) for s in (1, 30) for t in TOLERANCE]
    + [case(t, (1, 2, s, n, d), "BSE", value_dim=e) for t in TOLERANCE for s, n, d, e in WIDE]
    # No keys' elements: equal weights; no values' elements.
    + [case("float32", (1, 2, s, 5, 0), "BHSD", value_dim=9, scale=1.0) for s in (1, 30)]
    + [case("float32", (1, 2, s, 5, 9), layout, value_dim=0) for s in (1, 30) for layout in ("BHSD", "BSE")]
)

# Keys whose elements lie before their sequence; a mask that is scaled, with another one that is not.
CASES += [
    case(t, s, "BHSD", shared=n, k_transposed=True, **causal)
    for t in TOLERANCE
    for s, n in [(s, 1) for s in [*SIZES, (1, 2, 1, 70, 1100)]] + GROUPS
    for causal in ({}, {"is_causal": True})
] + [
    *(case(t, (3, 1, s, 70, 24), "BSE", (3, s, 70), k_transposed=True) for t in TOLERANCE for s in (1, 30)),
    *(
        case(t, (2, 3, s, 70, 9), layout, a, *b, mask_scale=0.125, fill=-1e4, scale=0.125)
        for t in TOLERANCE
        for s in (2, 30)
        for layout in ("BHSD", "BSE")
        for a, b in [((3, 1, 70), ()), ((2, 1, s, 1), ()), ((3, 1, 70), [(2, 1, s, 70)]), (("bool", (s, 70)), [(70,)]),
                     ((s, 70), [("bool", (2, 1, 1, 70))])]
    ),
]  # fmt: skip

# Heads behind the sequence.
CASES += [case(t, s, "BSHD") for t in TOLERANCE for s in SIZES] + [
    case(t, (b, h, s, n, d), "BSHD", (b, 1, s, n), shared=shared, is_causal=True, value_dim=e)
    for t in TOLERANCE
    for (b, h, s, n, d), shared in GROUPS
    for e in (None, 33)
]
# The sequence first: before batches and heads, which may be in one dimension.
CASES += [case(t, s, "SBHD") for t in TOLERANCE for s in SIZES] + [
    case(t, size, "SBHD", (size[0], 1, size[2], 1), shared=shared, is_causal=True, value_dim=e, **heads)
    for t in TOLERANCE
    for size, shared in GROUPS[:-1]
    for e, heads in ((None, {}), (33, {"heads": size[1]}))
]
# Weights that stay float32.
CASES += [case(t, (1, 2, s, 301, 24), "BSE", shared=2, float_weights=True) for t in TOLERANCE for s in (2, 30)]
# A row of which masks leave nothing, or which holds a NaN, is 0: of few queries, of keys in splits, of packed ones.
CASES += [
    case(t, (1, 2, s, n, 8), layout, mask, nan_to_zero=True)
    for t in TOLERANCE
    for s, n in ((2, 3), (1, 1024), (6, 300))
    for layout in ("BHSD", "BSE")
    for mask in [
        (t, [[-INF] * n] + [[0.5] * n] * (s - 1)),
        ("bool", [[False] * n] + [[True] * n] * (s - 1)),
        (t, (s, n), "special"),
    ]
]

# Scores within a bound or not, below masks, which may be of float32 with half types.
CASES += [
    case(t, (2, 4, s, n, 24), layout, *m, shared=2, softcap=cap, mask_scale=0.5, fill=-1e4, scale=0.5)
    for t in TOLERANCE
    for cap in (np.nan, 2.0)
    for s, n, layout in ((1, 300, "BHSD"), (2, 70, "BSE"), (30, 70, "BHSD"), (30, 7, "BSE"))
    for m in [(), [("float32", (4, 1, n))], [("bool", (s, n)), ("float32", (n,))], [("float32", ()), (s, 1)]]
]


def filled(dtype, size, lengths, index="int32", value_dim=None, **attrs):
    b, h, shared, s, t, d = size
    n = h // shared
    inputs = [(dtype, (b, h, s, d)), (dtype, (b, n, t, d)), (dtype, (b, n, t, value_dim or d)), (index, lengths)]
    return {"op": "CachedAttention", "inputs": inputs, "attrs": attrs, "rtol": TOLERANCE[dtype], "atol": SMALLEST}


CASES += [
    filled(t, size, lengths, index)
    for t in TOLERANCE
    for size, lengths, index in [
        ((3, 4, 2, 1, 80, 24), [80, 1, 33], "int32"),
        ((2, 8, 4, 1, 1500, 128), [1500, 400], "int64"),
        ((2, 2, 1, 2, 700, 40), [2, 650], "int32"),
        ((1, 2, 2, 1, 70, 1100), [33], "int32"),
        ((2, 4, 2, 9, 70, 16), [9, 44], "int64"),
        ((2, 3, 1, 30, 600, 33), [513, 30], "int32"),
        ((2, 3, 1, 4, 9, 8), [0, 2], "int32"),
        ((2, 3, 3, 1, 300, 8), [0, 300], "int64"),
        ((1, 2, 1, 1, 0, 8), [0], "int32"),
        ((0, 2, 1, 1, 5, 8), [], "int32"),
    ]
] + [filled("float32", (2, 4, 2, 3, 20, 8), [5, 20], scale=0.3)] + [
    filled(t, (2, 8, 4, s, 700, 48), [700, 400], value_dim=32) for t in TOLERANCE for s in (1, 9)
]  # fmt: skip


def refused(error, *inputs, op="ScaledDotProductAttention", **attrs):
    """Shapes are of float32."""
    inputs = [x if isinstance(x[0], str) else ("float32", x) for x in inputs]
    return {"op": op, "inputs": inputs, "attrs": attrs, "error": error}


REFUSED = [
    refused("k_transposed takes layout BHSD, or one head, got 2 of layout BSE",
            *[(1, 5, 8), (1, 8, 5), (1, 5, 8)], **{"layout": "BSE", "heads": 2, "k_transposed": True}),
    refused(
        r"k.shape must agree with q.shape \(1, 2, 5, 8\) in all but the heads and the sequence, got \(1, 2, 8, 5\)",
        *[(1, 2, 5, 8)] * 3, k_transposed=True,
    ),
    refused(
        r"k.shape must agree with q.shape \(1, 2, 3, 4\) in all but the heads and the sequence, got \(1, 2, 5, 6\)",
        *[(1, 2, 3, 4), (1, 2, 5, 6), (1, 2, 5, 4)],
    ),
    refused(
        r"k.shape must agree with q.shape \(1, 3, 2, 4\) in all but the heads and the sequence, got \(1, 5, 2, 6\)",
        *[(1, 3, 2, 4), (1, 5, 2, 6), (1, 5, 2, 4)], layout="BSHD",
    ),
    refused("layout must be BHSD, BSHD, SBHD, BSE or BSHD_PACKED, got 'SBH'", *[(1, 2, 3, 4)] * 3, layout="SBH"),
    refused("heads must divide q's second dimension 6, got 4", *[(3, 6, 8)] * 3, layout="SBHD", heads=4),
    refused(r"k's second dimension must be a multiple of the 2 batches that q has, got shape \(5, 3, 8\)",
            *[(3, 8, 8), (5, 3, 8), (5, 3, 8)], layout="SBHD", heads=4),
    refused("v must have 3 dimensions", *[(3, 2, 4)] * 2, (3, 1, 2, 4), layout="SBHD", heads=2),
    refused("k_transposed takes layout BHSD, or one head, got 2 of layout BSHD",
            *[(1, 3, 2, 4), (1, 4, 2, 5), (1, 5, 2, 4)], **{"layout": "BSHD", "k_transposed": True}),
    refused("q.dtype must be one of float32, float16, bfloat16, got int32", *[("int32", (1, 2, 3, 4))] * 3),
    refused("heads must divide q's last dimension 8, got 3", *[(1, 3, 8)] * 3, layout="BSE", heads=3),
    refused(r"mask.shape must broadcast to \(1, 2, 3, 3\), got \(1, 1, 3, 4\)", *[(1, 2, 3, 4)] * 3, (1, 1, 3, 4)),
    refused(r"k's heads must divide q's, got shapes \(1, 4, 5, 4\) and \(1, 6, 3, 4\)",
            (1, 6, 3, 4), *[(1, 4, 5, 4)] * 2),
    *(refused(rf"k's heads must divide q's, got shapes \(1, 4, 4\) and \(1, {s}, {d}\)",
              *[(1, s, d), (1, 4, 4), (1, 4, 4)], **{"layout": "BSE", "heads": 2}) for s, d in ((6, 16), (3, 0))),
    refused(
        r"v's last dimension must be a multiple of the 2 heads that k.shape \(1, 4, 16\) has, got shape \(1, 4, 5\)",
        *[(1, 6, 16), (1, 4, 16), (1, 4, 5)], **{"layout": "BSE", "heads": 2},
    ),
    refused(r"mask2.shape must broadcast to \(4, 2, 3, 3\), got \(1, 3, 1, 3, 3\)",
            *[(4, 2, 3, 4)] * 3, (3, 3), (1, 3, 1, 3, 3)),
    refused(r"mask.shape must broadcast to \(4, 2, 1, 3, 3\), got \(1, 3, 1, 3, 3\)",
            *[(4, 2, 3, 4)] * 3, (1, 3, 1, 3, 3)),
    refused("mask2.dtype must not be bool where mask's is", *[(4, 2, 3, 4)] * 3, *[("bool", (3, 3))] * 2),
] + [
    refused(f"CachedAttention: {error}", *shapes, op="CachedAttention")
    for error, *shapes in [
        (r"lengths.shape must be \(2,\), got \(1,\)", *[(2, 2, 3, 4)] * 3, ("int32", [3])),
        ("lengths.dtype must be one of int32, int64, got float32", *[(2, 2, 3, 4)] * 3, ("float32", [3, 3])),
        (r"lengths must be in \[0, 3\], got 4", *[(2, 2, 3, 4)] * 3, ("int64", [3, 4])),
        (
            r"v_cache.shape must agree with k_cache.shape \(1, 2, 3, 4\) in all but the last dimension, "
            r"got \(1, 1, 3, 4\)",
            *[(1, 2, 3, 4), (1, 2, 3, 4), (1, 1, 3, 4), ("int64", [3])],
        ),
    ]
]  # fmt: skip
