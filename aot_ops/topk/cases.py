"""Cases of TopK; the format is that of swiglu/cases.py."""

import numpy as np


def top(x, k=1, sorted=True):  # noqa: A002
    """NaN first, then falling; of equals the first one."""
    if x.dtype.kind == "f":
        order = np.lexsort((-x, ~np.isnan(x)), axis=-1)  # the last key comes first
    else:
        order = np.argsort(~x, axis=-1, kind="stable")  # -x - 1, which the least integer has, too
    order = order[..., :k]
    return np.take_along_axis(x, order, -1), order.astype(np.int32)


REFERENCE = {"TopK": top}


def case(x, k, **attrs):
    return {"op": "TopK", "inputs": [x], "attrs": {"k": k, **attrs}, "rtol": 0.0, "atol": 0.0}


FLOATS = ["float32", "float16", "bfloat16"]
# Few of a row and many, one and all, none; rows that are many, long, empty.
SIZES = [((50,), 5), ((3, 7), 1), ((3, 7), 7), ((2, 3, 100), 40), ((4, 100), 100), ((700, 9), 3), ((2, 20001), 10),
         ((2, 20001), 500), ((0, 5), 2), ((4, 5), 0), ((3, 0), 0), ((1,), 1), ((2, 40), 32), ((2, 40), 33)]  # fmt: skip
CASES = (
    [case((t, s), k) for t in FLOATS for s, k in SIZES]
    + [case((t, (5, 60), (-9, 9)), k) for t in ("int32", "int64") for k in (1, 4, 50)]  # equals: the first
    + [case(("float32", (7, 40), "special"), k) for k in (1, 5, 38)]
    # Many of a long row: equals among those kept and those met later, and what is no number.
    + [case(("int32", (3, 5000), (-9, 9)), k) for k in (30, 300)]
    + [case(("float32", (2, 5000), "special"), 300), case(("float16", (2, 5000), (0.0, 0.1)), 400)]
    + [case(("float32", [[np.nan, 1.0, np.inf, np.nan, -np.inf] * 9]), k) for k in (1, 3, 20, 45)]
    + [case(("int64", [-(2**63), 2**63 - 1, 0, 2**62 + 1, 2**62]), 4), case(("float32", (3, 9)), 4, sorted=False)]
)


def refused(error, x=("float32", (2, 4)), **attrs):
    return {"op": "TopK", "inputs": [x], "attrs": attrs, "error": f"TopK: {error}"}


REFUSED = [
    refused("k must be at most x's last dimension 4, got 5", k=5),
    refused("k must be at least 0, got -1", k=-1),
    refused(r"x must have at least 1 dimension, got shape \(\)", ("float32", ())),
    refused("x.dtype must be one of float32, float16, bfloat16, int32, int64, got int8", ("int8", (4,))),
]
