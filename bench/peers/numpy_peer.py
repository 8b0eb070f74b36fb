"""NumPy: the formula as its user writes it."""

import numpy as np

from . import Missing, as_list

WARM = True


def VERSION():
    return np.__version__


def build(row, inputs, weights, threads):
    if row.numpy is None:
        raise Missing(row.missing.get("numpy", "no NumPy form"))
    given, last = [*inputs, *weights], []

    def run():
        last[:] = as_list(row.numpy(*given))

    return run, lambda: last
