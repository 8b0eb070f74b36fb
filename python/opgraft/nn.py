"""Cells: models as objects with parameters, under MindSpore's names."""

import copy
import os
import warnings
import weakref

import numpy as np

from . import _core, context, ops
from . import trace as _trace
from .dtype import float32
from .program import Programs
from .tensor import Parameter, Tensor

# What a Cell keeps beside its own attributes.
_INTERNAL = {"_cells": dict, "_params": dict, "_parents": list, "_programs": Programs, "_grafted": list,
             "_rules": list, "_specs": lambda: None}  # fmt: skip


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
        cell._grafted.extend(self._grafted)
        cell._rules.extend(self._rules)
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
        self._programs.clear()
        for parent in self._parents:
            if (cell := parent()) is not None:
                cell._invalidate()

    def construct(self, *args, **kwargs):
        raise NotImplementedError(f"{type(self).__name__}: construct must be defined")

    def __call__(self, *args, **kwargs):
        self._setup()
        leaves = []
        structure = _trace.flatten((args, kwargs), leaves)
        tracer = _trace.active()
        if tracer is not None:
            return self._inside(tracer, leaves, structure, args, kwargs)
        if self._specs is None:
            object.__setattr__(self, "_specs", ([(t.dtype, t.shape) for t in leaves], structure))
        if not (context.graph_mode() or self._grafted or self._rules):
            args, kwargs = _trace.unflatten(structure, iter(leaves))
            return self.construct(*args, **kwargs)
        return self._program(leaves, structure)(leaves)

    def _inside(self, tracer, leaves, structure, args, kwargs):
        """The call while an outer Cell or function is traced."""
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
            return self._graft_inside(tracer, leaves, structure)
        finally:
            if name:
                tracer.scopes.pop()

    def _graft_inside(self, tracer, leaves, structure):
        program = self._fitting(leaves, structure)
        if program is not None:
            graph, out = program.graph, program.structure
        else:
            names = [f"x{i}" for i in range(len(leaves))]
            graph = tracer.graph.like(type(self).__name__, [tracer.lift(t) for t in leaves], names)
            out = _trace.trace_into(graph, self.construct, structure, tracer.parameters)
            self._graft(graph)
        return _trace.splice(tracer, graph, out, leaves, "".join(f"{s}/" for s in tracer.scopes))

    def _fitting(self, leaves, structure):
        for program, inside in self._grafted:
            if inside == structure and program.fits(leaves):
                return program
        if self._grafted:
            shapes = [t.shape for t in leaves]
            warnings.warn(f"{type(self).__name__}: the plain graph runs, inputs {shapes} do not fit the substituted",
                          RuntimeWarning, stacklevel=4)  # fmt: skip
        return None

    def _program(self, leaves, structure):
        return self._fitting(leaves, structure) or self._programs.get(leaves, structure, self._make)

    def _make(self, specs, structure):
        graph, out = self._trace(specs, structure)
        self._graft(graph)
        return _trace.Program(graph, out)

    def _graft(self, graph):
        """Applies what was substituted without a proof."""
        for rules, report in self._rules:
            report._fill(_core.substitute(graph, rules.of(graph)))

    def _trace(self, specs, structure):
        self.parameters_dict()  # names the parameters
        graph, out = _trace.trace(self.construct, specs, structure, name=type(self).__name__)
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

    trainable_params = get_parameters

    def set_train(self, mode=True):
        if mode:
            raise ValueError("Cell.set_train: opgraft runs inference only")
        return self

    def load_parameters(self, source, strict=True, rename=None):
        """Loads from a dict of arrays, a .safetensors or an .npz file. rename maps a parameter's name to the file's.

        Returns the names in the source that no parameter took; a parameter without a value is an error if strict.
        """
        from .serialization import load_checkpoint

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
        """Writes .safetensors or .npz."""
        from .serialization import save_checkpoint

        save_checkpoint(self, file)

    def __repr__(self):
        inner = "".join(f"\n  ({n}): " + repr(c).replace("\n", "\n  ") for n, c in self._cells.items())
        return f"{type(self).__name__}({inner}\n)" if inner else f"{type(self).__name__}()"


def _normal(shape, scale):
    return Parameter((np.random.default_rng(0).standard_normal(shape) * scale).astype(float32))


