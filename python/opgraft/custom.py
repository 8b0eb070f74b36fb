"""ops.Custom: an operator from a shared object, a C++ source, or the registry."""

import pathlib

import numpy as np

from . import _core
from . import dtype as dt
from . import trace as _trace
from .compile import SOURCES, compile_source
from .reg_info import CustomRegOp, DataType, check_inputs, check_value, op_info
from .tensor import Tensor

__all__ = ["Custom", "CustomRegOp", "DataType"]

_MOST_DIMENSIONS = 8
_MOST_VARIANTS = 64  # of one Custom, by the attributes that calls give


class _Dim:
    """A dimension of an input that a graph leaves open, as out_shape sees it: arithmetic is written down in postfix
    (registry/functions.h) and done when the shape is known."""

    __slots__ = ("text",)

    def __init__(self, text):
        self.text = text

    def _combine(self, other, op, swap=False):
        if not isinstance(other, (int, np.integer, _Dim)):
            return NotImplemented
        a, b = (_dim_text(x, "") for x in ((other, self) if swap else (self, other)))
        return _Dim(f"{a} {b} {op}")

    def _unknown(self, *_):
        raise ValueError(
            f"Custom: out_shape looks at dimension {self.text}, which is not known before the graph runs; "
            "it may only add, subtract, multiply and divide (//) it"
        )

    def __eq__(self, other):
        return True if isinstance(other, _Dim) and other.text == self.text else self._unknown()

    __hash__ = __bool__ = __lt__ = __le__ = __gt__ = __ge__ = __mod__ = __rmod__ = __int__ = __float__ = _unknown
    __index__ = _unknown


for _name, _op in {"add": "+", "sub": "-", "mul": "*", "floordiv": "/"}.items():
    setattr(_Dim, f"__{_name}__", lambda self, o, op=_op: self._combine(o, op))
    setattr(_Dim, f"__r{_name}__", lambda self, o, op=_op: self._combine(o, op, True))


def _dim_text(d, op):
    if isinstance(d, _Dim):
        return d.text
    if isinstance(d, (int, np.integer)) and not isinstance(d, bool):
        return "?" if d == -1 else str(int(d))
    raise TypeError(f"{op}: out_shape must consist of int, got {d!r}")


def _rows(value):
    """(one shape per output, whether several were written)."""
    several = len(value) > 0 and isinstance(value[0], (tuple, list))
    return (list(value) if several else [value]), several


def _split(func):
    path, _, name = func.rpartition(":")
    return (path, name) if path and "/" not in name else (func, "")


