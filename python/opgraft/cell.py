"""Cell: a model as an object with parameters."""

import copy
import os
import warnings
import weakref

import numpy as np

from . import _core, context
from . import trace as _trace
from .checkpoint import load_checkpoint, save_checkpoint
from .program import Program, Programs
from .tensor import Parameter

# What a Cell keeps beside its own attributes.
_INTERNAL = {"_cells": dict, "_params": dict, "_parents": list, "_programs": Programs, "_grafted": list,
             "_rules": list, "_specs": lambda: None, "_declared": lambda: None, "_version": int}  # fmt: skip


class Cell:
    """A model or a part of one: parameters and sub-cells as attributes, the computation in `construct`."""

    def __init__(self):
        self._setup()

    def _setup(self):
        if "_cells" not in self.__dict__:
            for key, make in _INTERNAL.items():
                object.__setattr__(self, key, make())
            object.__setattr__(self, "training", False)

    def __setattr__(self, key, value):
        self._setup()
        if key.startswith("__"):
            return object.__setattr__(self, key, value)
        # What stays keeps its place: a SequentialCell runs its cells in this order.
        if not isinstance(value, Cell):
            self._cells.pop(key, None)
        if not isinstance(value, Parameter):
            self._params.pop(key, None)
        if isinstance(value, Cell):
            value._setup()
            self._cells[key] = value
            value._parents.append(weakref.ref(self))
        elif isinstance(value, Parameter):
            self._params[key] = value
            value._owner = weakref.ref(self)
        object.__setattr__(self, key, value)
        self._invalidate()

    def __delattr__(self, key):
        self._cells.pop(key, None)
        self._params.pop(key, None)
        object.__delattr__(self, key)
        self._invalidate()

    def __deepcopy__(self, memo):
        """A copy with parameters and sub-cells of its own; what was substituted stays substituted in it."""
        self._setup()
        cell = memo[id(self)] = type(self).__new__(type(self))
        cell._setup()
        for key, value in self.__dict__.items():
            if key not in _INTERNAL and not key.startswith("_jit_"):
                setattr(cell, key, copy.deepcopy(value, memo))
        cell._grafted.extend((program.in_copy(memo), structure) for program, structure in self._swaps())
        cell._rules.extend(self._rules)
        object.__setattr__(cell, "_declared", self._declared)
        return cell

    def _invalidate(self):
        """Forgets what was traced, here and in every Cell that holds this one."""
        if self._grafted:
            warnings.warn(f"{type(self).__name__}: changed after rewrite.substitute; what was substituted is dropped, "
                          "substitute again", RuntimeWarning, stacklevel=4)  # fmt: skip
        self._grafted.clear()
        self._outdate()

    def _outdate(self):
        """What was traced is no longer what runs, here and in every Cell that holds this one."""
        object.__setattr__(self, "_version", self._version + 1)
        self._programs.clear()
        for parent in self._parents:
            if (cell := parent()) is not None:
                cell._invalidate()

    def construct(self, *args, **kwargs):
        raise NotImplementedError(f"{type(self).__name__}: construct must be defined")

    def __call__(self, *args, **kwargs):
        self._setup()
        if (tracer := _trace.active()) is not None:
            return self._inside(tracer, args, kwargs)
        if (context.graph_mode() or self._grafted or self._rules) and not _trace.plain():
            leaves = []
            structure = self._seen(args, kwargs, leaves)
            return self._program(leaves, structure)(leaves)
        if self._specs is None:
            try:
                self._seen(args, kwargs, [])
            except TypeError:  # what only an eager call takes: a set, a cache to be filled
                pass
        return self.construct(*_trace.tensors(args), **_trace.tensors(kwargs))

    def _seen(self, args, kwargs, leaves):
        """The structure of a call's arguments; those of the first are what substitute traces."""
        structure = _trace.flatten((args, kwargs), leaves)
        if self._specs is None:
            object.__setattr__(self, "_specs", ([(t.dtype, t.shape) for t in leaves], structure))
        return structure

    def set_inputs(self, *inputs):
        """Declares what a traced Cell takes, as MindSpore does, so that it is traced once: tensors whose shapes stay,
        or placeholders, `Tensor(shape=[None, 32], dtype=...)` or with `opgraft.dim("batch")`, that leave dimensions
        open. A proof tries each open dimension at two sizes. Without inputs: what was declared no longer holds.
        """
        self._setup()
        leaves = []
        structure = _trace.flatten((inputs, {}), leaves)
        object.__setattr__(self, "_declared", (leaves, structure) if inputs else None)
        object.__setattr__(self, "_specs", ([(t.dtype, t.shape) for t in leaves], structure) if inputs else None)
        self._outdate()

    def get_inputs(self):
        """The arguments of set_inputs, as a tuple, or None."""
        self._setup()
        if self._declared is None:
            return None
        leaves, structure = self._declared
        return _trace.unflatten(structure, iter(leaves))[0]

    def session(self, *args, **kwargs):
        """The engine's session that runs such inputs; `arena_bytes` and `intermediate_bytes` are of the runs so far."""
        self._setup()
        leaves = []
        structure = _trace.flatten((args, kwargs), leaves)
        return self._program(leaves, structure).session

    def _inside(self, tracer, args, kwargs):
        """The call while an outer Cell or function is traced."""
        tracer.calls(self)
        name = None
        for parent in self._parents:
            cell = parent()
            name = next((k for k, v in cell._cells.items() if v is self), None) if cell else None
            if name:
                tracer.scopes.append(name)
                break
        try:
            if not (self._grafted or self._rules):
                return self.construct(*args, **kwargs)
            leaves = []
            structure = _trace.flatten((args, kwargs), leaves)
            return self._graft_inside(tracer, leaves, structure)
        finally:
            if name:
                tracer.scopes.pop()

    def _graft_inside(self, tracer, leaves, structure):
        program = self._fitting(leaves, structure)
        if program is not None:
            graph, out = program.graph, program.structure
            tracer.include(program.used)
        else:
            names = [f"x{i}" for i in range(len(leaves))]
            graph = tracer.graph.like(type(self).__name__, [tracer.lift(t) for t in leaves], names)
            out = _trace.trace_into(graph, self.construct, structure, tracer)
            self._graft(graph)
        return _trace.splice(tracer, graph, out, leaves, "".join(f"{s}/" for s in tracer.scopes))

    def _swaps(self):
        """What was substituted with a proof: (program, structure) each; none where what they were made of changed."""
        if self._grafted and any(program.used.changed() for program, _ in self._grafted):
            self._invalidate()
        return self._grafted

    def _fitting(self, leaves, structure):
        for program, inside in self._swaps():
            if inside == structure and program.fits(leaves):
                return program
        if self._grafted:
            shapes = [t.shape for t in leaves]
            warnings.warn(f"{type(self).__name__}: the plain graph runs, inputs {shapes} do not fit the substituted",
                          RuntimeWarning, stacklevel=4)  # fmt: skip
        return None

    def _program(self, leaves, structure):
        if (program := self._fitting(leaves, structure)) is not None:
            return program
        return self._programs.get(*self._as_declared(leaves, structure), self._make)

    def _as_declared(self, leaves, structure):
        """The placeholders of set_inputs where there are such, else the inputs themselves."""
        if self._declared is None:
            return leaves, structure
        if structure != self._declared[1]:
            raise ValueError(f"{type(self).__name__}: takes the {len(self._declared[0])} inputs that set_inputs "
                             f"declared, by position, got {len(leaves)} inputs")  # fmt: skip
        return self._declared

    def _make(self, specs, structure):
        tracer = _trace.Tracer(type(self).__name__)
        graph, out = self._trace(specs, structure, tracer)
        self._graft(graph)
        return Program(graph, out, tracer.used())

    def _graft(self, graph):
        """Applies what was substituted without a proof."""
        for rules, report in self._rules:
            report._fill(_core.substitute(graph, rules.of(graph)))

    def _trace(self, specs, structure, tracer=None):
        self.parameters_dict()  # names the parameters
        tracer = tracer or _trace.Tracer(type(self).__name__)
        graph, out = _trace.trace(self.construct, specs, structure, tracer=tracer)
        return _trace.clean(graph), out

    # structure
    def cells_and_names(self, prefix=""):
        """(dotted name, cell) of this cell and all below it."""
        self._setup()
        yield prefix, self
        for name, cell in self._cells.items():
            yield from cell.cells_and_names(f"{prefix}.{name}" if prefix else name)

    def parameters_dict(self) -> dict:
        """Parameters by dotted name, which becomes their `name`."""
        found = {}
        for prefix, cell in self.cells_and_names():
            for key, parameter in cell._params.items():
                parameter.name = f"{prefix}.{key}" if prefix else key
                found[parameter.name] = parameter
        return found

    def get_parameters(self):
        return list(self.parameters_dict().values())

    def trainable_params(self):
        return [p for p in self.get_parameters() if p.requires_grad]

    def set_train(self, mode=True):
        if mode:
            raise ValueError("Cell.set_train: opgraft runs inference only")
        return self

    def load_parameters(self, source, strict=True, rename=None):
        """Loads from a dict of arrays or a .ckpt, .safetensors or .npz file. rename maps a parameter's name to its own.

        Returns the names in the source that no parameter took; a parameter without a value is an error if strict.
        """
        if not isinstance(source, (dict, str, os.PathLike)):
            raise TypeError(f"load_parameters: source must be a dict or a file, got {type(source).__name__}")
        values = source if isinstance(source, dict) else load_checkpoint(source)
        taken = set()
        for name, parameter in self.parameters_dict().items():
            key = rename(name) if rename else name
            if key not in values:
                if strict:
                    raise ValueError(f"load_parameters: {key} is not in the source")
                continue
            parameter.set_data(np.asarray(values[key]))
            taken.add(key)
        self._invalidate()
        return [k for k in values if k not in taken]

    def save_parameters(self, file):
        """Writes .ckpt, .safetensors or .npz."""
        save_checkpoint(self, file)

    def __repr__(self):
        inner = "".join(f"\n  ({n}): " + repr(c).replace("\n", "\n  ") for n, c in self._cells.items())
        return f"{type(self).__name__}({inner}\n)" if inner else f"{type(self).__name__}()"
