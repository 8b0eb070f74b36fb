"""Models in files."""

import pathlib

from . import _core, nn
from . import trace as _trace


def export(net, *inputs, file_name, file_format="MINDIR", user_info=None):
    """Writes a Cell, traced on inputs, as a MindIR file. Returns its path.

    inputs are tensors, whose shapes the model keeps, or placeholders, as in MindSpore: with
    `Tensor(shape=[None, 32], dtype=...)` the first dimension stays open. None is a dimension of its own;
    `opgraft.dim("batch")` is one that stands in several inputs, which gives better plans and clearer errors.
    Inputs have the names of construct's parameters. Without any, those of Cell.set_inputs. user_info: texts by name
    that the file carries, as MindIR's.
    """
    if file_format != "MINDIR":
        raise ValueError(f"export: file_format must be 'MINDIR', got {file_format!r}")
    if not isinstance(net, nn.Cell):
        raise TypeError(f"export: net must be a Cell, got {type(net).__name__}")
    path = pathlib.Path(file_name)
    path = path if path.suffix == ".mindir" else path.with_name(path.name + ".mindir")
    if isinstance(net, nn.GraphCell):
        graph = net.graph
    else:
        net._setup()
        leaves, structure = net._declared or ([], None)
        if inputs or structure is None:
            leaves = []
            structure = _trace.flatten((inputs, {}), leaves)
        graph, out = _grafted(net, structure, leaves)
        if graph is None:
            graph, out = net._trace([(t.dtype, t.shape) for t in leaves], structure)
            net._graft(graph)
        _only_tensors(out, "output")
    if user_info:
        graph = graph.clone()
        graph.user_info = {**graph.user_info, **user_info}
    path.parent.mkdir(parents=True, exist_ok=True)
    _core.write_mindir(graph, str(path))
    return str(path)


def _grafted(net, structure, leaves):
    """The graph, with its outputs' structure, that a substitution left in the Cell for such inputs, or None twice."""
    shapes = None
    for program, inside in net._swaps():
        if inside == structure:
            if program.fits(leaves):
                return _with_names(program, leaves), program.structure
            shapes = [tuple("?" if d < 0 else d for d in dims) for _, dims in program.inputs]
    if shapes is not None:
        raise ValueError(
            f"export: inputs must fit the substituted graph's shapes {shapes}, got {[t.shape for t in leaves]}; "
            "substitute again with prove inputs of several sizes to keep dimensions open"
        )
    return None, None


def _only_tensors(structure, name):
    """TypeError for a result that the file would lose; None may be missing."""
    if structure == "*":
        return
    kind, body = structure
    if kind != "const":
        for key, item in body if kind == "dict" else enumerate(body):
            _only_tensors(item, f"{name}[{key!r}]")
    elif body.value is not None:
        raise TypeError(f"export: {name} must be a Tensor, got {body.value!r}")


def _with_names(program, leaves):
    """The program's graph, its open dimensions named as in the placeholders."""
    graph = program.graph.clone()
    for (_, dims), leaf in zip(program.inputs, leaves):
        for d, given in zip(dims, leaf.shape):
            if d < 0 and isinstance(given, _trace.Dim):
                graph.rename_symbol(d, given.name)
    return graph


def load(file_name):
    """The graph of a MindIR file, for nn.GraphCell."""
    if not pathlib.Path(file_name).exists():
        raise FileNotFoundError(f"{file_name}: no such file")
    return _core.read_mindir(str(file_name))