class Custom(_core.CustomBase):
    """An operator from outside.

    func: "path.so:Op" of opgraft's or MindSpore's make, or "path.cc:Op", which is compiled (optimised, once); a file
    with a single operator needs no ":Op". out_shape and out_dtype are a value, a tuple of values for several outputs,
    a function of the inputs' shapes or dtypes, or None: then the file's own inference decides. An opgraft operator's
    inference decides always; what is given must agree with it. A shape written as a tuple of one tuple gives a tuple
    of one result. reg_info (CustomRegOp) names inputs, outputs and attributes: those with a value are fixed, those
    without come from the call's trailing arguments; input dtypes are checked against its dtype_format. bprop is kept
    and not called: opgraft computes no gradients. Further keywords are attributes.

    Calling it with NumPy arrays gives NumPy arrays, with Tensors gives Tensors; in a traced graph it becomes a node.
    """

    def __init__(
        self, func, out_shape=None, out_dtype=None, func_type="aot", bprop=None, reg_info=None, reg_format="ND", **attrs
    ):
        if func_type != "aot":
            raise ValueError(f"Custom: func_type must be 'aot', got {func_type!r}")
        if not isinstance(func, str):
            raise TypeError(f"Custom: func must be a str 'path.so:Op', got {type(func).__name__}")
        if bprop is not None and not callable(bprop):
            raise TypeError(f"Custom: bprop must be a function, got {type(bprop).__name__}")
        if not (out_shape is None or callable(out_shape) or isinstance(out_shape, (tuple, list))):
            raise TypeError(f"Custom: out_shape must be a function, tuple or list, got {type(out_shape).__name__}")
        if not isinstance(reg_format, str):
            raise TypeError(f"Custom: reg_format must be a str, got {type(reg_format).__name__}")
        path, name = _split(func)
        written = path  # what errors name: of a source, not the file in the cache
        if pathlib.Path(path).suffix in SOURCES:
            path = compile_source(path)
        native, names = _core.examine_kind(path)
        if not name and len(names) != 1:
            of = ", ".join(names) or "no operator"
            one = f": name one as '{written}:{names[0]}'" if names else ""
            raise ValueError(f"Custom: {written} holds {of}{one}")
        name = name or names[0]
        if native:
            found = [op for op in _core.load(path) if op.name == name]
            if not found:
                raise ValueError(f"Custom: {written} has no op {name!r}, it holds {', '.join(names)}")
            self._setup(found[0], attrs, out_shape, out_dtype, bprop, reg_info, reg_format)
        else:
            try:
                self._setup((path, name), attrs, out_shape, out_dtype, bprop, reg_info, reg_format)
            except RuntimeError as e:
                if name in names and written == path:
                    raise
                of = f"; it exports {', '.join(names)}" if names and name not in names else ""
                raise RuntimeError(f"Custom: {written}: {str(e).removeprefix(f'{path}: ')}{of}") from None

    def _setup(self, op, attrs, out_shape=None, out_dtype=None, bprop=None, reg_info=None, reg_format="ND"):
        self.bprop, self.reg_format = bprop, reg_format
        self.out_shape = out_shape
        if out_dtype is not None and not callable(out_dtype):
            many = isinstance(out_dtype, (tuple, list))
            out_dtype = tuple(map(dt.to_dtype, out_dtype)) if many else dt.to_dtype(out_dtype)
        self.out_dtype = out_dtype
        self._info = op_info(reg_info)
        declared = self._info.get("attr", [])
        self.attrs = {a["name"]: a["value"] for a in declared if a.get("value") is not None} | attrs
        self._trailing = [a for a in declared if a["name"] not in self.attrs]
        self._variants = {}
        self._source = op if isinstance(op, tuple) else None  # file and function of MindSpore's make
        self.op = _core.load_function(*op, self.attrs) if self._source else op
        if not self._trailing:
            ask = bool(self._source or self._info or out_shape is not None or out_dtype is not None)
            self._bind(self.op, self.attrs, ask)

    @classmethod
    def from_op(cls, spec, **attrs):
        """A registered operator: "SwiGLU", "SwiGLU@1.0.0", "SwiGLU@^1"; attrs are its attributes."""
        self = cls.__new__(cls)
        self._setup(_core.resolve(spec), attrs)
        return self

    @property
    def name(self):
        return self.op.function or self.op.name

    def _variant(self, values):
        """This Custom with the trailing attributes of one call."""
        attrs = dict(self.attrs)
        for i, a in enumerate(self._trailing):
            value = values[i] if i < len(values) else a.get("default_value")
            if value is None:
                raise TypeError(f"{self.name}: attribute {a['name']} must be given as a trailing argument")
            check_value(a["name"], a, value)
            attrs[a["name"]] = value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
        key = repr(attrs)
        if key not in self._variants:
            if len(self._variants) >= _MOST_VARIANTS:
                self._variants.pop(next(iter(self._variants)))
            made = Custom.__new__(Custom)
            info = {k: v for k, v in self._info.items() if k != "attr"}
            made._setup(
                self._source or self.op, attrs, self.out_shape, self.out_dtype, self.bprop, info, self.reg_format
            )
            self._variants[key] = made
        return self._variants[key]

    def _call_slow(self, *args, **kwargs):
        if kwargs:
            raise TypeError(
                f"{self.name}: takes no keyword arguments, got {', '.join(kwargs)}; attributes go to the constructor"
            )
        if self._trailing:
            inputs = self._info.get("inputs", [])
            cut = len(inputs) if inputs else max(len(args) - len(self._trailing), 0)
            if len(args) > cut + len(self._trailing):
                want = f"{cut} inputs and {len(self._trailing)} attributes"
                raise TypeError(f"{self.name}: takes {want} as reg_info has them, got {len(args)} arguments")
            return self._variant(args[cut:])(*args[:cut])
        flat = []
        for i, a in enumerate(args):
            for x in a if isinstance(a, (tuple, list)) else (a,):
                if isinstance(x, (int, float, np.generic)):
                    x = np.asarray(x, dtype=np.float32 if isinstance(x, (int, float)) else None)
                if not isinstance(x, (np.ndarray, Tensor)):
                    raise TypeError(f"{self.name}: input {i} must be a Tensor or a NumPy array, got {type(x).__name__}")
                flat.append(x)
        if any(isinstance(x, Tensor) and x._array is None for x in flat):
            return self._trace(flat)
        for i, x in enumerate(flat):
            if len(x.shape) > _MOST_DIMENSIONS:
                raise ValueError(
                    f"{self.name}: input {i} must have at most {_MOST_DIMENSIONS} dimensions, got {len(x.shape)}"
                )
        # Plain arrays take the short way; more inputs than it has room for run here.
        plain = [self._plain(x) for x in flat]
        if len(plain) != len(args) or any(p is not a for p, a in zip(plain, args)):
            return self(*plain)
        arrays = [x._array if isinstance(x, Tensor) else x for x in plain]
        attrs, as_tuple = self._declare(arrays)
        outputs = _core.run_op(self.op, arrays, attrs or self.attrs)
        if any(isinstance(x, Tensor) for x in plain):
            outputs = [Tensor(a) for a in outputs]
        return outputs[0] if len(outputs) == 1 and not as_tuple else tuple(outputs)

    @staticmethod
    def _plain(x):
        array = x._array if isinstance(x, Tensor) else x
        native = array.dtype.newbyteorder("=") if array.dtype.byteorder not in "=|" else array.dtype
        if type(array) is np.ndarray and native is array.dtype and array.flags.c_contiguous and array.flags.aligned:
            return x
        ready = np.require(array.view(np.ndarray).astype(native, copy=False), requirements="CA")
        return Tensor(ready) if isinstance(x, Tensor) else ready

    def _trace(self, flat):
        tracer = next(x._tracer for x in flat if isinstance(x, Tensor) and x._array is None)
        if tracer is None:
            raise ValueError(f"{self.name}: {_trace.NO_VALUE}")
        values = [tracer.lift(x) for x in flat]
        graph = tracer.graph
        shapes = [
            [d if d >= 0 else _Dim(f"i{i}.{k}") for k, d in enumerate(graph.dims(v))] for i, v in enumerate(values)
        ]
        dtypes = [tracer.dtype(v) for v in values]
        check_inputs(self.name, self._info, dtypes)
        attrs, as_tuple = self._given(shapes, dtypes)
        name = self.name
        if self._source:
            made = tracer.node(name, values, self.attrs | attrs, self.op.spec)
        else:
            made = tracer.node(name, values, self.attrs, self.op.spec)
            results = [(graph.dims(v), tracer.dtype(v)) for v in made]
            if all(d >= 0 for dims, _ in results for d in dims):
                self._compare(attrs, results)
        outputs = [tracer.tensor(v) for v in made]
        return outputs[0] if len(outputs) == 1 and not as_tuple else tuple(outputs)

    def _declare(self, arrays):
        """For a new list of input shapes and dtypes: (the node's attributes or None, is one output a tuple)."""
        dtypes = [a.dtype for a in arrays]
        check_inputs(self.name, self._info, dtypes)
        attrs, as_tuple = self._given([list(a.shape) for a in arrays], dtypes)
        if self._source:
            return self.attrs | attrs, as_tuple
        if attrs:
            self._compare(attrs, _core.infer_op(self.op, arrays, self.attrs))
        return None, as_tuple

    def _given(self, shapes, dtypes):
        """out_shape and out_dtype for such inputs, as attributes; and whether one output is written as a tuple."""
        attrs, count, as_tuple = {}, None, False
        if self.out_shape is not None:
            value = self.out_shape(*shapes) if callable(self.out_shape) else self.out_shape
            if not isinstance(value, (tuple, list)):
                raise TypeError(f"{self.name}: out_shape must be a tuple or list, got {value!r}")
            rows, as_tuple = _rows(value)
            count = len(rows)
            attrs["out_shape"] = ";".join(",".join(_dim_text(d, self.name) for d in row) for row in rows)
        if self.out_dtype is not None:
            value = self.out_dtype(*dtypes) if callable(self.out_dtype) else self.out_dtype
            names = [dt.name(v) for v in (value if isinstance(value, (tuple, list)) else [value])]
            names = names * count if len(names) == 1 and count else names
            count = count or len(names)
            attrs["out_dtype"] = ";".join(names)
        attrs["opgraft_outputs"] = count or len(self._info.get("outputs", [])) or 1
        return (attrs if self._source or len(attrs) > 1 else {}), as_tuple

    def _compare(self, attrs, results):
        """What was given for an opgraft operator against what it infers: (shape, dtype) each."""
        show = {
            "out_shape": [",".join(map(str, dims)) for dims, _ in results],
            "out_dtype": [dt.name(d) for _, d in results],
        }
        for what, got in show.items():
            if what in attrs and attrs[what].split(";") != got:
                tidy = [f"({v})" for v in attrs[what].split(";")] if what == "out_shape" else attrs[what].split(";")
                want = [f"({v})" for v in got] if what == "out_shape" else got
                raise ValueError(
                    f"{self.name}: {what} must be what the operator infers, {', '.join(want)}, got {', '.join(tidy)}"
                )

    def __copy__(self):
        return self  # an operator: nothing of it is copied

    def __deepcopy__(self, memo):
        return self

    def __repr__(self):
        return f"Custom({self.name} of {self.op.path}, {self.attrs})"
