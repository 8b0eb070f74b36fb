"""What proofs of swaps share: the inputs they run on and the report."""

import numpy as np

from . import dtype as dt
from .tensor import Tensor


def _left_line(op, node, why):
    name = op.partition("@")[0]
    refused = f"node {name}:{node}: {name}: "  # by the op's own inference; the shapes are in `why`
    if why.startswith(refused):
        return f"left alone: {node} does not fit {op}: {why.removeprefix(refused).partition(' [inputs: ')[0]}"
    return f"left alone: {node} ({op}): {why}"


class Report:
    """What was matched, swapped, and left alone and why.

    swapped: dicts of op, node, max_abs, mean_abs, ms_before, ms_after (None where not proven); left: of op, node,
    why; merged: how many swaps a larger one then replaced; matched = swapped + merged + left. note: of the proof of the
    whole model, where it differs by more than the tolerance and no more than it would by itself. Without a proof and
    before the first call of a Cell nothing is known yet: `pending` is then True, and the report is filled in when the
    Cell is traced.
    """

    def __init__(self, matched=0, swapped=(), left=(), pending=False, merged=0, note=""):
        self.matched, self.swapped, self.left, self.pending = matched, list(swapped), list(left), pending
        self.merged, self.note = merged, note

    def _fill(self, result):
        if self.pending:
            self.__init__(**result)

    def _withdraw(self, why):
        """What was swapped is left alone."""
        self.left += [{"op": s["op"], "node": s["node"], "why": why} for s in self.swapped]
        self.swapped = []

    def to_dict(self) -> dict:
        result = {"matched": self.matched, "merged": self.merged, "swapped": self.swapped, "left": self.left}
        return result | ({"note": self.note} if self.note else {})

    def __str__(self):
        if self.pending:
            return "not known yet: the swaps are made when the Cell is called"
        columns = [("op", None), ("node", None), ("max_abs", ".2e"), ("mean_abs", ".2e"), ("ms_before", ".4f"),
                   ("ms_after", ".4f")]  # fmt: skip
        rows = [[name.replace("_", " ") for name, _ in columns]]
        for s in self.swapped:
            values = [(s.get(name), form) for name, form in columns]
            rows.append(["-" if v is None else format(v, form) if form else v for v, form in values])
        merged = f", merged into larger ones {self.merged}" if self.merged else ""
        lines = [f"matched {self.matched}, swapped {len(self.swapped)}{merged}, left {len(self.left)}"]
        if self.swapped:
            widths = [max(map(len, column)) for column in zip(*rows)]
            lines += [
                "  ".join(c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(r, widths))) for r in rows
            ]
        lines += [_left_line(**x) for x in self.left]
        if self.note:
            lines.append(self.note)
        return "\n".join(lines)

    def __repr__(self):
        return f"<Report: {str(self).splitlines()[0]}>"


def too_slow(before, after):
    """Why a swap is left alone under only_faster, of its times in ms, or None."""
    return f"not 5 % faster: {before:.4f} ms before, {after:.4f} ms after" if after * 1.05 > before else None


def input_sets(what, prove):
    sets = prove if isinstance(prove, list) and prove and isinstance(prove[0], (tuple, list)) else [prove]
    sets = [s if isinstance(s, (tuple, list)) else (s,) for s in sets]
    if not sets or not all(len(s) for s in sets):
        raise ValueError(f"{what}: prove must be inputs of the model, got none")
    if len({len(s) for s in sets}) != 1:
        raise ValueError(f"{what}: prove's tuples must be of one length, got {[len(s) for s in sets]}")
    sets = [tuple(x if isinstance(x, Tensor) else Tensor(x) for x in s) for s in sets]
    for i, tensors in enumerate(zip(*sets)):
        kinds = {(dt.name(t.dtype), len(t.shape)) for t in tensors}
        if len(kinds) != 1:
            raise ValueError(
                f"{what}: prove's input {i} must have one dtype and rank in all tuples, got {sorted(kinds)}"
            )
    return sets


def resized(array, axis, size):
    """The array with so many entries along an axis: cut off, or repeated from the first on."""
    return array.take(np.arange(size) % array.shape[axis], axis)


def one_more_row(arrays):
    """The same arrays with one more row where all of them have the same first dimension, else None."""
    first = {a.shape[:1] for a in arrays}
    if len(first) != 1 or first == {()} or not next(iter(first))[0]:
        return None
    return tuple(resized(a, 0, len(a) + 1) for a in arrays)


def second_size(inputs):
    """`one_more_row` of Tensors."""
    rows = one_more_row([t.asnumpy() for t in inputs])
    return rows and tuple(map(Tensor, rows))
