"""Every operator over its case table: kernel against scalar twin and NumPy, aligned and not, and what it refuses."""

import numpy as np
import pytest
from conftest import make_input, tables
from opgraft import _core

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


def close(got, want, case):
    got, want = np.asarray(got).astype(np.float64), np.asarray(want).astype(np.float64)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=case["rtol"], atol=case["atol"])


@pytest.mark.parametrize("folder,module,case", CASES, ids=[_id(c) for _, _, c in CASES])
def test_case(folder, module, case):
    op = _core.resolve(case["op"])
    attrs = case.get("attrs", {})
    inputs = [make_input(s, k) for k, s in enumerate(case["inputs"])]
    got = _core.run_op(op, inputs, attrs)
    twin = [np.empty_like(a) for a in got]
    _core.run_reference_into(op, inputs, twin, attrs)
    for a, b in zip(got, twin):
        close(a, b, case)
    reference = module.REFERENCE.get(case["op"])
    if reference is not None:
        with np.errstate(all="ignore"):
            want = reference(*[a if a.dtype.kind in "iub" else a.astype(np.float64) for a in inputs], **attrs)
        for a, b in zip(got, want if isinstance(want, (tuple, list)) else [want]):
            close(a, b, case)
    shifted = []
    for a in inputs:
        view, _, _ = misaligned(a.shape, a.dtype)
        view[...] = a
        shifted.append(view)
    outputs = [misaligned(a.shape, a.dtype) for a in got]
    _core.run_into(op, shifted, [o[0] for o in outputs], attrs)
    for (view, raw, (begin, end)), a in zip(outputs, got):
        assert (raw[:begin] == 0xA5).all() and (raw[end:] == 0xA5).all(), "wrote outside the output"
        close(view, a, case)


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
