"""Cases of the element-wise operators; swiglu/cases.py explains the format. REFERENCE functions take
the attributes as keywords; an input given as (dtype, values) has just these values."""

import math

import numpy as np

INF, NAN = math.inf, math.nan
_erf, _erfc = (np.vectorize(f, otypes=[np.float64]) for f in (math.erf, math.erfc))


def gelu(x, approximate="tanh"):
    if approximate == "none":
        return 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0)))
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def cast(x, dtype="float32"):
    if dtype == "bool":
        return x != 0
    if "int" not in dtype or x.dtype.kind != "f":
        return x
    # Towards zero; beyond the range the nearest bound, NaN becomes 0.
    return np.clip(np.where(np.isnan(x), 0.0, np.trunc(x)), float(np.iinfo(dtype).min), float(np.iinfo(dtype).max))


REFERENCE = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Maximum": np.maximum,
    "Minimum": np.minimum,
    "Pow": np.power,
    "Less": np.less,
    "Equal": np.equal,
    "Greater": np.greater,
    "NotEqual": np.not_equal,
    "LessEqual": np.less_equal,
    "GreaterEqual": np.greater_equal,
    "LogicalAnd": np.logical_and,
    "LogicalOr": np.logical_or,
    "LogicalNot": np.logical_not,
    "IsNan": np.isnan,
    "Sqrt": np.sqrt,
    "Rsqrt": lambda x: 1.0 / np.sqrt(x),
    "Reciprocal": lambda x: 1.0 / x,
    "Exp": np.exp,
    "Log": np.log,
    "Erf": lambda x: _erf(x) if x.size else x,
    "Erfc": lambda x: _erfc(x) if x.size else x,
    "FastGeLU": lambda x: x / (1.0 + np.exp(-1.702 * x)),
    "Tanh": np.tanh,
    "Sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "SiLU": lambda x: x / (1.0 + np.exp(-x)),
    "ReLU": lambda x: np.maximum(x, 0),
    "ReLU6": lambda x: np.clip(x, 0, 6),
    "HSigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "HSwish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "Round": np.rint,
    "ClampScalar": lambda x, min=-INF, max=INF: np.minimum(np.maximum(x, min), max),
    "Neg": np.negative,
    "Abs": lambda x: np.abs(x),
    "Cos": np.cos,
    "Sin": np.sin,
    "Square": np.square,
    "GeLU": lambda x, **attrs: gelu(x, **attrs) if x.size else x,
    "Select": lambda cond, x, y: np.where(cond, x, y),
    "Cast": cast,
}

ARITHMETIC = ["Add", "Sub", "Mul", "Maximum", "Minimum"]
COMPARISONS = ["Less", "Equal", "Greater", "NotEqual", "LessEqual", "GreaterEqual"]
SPECIAL = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, INF, -INF, NAN, 1e-40, 3e38, -3e38, 1e-30, 200.0]
POSITIVE = {"Sqrt", "Rsqrt", "Log"}
FUNCTIONS = [
    "Sqrt",
    "Rsqrt",
    "Reciprocal",
    "Exp",
    "Log",
    "Erf",
    "Erfc",
    "FastGeLU",
    "Tanh",
    "Sigmoid",
    "SiLU",
    "ReLU",
    "ReLU6",
    "HSigmoid",
    "HSwish",
    "Round",
    "Neg",
    "Square",
    "GeLU",
    "Abs",
    "Cos",
    "Sin",
]
# Correctly rounded operations: one rounding. Half types round to float32 first, which is the 1 %.
TOLERANCE = {"float32": 2.0**-24, "float16": 1.01 * 2.0**-11, "bfloat16": 1.01 * 2.0**-8, "int32": 0, "int64": 0}
# Half of float16's smallest step; the smallest normal number of the others, below which exp gives 0.
SMALLEST = {"float32": 2.0**-126, "float16": 2.0**-24, "bfloat16": 2.0**-126, "int32": 0, "int64": 0}
# Roundings to float32, the twin's included: 1/sqrt makes two; exp is good to 2 ulp, log to 1, erf to 3.5e-7, tanh to
# 3e-7, cos and sin to 3 ulp; Sigmoid and SiLU add a sum and a quotient, GeLU and FastGeLU a product more; HSwish has a
# sum, 1/6 and two products. Erfc: 2 from
# the formula's 1.2e-7, 4 from each exp, 5 from a polynomial whose terms add up to 2.5, 3 from t and the products, and
# the twin's.
ROUNDINGS = {
    "Sqrt": 2,
    "Rsqrt": 3,
    "Reciprocal": 2,
    "Exp": 5,
    "Log": 3,
    "Erf": 7,
    "Erfc": 20,
    "FastGeLU": 8,
    "Tanh": 6,
    "Sigmoid": 7,
    "SiLU": 7,
    "HSigmoid": 4,
    "HSwish": 5,
    "Square": 2,
    "GeLU": 8,
    "Cos": 7,
    "Sin": 7,
}


