"""opgraft's operators inside MindSpore: `opgraft.mindspore.custom("SwiGLU")` is a ready MindSpore Custom primitive.

Needs MindSpore (2.10 is tested) in the same environment; opgraft's own API does not.
"""

import itertools
import os
import pathlib
import re

import numpy as np
from mindspore import Tensor, context, ops
from mindspore.ops import CustomRegOp, DataType
from mindspore.ops.signature import make_sig

from . import _core
from .dtype import type_id
from .mindspore_graft import Grafted, graft

__all__ = ["Grafted", "custom", "graft"]

# MindSpore's names of dtypes in reg_info.
_FORMATS = {"bool": "BOOL", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64", "uint8": "U8",
            "uint16": "U16", "uint32": "U32", "uint64": "U64", "float16": "F16", "float32": "F32", "float64": "F64",
            "bfloat16": "BF16", "complex64": "C64"}  # fmt: skip
_MOST_ROWS = 256
_KINDS = {bool: "bool", int: "int", float: "float", str: "str"}


def _kind(value):
    """reg_info's type of an attribute's value; lists of lists have none of their own."""
    if isinstance(value, (list, tuple)):
        inner = {_kind(v) for v in value} or {"int"}
        if inner == {"int", "float"}:
            inner = {"float"}
        if len(inner) == 1 and inner <= {"int", "float", "listInt", "listFloat"}:
            (one,) = inner
            return {"int": "listInt", "float": "listFloat"}.get(one, "all")
    elif type(value) in _KINDS:
        return _KINDS[type(value)]
    raise TypeError(f"an attribute must be a number, a str, or a list of numbers, got {value!r}")


def _typed(declared, value):
    """The value in the kind that op.yaml declares: MindSpore hands on a Python int as an int, whatever is asked for."""
    if isinstance(declared, float):
        return float(value)
    if isinstance(declared, bool):
        return bool(value)
    if isinstance(declared, list):
        value = [value] if isinstance(value, (int, float)) else list(value)
        return [float(v) for v in value] if declared and isinstance(declared[0], float) else value
    return list(value) if isinstance(value, tuple) else value


def _rows(manifest, inputs, n_outputs):
    """Rows of dtype_format: every choice of dtypes for op.yaml's type variables, inputs and outputs in order."""
    outputs = [manifest["outputs"][min(i, len(manifest["outputs"]) - 1)]["dtype"] for i in range(n_outputs)]
    dtypes = [i["dtype"] for i in inputs] + outputs
    variables = [v for v in manifest["dtypes"] if v in dtypes]
    for choice in itertools.product(*(manifest["dtypes"][v] for v in variables)):
        bound = dict(zip(variables, choice))
        names = [_FORMATS.get(bound.get(d, d), "") for d in dtypes]
        yield [getattr(DataType, f"{n}_Default", DataType.None_None) for n in names]


class _Custom(ops.Custom):
    """A Custom that says what is wrong before MindSpore, which then has no text, or reads beyond its arguments."""

    def __init__(self, op, inputs, attrs, *args, **kwargs):
        """inputs: op.yaml's entries of those that a call gives; attrs holds the values of others."""
        super().__init__(*args, **kwargs)
        self._op, self._inputs, self._attrs = op, inputs, attrs
        # Graph mode counts a primitive's arguments where there is one of these for each.
        self.set_signatures(tuple(make_sig(i["name"]) for i in inputs))
        # Else graph mode gives it copies of Parameters, or merges and reorders what reads them.
        if any(i["state"] for i in inputs):
            self.add_prim_attr("side_effect_mem", True)

    def __call__(self, *args):  # PyNative's
        if len(args) != len(self._inputs):
            names = ", ".join(i["name"] for i in self._inputs)
            raise TypeError(f"{self._op.name}: takes {len(self._inputs)} inputs ({names}), got {len(args)}")
        return super().__call__(*args)

    def __infer__(self, *args):  # asked in both modes where shape or dtype come from Python
        _check_file(self._op)
        graph, given = _core.Graph(), zip(self._inputs, args)
        fixed = [i["name"] for i in self._op.manifest["inputs"] if i["name"] in self._attrs]
        values = []
        for declared in self._op.manifest["inputs"]:
            if declared["name"] in fixed:
                values.append(graph.add_constant(np.asarray(self._attrs[declared["name"]], np.int64)))
            elif (one := next(given, None)) is not None:
                values.append(_value(graph, *one))
        values += [_value(graph, *one) for one in given]  # of a variadic input
        if None not in values:
            graph.add_node(self._op.spec, values, {k: v for k, v in self._attrs.items() if k not in fixed})
        return super().__infer__(*args)


