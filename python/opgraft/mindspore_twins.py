"""Cells of MindSpore that share parameters, primitives and leaves with others, but may be rewritten."""

from mindspore import nn

# What a Cell knows of its own compilation: a twin has not been compiled.
_OWN = {"_id", "_create_time", "_compile_cache", "_compiled", "_compile_phase", "_phase_cache", "arguments_key",
        "_is_check_and_refresh", "_exist_objs", "_exist_names", "_jit_graph_name"}  # fmt: skip


def twin(cell, children=None):
    """A Cell with the same attributes, parameters and, where no others are given, sub-cells, not yet compiled."""
    other = type(cell).__new__(type(cell))
    nn.Cell.__init__(other)
    for key, value in cell.__dict__.items():
        if key not in _OWN:
            other.__dict__[key] = value.copy() if isinstance(value, (dict, list, set)) else value
    put(other, children or {})
    return precise(other, cell)


def precise(other, cell):
    """What to_float has set in a Cell is not among its Python attributes alone."""
    if cell.mixed_precision_type is not None:
        other.set_mixed_precision_type(cell.mixed_precision_type)
    return other


def put(cell, children):
    """Sub-cells in place of those of the same names; setattr would rename their parameters."""
    cell._cells.update(children)
    if isinstance(cell, nn.SequentialCell):
        cell.__dict__["cell_list"] = list(cell._cells.values())


def copy(cell, done):
    """A twin of a Cell and of all within it that has sub-cells and is not MindSpore's own: what a rewritten Cell takes
    apart when it is made."""
    if id(cell) not in done:
        apart = isinstance(cell, (nn.SequentialCell, nn.CellList)) or not type(cell).__module__.startswith("mindspore.")
        children = {n: copy(c, done) for n, c in cell._cells.items() if c is not None} if apart else {}
        done[id(cell)] = twin(cell, children) if apart and children else cell
    return done[id(cell)]