def rtol(op, dtype):
    """Kernel and twin both round to the storage type."""
    return ROUNDINGS.get(op, 0) * 2.0**-24 + (0 if dtype == "float32" else 2 * TOLERANCE[dtype])


def gelu_bound(u, x, approximate="tanh"):
    """gelu/cases.py derives it."""
    return (2.1e-7 if approximate == "none" else 2.0**-24) * np.abs(x)


def fast_gelu_bound(u, x):
    """1.702 and its product with x are rounded, 2^-23 |1.702 x| in the exponent; at both ends as SiLU below."""
    with np.errstate(all="ignore"):
        y = np.abs(x / (1.0 + np.exp(-1.702 * x)))
        return 2.0**-120 + np.nan_to_num(np.where(x < 0, y * np.abs(1.702 * x), y) * 2.0**-23, posinf=0)


# Below x = -87.33 the logistic function is not normal and off by up to 2^-127, times 88.
BOUND = {
    "GeLU": gelu_bound,
    "SiLU": lambda u, x: np.full_like(x, 2.0**-120),
    "FastGeLU": fast_gelu_bound,
}
FLOATS = ["float32", "float16", "bfloat16"]
# Same shape, scalar, vector along the last dimension, a number per row, both sides, several
# dimensions, many short rows, nothing, 0-d.
PAIRS = [
    ((33,), (33,)),
    ((64, 37), (64, 37)),
    ((5, 19), ()),
    ((1,), (7, 3)),
    ((6, 70), (70,)),
    ((6, 70), (6, 1)),
    ((5, 1), (1, 9)),
    ((2, 3, 1, 5), (3, 4, 1)),
    ((700, 3), (3,)),
    ((3,), (700, 3)),
    ((300, 1), (300, 7)),
    ((300, 20, 20), (20, 1)),
    ((9, 40, 1, 5), (40, 6, 1)),
    ((0, 5), (5,)),
    ((), ()),
]
SHAPES = [(64,), (3, 7), (1,), (0, 5), (), (2, 3, 17), (5, 2053), (2, 1, 2, 3, 1, 9)]


def case(op, inputs, attrs=None, rtol=0.0, atol=0.0):
    return {"op": op, "inputs": inputs, "attrs": attrs or {}, "rtol": rtol, "atol": atol}


def drawn(dtype, shape):
    return (dtype, shape, (-50, 50)) if dtype.startswith("int") else (dtype, shape)


