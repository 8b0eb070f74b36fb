"""Runs Customs on a 2x3 float32 tensor in MindSpore, in a process of their own, which one may crash:
run_customs.py pynative|graph|both [FILE.so:Function ATTRIBUTES_AS_JSON]...
Prints a line for each: "gives: " and the elements, or "raises: ", the kind of the exception and its message up to the
call stack; in both modes the same. With "infer": "python" among the attributes y is declared to be as x, else the
file's own inference decides.
"""

import json
import sys

import mindspore as ms
import numpy as np

KINDS = {bool: "bool", int: "int", float: "float", str: "str", list: "all"}
MODES = {"pynative": [ms.PYNATIVE_MODE], "graph": [ms.GRAPH_MODE], "both": [ms.PYNATIVE_MODE, ms.GRAPH_MODE]}


def run(mode, func, attrs):
    ms.set_context(mode=mode)
    attrs = dict(attrs)
    infer = (lambda a: a) if attrs.pop("infer", "") == "python" else None
    info = ms.ops.CustomRegOp(func).input(0, "x").output(0, "y")
    for name, value in attrs.items():
        info.attr(name, "required", KINDS[type(value)], value=value)
    info = info.dtype_format(ms.ops.DataType.None_None, ms.ops.DataType.None_None).target("CPU").get_op_info()

    class Net(ms.nn.Cell):
        def __init__(self):
            super().__init__()
            self.custom = ms.ops.Custom(func, infer, infer, "aot", reg_info=info)

        def construct(self, a):
            return self.custom(a)

    try:
        result = Net()(ms.Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))).asnumpy()
        return "gives: " + " ".join(map(str, result.ravel()))
    except Exception as e:
        return f"raises: {type(e).__name__}: {str(e).split('-' * 20)[0].strip()}".replace("\n", " ").rstrip()


def main(mode, *given):
    ms.set_device("CPU")
    for func, attrs in zip(given[::2], given[1::2]):
        found = {run(m, func, json.loads(attrs)) for m in MODES[mode]}
        print(*found, sep=" or ", flush=True)


main(*sys.argv[1:])
