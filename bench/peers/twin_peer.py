"""opgraft's scalar twin: the operator's plain loop, on one thread."""

import numpy as np
import opgraft
from opgraft import _core

from . import Missing

WARM = True


def VERSION():
    return opgraft.__version__


def build(row, inputs, weights, threads):
    if not row.op or "twin" in row.missing:
        raise Missing(row.missing.get("twin", "the row is more than one operator"))
    op, given = _core.resolve(row.op), [*inputs, *weights]
    share = row.twin_rows / given[0].shape[0] if row.twin_rows else 1.0
    given[0] = given[0][: row.twin_rows]
    outputs = [np.empty_like(a) for a in _core.run_op(op, given, row.attrs)]

    def run():
        _core.run_reference_into(op, given, outputs, row.attrs)

    run.share = share
    return run, lambda: outputs