CASES = (
    [
        case(op, [drawn(t, a), drawn(t, b)], rtol=TOLERANCE[t], atol=SMALLEST[t])
        for op in ARITHMETIC
        for t in TOLERANCE
        for a, b in PAIRS
    ]
    + [case("Div", [(t, a), (t, b, (0.5, 2.0))], rtol=TOLERANCE[t], atol=SMALLEST[t]) for t in FLOATS for a, b in PAIRS]
    # Within 1 ulp, two roundings, of the twin, which is, too.
    + [case("Pow", [(t, a, (0.5, 2.0)), (t, b)], rtol=4 * TOLERANCE[t]) for t in FLOATS for a, b in PAIRS]
    + [case("Pow", [("float32", (3, 21)), ("float32", [2.0])], rtol=TOLERANCE["float32"])]
    + [
        case("Pow", [("float32", (2000,), x), ("float32", (2000,), y)], rtol=4 * 2.0**-24, atol=2.0**-149)
        for x, y in [((0.0, 2.0), (-60.0, 60.0)), ((0.99, 1.01), (-9e3, 9e3)), ((1e30, 3e38), (-1.2, 1.2))]
    ]
    # All pairs of special values; a negative base with a whole, a broken, an odd exponent; the ends of the range.
    + [case("Pow", [("float32", [[v] for v in SPECIAL]), ("float32", SPECIAL)], rtol=4 * 2.0**-24, atol=2.0**-149)]
    + [
        case(op, [(t, a, (-3, 3)), (t, b, (-3, 3))])
        for op in COMPARISONS
        for t in ["int32", "int64", *FLOATS]
        for a, b in PAIRS
    ]
    + [
        case(op, [("bool", [True, False, True, False]), ("bool", [True, True, False, False])])
        for op in ["Equal", "NotEqual"]
    ]
    + [
        case(op, [("bool", a), ("bool", b)])
        for op in ["LogicalAnd", "LogicalOr"]
        for a, b in [*PAIRS, ((5, 2053), (5, 2053)), ((5, 2053), (2053,))]
    ]
    + [case("LogicalNot", [("bool", s)]) for s in SHAPES]
    + [
        case(op, [("float32", (40,), "special"), ("float32", [1.0])], rtol=TOLERANCE["float32"])
        for op in [*ARITHMETIC, *COMPARISONS, "Div"]
    ]
    + [
        case(op, [("float32", [1.0, NAN, INF, NAN, -INF]), ("float32", [NAN, 1.0, 0.0, NAN, 2.0])])
        for op in [*ARITHMETIC, *COMPARISONS]
    ]
    + [
        case(op, [(t, s, (0.1, 30.0)) if op in POSITIVE else (t, s)], rtol=rtol(op, t), atol=SMALLEST[t])
        for op in FUNCTIONS
        for t in FLOATS
        for s in SHAPES
    ]
    + [
        case(op, [(t, s, (-50, 50))])
        for op in ["ReLU", "Neg", "Square", "Abs"]
        for t in ["int32", "int64"]
        for s in SHAPES
    ]
    + [case("GeLU", [(t, s)], {"approximate": "none"}, rtol("GeLU", t), SMALLEST[t]) for t in FLOATS for s in SHAPES]
    + [case(op, [("float32", (40,), "special")], rtol=rtol(op, "float32"), atol=2.0**-126) for op in FUNCTIONS]
    # Far into both tails and close to zero, where a formula shows its weakness.
    + [
        case(op, [("float32", (1000,), (-w, w))], rtol=rtol(op, "float32"), atol=2.0**-126)
        for op in FUNCTIONS
        if op not in POSITIVE
        for w in (100.0, 12.0, 1e-3)
    ]
    # Positions times frequencies: near to where Highway's reduction ends, and beyond.
    + [
        case(op, [("float32", (2000,), (-w, w))], rtol=rtol(op, "float32"), atol=2.0**-126)
        for op in ("Cos", "Sin")
        for w in (3e4, 1e5, 1e9, 3e38)
    ]
    # Around 1, where a logarithm is close to 0, and over all exponents.
    + [
        case("Log", [("float32", (3000,), r)], rtol=rtol("Log", "float32"))
        for r in ((0.9, 1.1), (0.5, 2.0), (1e-37, 1e-35), (1e30, 3e38))
    ]
    + [case("Log", [(t, [1.0, 0.0, -0.0, -1.0, INF, -INF, NAN, 1e-3, 6e4] * 5)], rtol=rtol("Log", t)) for t in FLOATS]
    + [case("Abs", [(t, [-(2**31), 2**31 - 1, 0, -1])]) for t in ("int32", "int64")]
    + [case("Round", [(t, [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.25, 1023.5, -7.0, NAN, INF, -INF])]) for t in FLOATS]
    + [case("Round", [("float32", [8388607.5, -8388607.5, 8388609.0, 3e38, 0.49999997, -0.0])])]
    + [
        case("ClampScalar", [(t, s, (-9, 9))], limits)
        for t in TOLERANCE
        for s in SHAPES
        for limits in ({"min": -2.0, "max": 3.0}, {"min": 1.0}, {"max": -1.0}, {"min": 2.0, "max": -2.0}, {})
    ]
    # A limit that the type does not hold is rounded to it, as a number beside a tensor is.
    + [case("ClampScalar", [(t, (3, 17))], {"min": -0.3, "max": 0.7}, rtol=TOLERANCE[t]) for t in FLOATS]
    + [case("ClampScalar", [("float32", (40,), "special")], {"min": -1.5, "max": 2.0})]
    + [case("ClampScalar", [("int64", [2**53 - 1, -(2**53), 5, -5])], {"min": -4.0, "max": 1e300})]
    + [case("ClampScalar", [("int32", [2**31 - 1, -(2**31), 5, -5])], {"min": -1e10, "max": 4.0})]
    + [case("IsNan", [(t, s)]) for t in FLOATS for s in SHAPES]
    + [case("IsNan", [(t, [NAN, 1.0, INF, -INF, -NAN, 0.0, 6e4, 1e-40] * 9)]) for t in FLOATS]
    + [case("Select", [("bool", [[True], [False], [True]]), (t, (3, 17)), (t, (17,))]) for t in [*FLOATS, "int64"]]
    + [case("Select", [("bool", [True, False] * 20), ("float32", (40,)), ("float32", [-INF])])]
    + [case("Select", [("bool", True), ("int32", (2, 3), (-9, 9)), ("int32", (3,), (-9, 9))])]
    + [
        case("Cast", [(t, (3, 23), (-50, 50))], {"dtype": u}, TOLERANCE.get(u, 0), SMALLEST.get(u, 0))
        for t in [*FLOATS, "int8", "int32", "int64"]
        for u in [*FLOATS, "int8", "int32", "int64", "bool"]
    ]
    + [
        case("Cast", [("uint8", (3, 23), (0, 256))], {"dtype": u}, TOLERANCE.get(u, 0), SMALLEST.get(u, 0))
        for u in [*FLOATS, "uint8", "int32", "int64", "bool"]
    ]
    + [case("Cast", [(t, (3, 23), (0, 120))], {"dtype": "uint8"}) for t in [*FLOATS, "int8", "int32", "int64"]]
    + [
        case("Cast", [(t, [-3e38, -0.5, -1.0, 0.5, 254.0, 255.0, 256.0, 3e38, NAN, INF, -INF])], {"dtype": "uint8"})
        for t in ["float32", "bfloat16"]
    ]
    + [case("Cast", [("bool", [True, False, True])], {"dtype": u}) for u in ["float32", "float16", "int64", "bool"]]
    + [case("Cast", [("float32", [INF, -INF, NAN, 0.0])], {"dtype": u}) for u in ["float16", "bfloat16"]]
    + [case("Cast", [("float32", (0, 3))], {"dtype": "int32"})]
    + [
        case(
            "Cast", [(t, [3e38, -3e38, NAN, -0.5, 2147483520.0, -2147483648.0, INF, -INF, 5.9, -5.9] * 4)], {"dtype": u}
        )
        for t in ["float32", "bfloat16"]
        for u in ["int8", "int32", "int64"]
    ]
    + [case("Select", [("bool", [True, False] * 20), (t, (40,)), (t, (3, 1))]) for t in ["int8", "float16", "int64"]]
    + [case("Select", [("bool", [[True], [False]]), ("int8", (1,)), ("int8", (2, 37))])]
)

