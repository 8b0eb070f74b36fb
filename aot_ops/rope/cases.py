"""Cases of rotary position embedding; the format is that of swiglu/cases.py."""

import numpy as np


def parts(x, mode, turned):
    """The first and second elements of the pairs, and what is left as it is."""
    first = np.s_[..., : turned // 2] if mode == 0 else np.s_[..., :turned:2]
    second = np.s_[..., turned // 2 : turned] if mode == 0 else np.s_[..., 1:turned:2]
    return x[first], x[second], x[..., turned:]


def joined(a, b, rest, mode):
    both = np.concatenate([a, b], -1) if mode == 0 else np.stack([a, b], -1).reshape(*a.shape[:-1], 2 * a.shape[-1])
    return np.concatenate([both, rest], -1)


def factors(table, mode, turned):
    return (table, table) if table.shape[-1] == turned // 2 else parts(table, mode, turned)[:2]


def combine(x, cos, sin, mode, rotary_dim, back=False, size=False):
    """The formula; size: the sum of its terms' magnitudes instead."""
    turned = rotary_dim or cos.shape[-1]
    a, b, rest = parts(x, mode, turned)
    (c1, c2), (s1, s2) = factors(cos, mode, turned), factors(sin, mode, turned)
    if back:
        s1, s2 = -s2, -s1
    if size:
        a, b, c1, c2, s2, s1, rest = abs(a), abs(b), abs(c1), abs(c2), abs(s2), -abs(s1), 0 * rest
    return joined(a * c1 - b * s1, b * c2 + a * s2, rest, mode)


def rotary(x, cos, sin, mode=0, rotary_dim=0):
    return combine(x, cos, sin, mode, rotary_dim)


def gradient(dy, cos, sin, x, mode=0, rotary_dim=0, size=False):
    turned = rotary_dim or cos.shape[-1]
    (a, b, _), (da, db, _) = parts(x, mode, turned), parts(dy, mode, turned)
    if size:
        a, b, da, db = abs(a), abs(b), abs(da), -abs(db)

    def table(d1, d2):
        if size:
            d1, d2 = abs(d1), abs(d2)
        full = joined(d1, d2, d1[..., :0], mode)
        if cos.shape[-1] == turned // 2:
            full = d1 + d2
        grown = tuple(range(full.ndim - cos.ndim))
        full = full.sum(grown)
        return full.sum(tuple(k for k in range(cos.ndim - 1) if cos.shape[k] == 1), keepdims=True)

    dx = combine(dy, cos, sin, mode, rotary_dim, back=True, size=size)
    return [dx, table(a * da, b * db), table(-b * da, a * db)]


def apply(query, key, cos, sin, position_ids=None, mode=0, rotary_dim=0, layout="BSHD", size=False):
    heads = (query, key)
    if position_ids is None:
        return [combine(x, cos, sin, mode, rotary_dim, size=size) for x in heads]
    if query.ndim < 4:
        layout, dim = "BSHD", rotary_dim or cos.shape[1]
        heads = [x.reshape(-1, x.shape[-2], x.shape[-1] // (dim or 1), dim) for x in heads]
    batch, length = heads[0].shape[0], heads[0].shape[2 if layout == "BHSD" else 1]
    p = np.asarray(position_ids).astype(int)
    if mode >= 2:  # a row of the tables for each token
        p = np.arange(batch * length).reshape(batch, length)
    elif p.ndim == 0:
        p = p + np.arange(length)
    elif p.ndim == 1 and len(p) != length:  # of one token of every sequence
        p = p[:, None]
    tables = [np.expand_dims(t[p], -3 if layout == "BHSD" else -2) for t in (cos, sin)]
    return [
        combine(x, *tables, mode % 2, rotary_dim, size=size).reshape(like.shape) for x, like in zip(heads, (query, key))
    ]


REFERENCE = {"RotaryPositionEmbedding": rotary, "RotaryPositionEmbeddingGrad": gradient, "ApplyRotaryPosEmb": apply}
# In float32 each of the two products rounds (without FMA), and their sum, which the tolerance below has. The tables'
# gradients are summed in double by both sides.
BOUND = {
    "RotaryPositionEmbedding": lambda u, x, cos, sin, mode=0, rotary_dim=0: (
        2.0**-24 * combine(x, cos, sin, mode, rotary_dim, size=True)
    ),
    "RotaryPositionEmbeddingGrad": lambda u, dy, cos, sin, x, mode=0, rotary_dim=0: [
        2.0**-24 * combine(dy, cos, sin, mode, rotary_dim, back=True, size=True),
        *(2.0**-40 * g for g in gradient(dy, cos, sin, x, mode, rotary_dim, size=True)[1:]),
    ],
    "ApplyRotaryPosEmb": lambda u, *x, **attrs: [2.0**-24 * y for y in apply(*x, **attrs, size=True)],
}
# The sum, or a half type's one rounding, of the kernel and of the twin.
TOLERANCE = {"float32": 2.02 * 2.0**-24, "float16": 2.02 * 2.0**-11, "bfloat16": 2.02 * 2.0**-8}
SMALLEST = {"float32": 2.0**-126, "float16": 2.0**-24, "bfloat16": 2.0**-126}


def case(op, dtype, inputs, **attrs):
    return {"op": op, "inputs": inputs, "attrs": attrs, "rtol": TOLERANCE[dtype], "atol": SMALLEST[dtype]}


def rotate(dtype, x, table, tables="float32", op="RotaryPositionEmbedding", **attrs):
    more = [(dtype, x)] if op.endswith("Grad") else []
    return case(op, dtype, [(dtype, x), (tables, table), (tables, table), *more], **attrs)


# x and tables: heads outside and inside the positions, partial vectors of every width, per batch, one row, odd heads.
SHAPES = [
    ((2, 3, 5, 16), (5, 16)),
    ((2, 5, 3, 64), (1, 5, 1, 64)),
    ((2, 3, 37, 10), (2, 1, 37, 10)),
    ((5, 2, 3, 34), (5, 1, 1, 34)),
    ((2, 3, 4, 6), (2, 3, 4, 6)),
    ((2, 3, 4, 5, 6), (3, 1, 5, 6)),
    ((2, 3, 4, 5, 6), (2, 1, 4, 1, 6)),
    ((3, 128), (128,)),
    ((2,), (2,)),
    ((1, 300, 1, 8), (1, 1, 1, 8)),
    ((2, 2, 70, 62), (1, 1, 70, 62)),
    ((0, 4, 8), (4, 8)),
    ((2, 0, 8), (0, 8)),
    ((3, 0), (0,)),
    ((2, 3, 0), (3, 0)),
]
T = list(TOLERANCE)
TABLES = {t: list(dict.fromkeys((t, "float32"))) for t in T}  # what their tables may hold
CASES = (
    [rotate(t, x, table, mode=m) for t in T for x, table in SHAPES for m in (0, 1)]
    # Tables of the row's own type; entries for pairs; a part of the row; none of it.
    + [rotate(t, (2, 3, 21, 38), (21, 38), t, mode=m) for t in T for m in (0, 1)]
    + [rotate(t, (2, 3, 21, 38), (21, 19), u, mode=m, rotary_dim=38) for t in T for u in TABLES[t] for m in (0, 1)]
    + [rotate(t, (2, 3, 7, 23), (7, 12), mode=m) for t in T for m in (0, 1)]
    + [rotate(t, (2, 3, 7, 80), (7, 16), t, mode=m, rotary_dim=32) for t in T for m in (0, 1)]
    + [rotate("float32", (3, 4), (0,), mode=m) for m in (0, 1)]
    # Rows longer than the factors a thread keeps.
    + [rotate(t, (2, 3, 4100), (3, 4100), t, mode=m) for t in ("float32", "bfloat16") for m in (0, 1)]
    # Beyond L3: results are written past the caches.
    + [rotate("float32", (1, 16, 1100, 128), (1100, 64), mode=m, rotary_dim=128) for m in (0, 1)]
    + [rotate("float32", (2, 3, 4100), (3, 2050), mode=m, rotary_dim=4100) for m in (0, 1)]
    + [
        case("RotaryPositionEmbedding", "float32", [("float32", (9, 6), "special")] + 2 * [("float32", (9, 6))], mode=m)
        for m in (0, 1)
    ]
    + [
        rotate(t, x, table, op="RotaryPositionEmbeddingGrad", mode=m)
        for t in T
        for x, table in SHAPES
        for m in (0, 1)
    ]
    + [
        rotate(t, (2, 3, 7, 23), (7, 6), t, op="RotaryPositionEmbeddingGrad", mode=m, rotary_dim=12)
        for t in T
        for m in (0, 1)
    ]
    # Tables of more pairs than a unit of work sums up, and of many rows.
    + [
        rotate("float32", x, table, op="RotaryPositionEmbeddingGrad", mode=m, rotary_dim=d)
        for x, table, d in [((2, 9, 600), (9, 600), 0), ((3, 530), (265,), 530), ((2, 3, 70, 64), (70, 64), 0)]
        for m in (0, 1)
    ]
)  # fmt: skip


def both(dtype, size, positions, width, tables="float32", heads=None, layout="BHSD", **attrs):
    """Tables of 40 positions."""
    b, h, s, d = size
    shapes = [(b, n, s, d) if layout == "BHSD" else (b, s, n, d) for n in (h, heads or h)]
    inputs = [(dtype, x) for x in shapes] + 2 * [(tables, (40, width))] + [positions]
    return case("ApplyRotaryPosEmb", dtype, inputs, layout=layout, **attrs)


def packed(dtype, size, positions, tables="float32", rows=40, rotary_dim=0, **attrs):
    """3 query heads and 2 of keys, 10 elements each, of [B, S] or [S] tokens."""
    table = (tables, (rows, rotary_dim // 2 or 10))
    inputs = [(dtype, (*size, 30)), (dtype, (*size, 20)), table, table, ("int32", positions)]
    return case("ApplyRotaryPosEmb", dtype, inputs, rotary_dim=rotary_dim, **attrs)


CASES += (
    [
        both(t, (2, 4, 3, 16), p, 16, t, heads=2, layout=layout, mode=m)
        for t in T
        for layout in ("BHSD", "BSHD")
        for m in (0, 1)
        for p in [("int32", [[0, 1, 2], [39, 7, 7]]), ("int64", [5, 4, 39]), ("int64", [[1, 2, 3]]), ("int32", 37)]
    ]
    + [
        both(t, (1, 3, 1, 128), ("int64", [[17]]), 128, layout=x, mode=m)
        for t in T
        for x in ("BHSD", "BSHD")
        for m in (0, 1)
    ]
    + [both("float32", (3, 5, 33, 11), ("int64", 2), 4, heads=1, layout=x, rotary_dim=8) for x in ("BHSD", "BSHD")]
    # Packed heads, as MindSpore has them: every sequence its one token's position, or all the same ones; or tables
    # that have a row for each token.
    + [
        packed(t, s, p, u, mode=m)
        for t in T
        for u in TABLES[t]
        for m in (0, 1)
        for s, p in [
            ((3, 1), [5, 0, 39]),
            ((2, 3), [4, 0, 38]),
            ((2, 3), [[0, 1, 2], [7, 7, 39]]),
            ((5,), [9, 1, 0, 2, 3]),
        ]
    ]
    + [
        packed(t, s, [3] * s[0], t, rows=int(np.prod(s)), mode=m)
        for t in T
        for m in (2, 3)
        for s in [(2, 3), (5,), (3, 1)]
    ]
    + [packed("float32", (2, 3), [1, 2, 3], mode=m, rotary_dim=10) for m in (0, 1)]
    + [both("float32", (2, 4, 20, 16), ("int32", (3,), (0, 9)), 16, layout=x, mode=2) for x in ("BHSD", "BSHD")]
    + [both("float32", (0, 5, 3, 8), ("int64", 2), 8), both("float32", (2, 0, 3, 8), ("int64", 2), 8, heads=2)]
    + [both("float32", (2, 2, 0, 8), ("int64", 50), 8), both("float32", (2, 2, 1, 0), ("int64", 3), 0)]
)

X, TABLE = ("float32", (2, 3, 8)), ("float32", (3, 8))
Q, TABLES = ("float32", (1, 3, 2, 8)), [("float32", (10, 8))] * 2


def refused(op, inputs, error, **attrs):
    return {"op": op, "inputs": inputs, "attrs": attrs, "error": f"{op}: {error}"}


# Without positions: tables that broadcast to both.
CASES += [
    case("ApplyRotaryPosEmb", t, [(t, q), (t, k), (w, table), (w, table)], mode=m, rotary_dim=d)
    for t in T
    for w in ("float32", t)
    for m in (0, 1)
    for q, k, table, d in [
        ((2, 4, 7, 16), (2, 2, 7, 16), (7, 16), 0),
        ((2, 7, 3, 23), (2, 7, 1, 23), (7, 1, 6), 12),
        ((2, 4, 5, 16), (2, 4, 5, 16), (2, 1, 5, 16), 0),
        ((16,), (3, 16), (16,), 0),
        ((0, 4, 7, 16), (0, 4, 7, 16), (7, 16), 0),
        ((1, 40, 33, 64), (1, 8, 33, 64), (1, 1, 33, 64), 0),
    ]
]

REFUSED = [
    refused("RotaryPositionEmbedding", [("int32", (2, 8)), TABLE, TABLE],
            "x.dtype must be one of float32, float16, bfloat16, got int32"),
    refused("RotaryPositionEmbedding", [("float32", ()), TABLE, TABLE],
            r"x must have at least 1 dimension, got shape \(\)"),
    refused("RotaryPositionEmbedding", [X, ("float16", (3, 8)), ("float16", (3, 8))],
            "cos.dtype must be one of float32, got float16"),
    refused("RotaryPositionEmbedding", [("float16", (3, 8)), ("bfloat16", (3, 8)), ("bfloat16", (3, 8))],
            "cos.dtype must be one of float32, float16, got bfloat16"),
    refused("RotaryPositionEmbedding", [X, TABLE, ("float32", (2, 8))],
            r"sin.shape must equal cos.shape \(3, 8\), got \(2, 8\)"),
    refused("RotaryPositionEmbedding", [X, TABLE, ("float16", (3, 8))],
            "sin.dtype must equal cos.dtype float32, got float16"),
    refused("RotaryPositionEmbedding", [X, ("float32", (2, 8)), ("float32", (2, 8))],
            r"cos.shape must broadcast to x.shape \(2, 3, 8\) in all but the last dimension, got \(2, 8\)"),
    refused("RotaryPositionEmbedding", [X, TABLE, TABLE],
            r"mode must be 0 \(halves\) or 1 \(interleaved\), got 2", mode=2),
    refused("RotaryPositionEmbedding", [X, ("float32", (3, 7)), ("float32", (3, 7))],
            "cos's last dimension must be even, got 7"),
    refused("RotaryPositionEmbedding", [X, ("float32", (3, 10)), ("float32", (3, 10))],
            "cos's last dimension must be at most the rows' 8 elements, got 10"),
    refused("RotaryPositionEmbedding", [X, TABLE, TABLE], "rotary_dim must be even, got 3", rotary_dim=3),
    refused("RotaryPositionEmbedding", [X, TABLE, TABLE],
            "rotary_dim must be at most the rows' 8 elements, got -2", rotary_dim=-2),
    refused("RotaryPositionEmbedding", [X, TABLE, TABLE],
            "cos's last dimension must be rotary_dim 4 or half of it, got 8", rotary_dim=4),
    refused("RotaryPositionEmbeddingGrad", [X, TABLE, TABLE, ("float32", (2, 3, 4))],
            r"x.shape must equal dy.shape \(2, 3, 8\), got \(2, 3, 4\)"),
    refused("ApplyRotaryPosEmb", [Q, ("float32", (1, 4, 2, 8)), *TABLES, ("int32", 0)],
            r"key.shape must agree with query.shape \(1, 3, 2, 8\) in all but the heads, got \(1, 4, 2, 8\)"),
    refused("ApplyRotaryPosEmb", [("float32", (8,))] * 2 + [*TABLES, ("int32", 0)],
            r"query must have 2, 3 or 4 dimensions, got shape \(8,\)"),
    refused("ApplyRotaryPosEmb", [("float32", (2, 3, 16)), ("float32", (2, 3, 12)), *TABLES, ("int32", 0)],
            "key's last dimension must be heads of 8 elements, got 12"),
    refused("ApplyRotaryPosEmb", [("float32", (2, 3, 16))] * 2 + [*TABLES, ("int32", (2,), (0, 1))],
            r"position_ids.shape must be \(\), \(3,\) or \(2, 3\), got \(2,\)"),
    refused("ApplyRotaryPosEmb", [("float32", (2, 3, 16))] * 2 + [*TABLES, ("int32", 0)],
            r"cos.shape must begin with a row for each of 6 tokens, got \(10, 8\)", mode=2),
    refused("ApplyRotaryPosEmb", [Q, Q, *TABLES, ("int32", 0)],
            r"mode must be 0 \(halves\) or 1 \(interleaved\), or 2 or 3 where the tables have a row for each token, "
            "got 4", mode=4),
    refused("ApplyRotaryPosEmb", [Q, Q, ("float32", (8,)), ("float32", (8,)), ("int32", 0)],
            r"cos must have 2 dimensions, got shape \(8,\)"),
    refused("ApplyRotaryPosEmb", [Q, Q, *TABLES, ("int32", (2, 2), (0, 1))],
            r"position_ids.shape must be \(\), \(3,\) or \(1, 3\), got \(2, 2\)"),
    refused("ApplyRotaryPosEmb", [Q, Q, *TABLES, ("float32", ())],
            "position_ids.dtype must be one of int32, int64, got float32"),
    refused("ApplyRotaryPosEmb", [Q, Q, *TABLES, ("int64", [0, 10, 3])],
            r"position_ids must be in \[0, 10\), got 10"),
    refused("ApplyRotaryPosEmb", [Q, Q, *TABLES, ("int64", -1)], r"position_ids must be in \[0, 10\), got -1"),
    refused("ApplyRotaryPosEmb", [Q, Q, *TABLES, ("int64", 8)], r"position_ids must be in \[0, 10\), got 10"),
    refused("ApplyRotaryPosEmb", [Q, Q, *TABLES, ("int64", 2**63 - 1)],
            rf"position_ids must be in \[0, 10\), got {2**63 - 1}"),
    refused("ApplyRotaryPosEmb", [Q, Q, *TABLES, ("int32", [4, -(2**31), 3])],
            rf"position_ids must be in \[0, 10\), got -{2**31}"),
    refused("ApplyRotaryPosEmb", [Q, Q, *TABLES, ("int32", 0)],
            "layout must be BHSD or BSHD, got 'SBHD'", layout="SBHD"),
]  # fmt: skip
