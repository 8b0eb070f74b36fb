"""Prints the cases of the operators' tables whose kernels compute with what their memory happened to hold: JSON, the
cases tried, those that took memory, and what is wrong. tests/cpp/denormals.c is preloaded."""

import ctypes
import json
import sys

import numpy as np
import opgraft
from conftest import make_input, tables
from kernels import Held
from opgraft import Tensor, _core

SMALLEST = 1  # the bits of the smallest denormal float32; its halves are 0 and the smallest denormal half


def caller(case):
    """A call whose workspace is new each time, or a program's first run where inputs are constants."""
    inputs, attrs = [make_input(s, i) for i, s in enumerate(case["inputs"])], case.get("attrs", {})
    if case.get("constant"):
        given = [a for i, a in enumerate(inputs) if i not in case["constant"]]
        return lambda: Held(case, inputs).session(*(Tensor(a) for a in given)).run(given)
    op = _core.resolve(case["op"])
    outputs = [np.zeros_like(a) for a in _core.run_op(op, inputs, attrs)]
    return lambda: _core.run_into(op, inputs, outputs, attrs)


def main(library):
    memory = ctypes.CDLL(library)
    memory.fill_memory.restype = ctypes.c_uint64
    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    _core.set_threads(1)  # this thread's notes are read

    def met_denormal(call, word):
        memory.fill_memory(1, ctypes.c_uint32(word))
        memory.forget_denormals()
        call()
        return memory.met_denormal(), memory.fill_memory(0, 0)

    tried, with_memory, wrong = 0, 0, []
    for folder, module in tables():
        for k, case in enumerate(module.CASES):
            if case.get("error"):
                continue
            call = caller(case)
            its_own, _ = met_denormal(call, 0)
            met, filled = met_denormal(call, SMALLEST)
            tried, with_memory = tried + 1, with_memory + (filled > 0)
            if met and not its_own:
                wrong.append(f"{folder}/cases.py, {k}: {case['op']}")
    print(json.dumps({"tried": tried, "with_memory": with_memory, "wrong": wrong}))


if __name__ == "__main__":
    main(sys.argv[1])
