"""Every operator over its case table: kernel against scalar twin and NumPy, aligned and not, and what it refuses."""

import os

import numpy as np
import opgraft
import pytest
from conftest import make_input, tables
from opgraft import Parameter, Tensor, _core, nn, ops
from targets import differs_in_products, every_other_target, run_again

CASES = [(folder, m, c) for folder, m in tables() for c in m.CASES]
REFUSED = [c for _, m in tables() for c in getattr(m, "REFUSED", [])]


def _id(case):
    return f"{case['op']}-{'_'.join(f'{i[0]}{i[1]}' for i in case['inputs'])}-{case.get('attrs', {})}"[:90]


def misaligned(shape, dtype, fill=0xA5):
    """An array one element past a 64-byte boundary, and the bytes around it."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.full(size + 256, fill, np.uint8)
    start = -raw.ctypes.data % 64 + 64 + dtype.itemsize
    return raw[start : start + size].view(dtype).reshape(shape), raw, (start, start + size)


ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def wide(a):
    return np.asarray(a) if np.asarray(a).dtype.kind in "iub" else np.asarray(a).astype(np.float64)


def bounds(module, case, inputs, outputs):
    """What each output may differ by beyond the case's tolerance, from the inputs (cases.py: BOUND)."""
    bound = getattr(module, "BOUND", {}).get(case["op"])
    if bound is None:
        return [0.0] * outputs
    dtypes = [d for d in (a.dtype.name for a in inputs) if d in ROUNDOFF]
    with np.errstate(all="ignore"):
        found = bound(ROUNDOFF[dtypes[0]] if dtypes else 0.0, *map(wide, inputs), **case.get("attrs", {}))
    return found if isinstance(found, list) else [found]


def last(a):
    """A misaligned copy that ends with its allocation, so that AddressSanitizer sees a read past it."""
    view = np.empty(a.nbytes + a.itemsize, np.uint8)[a.itemsize :].view(a.dtype).reshape(a.shape)
    view[...] = a
    return view


def close(got, want, case, bound=0.0):
    dtype = got.dtype
    got, want = wide(got).astype(np.float64), wide(want).astype(np.float64)
    assert got.shape == want.shape
    if dtype.name in ROUNDOFF:  # beyond the type's range the right answer is inf
        with np.errstate(all="ignore"):
            stored = want.astype(dtype).astype(np.float64)
        want = np.where(np.isinf(stored), stored, want)
    bound = np.broadcast_to(np.nan_to_num(bound, nan=0.0, posinf=0.0), want.shape)  # inf and NaN allow nothing
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite])
    error = np.abs(got[finite] - want[finite])
    allowed = case["atol"] + case["rtol"] * np.abs(want[finite]) + bound[finite]
    bad = ~(error <= allowed)
    if bad.any():
        at = np.argmax(np.where(bad, error / np.maximum(allowed, 1e-300), 0.0))
        raise AssertionError(
            f"{bad.sum()} of {bad.size} differ; got {got[finite][at]!r}, expected {want[finite][at]!r}, "
            f"off by {error[at]:.3g}, allowed {allowed[at]:.3g}"
        )


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


@pytest.mark.parametrize("folder,module,case", CASES, ids=[_id(c) for _, _, c in CASES])
def test_case(folder, module, case):
    op = _core.resolve(case["op"])
    attrs = case.get("attrs", {})
    inputs = [make_input(s, k) for k, s in enumerate(case["inputs"])]
    got = _core.run_op(op, [a.copy() for a in inputs], attrs)  # an operator may update an input in place
    bound = bounds(module, case, inputs, len(got))
    twin = [np.empty_like(a) for a in got]
    _core.run_reference_into(op, [a.copy() for a in inputs], twin, attrs)
    for a, b, more in zip(got, twin, bound):
        close(a, b, case, more)
    reference = module.REFERENCE.get(case["op"])
    if reference is not None:
        with np.errstate(all="ignore"):
            want = reference(*map(wide, inputs), **attrs)
        for a, b, more in zip(got, want if isinstance(want, (tuple, list)) else [want], bound):
            close(a, b, case, more)
    if "constant" in case:
        for a, b, more in zip(with_constants(case, inputs), twin, bound, strict=True):
            close(a, b, case, more)
    outputs = [misaligned(a.shape, a.dtype) for a in got]
    _core.run_into(op, [last(a) for a in inputs], [o[0] for o in outputs], attrs)
    for (view, raw, (begin, end)), a, more in zip(outputs, got, bound):
        assert (raw[:begin] == 0xA5).all() and (raw[end:] == 0xA5).all(), "wrote outside the output"
        close(view, a, case, more)


@every_other_target
def test_every_target(target):
    """The cases again under another SIMD target."""
    products = [("MatMul", "Dense", "Conv2D"), ("bfloat16", "int8")]
    words = products if differs_in_products(target) and "OPGRAFT_CASES" not in os.environ else []
    text = run_again(__file__, target, " and ".join(["test_case", *(f"({' or '.join(w)})" for w in words)]))
    names = [_id(c).lower() for _, _, c in CASES]
    count = sum(all(any(w.lower() in name for w in some) for some in words) for name in names)
    assert f"{count} passed" in text, text[-1000:]


@pytest.mark.parametrize("case", REFUSED, ids=[_id(c) for c in REFUSED])
def test_refused(case):
    inputs = [make_input(s, k) for k, s in enumerate(case["inputs"])]
    op, attrs = _core.resolve(case["op"]), case.get("attrs", {})
    with pytest.raises((ValueError, TypeError, RuntimeError), match=case["error"]):
        try:
            _core.run_into(op, inputs, [], attrs)  # the operator's own infer, without the engine's checks before it
        except ValueError as e:
            if "outputs, got 0" not in str(e):
                raise
            _core.run_op(op, inputs, attrs)  # infer took it: the kernel must refuse


def test_an_element_of_pow_does_not_depend_on_its_neighbours():
    """Chunks of threads end anywhere: the same bits in one call and in calls of seven elements."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 2001)).astype(np.float32)  # negative bases give NaN, some vectors are mixed
    y[::3] = 3
    op = _core.resolve("Pow")
    whole = _core.run_op(op, [x, y], {})[0]
    parts = [_core.run_op(op, [x[i : i + 7].copy(), y[i : i + 7].copy()], {})[0] for i in range(0, x.size, 7)]
    np.testing.assert_array_equal(whole.view(np.int32), np.concatenate(parts).view(np.int32))
