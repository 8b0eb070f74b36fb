"""MindSpore's own AOT tests and what they leave out, as rows: the same lines for MindSpore and for opgraft.

A row is a function of (host, so) that gives what to run: one Run or several. host has either package; so the files.
"""

import mindspore as ms
import ml_dtypes
import numpy as np
from hosts import Run

x = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
ROWS, FAILURES = {}, {}


def row(function):
    ROWS[function.__name__] = function
    return function


def first(*args):
    return args[0]


@row
def single_output_by_python_inference(host, so):
    return Run(host.net(host.custom(f"{so.kernels}:Copy", first, first)), [[x]])


@row
def shapes_and_dtypes_as_values(host, so):
    return Run(host.net(host.custom(f"{so.kernels}:Copy", (2, 3), host.float32)), [[x]])


@row
def a_tuple_of_one_shape_gives_a_tuple_of_one(host, so):
    return Run(host.net(host.custom(f"{so.kernels}:Copy", ([2, 3],), (host.float32,))), [[x]])


@row
def inference_by_the_file(host, so):
    return Run(host.net(host.custom(f"{so.kernels}:Copy", reg_info=host.reg("Copy", 1, 1))), [[x]])


KINDS = {
    "flag": ("bool", True),
    "number": ("int", -3),
    "factor": ("float", 2.5),
    "a_name_of_more_than_fifteen_characters": ("str", "and a value that is longer than that, too"),
    "ints": ("listInt", [1, 2, 3]),
    "floats": ("listFloat", [0.5, 0.25]),
    "ints2d": ("all", [[1, 2], [3]]),
    "floats2d": ("all", [[0.5], [1.0, 2.0]]),
}


@row
def attributes_of_every_kind(host, so):
    info = host.reg("Kinds", 1, 1, **KINDS)
    return Run(host.net(host.custom(f"{so.kernels}:Kinds", (8,), host.float32, reg_info=info)), [[x]])


@row
def attributes_of_every_kind_by_trailing_arguments(host, so):
    info = host.reg("KindsTrailing", 1, 1, **{k: kind for k, (kind, _) in KINDS.items()})
    custom = host.custom(f"{so.kernels}:KindsTrailing", (8,), host.float32, reg_info=info)
    return Run(host.net(custom, *[value for _, value in KINDS.values()]), [[x]])


@row
def attributes_that_decide_the_shape_by_trailing_arguments(host, so):
    # MindSpore's C++ inference does not see them.
    info = host.reg("ReduceTrailing", 1, 1, axis="int", keep_dim="bool")
    made = [host.custom(f"{so.kernels}:ReduceTrailing", s, host.float32, reg_info=info) for s in [(2, 1), (3,)]]
    return Run(host.net(made[0], 1, True), [[x]]), Run(host.net(made[1], 0, False), [[x]])


@row
def init_with_workspaces_and_kernel_data(host, so):
    def run(axis, keep):
        info = host.reg(f"AddReduce{axis}", 2, 1, axis=("int", axis), keep_dim=("bool", keep))
        return Run(host.net(host.custom(f"{so.kernels}:AddReduce", reg_info=info)), [[x, x + 3]])

    return run(0, True), run(1, False)


@row
def add_and_reduce_fused_with_open_dimensions(host, so):
    info = host.reg("AddReduceOpen", 2, 1, axis=("int", 1), keep_dim=("bool", False))
    calls = [[np.ones(s, np.float32), np.full(s, 2, np.float32)] for s in [(2, 3), (5, 4), (1, 1)]]
    return Run(host.net(host.custom(f"{so.kernels}:AddReduce", reg_info=info)), calls, [[None, None]] * 2)


@row
def reduce_with_open_dimensions(host, so):
    info = host.reg("ReduceOpen", 1, 1, axis=("int", 1), keep_dim=("bool", True))
    calls = [[np.ones(s, np.float32)] for s in [(2, 3), (5, 4), (1, 1)]]
    return Run(host.net(host.custom(f"{so.kernels}:Reduce", reg_info=info)), calls, [[None, None]])


@row
def inference_by_the_file_with_open_rank(host, so):
    calls = [[np.ones(s, np.float32)] for s in [(2, 3), (4,), (1, 2, 2)]]
    return Run(host.net(host.custom(f"{so.kernels}:Copy", reg_info=host.reg("CopyOpen", 1, 1))), calls, [None])


@row
def reorganize(host, so):
    pick = host.custom(f"{so.kernels}:Reorganize", lambda a, b: b, first)
    return Run(host.net(pick), [[np.arange(4, dtype=np.float32), np.array([3, 0, 3], np.int64)]])


@row
def float32_times_float16(host, so):
    mixed = host.custom(f"{so.kernels}:Mixed", first, lambda a, b: b)
    return Run(host.net(mixed), [[np.array([0.5, -2, 3], np.float32), np.array([4, 0.25, 0], np.float16)]])


@row
def two_inputs_three_outputs(host, so):
    three = host.custom(f"{so.kernels}:Three", lambda a, b: (a, a, a), lambda a, b: (a, a, a))
    return Run(host.net(three), [[x, x + 3]])


def _three_grad(host, so):
    return host.custom(f"{so.grads}:ThreeGrad", lambda *a: (a[0], a[1]), lambda *a: (a[0], a[1]))


