"""Registration information of a Custom: CustomRegOp and DataType, as in MindSpore."""

import json

import numpy as np

from .dtype import name as dtype_name


class DataType:
    """MindSpore's (dtype, format) pairs: DataType.F32_Default, DataType.None_None, …"""


_DTYPES = {"None": "", "BOOL": "bool", "BF16": "bfloat16", "C64": "complex64"}
_DTYPES |= {f"{k}{bits}": f"{name}{bits}" for k, name in (("I", "int"), ("U", "uint")) for bits in (8, 16, 32, 64)}
_DTYPES |= {f"F{bits}": f"float{bits}" for bits in (16, 32, 64)}
for _short, _long in _DTYPES.items():
    for _format in ("None", "Default", "ND", "NCHW", "NHWC", "HWCN", "NCDHW", "NDHWC", "5HD", "FracZ", "FracNZ"):
        setattr(
            DataType,
            f"{_short}_{_format}",
            (_long, {"None": "", "Default": "DefaultFormat"}.get(_format, _format)),
        )

# What an attribute's value_type takes.
_VALUES = {
    "int": lambda v: isinstance(v, (int, np.integer)) and not isinstance(v, bool),
    "float": lambda v: isinstance(v, (int, float, np.number)) and not isinstance(v, bool),
    "bool": lambda v: isinstance(v, (bool, np.bool_)),
    "str": lambda v: isinstance(v, str),
    "listInt": lambda v: isinstance(v, (list, tuple)) and all(isinstance(x, (int, np.integer)) for x in v),
    "listFloat": lambda v: isinstance(v, (list, tuple)) and all(isinstance(x, (int, float, np.number)) for x in v),
    "listBool": lambda v: isinstance(v, (list, tuple)) and all(isinstance(x, (bool, np.bool_)) for x in v),
    "listStr": lambda v: isinstance(v, (list, tuple)) and all(isinstance(x, str) for x in v),
    "all": lambda v: True,
}


def _is(value, kind, what):
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"CustomRegOp: {what} must be {kind.__name__}, got {type(value).__name__}")


class CustomRegOp:
    """Registration information, built call by call:
    `CustomRegOp().input(0, "x").output(0, "y").attr("scale", value=2.5).dtype_format(DataType.F32_Default, DataType.F32_Default).target("CPU").get_op_info()`.
    """  # noqa: E501

    def __init__(self, op_name="Custom"):
        _is(op_name, str, "op_name")
        self.info = {"op_name": op_name, "inputs": [], "outputs": [], "attr": [], "dtype_format": [], "target": "CPU"}

    def _tensor(self, kind, index, name, param_type, more):
        _is(index, int, f"{kind} index")
        _is(name, str, f"{kind} name")
        if param_type not in ("required", "optional", "dynamic"):
            raise ValueError(
                f"CustomRegOp: {kind} param_type must be 'required', 'optional' or 'dynamic', got {param_type!r}"
            )
        rows = self.info[f"{kind}s"]
        index = len(rows) if index is None else index
        if index != len(rows):
            raise ValueError(f"CustomRegOp: {kind} index must be {len(rows)}, got {index}")
        rows.append({"index": index, "name": name or f"{kind}{index}", "param_type": param_type, **more})
        return self

    def input(self, index=None, name=None, param_type="required", **kwargs):
        return self._tensor("input", index, name, param_type, kwargs)

    def output(self, index=None, name=None, param_type="required", **kwargs):
        return self._tensor("output", index, name, param_type, kwargs)

    def attr(self, name=None, param_type="required", value_type="all", default_value=None, value=None, **kwargs):
        """An attribute: with a value it is fixed; without, it comes from the call's trailing arguments."""
        _is(name, str, "attr name")
        if not name:
            raise ValueError("CustomRegOp: attr name must be given")
        if param_type not in ("required", "optional"):
            raise ValueError(f"CustomRegOp: attr param_type must be 'required' or 'optional', got {param_type!r}")
        if value_type not in _VALUES:
            raise ValueError(
                f"CustomRegOp: attr value_type must be one of {', '.join(map(repr, _VALUES))}, got {value_type!r}"
            )
        row = {"name": name, "param_type": param_type, "type": value_type, "default_value": default_value}
        self.info["attr"].append({**row, "value": value, **kwargs})
        check_value(name, self.info["attr"][-1], value if value is not None else default_value)
        return self

    def dtype_format(self, *args):
        """One (dtype, format) pair for every input, then for every output."""
        want = len(self.info["inputs"]) + len(self.info["outputs"])
        if len(args) != want:
            raise ValueError(
                f"CustomRegOp: dtype_format must have one entry per input and output, {want}, got {len(args)}"
            )
        self.info["dtype_format"].append(tuple(tuple(a) for a in args))
        return self

    def target(self, target=None):
        if target not in (None, "CPU"):
            raise ValueError(f"CustomRegOp: target must be 'CPU', got {target!r}")
        return self

    def get_op_info(self):
        return self.info


def check_value(name, attr, value):
    kind = attr.get("type", "all")
    if value is not None and not _VALUES.get(kind, _VALUES["all"])(value):
        raise TypeError(f"attribute {name} must be of type {kind}, got {value!r}")


def op_info(reg_info) -> dict:
    """The dictionary behind a Custom's reg_info: a CustomRegOp, its get_op_info(), JSON text, or a list of these."""
    if reg_info is None:
        return {}
    if isinstance(reg_info, CustomRegOp):
        return reg_info.get_op_info()
    if isinstance(reg_info, str):
        try:
            reg_info = json.loads(reg_info)
        except ValueError as e:
            raise ValueError(f"Custom: reg_info must be JSON where it is a str: {e}") from None
    if isinstance(reg_info, (list, tuple)):
        for_cpu = [op_info(r) for r in reg_info]
        for_cpu = [r for r in for_cpu if r.get("target", "CPU") == "CPU"]
        if not for_cpu:
            raise ValueError("Custom: reg_info must have an entry for target 'CPU'")
        return for_cpu[0]
    if not isinstance(reg_info, dict):
        raise TypeError(f"Custom: reg_info must be a CustomRegOp, dict or str, got {type(reg_info).__name__}")
    return reg_info


def check_inputs(op, info, dtypes):
    """Number and dtypes of inputs against the registration; ValueError or TypeError."""
    rows = info.get("inputs", [])
    names = [r["name"] for r in rows]
    least = sum(r.get("param_type", "required") == "required" for r in rows)
    if rows and not any(r.get("param_type") == "dynamic" for r in rows) and not least <= len(dtypes) <= len(rows):
        raise ValueError(f"{op}: takes {len(rows)} inputs as reg_info has them ({', '.join(names)}), got {len(dtypes)}")
    formats = info.get("dtype_format", [])
    if not rows or not formats or len(dtypes) != len(rows):
        return
    got = [dtype_name(d) for d in dtypes]
    wanted = [[pair[0] for pair in row[: len(rows)]] for row in formats]
    if not any(all(w in ("", g) for w, g in zip(row, got)) for row in wanted):
        show = " or ".join("(" + ", ".join(f"{n} {w or 'any'}" for n, w in zip(names, row)) + ")" for row in wanted)
        raise TypeError(f"{op}: input dtypes must be {show} as reg_info has them, got ({', '.join(got)})")