def _value(graph, declared, arg):
    """A graph's input of an argument's shape and dtype, a constant where the operator's inference reads its values;
    None where these are not known yet."""
    if declared["value"]:
        value = arg["value"]
        value = value.asnumpy() if isinstance(value, Tensor) else value
        return None if value is None else graph.add_constant(np.asarray(value))
    kind = getattr(arg["dtype"], "element_type", lambda: arg["dtype"])()
    name = str(kind).lower()
    if name not in _FORMATS or any(d < 0 for d in arg["shape"]):
        return None
    return graph.add_input(declared["name"], type_id(name), arg["shape"])


def _share_threads():
    """The pool takes no more threads than MindSpore was told to give its own operators."""
    _core.set_host_threads(context.get_context("runtime_num_threads"))


_good = {}  # files that MindSpore can load, by path: their state when that was asked


def _check_file(op):
    file = pathlib.Path(op.path)
    if not file.is_file():
        raise FileNotFoundError(f"{op.name}: {op.path}: no such file; MindSpore opens it anew")
    s = file.stat()
    state = (s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, os.environ.get("MS_CUSTOM_AOT_WHITE_LIST"))
    if _good.get(op.path) == state:
        return
    for step, ok, detail in _core.examine_for_mindspore(op.path)[1]:
        if not ok:
            raise RuntimeError(f"{op.name}: MindSpore cannot load {op.path}: {step}: {detail}")
    _good[op.path] = state


def custom(spec, *, n_inputs=None, n_outputs=None, out_shape=None, out_dtype=None, **attrs):
    """A MindSpore `ops.Custom` of a registered operator, "SwiGLU" or "SwiGLU@^1": shapes and dtypes by the file's own
    inference or by out_shape and out_dtype as `ops.Custom` takes them, reg_info from op.yaml, gradients by the
    operator that `backward:` names.

    attrs are the operator's attributes; an input whose values infer needs (Reshape's shape, Tile's multiples) is an
    attribute here, as MindSpore's C++ inference sees no values. n_inputs: how many inputs are given, where op.yaml
    leaves it open; n_outputs likewise (Split). Raises RuntimeError for an unknown operator or a file that MindSpore
    cannot load, TypeError or ValueError for attributes it does not have. When it is called with what it does not
    take, the text of MindSpore's exception says which operator, argument, what was expected and what came.
    """
    op = _core.resolve(spec)
    _check_file(op)
    _share_threads()
    manifest = op.manifest
    declared, values = dict(manifest["attrs"]), {i["name"] for i in manifest["inputs"] if i["value"]}
    unknown = [k for k in attrs if k not in declared and k not in values]
    if unknown:
        known = ", ".join([*declared, *sorted(values)]) or "none"
        raise ValueError(f"{op.name}: has no attribute {unknown[0]!r}, it has {known}")
    missing = [k for k, v in declared.items() if v is None and k not in attrs]
    if missing:
        raise TypeError(f"{op.name}: attribute {missing[0]} must be given")
    tensors = [i for i in manifest["inputs"] if i["name"] not in attrs]
    open_ended = any(i["optional"] or i["variadic"] for i in tensors)
    least = sum(not (i["optional"] or i["variadic"]) for i in tensors)
    if n_inputs is None:
        if any(i["variadic"] for i in tensors):
            raise TypeError(f"{op.name}: takes any number of inputs; n_inputs must be given")
        n_inputs = least
    elif n_inputs < least or (n_inputs > len(tensors) and not tensors[-1]["variadic"]):
        raise ValueError(f"{op.name}: n_inputs must be {least} to {len(tensors)}, got {n_inputs}")
    tensors = [tensors[min(i, len(tensors) - 1)] for i in range(n_inputs)]
    if any(o["variadic"] for o in manifest["outputs"]) and (n_outputs or 1) < 2:
        raise ValueError(f"{op.name}: n_outputs must be given and at least 2: MindSpore asks a function of one output "
                         f"for another type of result, got {n_outputs}")  # fmt: skip
    n_outputs = n_outputs or len(manifest["outputs"])

    # All attributes: every Custom of a function must have the same names.
    fixed = {k: _typed(declared.get(k), v) for k, v in (declared | attrs).items()}
    if open_ended:
        fixed["n_inputs"] = n_inputs
    # MindSpore keeps the first reg_info of a name and ignores later ones.
    info = CustomRegOp(f"{op.name}_{n_inputs}_{n_outputs}")
    for i, t in enumerate(tensors):
        info.input(i, t["name"] if not t["variadic"] else f"{t['name']}{i}")
    for i in range(n_outputs):
        names = [o["name"] for o in manifest["outputs"]]
        info.output(i, names[i] if n_outputs == len(names) else f"{names[-1]}{i}")
    for name, value in fixed.items():
        info.attr(name, "required", _kind(value), value=value)
    for row in itertools.islice(_rows(manifest, tensors, n_outputs), _MOST_ROWS):
        info.dtype_format(*row)
    bprop = _bprop(manifest, attrs, n_inputs, n_outputs) if manifest["backward"] else None
    return _Custom(op, tensors, attrs, f"{op.path}:{op.name}", out_shape, out_dtype, func_type="aot", bprop=bprop,
                   reg_info=info.target("CPU").get_op_info())  # fmt: skip


