"""Prints docs/mindspore_api.md: what of MindSpore's Python API opgraft has under the same names, and what it refuses.

cd build/mindspore && PYTHONPATH=../python ../../.venv-mindspore/bin/python ../../tests/mindspore/api.py
"""

import inspect
import types

import mindspore as ms
import numpy as np
import opgraft
from opgraft import Tensor, nn, ops

only = types.SimpleNamespace(**{name: getattr(ops, name) for name in ops.__all__ if not hasattr(ms.ops, name)})
MODULES = {"mindspore": (opgraft, ms), "mindspore.nn": (nn, ms.nn), "mindspore.ops": (ops, ms.ops),
           "mindspore.ops.auto_generate": (only, ms.ops.auto_generate), "Tensor": (Tensor, ms.Tensor),
           "nn.Cell": (nn.Cell, ms.nn.Cell)}  # fmt: skip
x = Tensor(np.ones((2, 3), np.float32))
images = Tensor(np.ones((1, 2, 4, 4), np.float32))

# What a script of MindSpore's may ask for and opgraft does not do: the lines below are run for their messages.
REFUSED = [
    ("nn.LSTM(4, 8)", lambda: nn.LSTM),
    ("ops.fft(x)", lambda: ops.fft),
    ("x.cumsum(0)", lambda: x.cumsum),
    ("nn.Dense(3, 2, activation='swish')", lambda: nn.Dense(3, 2, activation="swish")),
    ("nn.Dense(3, 2, weight_init='orthogonal')", lambda: nn.Dense(3, 2, weight_init="orthogonal")),
    (
        "nn.MaxPool2d(2, pad_mode='pad', data_format='NHWC')",
        lambda: nn.MaxPool2d(2, pad_mode="pad", data_format="NHWC"),
    ),
    ("nn.BatchNorm2d(2, use_batch_statistics=True)", lambda: nn.BatchNorm2d(2, use_batch_statistics=True)),
    ("nn.MaxPool2d(2, return_indices=True)(images)", lambda: nn.MaxPool2d(2, return_indices=True)(images)),
    ("nn.AvgPool2d(2, ceil_mode=True)(images)", lambda: nn.AvgPool2d(2, ceil_mode=True)(images)),
    ("ops.batch_norm(..., training=True)", lambda: ops.batch_norm(images, *[Tensor(np.ones(2, np.float32))] * 4, True)),
    ("ops.split(x, 2, 5)", lambda: ops.split(x, 2, 5)),
    (
        "ops.weight_quant_batch_matmul(..., antiquant_group_size=32)",
        lambda: ops.weight_quant_batch_matmul(
            x, Tensor(np.ones((3, 2), np.int8)), Tensor(np.ones(2, np.float32)), antiquant_group_size=32
        ),
    ),
    ("set_device('GPU')", lambda: opgraft.set_device("GPU")),
    ("set_context(device_target='Ascend')", lambda: opgraft.set_context(device_target="Ascend")),
    ("ops.Custom(f, func_type='pyfunc')", lambda: ops.Custom("f", None, None, "pyfunc")),
    ("export(net, x, file_format='ONNX')", lambda: opgraft.export(nn.ReLU(), x, file_name="net", file_format="ONNX")),
]


def parameters(f):
    """Names of what a function, or a class's constructor, takes; None where Python does not tell."""
    if inspect.isclass(f) and hasattr(f, "arguments"):  # a primitive of ours
        return list(f.arguments)
    try:
        found = inspect.signature(f.__init__ if inspect.isclass(f) else f).parameters.values()
    except (TypeError, ValueError):
        return None
    return [p.name for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name != "self"]


def shared(module):
    """(name, ours, MindSpore's) of what both have."""
    ours, theirs = MODULES[module]
    for name in sorted(dir(ours)):
        pair = getattr(ours, name), getattr(theirs, name, None)
        if not name.startswith("_") and pair[1] is not None and not any(map(inspect.ismodule, pair)):
            yield name, *pair


def not_taken(module, ours, theirs):
    """Arguments of MindSpore's that ours has not: by name, but of functions of ops by position."""
    here, there = parameters(ours), parameters(theirs)
    if here is None or there is None or not (inspect.isfunction(ours) or inspect.isclass(ours)):
        return []
    if inspect.isfunction(ours) and any(
        p.kind == p.VAR_POSITIONAL for p in inspect.signature(ours).parameters.values()
    ):
        return []
    by_place = module.startswith("mindspore.ops") and inspect.isfunction(ours)
    return there[len(here) :] if by_place else [p for p in there if p not in here]


def message(run):
    try:
        run()
    except Exception as e:
        return f"{type(e).__name__}: {str(e).splitlines()[0]}".replace("|", "\\|")
    raise AssertionError("nothing is refused")


INTRODUCTION = """# MindSpore's Python API in opgraft

Written by `tests/mindspore/api.py`. `test_api.py` and `test_scripts.py` compare results with MindSpore's. Layers and
primitives take their arguments in MindSpore's order and by MindSpore's names, functions of `ops` take tensors by
position. What is not listed is not there, and asking for it is an AttributeError. Tensors have Python's operators and
slicing. What MindSpore's methods of Tensor take Python does not tell: `sum(axis, dtype, keepdims)`,
`mean(axis, keep_dims)` and the shapes and axes of the others are taken here, no more."""


def document():
    lines = [INTRODUCTION]
    for module in MODULES:
        lines += ["", f"## {module}", "", "| | not taken |", "|---|---|"]
        plain = []
        for name, ours, theirs in shared(module):
            missing = not_taken(module, ours, theirs)
            if missing:
                lines.append(f"| `{name}` | {', '.join(missing)} |")
            else:
                plain.append(f"`{name}`")
        if lines[-1] == "|---|---|":
            lines = lines[:-3]
        lines += ["", ", ".join(plain)]
    lines += ["", "## Refused", "", "| | |", "|---|---|"]
    lines += [f"| `{text}` | {message(run)} |" for text, run in REFUSED]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(document(), end="")
