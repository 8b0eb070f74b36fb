"""Cases of KVCacheAppend; the format is that of swiglu/cases.py. What it writes: tests/python/test_kv_cache.py."""

import numpy as np


def append(k_cache, v_cache, key, value, position_ids):
    batches, _, rows, _ = key.shape
    first = np.broadcast_to(position_ids, (batches, rows))[:, :1] if rows else np.zeros((batches, 1))
    return (first[:, 0] + rows).astype(np.int64)


REFERENCE = {"KVCacheAppend": append}


def case(batch, heads, room, rows, width, positions, dtype="float32", index="int32", value_width=None):
    value_width = width if value_width is None else value_width
    inputs = [(dtype, (batch, heads, room, width)), (dtype, (batch, heads, room, value_width)),
              (dtype, (batch, heads, rows, width)), (dtype, (batch, heads, rows, value_width)),
              (index, positions)]  # fmt: skip
    return {"op": "KVCacheAppend", "inputs": inputs, "attrs": {}, "rtol": 0.0, "atol": 0.0}


CASES = [case(1, 3, 16, 1, 64, [7], dtype, index) for dtype in ("float32", "float16", "bfloat16")
         for index in ("int32", "int64")]  # fmt: skip
CASES += [
    case(1, 3, 16, 5, 8, [11, 12, 13, 14, 15]),  # the last row is filled
    case(2, 1, 9, 2, 3, [[0, 1], [4, 5]]),  # each its own places
    case(2, 2, 9, 2, 3, [3, 4], value_width=5),
    case(1, 2, 4, 0, 8, []),
    case(0, 2, 4, 1, 8, [0]),
    case(1, 0, 4, 1, 8, [0]),
    case(1, 2, 4, 1, 0, [3]),
]


def refused(error, k_cache, v_cache, key, value, positions):
    shapes = [("float32", shape) for shape in (k_cache, v_cache, key, value)]
    return {"op": "KVCacheAppend", "inputs": [*shapes, ("int32", positions)], "error": f"KVCacheAppend: {error}"}


CACHE, NEW = (1, 2, 8, 4), (1, 2, 1, 4)
REFUSED = [
    refused(r"k_cache.shape must have 4 dimensions, got \(2, 8, 4\)", (2, 8, 4), CACHE, NEW, NEW, [0]),
    refused(r"k_cache.shape must fit key.shape \(1, 2, 1, 4\), got \(1, 3, 8, 4\)", (1, 3, 8, 4), CACHE, NEW, NEW, [0]),
    refused(r"v_cache.shape must have as many rows as k_cache.shape \(1, 2, 8, 4\), got \(1, 2, 9, 4\)",
            CACHE, (1, 2, 9, 4), NEW, NEW, [0]),
    refused(r"position_ids.shape must be \(S,\) or \(B, S\) of key.shape \(1, 2, 2, 4\), got \(1,\)",
            CACHE, CACHE, (1, 2, 2, 4), (1, 2, 2, 4), [0]),
]  # fmt: skip
