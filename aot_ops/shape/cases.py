"""Cases of the operators on shapes; swiglu/cases.py explains the format. REFERENCE functions take the
attributes as keywords; those of Split give a list of outputs. An input given as (dtype, values) has just
these values."""

import numpy as np


def strided_slice(
    x, begin, end, strides, begin_mask=0, end_mask=0, ellipsis_mask=0, new_axis_mask=0, shrink_axis_mask=0
):
    index = []
    for i, (b, e, s) in enumerate(zip(begin, end, strides)):
        if ellipsis_mask >> i & 1:
            index.append(...)
        elif new_axis_mask >> i & 1:
            index.append(None)
        elif shrink_axis_mask >> i & 1:
            index.append(int(b))
        else:
            index.append(slice(None if begin_mask >> i & 1 else int(b), None if end_mask >> i & 1 else int(e), int(s)))
    return x[tuple(index)]


def gather(params, indices, axis=0, batch_dims=0):
    indices = indices.astype(np.int64)
    if batch_dims == 0:
        return np.take(params, indices, axis=axis)
    axis = axis % params.ndim - 1
    return np.stack([gather(p, i, axis, batch_dims - 1) for p, i in zip(params, indices)])


def ints(a):
    return [int(v) for v in np.ravel(a)]


def broadcast_to(x, shape):
    shape = ints(shape)
    pad = len(shape) - x.ndim
    return np.broadcast_to(x, [x.shape[i - pad] if s == -1 else s for i, s in enumerate(shape)])


def flatten(x, first, last):
    first, last = (i % max(x.ndim, 1) for i in (first, last))
    return x.reshape(*x.shape[:first], int(np.prod(x.shape[first : last + 1])), *x.shape[last + 1 :])


REFERENCE = {
    "Reshape": lambda x, shape: x.reshape(ints(shape)),
    "Flatten": lambda x: x.reshape(x.shape[0], int(np.prod(x.shape[1:]))),
    "FlattenExt": lambda x, start_dim=0, end_dim=-1: flatten(x, start_dim, end_dim),
    "Slice": lambda x, begin, size: x[
        tuple(slice(b, b + n if n >= 0 else None) for b, n in zip(ints(begin), ints(size)))
    ],
    "Triu": lambda x, diagonal=0: np.triu(x, diagonal),
    "Tril": lambda x, diagonal=0: np.tril(x, diagonal),
    "ExpandDims": lambda x, axis: np.expand_dims(x, axis),
    "Squeeze": lambda x, axis=(): np.squeeze(x, tuple(axis) or None),
    "Transpose": lambda x, perm: np.transpose(x, perm),
    "Tile": lambda x, multiples: np.tile(x, ints(multiples)),
    "BroadcastTo": broadcast_to,
    "StridedSlice": strided_slice,
    "Concat": lambda *xs, axis=0: np.concatenate(xs, axis),
    "Stack": lambda *xs, axis=0: np.stack(xs, axis),
    "Split": lambda x, axis=0, output_num=1: np.split(x, output_num, axis),
    "SplitWithSize": lambda x, split_size, dim=0: np.split(x, np.cumsum(split_size)[:-1], dim),
    "Unstack": lambda x, axis=0, num=0: list(np.moveaxis(x, axis, 0)),
    "Gather": gather,
    "Shape": lambda x: np.array(x.shape, np.int64),
    "TupleGetItem": lambda x, index: x[index],
    "MakeTuple": lambda *xs: np.stack(xs),
    "ScalarAdd": np.add,
    "ScalarSub": np.subtract,
    "ScalarMul": np.multiply,
    "ScalarFloorDiv": np.floor_divide,
}


def case(op, inputs, **attrs):
    return {"op": op, "inputs": inputs, "attrs": attrs, "rtol": 0, "atol": 0}


def i64(*values):
    return ("int64", list(values))


# One dtype per element size.
DTYPES = ["float32", "bfloat16", "int64", "int8"]
FLAGS = ("bool", [[True, False, True], [False, False, True]])

