"""What operators' kernels give, in every way that they are called."""

import contextlib
import ctypes
import functools
import mmap

import numpy as np
import opgraft
from opgraft import Parameter, Tensor, _core, nn, ops
from targets import ONE


def misaligned(shape, dtype, fill=0xA5):
    """An array one element past a 64-byte boundary, and the bytes around it."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.full(size + 256, fill, np.uint8)
    start = -raw.ctypes.data % 64 + 64 + dtype.itemsize
    return raw[start : start + size].view(dtype).reshape(shape), raw, (start, start + size)


def last(a):
    """A misaligned copy that ends with its allocation, so that AddressSanitizer sees a read past it."""
    view = np.empty(a.nbytes + a.itemsize, np.uint8)[a.itemsize :].view(a.dtype).reshape(a.shape)
    view[...] = a
    return view


PAGE, LIBC = mmap.PAGESIZE, ctypes.CDLL(None, use_errno=True)


def fenced(a, ends=True):
    """A copy that ends where the next page cannot be read, or else begins, misaligned, an element past such a page."""
    pages = -(-(a.nbytes + a.itemsize) // PAGE)
    memory = mmap.mmap(-1, (pages + 2) * PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for fence in (start, start + (pages + 1) * PAGE):
        if LIBC.mprotect(ctypes.c_void_p(fence), PAGE, 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    begin = (pages + 1) * PAGE - a.nbytes if ends else PAGE + a.itemsize
    view = np.frombuffer(memory, np.uint8)[begin : begin + a.nbytes].view(a.dtype).reshape(a.shape)
    view[...] = a
    return view


def run_op(op, inputs, attrs):
    """Of an operator by name, called eagerly; of copies, as an operator may update an input in place."""
    return _core.run_op(_core.resolve(op), [fenced(a) for a in inputs], attrs)


class Held(nn.Cell):
    """An operator some of whose inputs are constants, which it packs and folds ahead."""

    def __init__(self, case, inputs):
        super().__init__()
        self.op, self.attrs, self.count = case["op"], case.get("attrs", {}), len(inputs)
        for k in case["constant"]:
            setattr(self, f"constant{k}", Parameter(Tensor(inputs[k])))

    def construct(self, *given):
        rest = iter(given)
        every = [getattr(self, f"constant{k}", None) for k in range(self.count)]
        return ops.primitive(self.op, *(next(rest) if p is None else p for p in every), **self.attrs)


def with_constants(case, inputs):
    given = [a for k, a in enumerate(inputs) if k not in case["constant"]]
    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    return Held(case, inputs).session(*(Tensor(a) for a in given)).run(given)


@contextlib.contextmanager
def one_thread():
    """No other thread's share of a workspace lies between the caller's and where the workspace ends."""
    _core.set_threads(1)
    try:
        yield
    finally:
        _core.set_threads(0)


def results(case, inputs):
    """Of a case of a table: the outputs of an eager call, then of a misaligned one by one thread, then, where it has
    constants, of a graph that holds them."""
    op, attrs = _core.resolve(case["op"]), case.get("attrs", {})
    eager = run_op(case["op"], inputs, attrs)
    outputs = [misaligned(a.shape, a.dtype) for a in eager]
    apart = last if ONE else functools.partial(fenced, ends=False)  # the sanitizers' build sees both ends
    with one_thread():
        _core.run_into(op, [apart(a) for a in inputs], [view for view, _, _ in outputs], attrs)
    for _, raw, (begin, end) in outputs:
        assert (raw[:begin] == 0xA5).all() and (raw[end:] == 0xA5).all(), "wrote outside the output"
    return [eager, [view for view, _, _ in outputs], *([with_constants(case, inputs)] if "constant" in case else [])]