class Dense(Cell):
    """y = x W^T + b; weight is (out_channels, in_channels)."""

    def __init__(self, in_channels, out_channels, has_bias=True, activation=None):
        super().__init__()
        for name, value in ("in_channels", in_channels), ("out_channels", out_channels):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"Dense: {name} must be an int of at least 1, got {value!r}")
        named = {"relu": ReLU, "gelu": GELU, "silu": SiLU}
        if isinstance(activation, str) and activation not in named:
            raise ValueError(f"Dense: activation must be a Cell or one of {', '.join(named)}, got {activation!r}")
        self.in_channels, self.out_channels, self.has_bias = in_channels, out_channels, has_bias
        self.weight = _normal((out_channels, in_channels), in_channels**-0.5)
        if has_bias:
            self.bias = Parameter(np.zeros(out_channels, float32))
        self.activation = named[activation]() if isinstance(activation, str) else activation

    def construct(self, x):
        x = ops.matmul(x, self.weight, transpose_b=True)
        if self.has_bias:
            x = ops.bias_add(x, self.bias) if len(x.shape) == 2 else x + self.bias
        return x if self.activation is None else self.activation(x)


class Embedding(Cell):
    """Rows of embedding_table (vocab_size, embedding_size) at integer indices."""

    def __init__(self, vocab_size, embedding_size):
        super().__init__()
        self.embedding_table = _normal((vocab_size, embedding_size), 0.02)

    def construct(self, indices):
        return ops.gather(self.embedding_table, indices)


class LayerNorm(Cell):
    """Normalises over the last dimensions, of shape normalized_shape; parameters gamma and beta."""

    def __init__(self, normalized_shape, begin_norm_axis=-1, begin_params_axis=-1, epsilon=1e-7):
        super().__init__()
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.begin_norm_axis, self.epsilon = begin_norm_axis, epsilon
        self.gamma = Parameter(np.ones(shape, float32))
        self.beta = Parameter(np.zeros(shape, float32))

    def construct(self, x):
        return ops.layer_norm(x, self.gamma, self.beta, self.begin_norm_axis, self.epsilon)


class GELU(Cell):
    """GELU; approximate=True is the tanh form, False the erf form."""

    def __init__(self, approximate=True):
        super().__init__()
        self.approximate = approximate

    def construct(self, x):
        return ops.gelu(x, "tanh" if self.approximate else "none")


class SiLU(Cell):
    def construct(self, x):
        return ops.silu(x)


class ReLU(Cell):
    def construct(self, x):
        return ops.relu(x)


class Dropout(Cell):
    """The identity: opgraft runs inference."""

    def __init__(self, keep_prob=0.5, p=None):
        super().__init__()
        self.keep_prob, self.p = keep_prob, p

    def construct(self, x):
        return x


class CellList(Cell):
    """A list of cells."""

    def __init__(self, cells=()):
        super().__init__()
        for cell in cells:
            self.append(cell)

    def append(self, cell):
        if not isinstance(cell, Cell):
            raise TypeError(f"{type(self).__name__}: cells must be Cells, got {type(cell).__name__}")
        setattr(self, str(len(self._cells)), cell)
        return self

    def extend(self, cells):
        for cell in cells:
            self.append(cell)
        return self

    def __len__(self):
        return len(self._cells)

    def __iter__(self):
        return iter(self._cells.values())

    def __getitem__(self, i):
        found = list(self._cells.values())[i]
        return CellList(found) if isinstance(found, list) else found

    def __setitem__(self, i, cell):
        setattr(self, str(range(len(self))[i]), cell)


class SequentialCell(CellList):
    """Cells one after another."""

    def __init__(self, *cells):
        super().__init__(cells[0] if len(cells) == 1 and isinstance(cells[0], (list, tuple)) else cells)

    def construct(self, x):
        for cell in self:
            x = cell(x)
        return x


class GraphCell(Cell):
    """A loaded graph as a Cell: `nn.GraphCell(load("model.mindir"))`."""

    def __init__(self, graph):
        super().__init__()
        if not isinstance(graph, _core.Graph):
            raise TypeError(f"GraphCell: graph must be a graph of opgraft.load, got {type(graph).__name__}")
        self._set_graph(graph)

    def _set_graph(self, graph):
        n = len(graph.outputs)
        object.__setattr__(self, "graph", graph)
        object.__setattr__(self, "_whole", _trace.Program(graph, "*" if n == 1 else ("tuple", ("*",) * n)))

    def __call__(self, *args):
        tensors = [a if isinstance(a, Tensor) else Tensor(a) for a in args]
        tracer = _trace.active()
        if tracer is not None:
            return _trace.splice(tracer, self.graph, self._whole.structure, tensors)
        return self._whole(tensors)
