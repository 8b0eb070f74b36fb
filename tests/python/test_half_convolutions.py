"""Convolutions of bfloat16 that AMX multiplies where the machine has it, at sizes that end anywhere within its tiles:
against NumPy in float64."""

import ml_dtypes
import numpy as np
import pytest
from conftest import tables
from elsewhere import on_every_other_target
from kernels import run_op
from opgraft import _core
from targets import IN_FORCE, every_other_target, run_again

CONV = next(module for folder, module in tables() if folder == "conv")
BF16 = ml_dtypes.bfloat16


def tensors(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(BF16) for shape in shapes]


LAYOUT = pytest.mark.parametrize("layout", ["NCHW", "NHWC"])


def check(x, w, *more, op="Conv2D", **attrs):
    """On every target: products of bfloat16 are exact; sums are of float32, and the result rounds once. Given as NCHW,
    whatever the format. Returns the result of the target in force."""
    if attrs.get("format") == "NHWC":
        x, w, *more = (np.ascontiguousarray(np.moveaxis(a, 1, -1)) if a.ndim == 4 else a for a in (x, w, *more))
    others = on_every_other_target(run_op, op, [x, w, *more], attrs)
    found = [(IN_FORCE, run_op(op, [x, w, *more], attrs))]
    wide = [a.astype(np.float64) for a in (x, w, *more)]
    want = CONV.REFERENCE[op](*wide, **attrs)
    sizes = [abs(a) for a in wide]
    most = CONV.REFERENCE[op](*sizes, **attrs | {"activation": "none"} if more else attrs)
    for target, (got,) in found + others():
        error = abs(got.astype(np.float64) - want)
        assert (error <= w[0].size * 2.0**-23 * most + 2.0**-8 * abs(want)).all(), target
    return found[0][1][0].astype(np.float64)


@LAYOUT
@pytest.mark.parametrize("stride, dilation", [(1, 1), (2, 1), ((1, 2), 1), (3, 1), (1, 2), (2, (3, 1))])
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (7, 7), (2, 5)])
@pytest.mark.parametrize("channels, outputs, group", [(3, 16, 1), (33, 65, 1), (64, 32, 1), (10, 36, 2), (64, 70, 2)])
def test_windows(stride, dilation, kernel, channels, outputs, group, layout):
    attrs = {"format": layout, "stride": CONV.pair(stride), "dilation": CONV.pair(dilation), "group": group}
    for size in ((19, 21), (20, 6), (1, 40)):
        for mode in ({"pad_mode": "same"}, {"pad_mode": "pad", "pad": [2, 6, 7, 1]}):
            x, w = tensors(channels, (2, channels, *size), (outputs, channels // group, *kernel))
            padded = np.array(size) + ((8, 8) if "pad" in mode else (0, 0))
            if (padded <= (np.array(kernel) - 1) * CONV.pair(dilation)).any() and "pad" in mode:
                continue  # no window fits
            check(x, w, **attrs, **mode)


@LAYOUT
@pytest.mark.parametrize("size", [(1, 1), (2, 3), (1, 1000), (3, 700), (1000, 1), (9, 31), (9, 32), (9, 33), (40, 112)])
def test_sizes(size, layout):
    """Bands of parts of a row, of whole rows, and of more than a row."""
    for kernel, channels in ((1, 40), (1, 64), (1, 1024), (3, 24), (3, 70)):
        check(*tensors(kernel, (1, channels, *size), (48, channels, kernel, kernel)), pad_mode="same", format=layout)


@pytest.mark.parametrize("width", [29, 30, 31, 32, 33, 63])
def test_every_second_element_up_to_the_last_of_x(width):
    """Read as words, of which the last would end behind it."""
    check(*tensors(3, (1, 32, 31, width), (16, 32, 3, 3)), pad_mode="valid", stride=[2, 2])


@LAYOUT
def test_rows_of_which_most_is_padding_or_which_are_too_wide_to_be_held(layout):
    """Those are not read tap by tap, by the same weights."""
    check(*tensors(3, (1, 544, 2, 420), (16, 544, 3, 3)), pad_mode="same", format=layout)
    for size in ((3, 3), (40, 3), (3, 40)):
        given = tensors(4, (2, 32, *size), (17, 32, 3, 3))
        check(*given, pad_mode="pad", pad=[30] * 4, dilation=[30, 30], format=layout)


@LAYOUT
@pytest.mark.parametrize(
    "x, w, attrs",
    [
        ((2, 1042, 1, 512), (40, 1042, 1, 2), {}),  # too wide to be held
        ((1, 300, 3, 112), (13, 300, 7, 1), {"dilation": [9, 2]}),
        ((2, 3072, 8, 40), (64, 48, 1, 1), {"group": 64}),  # pixels a multiple of 2 KiB apart
    ],
)
def test_rows_of_words_that_are_no_whole_lines(x, w, attrs, layout):
    """Each pixel's row of what it sees is rounded up to an odd number of lines of scratch."""
    check(*tensors(3, x, w), pad_mode="same", format=layout, **attrs)


@LAYOUT
def test_pixels_of_so_many_channels_that_they_lie_further_apart(layout):
    check(*tensors(3, (2, 288, 5, 9), (40, 288, 3, 2)), pad_mode="same", format=layout)


@LAYOUT
@pytest.mark.parametrize("channels", [10, 24, 64])
@pytest.mark.parametrize("activation", ["none", "relu", "relu6"])
def test_what_follows(activation, channels, layout):
    x, w, bias, residual = tensors(5, (2, channels, 9, 31), (70, channels, 3, 3), (70,), (2, 70, 9, 31))
    attrs = {"pad_mode": "same", "activation": activation, "format": layout}
    for more in ((bias,), (bias, residual)):
        y = check(x, w, *more, op="FusedConv2D", **attrs)
        assert activation == "none" or y.min() == 0
    (scale,) = tensors(8, (70,))
    check(x, w, scale, bias, residual, op="FusedConv2DScale", **attrs)


def test_what_is_not_finite_stays_where_it_is_seen():
    x, w = tensors(6, (1, 17, 8, 37), (20, 17, 3, 3))
    attrs = {"pad_mode": "same"}
    clean = check(x, w, **attrs)
    x[0, 3, 4, 5], x[0, 16, 7, 36] = np.inf, np.nan
    y = run_op("Conv2D", [x, w], attrs)[0].astype(np.float64)
    seen = np.zeros(y.shape, bool)
    seen[:, :, 3:6, 4:7] = seen[:, :, 6:8, 35:37] = True
    assert not np.isfinite(y[seen]).any()
    np.testing.assert_array_equal(y[~seen], clean[~seen])


def test_the_number_of_threads_changes_no_bit():
    x, w = tensors(7, (2, 40, 30, 45), (80, 40, 3, 3))
    try:
        found = []
        for threads in (1, 2, 3):
            _core.set_threads(threads)
            found.append(run_op("Conv2D", [x, w], {"pad_mode": "same"})[0].astype(np.float32))
        for y in found[1:]:
            np.testing.assert_array_equal(y, found[0])
    finally:
        _core.set_threads(0)


@every_other_target
def test_every_target_does_so(target):
    assert "2 passed" in run_again(__file__, target, "not_finite or threads")
