"""Infinities and NaN in every float input of every operator: what the kernel makes of them is what its twin makes."""

import collections
import os

import numpy as np
import pytest
from conftest import make_input, tables
from opgraft import _core
from targets import every_other_target, run_again
from test_ops import bounds, close, wide

FLOATS = ("float32", "float16", "bfloat16")
ROWS = collections.defaultdict(list)  # operator -> (module, case)
for _, of_folder in tables():
    for row in of_folder.CASES:
        ROWS[row["op"]].append((of_folder, row))


def sizes(case):
    return [int(np.prod(i[1])) if isinstance(i[1], tuple) else np.size(i[1]) for i in case["inputs"]]


def float_inputs(case):
    return [k for k, i in enumerate(case["inputs"]) if i[0] in FLOATS]


def chosen(op):
    """Of each float dtype, as the first float input has it, the smallest case and the largest one of moderate size."""
    for dtype in FLOATS:
        fits = []
        for module, case in ROWS[op]:
            at, size = float_inputs(case), sizes(case)
            special = any(len(i) > 2 and i[2] == "special" for i in case["inputs"])
            if at and case["inputs"][at[0]][0] == dtype and all(size) and not special and sum(size) < 7000:
                fits.append((sum(size), len(fits), module, case))
        fits.sort(key=lambda f: f[:2])
        yield from ((module, case) for _, _, module, case in fits[:1] + fits[1:][-1:])


def unhidden(case, inputs):
    """What attention's twin gives where every query sees every key."""
    hiding = ("is_causal", "hides", "fill", "nan_to_zero")
    attrs = {name: v for name, v in case.get("attrs", {}).items() if name not in hiding}
    return run("ScaledDotProductAttention", inputs[:3], attrs)[1]


def only_nan(which):
    """The kernel's NaN where the twin has another value, of the elements that `which` says, none where it is None."""

    def excused(case, inputs, k, got, twin):
        masks = which(case, inputs, k, twin)
        return [m & np.isnan(x) & ~np.isnan(y) for m, x, y in zip(masks or [False] * len(got), got, twin)]

    return excused


def in_padding(case, inputs, k, got, twin):
    """Only in the padding does the window meet the planted weight: all others make the finite sum."""
    if k != 1 or case["attrs"].get("format") != "NHWC" or case["attrs"].get("group", 1) == 1:
        return [np.zeros(got[0].shape, bool)]
    others = run(case["op"], [inputs[0], np.where(np.isfinite(inputs[1]), inputs[1], 0).astype(inputs[1].dtype)],
                 case["attrs"])[1][0]  # fmt: skip
    same = np.isclose(wide(got[0]), wide(others), 2.0**-6, 2.0**-12)
    return [same & np.isnan(twin[0])]


def hidden_key(case, inputs, k, twin):
    return [~np.isfinite(a) for a in unhidden(case, inputs)] if k == 2 else None


def infinite(case, inputs, k, twin):
    return [np.isinf(a) for a in twin]


# Where kernel and twin may differ: operator -> (why, which elements of each output).
IN_V = "a hidden key's weight is 0, and the kernel multiplies it: 0 * inf of a row of V that some of its queries see"
IN_X = "x is turned into eight bits by blocks: an infinity leaves its block no step, which makes its row of y NaN"
EXCEPTIONS = {
    "ScaledDotProductAttention": (IN_V, only_nan(hidden_key)),
    "CachedAttention": (IN_V, only_nan(hidden_key)),
    "BlockQuantMatMul": (IN_X, only_nan(infinite)),
    "BlockQuantQKV": (IN_X, only_nan(infinite)),
    "BlockQuantSwiGLU": (IN_X, only_nan(infinite)),
    "WeightQuantBatchMatmul": (
        "codes of uint8 are multiplied as code - 128, and 128 times the sum of x is added: inf - inf",
        only_nan(lambda case, inputs, k, twin: infinite(case, inputs, k, twin)
                 if k == 0 and inputs[1].dtype == np.uint8 else None)),
    "Conv2D": ("depthwise with channels last, the kernel leaves out what a window has in the padding; the twin "
               "multiplies its zeros: 0 * inf of a weight", in_padding),
}  # fmt: skip


def run(op, inputs, attrs):
    """What kernel and twin give; None and None where both refuse the values in the same words."""
    op, said = _core.resolve(op), []
    try:
        got = _core.run_op(op, [a.copy() for a in inputs], attrs)
    except ValueError as e:
        said.append(str(e))
        got = [np.empty(shape, dtype) for shape, dtype in _core.infer_op(op, inputs, attrs)]
    twin = [np.empty_like(a) for a in got]
    try:
        _core.run_reference_into(op, [a.copy() for a in inputs], twin, attrs)
    except ValueError as e:
        said.append(str(e))
    if said:
        assert said == [said[0]] * 2 and said[0].startswith(op.name + ":"), said
        return None, None
    return got, twin