def _gradient(manifest, attrs, n_inputs):
    """(Custom, how many outputs it has, positions, results) of `backward:`, as docs/adding_an_op.md says. positions:
    which of the forward's inputs, its outputs and their gradients, counted in this order, the operator takes; results:
    which of its outputs is the gradient of each input. An input that a call leaves out is left out here too; None
    where the operator cannot do without it.
    """
    form = re.fullmatch(r"(\w+)\s*(?:\((.*)\))?\s*(?:->\s*(.*))?", manifest["backward"].strip())
    if form is None:
        raise ValueError(f"{manifest['name']}: backward: must be Op or Op(x, dy, ...) -> dx, ..., got "
                         f"{manifest['backward']!r}")  # fmt: skip
    name, given, results = form.groups()
    known = _core.resolve(name).manifest
    inputs, outputs = ([t["name"] for t in manifest[k]] for k in ("inputs", "outputs"))
    names = [*inputs, *outputs, *(f"d{o}" for o in outputs)]
    settings = {k: k for k in known["attrs"] if k in manifest["attrs"]}
    wanted = [*inputs, *names[len(inputs) + len(outputs) :]]
    if given is not None:
        parts = [part.strip() for part in given.split(",")]
        settings |= dict(map(str.strip, part.split("=")) for part in parts if "=" in part)
        wanted = [part for part in parts if "=" not in part]
    made = [t["name"] for t in known["outputs"]]
    results = [r.strip() for r in results.split(",")] if results else made
    for word in [*wanted, *settings.values(), *results]:
        if word not in [*names, *manifest["attrs"], *made]:
            raise ValueError(f"{manifest['name']}: backward: {word} is no input, output, gradient or attribute")
    left_out = inputs[n_inputs:]
    needed = sum(not t["optional"] for t in known["inputs"])
    if any(w in left_out for w in wanted) and sum(w not in left_out for w in wanted) < needed:
        return None
    positions = tuple(names.index(w) - len(left_out) * (w not in inputs) for w in wanted if w not in left_out)
    values = {to: attrs[source] for to, source in settings.items() if source in attrs}
    values |= {to: manifest["attrs"][source] for to, source in settings.items() if to not in values}
    return custom(name, n_inputs=len(positions), **values), len(made), positions, tuple(map(made.index, results))


def _bprop(manifest, attrs, n_inputs, n_outputs):
    """The gradient by another operator, in the form that MindSpore takes."""
    found = _gradient(manifest, attrs, n_inputs)
    if found is None:
        return None
    gradient, made, positions, results = found
    results = results[:n_inputs]

    def apply(inputs, out, dout):
        given = inputs + out + dout if n_outputs > 1 else inputs + (out, dout)
        args = ()
        for i in positions:
            args = args + (given[i],)
        found = gradient(*args)
        if made == 1:
            return (found,)
        grads = ()
        for i in results:
            grads = grads + (found[i],)
        return grads

    # Graph mode reads a bprop's source and counts its parameters.
    def one(a, out, dout):
        return apply((a,), out, dout)

    def two(a, b, out, dout):
        return apply((a, b), out, dout)

    def three(a, b, c, out, dout):
        return apply((a, b, c), out, dout)

    def four(a, b, c, d, out, dout):
        return apply((a, b, c, d), out, dout)

    def five(a, b, c, d, e, out, dout):
        return apply((a, b, c, d, e), out, dout)

    forms = [one, two, three, four, five]
    if n_inputs > len(forms):
        raise ValueError(f"{manifest['name']}: a gradient takes at most {len(forms)} inputs, got {n_inputs}")
    return forms[n_inputs - 1]