REFUSED = [
    {
        "op": "Add",
        "inputs": [("float32", (4, 8)), ("float32", (4, 7))],
        "error": r"Add: shapes \(4, 8\) and \(4, 7\) do not broadcast",
    },
    {
        "op": "Mul",
        "inputs": [("float32", (4,)), ("float16", (4,))],
        "error": "Mul: y.dtype must equal x.dtype float32, got float16",
    },
    {
        "op": "Div",
        "inputs": [("int32", (4,)), ("int32", (4,))],
        "error": "Div: x.dtype must be one of float32, float16, bfloat16, got int32",
    },
    {
        "op": "LessEqual",
        "inputs": [("bool", [True]), ("bool", [True])],
        "error": "LessEqual: x.dtype must be one of float32, float16, bfloat16, int32, int64, got bool",
    },
    {
        "op": "LogicalAnd",
        "inputs": [("int32", (4,)), ("int32", (4,))],
        "error": "LogicalAnd: x.dtype must be one of bool, got int32",
    },
    {
        "op": "LogicalOr",
        "inputs": [("bool", [True, False]), ("bool", [True, False, True])],
        "error": r"LogicalOr: shapes \(2,\) and \(3,\) do not broadcast",
    },
    {
        "op": "LogicalNot",
        "inputs": [("float32", (4,))],
        "error": "LogicalNot: x.dtype must be one of bool, got float32",
    },
    {
        "op": "IsNan",
        "inputs": [("int32", (4,))],
        "error": "IsNan: x.dtype must be one of float32, float16, bfloat16, got int32",
    },
    {
        "op": "Exp",
        "inputs": [("int32", (4,))],
        "error": "Exp: x.dtype must be one of float32, float16, bfloat16, got int32",
    },
    {
        "op": "GeLU",
        "inputs": [("float32", (4,))],
        "attrs": {"approximate": "fast"},
        "error": "GeLU: approximate must be 'tanh' or 'none', got 'fast'",
    },
    {
        "op": "Round",
        "inputs": [("float32", (4,))],
        "attrs": {"decimals": 2},
        "error": "Round: decimals must be 0, got 2",
    },
    {
        "op": "ClampScalar",
        "inputs": [("int32", (4,))],
        "attrs": {"min": 0.5},
        "error": "ClampScalar: min must be a whole number for int32, got 0.5",
    },
    {
        "op": "ClampScalar",
        "inputs": [("float32", (4,))],
        "attrs": {"max": NAN},
        "error": "ClampScalar: max must be a number, got nan",
    },
    {
        "op": "Select",
        "inputs": [("float32", (4,)), ("float32", (4,)), ("float32", (4,))],
        "error": "Select: cond.dtype must be one of bool, got float32",
    },
    {
        "op": "Cast",
        "inputs": [("float32", (4,))],
        "attrs": {"dtype": "int3"},
        "error": "Cast: dtype must be one of .*, got 'int3'",
    },
]
