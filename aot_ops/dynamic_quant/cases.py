"""Cases of DynamicQuantExt; the format is that of swiglu/cases.py."""

import numpy as np

TINY = 127 / 3.4e38  # 127 over less overflows float32: such rows have codes 0


def spelled_quant(x, levels=127.0, inverse_levels=None, least_max=0.0, least_scale=0.0, quant_min=-128, quant_max=127,
                  **_):  # fmt: skip
    """x / scale, the scale, and the codes."""
    largest = np.maximum(np.abs(x).max(-1, initial=0.0, keepdims=True), least_max)
    scale = np.maximum(largest * inverse_levels if inverse_levels is not None else largest / levels, least_scale)
    with np.errstate(divide="ignore", invalid="ignore"):
        v = x / scale
    return v, scale, np.rint(np.where(np.isnan(v), 0.0, np.clip(v, quant_min, quant_max)))


def dynamic_quant(x, smooth=1.0, divide=False, keep_dims=False, **spelled):
    x = x * smooth
    if divide:
        _, scale, codes = spelled_quant(x, **spelled)
        return [codes, scale if keep_dims else scale[..., 0]]
    largest = np.abs(x).max(-1, initial=0.0)  # NaN where one is
    largest = np.where(np.isfinite(largest), largest, np.nan)
    y = np.divide(127 * x, largest[..., None], out=np.zeros(x.shape), where=largest[..., None] > TINY)
    scale = largest / 127
    return [np.rint(np.where(np.isfinite(y), y, 0.0)), scale[..., None] if keep_dims else scale]


def dynamic_quant_bound(u, x, smooth=1.0, divide=False, keep_dims=False, **spelled):
    """x smooth rounds, 127 over the largest of them, and the product: of at most 127. The scale rounds twice. As
    spelled: x smooth, the largest of them, the scale, the quotient; where no step rounds there are none."""
    x = np.where(np.isfinite(x * smooth), x * smooth, 0.0)
    if divide:
        y, scale, _ = spelled_quant(x, **spelled)
        exact = np.all([v == np.float32(v) for v in np.broadcast_arrays(x, scale, y)], axis=0)
        near = (np.abs(y - np.floor(y) - 0.5) <= 4 * 2.0**-24 * np.abs(y)) & ~exact
        error = 3 * 2.0**-24 * scale
        return [np.where(near, 1.0, 0.0), error if keep_dims else error[..., 0]]
    largest = np.abs(x).max(-1, initial=0.0)
    y = np.divide(127 * x, largest[..., None], out=np.zeros(x.shape), where=largest[..., None] > TINY)
    near = np.abs(y - np.floor(y) - 0.5) <= 4 * 2.0**-24 * np.abs(y)
    error = 3 * 2.0**-24 * largest / 127
    return [np.where(near, 1.0, 0.0), error[..., None] if keep_dims else error]


REFERENCE = {"DynamicQuantExt": dynamic_quant}
BOUND = {"DynamicQuantExt": dynamic_quant_bound}
TYPES = ("float32", "float16", "bfloat16")
CASES = [
    {"op": "DynamicQuantExt", "inputs": [(t, x), *([(t, x[-1:], (0.1, 3.0))] if smooth else [])], "attrs": {},
     "rtol": 0.0, "atol": 0.0} for t in TYPES for smooth in (False, True)
    for x in [(1, 64), (3, 33), (5,), (2, 3, 700), (0, 5), (5, 0), (40, 1)]
] + [
    {"op": "DynamicQuantExt", "inputs": [(t, (6, 40), "special")], "attrs": {}, "rtol": 0.0, "atol": 0.0}
    for t in TYPES
] + [
    {"op": "DynamicQuantExt", "inputs": [("float32", [[0.0] * 4, [127.0, -126.5, 2.5, 3.5], [1e-44, 0, 0, -1e-44]])],
     "attrs": {}, "rtol": 0.0, "atol": 1e-40}
]  # fmt: skip
# As models spell it: another number of levels, limits of the scale, of the codes.
CASES += [
    {"op": "DynamicQuantExt", "inputs": [(t, x), *([(t, x[-1:], (0.1, 3.0))] if smooth else [])],
     "attrs": {"divide": True, **more}, "rtol": 0.0, "atol": 0.0} for t in TYPES for smooth in (False, True)
    for x in [(1, 64), (3, 33), (5,), (2, 3, 700), (0, 5), (5, 0), (40, 1)]
    for more in ({}, {"keep_dims": True, "least_max": 1e-5, "quant_min": -127.0},
                 {"levels": 7.0, "quant_min": -8.0, "quant_max": 7.0}, {"inverse_levels": 1 / 127, "least_scale": 0.02})
] + [
    {"op": "DynamicQuantExt", "inputs": [("float32", (3, 33))], "attrs": {"keep_dims": True}, "rtol": 0.0, "atol": 0.0},
    {"op": "DynamicQuantExt", "inputs": [("float32", [[0.0] * 5, [127.0, -126.5, 2.5, 3.5, -0.5],
                                                      [np.inf, 3.0, -np.inf, 0.0, 1.0],
                                                      [1.0, np.nan, np.inf, 0.0, 2.0]])],
     "attrs": {"divide": True}, "rtol": 0.0, "atol": 0.0},
]  # fmt: skip


def refused(error, *inputs, **attrs):
    return {"op": "DynamicQuantExt", "inputs": list(inputs), "attrs": attrs, "error": error}


A, X, S = ("int8", (4, 8)), ("float32", (4, 8)), ("float32", (3,))
REFUSED = [
    refused("DynamicQuantExt: levels, inverse_levels, .* must be given with divide alone", X, levels=7.0),
    refused("DynamicQuantExt: levels must be above 0 and inverse_levels at least 0, got -1.0+ and .*nan",
            X, divide=True, levels=-1.0),
    refused("DynamicQuantExt: quant_min and quant_max must be whole numbers in order from -128 to 127, got -128.0+ and",
            X, divide=True, quant_max=128.0),
    refused("DynamicQuantExt: x.dtype must be one of float32, float16, bfloat16, got int8", A),
    refused(r"DynamicQuantExt: smooth_scales.shape must be \(8,\), got \(3,\)", X, S),
    refused("DynamicQuantExt: smooth_scales.dtype must equal x.dtype float32, got float16", X, ("float16", (8,))),
]  # fmt: skip
