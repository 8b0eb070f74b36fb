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
    held = [tensor(a) for a in weights]
    if "torch" in row.prepare:
        held = row.prepare["torch"](torch, *held)
    given = [*map(tensor, inputs), *held]
    function, mode = row.torch(torch), torch.inference_mode
    if hasattr(function, "forward"):  # a gradient: autograd works outside of that mode, on what the forward kept
        function.forward, mode = wrap(function.forward), torch.enable_grad
    else:
        with mode():
            function = wrap(function)
    last = []

    def run():
        with mode():
            last[:] = as_list(function(*given))

    return run, lambda: [array(t.detach()) for t in last]