CASES = (
    [case("Reshape", [(t, (4, 6)), i64(*s)]) for t in DTYPES for s in [(24,), (2, -1), (-1, 3, 2), (4, 6)]]
    + [
        case("Reshape", [("float32", (0, 5)), i64(5, -1)]),
        case("Reshape", [("float32", (1,)), i64()]),
        case("Reshape", [FLAGS, i64(-1)]),
    ]
    + [case("Flatten", [(t, s)]) for t in DTYPES for s in [(2, 3, 4, 5), (4, 6), (5,), (0, 3, 2), (3, 0, 2)]]
    + [
        case("FlattenExt", [(t, s)], start_dim=a, end_dim=b)
        for t in DTYPES
        for s, a, b in [((2, 3, 4, 5), 1, 2), ((2, 3, 4), -2, -1), ((4, 6), 1, 1), ((3, 0, 2), 0, 1)]
    ]
    + [case("FlattenExt", [("float32", s)]) for s in [(5,), (2, 3), ()]]
    + [
        case("Slice", [(t, s), i64(*b), i64(*n)])
        for t in DTYPES
        for s, b, n in [
            *[((6, 9), (1, 2), (3, 4)), ((6, 9), (0, 8), (-1, -1)), ((2, 5, 7), (0, 4, 0), (2, 1, 7))],
            *[((4, 5), (4, 0), (0, 5)), ((9,), (3,), (-1,)), ((), (), ())],
        ]
    ]
    + [case("Slice", [FLAGS, i64(0, 1), i64(2, 2)])]
    + [
        case(op, [(t, s)], diagonal=d)
        for op in ("Triu", "Tril")
        for t in [*DTYPES, "float16"]
        for s in [(5, 7), (7, 5), (2, 3, 4, 4), (1, 1), (0, 3), (3, 0), (70, 300)]
        for d in (0, 1, -2, 9, -9)
    ]
    + [case(op, [FLAGS]) for op in ("Triu", "Tril")]
    + [case("Tril", [("float32", [[np.nan, np.inf], [np.inf, np.nan]])], diagonal=-1)]
    + [case("Triu", [("float32", (3, 4))], diagonal=d) for d in (2**62, -(2**62))]
    + [case("ExpandDims", [("float32", s)], axis=a) for s, a in [((3, 4), 0), ((3, 4), -1), ((3, 4), 1), ((), 0)]]
    + [
        case("Squeeze", [("float32", s)], axis=a)
        for s, a in [((1, 3, 1), []), ((1, 3, 1), [0]), ((1, 3, 1), [-1]), ((1, 1), [0, 1])]
    ]
    + [
        case("Transpose", [(t, s)], perm=p)
        for t in DTYPES
        for s, p in [
            ((5, 7), [1, 0]),
            ((2, 3, 4, 5), [0, 2, 1, 3]),
            ((2, 33, 4, 17), [0, 2, 3, 1]),
            ((3, 65, 34), [0, 2, 1]),
            ((2, 3, 4), [2, 1, 0]),
            ((4, 5), [0, 1]),
            ((0, 3), [1, 0]),
            ((), []),
            ((2, 1, 5, 3), [3, 1, 0, 2]),
            ((200, 300), [1, 0]),
            ((2, 131, 70), [0, 2, 1]),
            ((70, 5, 131), [2, 1, 0]),
            ((70, 512), [1, 0]),  # rows of x, and of y, that lie a power of two apart
            ((1024, 35), [1, 0]),
            ((2, 70, 3, 67), [1, 3, 0, 2]),
            ((300, 3), [1, 0]),
            ((3, 300), [1, 0]),
            ((128, 2, 64, 2), [3, 2, 1, 0]),
            ((2, 3, 4), [-1, 0, 1]),
            ((3, 70, 2, 65), [0, 2, 1, 3]),  # rows of one byte an element to eight: 65 to 520, 300 to 2400
            ((4, 3, 5, 300), [2, 1, 0, 3]),
            ((2, 3, 1100), [1, 0, 2]),
        ]
    ]
    + [case("Transpose", [FLAGS], perm=[1, 0])]
    + [
        case("Tile", [(t, s), i64(*m)])
        for t in DTYPES
        for s, m in [
            ((3,), (4,)),
            ((2, 3), (2, 2)),
            ((3,), (2, 1, 3)),
            ((), (5,)),
            ((2, 1, 5), (1, 3, 1)),
            ((2, 3), (0, 2)),
        ]
    ]
    + [
        case("BroadcastTo", [(t, s), i64(*m)])
        for t in DTYPES
        for s, m in [
            ((3,), (4, 3)),
            ((2, 1, 3), (2, 5, 3)),
            ((2, 1, 3), (-1, 4, -1)),
            ((), (2, 3)),
            ((0, 1), (0, 3)),
            ((5, 1), (5, 40)),
        ]
    ]
    + [
        case("StridedSlice", [(t, s), i64(*b), i64(*e), i64(*st)], **m)
        for t in DTYPES
        for s, b, e, st, m in [
            ((10,), (2,), (8,), (1,), {}),
            ((10,), (8,), (1,), (-3,), {}),
            ((10,), (0,), (0,), (-1,), {"begin_mask": 1, "end_mask": 1}),
            ((6, 9), (1, -4), (5, -1), (2, 1), {}),
            ((6, 9), (0, 3), (0, 100), (1, 2), {"end_mask": 1}),
            ((2, 3, 4, 5), (0, 1), (0, 4), (1, 1), {"ellipsis_mask": 1}),
            ((4, 5), (0, 0, 2), (0, 0, 3), (1, 1, 1), {"new_axis_mask": 1, "begin_mask": 2, "end_mask": 2}),
            ((4, 5), (-1, 0), (0, 3), (1, 1), {"shrink_axis_mask": 1}),
            ((4, 5), (1, 2), (0, 0), (1, 1), {"shrink_axis_mask": 3}),
            ((4, 5), (3,), (1,), (1,), {}),
        ]
    ]
    + [case("Concat", [(t, (2, 3)), (t, (4, 3)), (t, (1, 3))], axis=0) for t in DTYPES]
    + [case("Concat", [(t, (2, 3, 5)), (t, (2, 1, 5)), (t, (2, 0, 5))], axis=-2) for t in DTYPES]
    + [case("Concat", [("float32", (7,))]), case("Concat", [FLAGS, FLAGS], axis=1)]
    + [case("Stack", [(t, (2, 3))] * 3, axis=axis) for t in DTYPES for axis in (0, -1, 1)]
    + [case("Stack", [("float32", ())] * 2), case("Stack", [("float32", (2, 0))] * 2, axis=1)]
    + [
        case("Split", [(t, s)], axis=a, output_num=n)
        for t in DTYPES
        for s, a, n in [((6, 4), 0, 3), ((2, 6, 5), 1, 2), ((4, 9), -1, 3), ((5,), 0, 1), ((0, 4), 1, 2)]
    ]
    + [
        case("SplitWithSize", [(t, s)], split_size=n, dim=a)
        for t in DTYPES
        for s, a, n in [
            ((6, 4), 0, [1, 5]),
            ((2, 6, 5), 1, [3, 0, 1, 2]),
            ((4, 9), -1, [4, 5]),
            ((5,), 0, [5]),
            ((0, 4), 1, [1, 3]),
            ((700, 50), 1, [3, 47]),
            ((3, 20000), 1, [19999, 1]),
        ]
    ]
    + [
        case("Unstack", [(t, s)], axis=a, num=s[a])
        for t in DTYPES
        for s, a in [
            ((3, 2, 5), 0),
            ((2, 3, 4, 5), -2),
            ((7, 33, 2), -1),
            ((4, 3), 1),
            ((2, 0), 0),
            ((0, 2), 1),
            ((5,), 0),
        ]
    ]
    + [case("Unstack", [FLAGS], axis=1, num=3), case("Unstack", [("float32", (2, 4000, 2))], axis=-1, num=2)]
    + [
        case("Gather", [(t, s), (it, i)], **a)
        for t in DTYPES
        for it in ["int32", "int64"]
        for s, i, a in [
            ((9, 5), [0, 8, 3, 3], {}),
            ((9, 5), [[1, 2], [0, 4]], {"axis": 1}),
            ((2, 3, 7), [6, 0], {"axis": -1}),
            ((9, 5), 4, {}),
            ((2, 5, 3), [[4, 0], [1, 1]], {"axis": 1, "batch_dims": 1}),
            ((2, 3, 5), [[4, 0], [1, 1]], {"axis": 2, "batch_dims": 1}),
            ((9, 0), [1, 2], {}),
            ((9, 2), [], {}),
        ]
    ]
    + [case("Shape", [("float32", s)]) for s in [(3, 4), (0, 5), ()]]
    + [case("TupleGetItem", [i64(3, 4, 5)], index=i) for i in (0, 2, -1)]
    + [case("MakeTuple", [("int64", 3), ("int64", -1), ("int64", 64)]), case("MakeTuple", [("int64", 3)])]
    + [
        case(op, [("int64", a), ("int64", b)])
        for op in ["ScalarAdd", "ScalarSub", "ScalarMul", "ScalarFloorDiv"]
        for a, b in [(7, 2), (-7, 2), (7, -2), (3, 5), (8, -1)]
    ]
)


