"""MindSpore and opgraft as hosts of one row (rows.py): what a script imports from either, and how each runs it."""

import dataclasses
import pathlib
import tempfile

import mindspore as ms
import ml_dtypes
import numpy as np
import opgraft
from helpers import compile_kernels


@dataclasses.dataclass
class Run:
    """A Cell with the arrays to call it with, several times where `calls` has several lists of them."""

    net: object
    calls: list
    open: list | None = None  # the inputs' shapes with None for open dimensions; None for an open rank


class Files:
    """kernels.cc and grads.cc as shared objects, built one way."""

    def __init__(self, build):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="rows-"))
        self.kernels, self.grads = (compile_kernels(self.folder, build, n) for n in ("kernels", "grads"))


class Host:
    """What a script imports, from either."""

    def __init__(self, package):
        self.package, self.is_mindspore = package, package is ms
        self.Tensor, self.nn, self.ops, self.float32 = package.Tensor, package.nn, package.ops, package.float32
        self.CustomRegOp, self.DataType = package.ops.CustomRegOp, package.ops.DataType

    def tensor(self, array):
        if self.is_mindspore and array.dtype == ml_dtypes.bfloat16:
            return self.Tensor(array.astype(np.float32)).astype(ms.bfloat16)
        return self.Tensor(array)

    def custom(self, func, out_shape=None, out_dtype=None, **more):
        return self.ops.Custom(func, out_shape, out_dtype, "aot", **more)

    def net(self, custom, *more):
        class Net(self.nn.Cell):
            def __init__(self):
                super().__init__()
                self.custom = custom

            def construct(self, *args):
                return self.custom(*args, *more)

        return Net()

    def reg(self, name, inputs, outputs, **attrs):
        """reg_info; an attribute is (type, value), or a type alone where the call gives the value."""
        info = self.CustomRegOp(name)
        for i in range(inputs):
            info.input(i, f"x{i}")
        for i in range(outputs):
            info.output(i, f"y{i}")
        for key, kind in attrs.items():
            if isinstance(kind, tuple):
                info.attr(key, "required", kind[0], value=kind[1])
            else:
                info.attr(key, "required", kind)
        return info.dtype_format(*[self.DataType.None_None] * (inputs + outputs)).target("CPU").get_op_info()


def flat(value):
    """NumPy arrays of results, of one as a list of one; bfloat16 as itself."""
    if isinstance(value, (tuple, list)):
        return [a for v in value for a in flat(v)]
    if isinstance(value, ms.Tensor) and value.dtype == ms.bfloat16:
        return [value.astype(ms.float32).asnumpy().astype(ml_dtypes.bfloat16)]
    return [np.asarray(value.asnumpy() if hasattr(value, "asnumpy") else value)]


def same(got, want, structure=True):
    """Bit for bit; with `structure` a tuple of one is not a tensor."""
    if structure:
        assert isinstance(got, (tuple, list)) == isinstance(want, (tuple, list))
    for g, w in zip(flat(got), flat(want), strict=True):
        assert g.dtype == w.dtype and g.shape == w.shape, f"{g.dtype}{g.shape} instead of {w.dtype}{w.shape}"
        np.testing.assert_array_equal(g, w)


def _runs(row, host, so):
    made = row(host, so)
    return made if isinstance(made, tuple) else (made,)


def _called(host, run, net):
    return [net(*_sens(host, run, [host.tensor(a) for a in call])) for call in run.calls]


def _sens(host, run, tensors):
    """MindSpore's gradient takes those of several outputs as one tuple."""
    if host.is_mindspore and not isinstance(run.net, ms.nn.Cell) and len(tensors) > 2:
        return [*tensors[:2], tuple(tensors[2:])]
    return tensors


def in_mindspore(row, so, mode):
    host, results = Host(ms), []
    ms.set_context(mode=mode)
    for run in _runs(row, host, so):
        if run.open and mode == ms.GRAPH_MODE:
            run.net.set_inputs(*[host.Tensor(shape=s, dtype=ms.float32) for s in run.open])
        results += _called(host, run, run.net)
        for r in results:
            flat(r)  # PyNative's errors come at the synchronisation
    return results


def _eager(host, run, folder):
    opgraft.set_context(mode=opgraft.PYNATIVE_MODE)
    return _called(host, run, run.net)


def _traced(host, run, folder):
    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    if run.open and run.open[0]:
        run.net.set_inputs(*[host.Tensor(shape=s, dtype=host.float32) for s in run.open])
    return _called(host, run, run.net)


def _from_a_file(host, run, folder):
    opgraft.set_context(mode=opgraft.PYNATIVE_MODE)
    results, declared = [], run.open and run.open[0]
    for k, call in enumerate(run.calls):
        tensors = [host.tensor(a) for a in call]
        if k == 0 or not declared:  # one file for all sizes
            given = [host.Tensor(shape=s, dtype=host.float32) for s in run.open] if declared else tensors
            file = opgraft.export(run.net, *given, file_name=str(folder / f"net{k}"), file_format="MINDIR")
            net = opgraft.nn.GraphCell(opgraft.load(file))
        results.append(net(*tensors))
    return results


WAYS = {"eager": _eager, "traced": _traced, "file": _from_a_file}


def in_opgraft(row, so, way):
    host = Host(opgraft)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="row-", dir=so.folder))
    return [r for run in _runs(row, host, so) for r in WAYS[way](host, run, folder)]


def from_mindspore_s_file(row, so):
    """The model that MindSpore exports, run by opgraft."""
    host, results = Host(ms), []
    ms.set_context(mode=ms.GRAPH_MODE)
    opgraft.set_whitelist([str(so.folder)])
    try:
        for run in _runs(row, host, so):
            file = pathlib.Path(tempfile.mkdtemp(prefix="row-", dir=so.folder)) / "net.mindir"
            tensors = _sens(host, run, [host.tensor(a) for a in run.calls[0]])
            given = [host.Tensor(shape=s, dtype=ms.float32) for s in run.open] if run.open else tensors
            ms.export(run.net, *given, file_name=str(file), file_format="MINDIR")
            graph = opgraft.load(file)
            net, n = opgraft.nn.GraphCell(graph), len(graph.inputs)  # a tuple of tensors was written as constants
            results += [net(*[opgraft.Tensor(a) for a in call[:n]]) for call in run.calls]
    finally:
        opgraft.set_whitelist([])
    return results