def planted(clean):
    """The array with each value in one element, in the middle, and in its last row."""
    for value in (np.inf, -np.inf, np.nan):
        for whole_row in (False, True):
            a = clean.copy()
            rows = a.reshape(-1, a.shape[-1] if a.ndim else 1)
            if whole_row:
                rows[-1] = value
            else:
                rows[len(rows) // 2, rows.shape[1] // 2] = value
            yield f"{value} in {'the last row' if whole_row else 'the middle'}", a


def larger(a, b):
    """Bounds of the finite elements: those of the inputs with and without the value, which makes its own NaN."""
    return np.maximum(*(np.nan_to_num(x, nan=0.0, posinf=0.0) for x in (a, b)))


@pytest.mark.parametrize("op", sorted(ROWS))
def test_special_values(op):
    excepted = 0
    for module, case in chosen(op):
        clean = [make_input(s, k) for k, s in enumerate(case["inputs"])]
        attrs = case.get("attrs", {})
        for k in float_inputs(case):
            for what, a in planted(clean[k]):
                inputs = [*clean[:k], a, *clean[k + 1 :]]
                got, twin = run(op, inputs, attrs)
                if got is None:
                    continue
                for i, excuse in enumerate(EXCEPTIONS[op][1](case, inputs, k, got, twin) if op in EXCEPTIONS else []):
                    got[i][excuse] = twin[i][excuse]
                    excepted += excuse.sum()
                off = map(larger, bounds(module, case, clean, len(got)), bounds(module, case, inputs, len(got)))
                for x, y, bound in zip(got, twin, off, strict=True):
                    try:
                        close(x, y, case, bound)
                    except AssertionError as e:
                        raise AssertionError(f"input {k}, {what}: {case['inputs']} {attrs}") from e
    assert op not in EXCEPTIONS or excepted, f"{op} needs no exception: take it out of the table"


@every_other_target
def test_every_target(target):
    """Again under another SIMD target."""
    run_again(__file__, target, "test_special_values and not every")


def dtypes_of(manifest, declared):
    return manifest["dtypes"].get(declared, [declared])


@pytest.mark.skipif("OPGRAFT_CASES" in os.environ, reason="the tables of some operators only")
def test_every_operator_takes_part():
    """Each float dtype that an input may have, in a case that test_special_values picks."""
    for op in _core.list_ops():
        wanted = {t for i in op.manifest["inputs"] for t in dtypes_of(op.manifest, i["dtype"])}
        if "complex64" in wanted:  # it moves elements of any dtype and looks at none
            wanted = {"float32"}
        wanted &= set(FLOATS)
        met = {case["inputs"][k][0] for _, case in chosen(op.name) for k in float_inputs(case)}
        assert wanted <= met, f"{op.name}: no case of {sorted(wanted - met)} without special values in its cases.py"


def with_most_inputs(op):
    case = max((case for _, case in ROWS[op]), key=lambda c: (len(c["inputs"]), -sum(sizes(c))))
    return [make_input(s, k) for k, s in enumerate(case["inputs"])], case.get("attrs", {})


@pytest.mark.parametrize("op", sorted(ROWS))
def test_refused(op):
    """A dtype that an input may not have, too few inputs and too many, an attribute that there is not."""
    inputs, attrs = with_most_inputs(op)
    declared = _core.resolve(op).manifest["inputs"]

    def refused(inputs, attrs, named):
        with pytest.raises((ValueError, TypeError)) as e:
            _core.run_op(_core.resolve(op), inputs, attrs)
        assert str(e.value).startswith(f"{op}: ") and named in str(e.value), str(e.value)

    for k, a in enumerate(inputs):
        i = declared[min(k, len(declared) - 1)]
        if "uint16" not in dtypes_of(_core.resolve(op).manifest, i["dtype"]):
            refused([*inputs[:k], np.zeros(a.shape, np.uint16), *inputs[k + 1 :]], attrs, i["name"])
    least = sum(not i["optional"] and not i["variadic"] for i in declared)
    refused(inputs[: max(least - 1, 0)], attrs, "")
    if not any(i["variadic"] for i in declared):
        refused([*inputs, *inputs[:1] * (len(declared) + 1 - len(inputs))], attrs, "")
    refused(inputs, attrs | {"no_such_attribute": 1}, "no_such_attribute")