def refused(op, error, *inputs, **attrs):
    return {"op": op, "inputs": list(inputs), "attrs": attrs, "error": f"{op}: {error}"}


REFUSED = [
    refused(
        "Reshape",
        r"shape \(5, 5\) must hold the 24 elements of x.shape \(4, 6\), it holds 25",
        ("float32", (4, 6)),
        i64(5, 5),
    ),
    refused("Reshape", "shape may hold -1 once", ("float32", (4, 6)), i64(-1, -1)),
    refused("Reshape", r"x.shape \(4, 6\) does not divide into shape", ("float32", (4, 6)), i64(-1, 5)),
    refused("Reshape", r"shape\[1\] must be at least 0, or -1 for what is left, got -2", ("float32", (6,)), i64(3, -2)),
    refused(
        "Reshape",
        r"shape\[0\] must be at least 0, or -1 for .*, got -9223372036854775808",
        ("float32", (6,)),
        i64(-(2**63), -1),
    ),
    refused("Reshape", "shape must be int64 or int32, got float32", ("float32", (4,)), ("float32", (1,))),
    refused("Flatten", r"x must have at least 1 dimension, got shape \(\)", ("float32", 1.0)),
    refused("FlattenExt", r"start_dim must be in \[-2, 2\), got 2", ("float32", (4, 5)), start_dim=2),
    refused(
        "FlattenExt", "start_dim must not come after end_dim, got 1 and 0", ("float32", (4, 5)), start_dim=1, end_dim=0
    ),
    refused(
        "Slice",
        "begin and size must have an entry for each of x's 2 dimensions, got 1 and 1",
        ("float32", (4, 5)),
        i64(0),
        i64(1),
    ),
    refused(
        "Slice",
        r"begin\[1\] \+ size\[1\] must be within dimension 1 of size 5, got 3 and 3",
        ("float32", (4, 5)),
        i64(0, 3),
        i64(4, 3),
    ),
    refused(
        "Slice",
        r"begin\[0\] must be at least 0 and size\[0\] at least -1, got -1 and 1",
        ("float32", (4,)),
        i64(-1),
        i64(1),
    ),
    refused("Triu", r"x must have at least 2 dimensions, got shape \(4,\)", ("float32", (4,))),
    refused("ExpandDims", r"axis must be in \[-2, 2\), got 2", ("float32", (4,)), axis=2),
    refused("Squeeze", "dimension 0 must be 1, got 4", ("float32", (4, 1)), axis=[0]),
    refused("Transpose", "perm must be a permutation of x's 2 dimensions", ("float32", (4, 1)), perm=[0, 0]),
    refused("Tile", "multiples must have at least x's 2 entries, got 1", ("float32", (4, 1)), i64(2)),
    refused("BroadcastTo", r"x.shape \(4,\) does not broadcast to \(2, 5\)", ("float32", (4,)), i64(2, 5)),
    refused("StridedSlice", "strides must not be 0", ("float32", (4,)), i64(0), i64(4), i64(0)),
    refused("Stack", r"x1.shape must equal x0.shape \(2, 3\), got \(2, 1\)", ("float32", (2, 3)), ("float32", (2, 1))),
    refused("Stack", r"axis must be in \[-3, 3\), got 3", *[("float32", (2, 3))] * 2, axis=3),
    refused(
        "Concat",
        r"x1.shape must equal x0.shape \(2, 3\) but for axis 0, got \(2, 4\)",
        ("float32", (2, 3)),
        ("float32", (2, 4)),
        axis=0,
    ),
    refused("Concat", "x1.dtype must equal x0.dtype float32, got float16", ("float32", (2,)), ("float16", (2,))),
    refused("Split", "dimension 0 of size 5 does not divide into 2 parts", ("float32", (5,)), output_num=2),
    refused("Unstack", "num must be dimension 1 of x, of size 2, got 3", ("float32", (5, 2)), axis=1, num=3),
    refused("Unstack", "num must be the number of outputs, or 0, got -1", ("float32", (5, 2)), num=-1),
    refused("Unstack", "num must be dimension 0 of x, of size 0, got 0", ("float32", (0, 2))),
    refused("Unstack", r"axis must be in \[0, 0\), got 0", ("float32", ())),
    refused("Gather", r"indices\[1\] is 7, outside \[0, 5\)", ("float32", (5, 2)), ("int32", [1, 7])),
    refused("Gather", r"indices\[0\] is -1, outside \[0, 5\)", ("float32", (5, 2)), ("int64", [-1])),
    refused("Gather", "indices.dtype must be one of int32, int64, got float32", ("float32", (5, 2)), ("float32", (2,))),
    refused("TupleGetItem", r"index must be in \[-2, 2\), got 2", i64(1, 2), index=2),
    refused("ScalarFloorDiv", "y must not be 0", ("int64", 1), ("int64", 0)),
    refused(
        "SplitWithSize",
        r"split_size must add up to 5, dimension 0 of x, got \(2, 2\)",
        ("float32", (5,)),
        split_size=[2, 2],
    ),
    refused(
        "SplitWithSize",
        "sizes in split_size must be at least 0, got -1",
        ("float32", (5,)),
        split_size=[-1, 6],
    ),
    refused(
        "SplitWithSize",
        r"split_size must add up to 5, dimension 0 of x, got \(9223372036854775807, 9223372036854775807, 7\)",
        ("float32", (5,)),
        split_size=[2**63 - 1, 2**63 - 1, 7],  # 5 by int64 that wraps around
    ),
    refused("SplitWithSize", "split_size must hold at least one number, got none", ("float32", (5,)), split_size=[]),
    refused("SplitWithSize", r"dim must be in \[-1, 1\), got 1", ("float32", (5,)), split_size=[5], dim=1),
]
