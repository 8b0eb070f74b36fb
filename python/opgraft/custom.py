"""ops.Custom: an operator from a shared object, a C++ source, or the registry."""

import hashlib
import os
import pathlib
import subprocess
import tempfile

import numpy as np

from . import _core
from . import trace as _trace
from .tensor import Tensor


class DataType:
    """MindSpore's (dtype, format) pairs: DataType.F32_Default, DataType.None_None, …"""


for _short, _long in {
    "None": "", "BOOL": "bool", "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64", "U8": "uint8", "U16": "uint16",
    "U32": "uint32", "U64": "uint64", "F16": "float16", "F32": "float32", "F64": "float64", "BF16": "bfloat16", "C64": "complex64",
}.items():  # fmt: skip
    for _format in ("None", "Default", "ND", "NCHW", "NHWC"):
        setattr(
            DataType,
            f"{_short}_{_format}",
            (_long, "" if _format == "None" else "DefaultFormat" if _format == "Default" else _format),
        )


class CustomRegOp:
    """Registration information of a Custom, built call by call as in MindSpore."""

    def __init__(self, op_name="Custom"):
        self.info = {"op_name": op_name, "inputs": [], "outputs": [], "attr": [], "dtype_format": [], "target": "CPU"}

    def input(self, index=None, name=None, param_type="required", **kwargs):
        self.info["inputs"].append({"index": index, "name": name, "param_type": param_type, **kwargs})
        return self

    def output(self, index=None, name=None, param_type="required", **kwargs):
        self.info["outputs"].append({"index": index, "name": name, "param_type": param_type, **kwargs})
        return self

    def attr(self, name=None, param_type="required", value_type="all", default_value=None, value=None, **kwargs):
        self.info["attr"].append({"name": name, "param_type": param_type, "type": value_type,
                                  "default_value": default_value, "value": value, **kwargs})  # fmt: skip
        return self

    def dtype_format(self, *args):
        self.info["dtype_format"].append(args)
        return self

    def target(self, target):
        if target != "CPU":
            raise ValueError(f"CustomRegOp: target must be 'CPU', got {target!r}")
        self.info["target"] = target
        return self

    def get_op_info(self):
        return self.info


def _cache() -> pathlib.Path:
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "opgraft" / "build"


def compile_source(source) -> str:
    """Compiles a C++ source to a shared object, cached by the content of the source. Returns its path."""
    source = pathlib.Path(source)
    if not source.is_file():
        raise FileNotFoundError(f"{source}: no such file")
    compiler = os.environ.get("CXX", "g++")
    flags = ["-O3", "-std=c++17", "-shared", "-fPIC"]
    digest = hashlib.sha256(
        " ".join([compiler, *flags, str(source.resolve().parent)]).encode() + source.read_bytes()
    ).hexdigest()[:24]
    built = _cache() / f"{source.stem}-{digest}.so"
    if not built.exists():
        built.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=built.parent) as work:
            part = pathlib.Path(work) / "op.so"
            command = [compiler, *flags, "-I", str(source.resolve().parent), str(source), "-o", str(part)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr.strip()}")
            os.replace(part, built)  # whole or not at all, whoever else compiles it
    return str(built)


def _split(func):
    path, _, name = func.rpartition(":")
    return (path, name) if path and "/" not in name else (func, "")