@row
def five_inputs_two_outputs(host, so):
    return Run(host.net(_three_grad(host, so)), [[x, x + 3, x * 2, x - 1, x + 1]])


# Gradients: MindSpore's by ops.grad. opgraft has none: it keeps bprop, and what bprop computes is the same.


def gradient(host, custom, count):
    """A Cell that gives the gradients of a Custom by its `count` inputs, every output's own gradient being given."""
    if host.is_mindspore:
        return ms.ops.GradOperation(get_all=True, sens_param=True)(host.net(custom))

    class Gradients(host.nn.Cell):
        def construct(self, *args):
            inputs, dout = args[:count], args[count:]
            out = custom(*inputs)
            return custom.bprop(*inputs, out, dout[0] if len(dout) == 1 else dout)

    return Gradients()


@row
def a_bprop_in_python(host, so):
    def bprop(a, out, dout):
        return (a * 2.0 * dout,)

    square = host.custom(f"{so.kernels}:Square", first, first, bprop=bprop)
    assert host.is_mindspore or square.bprop is bprop
    return Run(gradient(host, square, 1), [[x, x + 1]])


@row
def a_bprop_by_an_operator_of_another_file(host, so):
    backward = _three_grad(host, so)

    def bprop(a, b, out, dout):
        return backward(a, b, dout[0], dout[1], dout[2])

    three = host.custom(f"{so.kernels}:Three", lambda a, b: (a, a, a), lambda a, b: (a, a, a), bprop=bprop)
    assert host.is_mindspore or three.bprop is bprop
    return Run(gradient(host, three, 2), [[x, x + 3, x * 2, x - 1, x + 1]])


@row
def a_tensor_without_dimensions(host, so):
    return Run(host.net(host.custom(f"{so.kernels}:Copy", first, first)), [[np.array(2.5, np.float32)]])


@row
def an_empty_tensor(host, so):
    return Run(host.net(host.custom(f"{so.kernels}:Copy", first, first)), [[np.zeros((0, 3), np.float32)]])


def _of(dtype):
    def one(host, so):
        array = x * (1 + 2j) if dtype == "complex64" else x
        array = array > 0 if dtype == "bool" else array.astype(getattr(ml_dtypes, dtype, dtype))
        return Run(host.net(host.custom(f"{so.kernels}:Copy", first, first)), [[array]])

    one.__name__ = f"a_tensor_of_{dtype}"
    return row(one)


for _dtype in "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float64 complex64".split():
    _of(_dtype)


@row
def several_operators_of_one_file_in_one_graph(host, so):
    class Net(host.nn.Cell):
        def __init__(self):
            super().__init__()
            self.copy = host.custom(f"{so.kernels}:Copy", first, first)
            self.three = host.custom(f"{so.kernels}:Three", lambda a, b: (a, a, a), lambda a, b: (a, a, a))

        def construct(self, a):
            return self.three(self.copy(a), a)

    return Run(Net(), [[x]])


def failure(theirs, ours):
    def put(function):
        FAILURES[function.__name__] = (function, theirs, ours)
        return function

    return put


def _fails(host, so, where, how):
    info = host.reg(f"Fails{where}{how}", 1, 1, where=("str", where), how=("str", how))
    return Run(host.net(host.custom(f"{so.kernels}:Fails", reg_info=info)), [[x]])


EMPTY = r"^\s*-{10}"  # nothing before the call stack
for _where, _how, _theirs, _ours in [
    ("launch", "code", r"function\(Fails\) is 7", "Fails: Fails of {so} returned 7, expected 0"),
    ("launch", "throw", "the cause of it", "Fails: Fails of {so} failed: the cause of it"),
    ("launch", "ask", "there is no attribute called not_there", "Fails of {so} failed: attribute not_there is not set"),
    ("Init", "code", r"function\(Fails\) is 7", "Fails: FailsInit of {so} returned 7, expected 0"),
    ("Init", "throw", EMPTY, "Fails: FailsInit of {so} failed: the cause of it"),
    ("Init", "ask", EMPTY, "FailsInit of {so} failed: attribute not_there is not set"),
    ("InferShape", "throw", "the cause of it", "Fails: FailsInferShape of {so} failed: the cause of it"),
    ("InferType", "throw", "the cause of it", "Fails: FailsInferType of {so} failed: the cause of it"),
]:

    def _one(host, so, where=_where, how=_how):
        return _fails(host, so, where, how)

    _what = {"code": "an_error_code", "throw": "an_exception", "ask": "an_attribute_that_is_not_set"}[_how]
    _one.__name__ = f"{_what}_in_{_where}"
    failure(_theirs, _ours)(_one)


@failure("error occurs when fetching function 'Nowhere'", "{so}: symbol Nowhere is missing: .* exports .*Three")
def a_function_that_is_not_in_the_file(host, so):
    return Run(host.net(host.custom(f"{so.kernels}:Nowhere", first, first)), [[x]])


@failure("couldn't find the AOT binary file: {so}.gone", "{so}.gone: no such file")
def a_file_that_is_not_there(host, so):
    return Run(host.net(host.custom(f"{so.kernels}.gone:Copy", first, first)), [[x]])
