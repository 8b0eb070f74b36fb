"""Cases of the reductions; swiglu/cases.py explains the format. REFERENCE
functions take the attributes as keywords."""

import numpy as np


def over(f):
    return lambda x, axis=(), keep_dims=False: f(x, axis=tuple(axis) or None, keepdims=keep_dims)


def total(x, axis=(), keep_dims=False, skip_mode=False):
    if skip_mode and not axis:
        return x
    return np.sum(x, axis=tuple(axis) or None, keepdims=keep_dims, dtype=x.dtype)  # integers wrap


def total_as(x, axis=(), keep_dims=False, dtype=""):
    if x.dtype.kind in "ib":
        x = x.astype(np.int64)
        return over(np.sum)(x if not dtype.startswith("int") else x.astype(dtype), axis, keep_dims)
    return over(np.sum)(x, axis, keep_dims)


def extreme(arg, first, axis, keep):
    """The value and its place, in the order of the primitive that has `first` first."""

    def of(x, **attrs):
        at = np.expand_dims(arg(x, attrs[axis]), attrs[axis]) if x.ndim else arg(x)
        value = np.take_along_axis(x, at, attrs[axis]) if x.ndim else x
        if x.ndim and not attrs.get(keep, False):
            at, value = (np.squeeze(t, attrs[axis]) for t in (at, value))
        return (value, at) if first == "value" else (at, value)

    return of


def deviation(x, axis=(), unbiased=True, keep_dims=False):
    n = over(np.sum)(np.ones_like(x), axis, keep_dims)
    square = over(np.sum)((x - over(np.mean)(x, axis, True)) ** 2, axis, keep_dims)
    with np.errstate(all="ignore"):
        return np.sqrt(square / (n - unbiased)), over(np.mean)(x, axis, keep_dims)


PAIRS = {
    "ArgMaxWithValue": extreme(np.argmax, "index", "axis", "keep_dims"),
    "ArgMinWithValue": extreme(np.argmin, "index", "axis", "keep_dims"),
    "MaxDim": extreme(np.argmax, "value", "dim", "keepdim"),
    "MinDim": extreme(np.argmin, "value", "dim", "keepdim"),
}
REFERENCE = {"ReduceMean": over(np.mean), "ReduceSum": total, "ReduceMax": over(np.max), "SumExt": total_as,
             "ReduceMin": over(np.min), "ReduceStd": deviation, **PAIRS}  # fmt: skip

# One rounding to the storage type at the end, by the kernel and by the twin.
TOLERANCE = {"float32": 2.02 * 2.0**-24, "float16": 2.02 * 2.0**-11, "bfloat16": 2.02 * 2.0**-8, "int32": 0, "int64": 0}


def sum_bound(u, x, axis=(), keep_dims=False, mean=False):
    """Of a float32 sum of n terms in any order: n 2^-24 times the sum of |x| (Higham 2002, section 4.2). No more than
    4096 rows, or 1024 elements in each of 16 accumulators, add up in float32; the rest do in double."""
    if x.dtype.kind == "i":
        return 0.0  # exact
    size = over(np.sum)(np.ones_like(x), axis, keep_dims)
    bound = np.minimum(size, 4096 + 16) * 2.0**-24 * over(np.sum)(np.abs(x), axis, keep_dims)
    return bound / np.maximum(size, 1) if mean else bound


def sum_ext_bound(u, x, axis=(), keep_dims=False, dtype=""):
    """Elements of a wider type are rounded to a half, of an integer to a float."""
    rounding = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}.get(dtype, 0.0)
    size = np.abs(x.astype(np.float64))
    return sum_bound(u, x, axis, keep_dims) + rounding * over(np.sum)(size, axis, keep_dims)


BOUND = {
    "ReduceSum": lambda *a, skip_mode=False, **attrs: 0.0 if skip_mode else sum_bound(*a, **attrs),
    "ReduceMean": lambda *a, **attrs: sum_bound(*a, **attrs, mean=True),
    "SumExt": sum_ext_bound,
}

# Last, first, middle, both ends, inner two, all, negative, none named; rows long and short; the last two are cut
# into parts that are folded by several threads.
LAYOUTS = [
    ((5, 777), [-1]),
    ((9, 300), [0]),
    ((3, 40, 7), [1]),
    ((3, 5, 70), [0, 2]),
    ((2, 3, 4, 5), [1, 2]),
    ((4, 33), []),
    ((1,), [0]),
    ((), []),
    ((2, 1, 9), [1]),
    ((70, 300), [0, 1]),
    ((0, 5), [1]),
    ((20001, 8), [0]),
    ((11, 700, 2, 9), [1, 2]),
    ((3, 140000), [1]),
    ((2, 70001, 3), [0, 1, 2]),
    # Many short rows, of less than a vector, of some and a part of one; apart in memory.
    *(((2, 70, n), [2]) for n in (3, 17, 31, 49, 63)),
    ((67, 2, 49), [0, 2]),
]


SINGLE = ["ReduceMean", "ReduceSum", "ReduceMax", "SumExt", "ReduceMin"]  # of one output
EXTREMES = ("ReduceMax", "ReduceMin")


def case(op, x, axis, keep=False):
    # float16's smallest step is 2^-24; an extreme is not rounded.
    rtol, atol = (0.0, 0.0) if op in EXTREMES or "int" in x[0] else (TOLERANCE[x[0]], 2.0**-24)
    return {"op": op, "inputs": [x], "attrs": {"axis": axis, "keep_dims": keep}, "rtol": rtol, "atol": atol}