class Custom(_core.CustomBase):
    """An operator from outside.

    func: "path.so:Op" (a file with a single op needs no ":Op"), or a C++ source. out_shape and out_dtype are
    a value, a tuple of values for several outputs, a function of the inputs' shapes or dtypes, or None: the
    operator's own inference, which also decides where it is given and the operator has one; values that
    disagree with it are an error. Calling it with NumPy arrays gives NumPy arrays, with Tensors gives Tensors.
    """

    def __init__(
        self, func, out_shape=None, out_dtype=None, func_type="aot", bprop=None, reg_info=None, reg_format="ND", **attrs
    ):
        if func_type != "aot":
            raise ValueError(f"Custom: func_type must be 'aot', got {func_type!r}")
        if not isinstance(func, str):
            raise TypeError(f"Custom: func must be a str 'path.so:Op', got {type(func).__name__}")
        path, name = _split(func)
        if pathlib.Path(path).suffix in (".cc", ".cpp", ".cxx"):
            path = compile_source(path)
        loaded = _core.load(path)
        names = [op.name for op in loaded]
        if not name and len(loaded) != 1:
            raise ValueError(f"Custom: {path} holds {', '.join(names)}: name one as '{path}:{names[0]}'")
        if name and name not in names:
            raise ValueError(f"Custom: {path} has no op {name!r}, it holds {', '.join(names)}")
        self._setup(loaded[names.index(name) if name else 0], attrs, out_shape, out_dtype, bprop, reg_info)

    def _setup(self, op, attrs, out_shape=None, out_dtype=None, bprop=None, reg_info=None):
        self.op, self.bprop, self.reg_format = op, bprop, "ND"
        self.out_shape, self.out_dtype = out_shape, out_dtype
        info = reg_info.get_op_info() if isinstance(reg_info, CustomRegOp) else reg_info or {}
        self.attrs = {a["name"]: a["value"] for a in info.get("attr", []) if a.get("value") is not None} | attrs
        # Attributes without a value come from the call's trailing arguments.
        self._trailing = [a["name"] for a in info.get("attr", []) if a.get("value") is None]
        if self._trailing or out_shape is not None or out_dtype is not None:
            return  # every call is checked, so it takes the long way
        self._bind(op, self.attrs)

    @classmethod
    def from_op(cls, spec, **attrs):
        """A registered operator: "SwiGLU", "SwiGLU@1.0.0", "SwiGLU@^1"; attrs are its attributes."""
        self = cls.__new__(cls)
        self._setup(_core.resolve(spec), attrs)
        return self

    @property
    def name(self):
        return self.op.name

    def _call_slow(self, *args, **kwargs):
        if kwargs:
            raise TypeError(
                f"{self.name}: takes no keyword arguments, got {', '.join(kwargs)}; attributes go to the constructor"
            )
        attrs = dict(self.attrs)
        if self._trailing:
            cut = len(args) - len(self._trailing)
            attrs.update(zip(self._trailing, args[cut:]))
            args = args[:cut]
        flat = []
        for i, a in enumerate(args):
            for x in a if isinstance(a, (tuple, list)) else (a,):
                if isinstance(x, (int, float, np.generic)):
                    x = np.asarray(x, dtype=np.float32 if isinstance(x, (int, float)) else None)
                if not isinstance(x, (np.ndarray, Tensor)):
                    raise TypeError(f"{self.name}: input {i} must be a Tensor or a NumPy array, got {type(x).__name__}")
                flat.append(x)
        if any(isinstance(x, Tensor) and x._array is None for x in flat):
            tracer = next(x._tracer for x in flat if isinstance(x, Tensor) and x._array is None)
            tracer = tracer or _trace.active()
            spec = f"{self.op.name}@{self.op.version}"
            outputs = [tracer.tensor(v) for v in tracer.node(self.op.name, [tracer.lift(x) for x in flat], attrs, spec)]
            return outputs[0] if len(outputs) == 1 else tuple(outputs)
        arrays = [x._array if isinstance(x, Tensor) else x for x in flat]
        out = _core.run_op(self.op, arrays, attrs)
        self._check(arrays, out)
        if any(isinstance(x, Tensor) for x in flat):
            out = [Tensor(a) for a in out]
        return out[0] if len(out) == 1 else tuple(out)

    def _check(self, arrays, out):
        from .dtype import name, to_dtype

        for what, given, got, of in [("shape", self.out_shape, [a.shape for a in out], [a.shape for a in arrays]),
                                     ("dtype", self.out_dtype, [a.dtype for a in out], [a.dtype for a in arrays])]:  # fmt: skip
            if given is None:
                continue
            value = given(*of) if callable(given) else given
            if what == "shape":
                several = bool(value) and isinstance(value[0], (tuple, list))
                want = [tuple(v) for v in value] if several else [tuple(value)]
            else:
                want = [to_dtype(v) for v in (value if isinstance(value, (tuple, list)) else [value])]
                want = want * len(got) if len(want) == 1 else want
            if want != list(got):
                show = (lambda v: [name(x) for x in v]) if what == "dtype" else list
                raise ValueError(
                    f"{self.name}: out_{what} must be what the operator infers, {show(got)}, got {show(want)}"
                )

    def __repr__(self):
        return f"Custom({self.op.spec}, {self.attrs})"
