"""Cases of FakeQuantize; the format is that of swiglu/cases.py."""

import numpy as np


def fake_quantize(x, scale, zero=0.0, inverse=None, quant_min=-128.0, quant_max=127.0, round_first=True):
    zero = zero if np.size(zero) else 0.0
    scaled = x / scale if inverse is None or not inverse.size else x * inverse
    v = np.rint(scaled) + zero if round_first else np.rint(scaled + zero)
    return (np.clip(v, quant_min, quant_max) - zero) * scale


def fake_quantize_bound(u, x, scale, zero=0.0, inverse=None, quant_min=-128.0, quant_max=127.0, round_first=True):
    """What is rounded to a whole number is off by a rounding or two: a code more or less where that decides a half's
    side. Then two sums and a product."""
    zero = zero if np.size(zero) else 0.0
    scaled = x / scale if inverse is None or not inverse.size else x * inverse
    t = scaled if round_first else scaled + zero
    near = np.abs(t - np.floor(t) - 0.5) <= 2 * 2.0**-24 * (np.abs(scaled) + np.abs(zero))
    code = np.clip(np.abs(scaled) + np.abs(zero), 0, max(abs(quant_min), abs(quant_max))) + np.abs(zero)
    return np.nan_to_num((near + 3 * 2.0**-24 * code) * np.abs(scale))


REFERENCE = {"FakeQuantize": fake_quantize}
BOUND = {"FakeQuantize": fake_quantize_bound}
TOLERANCE = {"float32": 2.02 * 2.0**-24, "float16": 2.02 * 2.0**-11, "bfloat16": 2.02 * 2.0**-8}
SMALLEST = 2.0**-24
CHANNELS = [((64,), (1,)), ((6, 33), (33,)), ((3, 33), (1, 33)), ((5, 7, 9), (7, 1)), ((4, 70), (4, 1)), ((2, 3), ()),
            ((), ()), ((0, 5), (5,)), ((5, 0), (5, 1)), ((2, 0), (1, 0)), ((1, 1000), (1000,))]  # fmt: skip


def fake_case(dtype, of, shape, zero=True, inverse=False, scale="float32", **attrs):
    more = [(scale, shape if zero else (0,), (-9, 9))] if zero or inverse else []
    more += [(scale, shape, (0.5, 3.0))] if inverse else []
    return {
        "op": "FakeQuantize",
        "inputs": [(dtype, of, (-60, 60)), (scale, shape, (0.1, 2.0)), *more],
        "attrs": attrs,
        "rtol": TOLERANCE[dtype],
        "atol": SMALLEST,
    }


CASES = (
    [fake_case(t, x, s, zero, inverse, round_first=f) for t in TOLERANCE for x, s in CHANNELS for zero in (False, True)
     for inverse in (False, True) for f in (False, True)]
    + [fake_case(t, x, s, scale=d, quant_min=least, quant_max=most) for t in TOLERANCE for x, s in CHANNELS
       for d, least, most in (("float16", 0.0, 15.0), (t, -np.inf, np.inf), ("float32", -127.0, 127.0))]
    # Halves go to the even neighbour, before an odd zero point or after it; NaN stays, what is beyond is cut.
    + [{"op": "FakeQuantize", "inputs": [("float32", [-300.0, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 126.5, 300.0, np.nan,
                                                      np.inf, -np.inf]),
                                         ("float32", [2.0 if d else 0.5]), ("float32", [3.0]),
                                         *([] if d else [("float32", [2.0])])],
        "attrs": {"round_first": f}, "rtol": 0.0, "atol": 0.0} for d in (False, True) for f in (False, True)]
)  # fmt: skip


def refused(error, *inputs, **attrs):
    return {"op": "FakeQuantize", "inputs": list(inputs), "attrs": attrs, "error": error}


A, X, S = ("int8", (4, 8)), ("float32", (4, 8)), ("float32", (3,))
REFUSED = [
    refused("FakeQuantize: x.dtype must be one of float32, float16, bfloat16, got int8", A, S),
    refused("FakeQuantize: quant_min must be at most quant_max of -1.0+, got 0", X, ("float32", (8,)),
            quant_min=0.0, quant_max=-1.0),
    refused(r"FakeQuantize: zero_point must have the axis of scale, got shapes \(4, 1\) and \(8,\)", X,
            ("float32", (8,)), ("float32", (4, 1))),
    refused(r"FakeQuantize: inverse.shape must be x.shape \(4, 8\) with all dimensions but one as 1, got \(3,\)", X,
            ("float32", (8,)), ("float32", (0,)), S),
]  # fmt: skip
