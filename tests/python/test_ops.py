"""Every operator over its case table: kernel against scalar twin and NumPy, aligned and not, and what it refuses."""

import os

import numpy as np
import pytest
from conftest import make_input, tables
from elsewhere import on_every_other_target
from kernels import results
from opgraft import _core
from targets import IN_FORCE, differs_in_products

CASES = [(folder, m, c) for folder, m in tables() for c in m.CASES]
REFUSED = [c for _, m in tables() for c in getattr(m, "REFUSED", [])]


def _id(case):
    return f"{case['op']}-{'_'.join(f'{i[0]}{i[1]}' for i in case['inputs'])}-{case.get('attrs', {})}"[:90]


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


def alike(case, target):
    """Whether the target has the kernel of the one in force: all of AMX's but products of bfloat16 and of bytes."""
    multiplies = any(part in case["op"].lower() for part in ("matmul", "dense", "conv2d", "attention"))
    narrow = any(i[0] in ("bfloat16", "int8", "uint8") for i in case["inputs"])
    return differs_in_products(target) and not (multiplies and narrow) and "OPGRAFT_CASES" not in os.environ


@pytest.mark.parametrize("folder,module,case", CASES, ids=[_id(c) for _, _, c in CASES])
def test_case(folder, module, case):
    """On every SIMD target that the machine has."""
    op = _core.resolve(case["op"])
    attrs = case.get("attrs", {})
    inputs = [make_input(s, k) for k, s in enumerate(case["inputs"])]
    others = on_every_other_target(results, case, inputs, skip=lambda target: alike(case, target))
    found = [(IN_FORCE, results(case, inputs))]
    eager = found[0][1][0]
    twin = [np.empty_like(a) for a in eager]
    _core.run_reference_into(op, [a.copy() for a in inputs], twin, attrs)
    reference, want = module.REFERENCE.get(case["op"]), None
    if reference is not None:
        with np.errstate(all="ignore"):
            want = reference(*map(wide, inputs), **attrs)
        want = want if isinstance(want, (tuple, list)) else [want]
    bound = bounds(module, case, inputs, len(eager))
    for target, (eager, misaligned, *with_constants) in found + others():
        try:
            for got, expected in [
                (eager, twin),
                (eager, want),
                (misaligned, eager),
                *((c, twin) for c in with_constants),
            ]:
                for a, b, more in zip(got, expected or [], bound, strict=expected is not None):
                    close(a, b, case, more)
        except AssertionError as e:
            raise AssertionError(f"{target}: {e}") from None


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
