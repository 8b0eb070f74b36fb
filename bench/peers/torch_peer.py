"""torch, eager."""

import ml_dtypes
import numpy as np
import torch

from . import Missing, as_list


def VERSION():
    return torch.__version__


def tensor(a):
    if a.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(a.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(a)


def array(t):
    if t.dtype == torch.bfloat16:
        return t.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return t.numpy()


def build(row, inputs, weights, threads, wrap=lambda f: f):
    if row.torch is None:
        raise Missing(row.missing.get("torch", "no torch form"))
    torch.set_num_threads(threads)
    given = [tensor(a) for a in [*inputs, *weights]]
    with torch.inference_mode():
        function = wrap(row.torch(torch))
    last = []

    def run():
        with torch.inference_mode():
            last[:] = as_list(function(*given))

    return run, lambda: [array(t.detach()) for t in last]
