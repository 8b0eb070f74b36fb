"""The layers, under MindSpore's names."""

import numpy as np

from . import _core, ops
from . import trace as _trace
from .cell import Cell as Cell
from .convolution import AdaptiveAvgPool2d as AdaptiveAvgPool2d
from .convolution import AvgPool2d as AvgPool2d
from .convolution import BatchNorm2d as BatchNorm2d
from .convolution import Conv2d as Conv2d
from .convolution import Flatten as Flatten
from .convolution import MaxPool2d as MaxPool2d
from .convolution import ReLU6 as ReLU6
from .convolution import initial as _initial
from .dtype import float32
from .norms import norm as _norm
from .program import Program
from .tensor import Parameter, Tensor


def _normal(shape, scale):
    return np.random.default_rng(0).standard_normal(shape) * scale


class Dense(Cell):
    """y = x W^T + b; weight is (out_channels, in_channels), by default normal numbers of variance 1 / in_channels."""

    def __init__(self, in_channels, out_channels, weight_init=None, bias_init=None, has_bias=True, activation=None,
                 dtype=float32):  # fmt: skip
        super().__init__()
        for name, value in ("in_channels", in_channels), ("out_channels", out_channels):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"Dense: {name} must be an int of at least 1, got {value!r}")
        named = {"relu": ReLU, "gelu": GELU, "silu": SiLU}
        if isinstance(activation, str) and activation not in named:
            raise ValueError(f"Dense: activation must be a Cell or one of {', '.join(named)}, got {activation!r}")
        self.in_channels, self.out_channels, self.has_bias = in_channels, out_channels, has_bias
        shape = (out_channels, in_channels)
        drawn = _normal(shape, in_channels**-0.5) if weight_init is None else weight_init
        self.weight = _initial("Dense", "weight_init", drawn, shape, dtype, (in_channels, out_channels))
        if has_bias:
            drawn = "zeros" if bias_init is None else bias_init
            self.bias = _initial("Dense", "bias_init", drawn, (out_channels,), dtype)
        self.activation = named[activation]() if isinstance(activation, str) else activation

    def construct(self, x):
        x = ops.matmul(x, self.weight, transpose_b=True)
        if self.has_bias:
            x = ops.bias_add(x, self.bias) if len(x.shape) == 2 else x + self.bias
        return x if self.activation is None else self.activation(x)


class Embedding(Cell):
    """Rows of embedding_table (vocab_size, embedding_size) at integer indices; row padding_idx begins as zeros.

    use_one_hot is how MindSpore may compute it; the rows are the same.
    """

    def __init__(self, vocab_size, embedding_size, use_one_hot=False, embedding_table=None, dtype=float32,
                 padding_idx=None):  # fmt: skip
        super().__init__()
        shape = (vocab_size, embedding_size)
        drawn = _normal(shape, 0.02) if embedding_table is None else embedding_table
        self.embedding_table = _initial("Embedding", "embedding_table", drawn, shape, dtype)
        if padding_idx is not None:
            if not 0 <= padding_idx < vocab_size:
                raise ValueError(f"Embedding: padding_idx must be in [0, {vocab_size}), got {padding_idx}")
            table = self.embedding_table.asnumpy().copy()
            table[padding_idx] = 0
            self.embedding_table = Parameter(table)

    def construct(self, indices):
        return ops.gather(self.embedding_table, indices)


class LayerNorm(Cell):
    """Normalises over the last dimensions, of shape normalized_shape; parameters gamma and beta."""

    def __init__(self, normalized_shape, begin_norm_axis=-1, begin_params_axis=-1, gamma_init="ones",
                 beta_init="zeros", epsilon=1e-7, dtype=float32):  # fmt: skip
        super().__init__()
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.begin_norm_axis, self.epsilon = begin_norm_axis, epsilon
        self.gamma = _initial("LayerNorm", "gamma_init", gamma_init, shape, dtype)
        self.beta = _initial("LayerNorm", "beta_init", beta_init, shape, dtype)

    def construct(self, x):
        return _norm(x, self.gamma, self.beta, self.begin_norm_axis, self.begin_norm_axis, self.epsilon)[0]


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


class FastGelu(Cell):
    def construct(self, x):
        return ops.fast_gelu(x)


class HSwish(Cell):
    def construct(self, x):
        return ops.hardswish(x)


class HSigmoid(Cell):
    def construct(self, x):
        return ops.hardsigmoid(x)


class Dropout(Cell):
    """The identity: opgraft runs inference."""

    def __init__(self, keep_prob=0.5, p=None, dtype=float32):
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
        return type(self)(found) if isinstance(found, list) else found

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
        object.__setattr__(self, "_whole", Program(graph, "*" if n == 1 else ("tuple", ("*",) * n)))
        self._outdate()

    def __deepcopy__(self, memo):
        """A copy with a graph of its own, over the same weights."""
        graph = memo[id(self.graph)] = self.graph.clone()
        memo[id(self._whole)] = Program(graph, self._whole.structure)
        return super().__deepcopy__(memo)

    def session(self, *args):
        return self._whole.session

    def __call__(self, *args):
        return self.construct(*args)

    def construct(self, *args):
        tensors = [a if isinstance(a, Tensor) else Tensor(a) for a in args]
        if (tracer := _trace.active()) is not None:
            tracer.calls(self)
            return _trace.splice(tracer, self.graph, self._whole.structure, tensors)
        return self._whole(tensors)
