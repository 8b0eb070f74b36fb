"""Attention of bfloat16 that AMX or vdpbf16ps multiplies where the machine has them, at sizes that end anywhere within
their tiles: against NumPy in float64."""

import ml_dtypes
import numpy as np
import pytest
from conftest import tables
from elsewhere import on_every_other_target
from kernels import run_op
from targets import IN_FORCE

TABLE = next(module for folder, module in tables() if folder == "attention")
OP, BF16, U = "ScaledDotProductAttention", ml_dtypes.bfloat16, TABLE.TOLERANCE["bfloat16"]


def given(s, t, d, e=None, heads=2, shared=1):
    rng = np.random.default_rng(1000 * s + t + d)
    shapes = (1, heads, s, d), (1, heads // shared, t, d), (1, heads // shared, t, d if e is None else e)
    return [rng.standard_normal(shape).astype(BF16) for shape in shapes]


def everywhere(inputs, attrs):
    """[(target, its result)], the target in force first."""
    others = on_every_other_target(run_op, OP, inputs, attrs)
    found = [(IN_FORCE, run_op(OP, inputs, attrs))] + others()
    return [(target, got.astype(np.float64)) for target, (got,) in found]


def check(*inputs, **attrs):
    """On every target, within what cases.py derives for weights that round."""
    wide = [x if x.dtype == bool else x.astype(np.float64) for x in inputs]
    want = TABLE.REFERENCE[OP](*wide, **attrs)
    allowed = TABLE.BOUND[OP](2.0**-8, *wide, **attrs) + U * np.abs(want)
    for target, got in everywhere(list(inputs), attrs):
        assert (np.abs(got - want) <= allowed).all(), target


@pytest.mark.parametrize("float_weights", [False, True], ids=["", "float weights"])
@pytest.mark.parametrize("keys", [1, 2, 31, 33, 64, 255, 511, 513, 1030])
def test_queries_and_keys(keys, float_weights):
    for queries in (9, 16, 17, 24, 31, 32, 33, 63, 65):
        check(*given(queries, keys, 64), float_weights=float_weights)


@pytest.mark.parametrize("turned", [False, True], ids=["", "keys turned"])
@pytest.mark.parametrize("dim", [1, 2, 7, 8, 15, 31, 32, 33, 40, 63, 72, 96, 127, 300, 1100])
def test_widths(dim, turned):
    """Of keys: whole pairs and tiles, and what is behind them; of values another one, of panels."""
    for width in {1, 31, 33, dim}:
        q, k, v = given(20, 70, dim, width)
        if turned:
            k = np.ascontiguousarray(k.swapaxes(-1, -2))
        check(q, k, v, k_transposed=turned)


@pytest.mark.parametrize("s, t", [(40, 40), (33, 600), (600, 600)])
def test_causal(s, t):
    check(*given(s, t, 48), is_causal=True)


@pytest.mark.parametrize("s", [3, 11, 40])
def test_query_heads_that_share_keys(s):
    check(*given(s, 530, 64, heads=6, shared=3))


@pytest.mark.parametrize("layout", ["BSHD", "BSE", "SBHD"])
def test_layouts(layout):
    q, k, v = given(37, 45, 24)
    if layout == "BSE":
        check(*(x.swapaxes(1, 2).reshape(1, -1, 48) for x in (q, k, v)), layout=layout, heads=2)
    else:
        order = (0, 2, 1, 3) if layout == "BSHD" else (2, 0, 1, 3)
        check(*(np.ascontiguousarray(x.transpose(order)) for x in (q, k, v)), layout=layout)


def test_masks():
    q, k, v = given(40, 540, 64)
    seen = np.random.default_rng(0).random((40, 540)) < 0.5
    seen[:, 0] = True
    check(q, k, v, seen)
    check(q, k, v, np.where(seen, 0, -100).astype(BF16))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("turned", [False, True], ids=["", "keys turned"])
def test_the_next_head_is_not_read(bad, turned):
    """Rows that end within a tile are filled with zeros, not with what lies behind them."""
    q, k, v = given(21, 37, 20)
    k, attrs = np.ascontiguousarray(k.swapaxes(-1, -2)) if turned else k, {"k_transposed": turned}
    want = everywhere([q, k, v], attrs)
    for x in (q, k, v):
        x[:, 1] = bad
    for (target, got), (_, clean) in zip(everywhere([q, k, v], attrs), want, strict=True):
        np.testing.assert_array_equal(got[:, 0], clean[:, 0], err_msg=target)
        assert np.isnan(got[:, 1]).all(), target
