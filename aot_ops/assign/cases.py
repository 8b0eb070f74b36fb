"""Cases of Assign, AssignAdd, AssignSub and TensorMove; the format is that of swiglu/cases.py. That the variable itself
is changed: tests/python/test_assign.py."""

import numpy as np


def assign(variable, value):
    return value


def assign_add(variable, value):
    return variable + value


def assign_sub(variable, value):
    return variable - value


REFERENCE = {
    "Assign": assign,
    "AssignAdd": assign_add,
    "AssignSub": assign_sub,
    "AssignAddScalar": assign_add,
    "AssignSubScalar": assign_sub,
    "TensorMove": lambda x: x,
}
# One addition in float32, then one rounding to the storage type; float16's smallest step is 2^-24.
TOLERANCE = {"float32": 1.01 * 2.0**-24, "float16": 1.01 * 2.0**-11, "bfloat16": 1.01 * 2.0**-8}
ANY = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
       "float64", "bfloat16"]  # fmt: skip
SHAPES = [(), (1,), (0, 3), (3, 5), (2, 3, 4, 5), (40_003,)]


def case(op, dtype, shapes):
    exact = op in ("Assign", "TensorMove") or dtype.startswith("int")
    return {"op": op, "inputs": [(dtype, shape) for shape in shapes], "attrs": {},
            "rtol": 0.0 if exact else TOLERANCE[dtype], "atol": 2.0**-24 if dtype == "float16" else 0.0}  # fmt: skip


CASES = [case("Assign", dtype, [(3, 5)] * 2) for dtype in ANY]
CASES += [case("TensorMove", dtype, [(3, 5)]) for dtype in ANY]
CASES += [case(op, "float32", [shape] * n) for op, n in (("Assign", 2), ("TensorMove", 1)) for shape in SHAPES]
CASES += [case(op, dtype, [shape] * 2) for op in ("AssignAdd", "AssignSub") for shape in SHAPES
          for dtype in (*TOLERANCE, "int32", "int64")]  # fmt: skip
CASES += [case(op, dtype, [shape, ()]) for op in ("AssignAddScalar", "AssignSubScalar") for shape in SHAPES
          for dtype in (*TOLERANCE, "int32", "int64")]  # fmt: skip
SPECIAL = [np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0, 3e38]
CASES += [case(op, "float32", [[[a] for a in SPECIAL], [[a] for a in SPECIAL[::-1]]])
          for op in ("Assign", "AssignAdd", "AssignSub")]  # fmt: skip


def refused(op, error, *inputs):
    return {"op": op, "inputs": list(inputs), "error": f"{op}: {error}"}


REFUSED = [
    refused("Assign", r"value.shape must equal variable.shape \(2, 3\), got \(3,\)", ("float32", (2, 3)),
            ("float32", (3,))),
    refused("AssignSub", r"value.shape must equal variable.shape \(2,\), got \(\)", ("float32", (2,)), ("float32", ())),
    refused("AssignAddScalar", r"value.shape must be \(\), got \(1,\)", ("int32", (1,)), ("int32", (1,))),
    refused("AssignAdd", r"value.shape must equal variable.shape \(2, 3\), got \(2, 1\)",
            ("float32", (2, 3)), ("float32", (2, 1))),
    refused("AssignSub", "value.dtype must equal variable.dtype int32, got int64", ("int32", (2,)), ("int64", (2,))),
    refused("AssignAdd", "variable.dtype must be one of float32, float16, bfloat16, int32, int64, got uint8",
            ("uint8", (2,)), ("uint8", (2,))),
]  # fmt: skip