def pair(op, x, axis, keep=False):
    axis_name, keep_name = ("dim", "keepdim") if op.endswith("Dim") else ("axis", "keep_dims")
    return {"op": op, "inputs": [x], "attrs": {axis_name: axis, keep_name: keep}, "rtol": 0.0, "atol": 0.0}


def std(x, axis, **attrs):
    return {"op": "ReduceStd", "inputs": [x], "attrs": {"axis": axis, **attrs}, "rtol": TOLERANCE[x[0]],
            "atol": 2.0**-24}  # fmt: skip


# One row and many, of one element and of thousands, along any dimension.
ALONG = [((5, 777), -1), ((9, 300), 0), ((3, 40, 7), 1), ((1,), 0), ((2, 1, 9), 1), ((0, 5), 1), ((2, 20001), 1),
         ((), 0)]  # fmt: skip
FLOATS = ["float32", "float16", "bfloat16"]
CASES = (
    [case(op, (t, s), a, k) for op in SINGLE for t in FLOATS for s, a in LAYOUTS for k in [False, True]]
    + [
        case(op, (t, s, (-50, 50)), a)
        for op in ["ReduceSum", "SumExt", *EXTREMES]
        for t in ["int32", "int64"]
        for s, a in LAYOUTS
    ]
    + [
        {"op": "SumExt", "inputs": [(t, s)], "attrs": {"axis": a, "dtype": d}, "rtol": r, "atol": 2.0**-24 if r else 0}
        for t, d in [
            ("float32", "float16"),
            ("float32", "bfloat16"),
            ("float16", "float32"),
            ("bfloat16", "float16"),
            ("int32", "float32"),
            ("int64", "bfloat16"),
            ("int32", "int64"),
            ("int64", "int32"),
            ("bool", "int32"),
            ("bool", "float32"),
            ("bool", ""),
        ]
        for r in [TOLERANCE[d or "int64"]]
        for s, a in LAYOUTS[:11]
        if s or t != "bool"
    ]
    + [
        {"op": "ReduceSum", "inputs": [x], "attrs": {"axis": a, "skip_mode": True}, "rtol": r, "atol": 0}
        for x, a, r in [(("int32", (3, 4)), [], 0), (("float16", (3, 4)), [], 0), (("int32", (3, 4)), [1], 0)]
    ]
    + [case("ReduceSum", ("int32", [2**31 - 1, 5, -(2**31), 7]), [0])]  # wraps
    + [case("ReduceMax", (t, [-7, -9, -8]), [0]) for t in ["int32", "int64"]]
    + [case("ReduceMin", (t, [7, 9, 8]), [0]) for t in ["int32", "int64"]]
    + [case("ReduceSum", ("float32", (3, 0)), [1])]
    # Many rows of nearly the same number: in one float32 accumulator the roundings would all go the same way.
    + [case("ReduceSum", ("float32", (60000, 130), (0.1, 0.100001)), [0])]
    + [pair(op, (t, s), a, k) for op in PAIRS for t in FLOATS for s, a in ALONG for k in (False, True)]
    + [pair(op, (t, (6, 50), (-9, 9)), 1) for op in PAIRS for t in ("int32", "int64")]  # equals: the first
    + [pair(op, ("float32", (7, n), "special"), 1) for op in PAIRS for n in (5, 40)]
    + [std((t, s), a, keep_dims=k) for t in FLOATS for s, a in LAYOUTS[:11] for k in (False, True)]
    + [std(("float32", s), a, unbiased=False) for s, a in LAYOUTS[:11]]
    + [std(("float32", (4, 40), "special"), a) for a in ([1], [0])]
    + [case(op, ("float32", (4, 40), "special"), a) for op in SINGLE for a in ([1], [0])]
    + [case(op, ("float32", (7, n), "special"), [1]) for op in SINGLE for n in (5, 21)]
)

REFUSED = [
    {
        "op": "ReduceMean",
        "inputs": [("int32", (4,))],
        "error": "ReduceMean: x.dtype must be one of float32, float16, bfloat16, got int32",
    },
    {
        "op": "ReduceSum",
        "inputs": [("float32", (4, 3))],
        "attrs": {"axis": [2]},
        "error": r"ReduceSum: axis must be in \[-2, 2\), got 2",
    },
    {
        "op": "SumExt",
        "inputs": [("float32", (4, 3))],
        "attrs": {"dtype": "int32"},
        "error": "SumExt: dtype must be float32, float16, bfloat16 for x of float32, got int32",
    },
    {
        "op": "SumExt",
        "inputs": [("int8", (4, 3))],
        "error": "SumExt: x.dtype must be one of float32, float16, bfloat16, int32, int64, bool, got int8",
    },
    {
        "op": "ArgMaxWithValue",
        "inputs": [("float32", (4, 0))],
        "attrs": {"axis": 1},
        "error": r"ArgMaxWithValue: axis 1 holds no element, shape \(4, 0\)",
    },
    {
        "op": "MaxDim",
        "inputs": [("float32", (4, 3))],
        "attrs": {"dim": 2},
        "error": r"MaxDim: dim must be in \[-2, 2\), got 2",
    },
    {
        "op": "ReduceStd",
        "inputs": [("int32", (4,))],
        "error": "ReduceStd: x.dtype must be one of float32, float16, bfloat16, got int32",
    },
    *(
        {
            "op": op,
            "inputs": [("float32", (4, 0))],
            "attrs": {"axis": [1]},
            "error": rf"{op}: the reduced axes hold no element, shape \(4, 0\)",
        }
        for op in EXTREMES
    ),
]
