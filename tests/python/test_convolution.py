"""The layers of convolutional networks: against NumPy in float64, what they refuse, and how they are grafted."""

import itertools

import numpy as np
import opgraft
import pytest
from conftest import tables
from opgraft import Parameter, Tensor, _core, nn, ops, rewrite

MODES = pytest.mark.parametrize("mode", [opgraft.PYNATIVE_MODE, opgraft.GRAPH_MODE])
CASES = {folder: module for folder, module in tables() if folder in ("conv", "batch_norm", "pool")}
CONV = CASES["conv"]


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def within(got, want, bound):
    """One more rounding than `bound` has: of the float64 that is compared with, to float32."""
    got = got.asnumpy().astype(np.float64)
    assert got.shape == want.shape
    assert (np.abs(got - want) <= bound + 2.0**-24 * np.abs(want)).all(), np.abs(got - want).max()


@MODES
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("channels,out,kernel,kwargs", [
    (3, 8, 3, {}),
    (4, 6, (3, 5), {"stride": 2, "group": 2, "has_bias": True}),
    (6, 6, 3, {"pad_mode": "pad", "padding": (2, 1, 0, 3), "group": 6, "dilation": (2, 1), "has_bias": True}),
    (5, 7, 1, {"pad_mode": "valid", "stride": (1, 3)}),
])  # fmt: skip
def test_conv2d(mode, channels, out, kernel, kwargs, layout):
    opgraft.set_context(mode=mode)
    net, x = nn.Conv2d(channels, out, kernel, **kwargs, data_format=layout), normal(2, channels, 11, 14)
    k, each = (kernel, kernel) if isinstance(kernel, int) else kernel, channels // kwargs.get("group", 1)
    if layout == "NHWC":
        x = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    assert net.weight.shape == ((out, *k, each) if layout == "NHWC" else (out, each, *k))
    attrs = {"format": layout, "pad_mode": kwargs.get("pad_mode", "same"), "pad": kwargs.get("padding", 0)}
    attrs |= {key: CONV.pair(kwargs.get(key)) for key in ("stride", "dilation")} | {"group": kwargs.get("group", 1)}
    wide = [a.astype(np.float64) for a in (x, net.weight.asnumpy())]
    if net.bias is not None:
        assert net.bias.asnumpy().any()
        wide.append(net.bias.asnumpy().astype(np.float64))
        within(net(x), CONV.fused(*wide, **attrs), CONV.fused_bound(0, *wide, **attrs))
    else:
        within(net(x), CONV.conv2d(*wide, **attrs), CONV.bound(0, *wide, **attrs))


@pytest.mark.parametrize("dilation", [1, 2, (3, 1)])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_what_is_not_finite_is_as_the_formula_has_it(layout, dilation):
    """Of Winograd's tiles, whose differences would make NaN of infinity."""
    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    net, x = nn.Conv2d(64, 40, 3, data_format=layout, dilation=dilation), normal(2, 64, 11, 14)
    x[0, 3, 4, 5], x[0, 60, 4, 6], x[1, 0, 10, 13] = np.inf, -np.inf, np.nan
    if layout == "NHWC":
        x = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    weight = np.clip(normal(*net.weight.shape, seed=1), 0.5, 1.5)
    weight.reshape(40, -1)[7] = 0  # 0 times infinity
    net.weight.set_data(weight)
    got, wide = net(x).asnumpy(), [a.astype(np.float64) for a in (x, weight)]
    attrs = {"format": layout, "pad_mode": "same", "dilation": CONV.pair(dilation)}
    with np.errstate(invalid="ignore"):
        want = CONV.conv2d(*wide, **attrs)
    finite = np.isfinite(want)
    assert 0 < (~finite).sum() < finite.sum() and np.isposinf(want).any() and np.isneginf(want).any()
    np.testing.assert_array_equal(got[~finite], want[~finite])
    bound = CONV.bound(0, np.nan_to_num(wide[0], posinf=0, neginf=0), wide[1], **attrs)
    assert (np.abs(got[finite] - want[finite]) <= (bound + 2.0**-24 * np.abs(want))[finite]).all()


@pytest.mark.parametrize(
    "size, dilation",
    [((4, 8), 1), ((6, 4), 1), ((4, 18), 1), ((2, 2), 1), ((2, 4), 2), ((3, 18), 3), ((3, 96), 3), ((3, 30), 3)],
)
def test_winograds_tiles_of_one_position_do_not_reach_into_the_next(size, dilation):
    """The last channel's vectors reach behind it; how far the next position lies depends on the channels."""
    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    attrs = {"pad_mode": "same", "dilation": CONV.pair(dilation)}
    for channels in range(32, 48):
        net, x = nn.Conv2d(channels, 66, 3, dilation=dilation), normal(1, channels, *size)
        wide = [a.astype(np.float64) for a in (x, net.weight.asnumpy())]
        within(net(x), CONV.conv2d(*wide, **attrs), CONV.bound(0, *wide, **attrs))


def test_threads_do_not_change_a_bit_of_winograds_tiles():
    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    shapes = ((1, 64, 31, 30), 40, 1), ((2, 256, 7, 7), 130, 1), ((1, 64, 31, 30), 40, 2)
    for shape, out, dilation in shapes:  # bands of rows, parts of the output channels, phases
        net, x, found = nn.Conv2d(shape[1], out, 3, dilation=dilation), normal(*shape), []
        for threads in (1, 2, 4):
            _core.set_threads(threads)
            found.append(net(x).asnumpy())
        _core.set_threads(0)
        assert all(f.tobytes() == found[0].tobytes() for f in found) and found[0].any()


@pytest.mark.parametrize("shape, out", [((2, 33, 28, 28), 50), ((1, 64, 40, 50), 64), ((3, 24, 4, 4), 30)])
def test_where_x_begins_does_not_change_a_bit(shape, out):
    """Planes of whole cache lines are read by lines, wherever the first of them begins."""
    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    net, x = nn.Conv2d(shape[1], out, 1), normal(*shape)
    weight = net.weight.asnumpy().astype(np.float64)
    session, memory, found = net.session(opgraft.Tensor(x)), np.full(x.size + 32, np.nan, np.float32), []
    begin = -memory.ctypes.data % 64 // 4
    for threads in (1, 3):
        _core.set_threads(threads)
        for at in range(16):
            memory[:] = np.nan
            view = memory[begin + at : begin + at + x.size].reshape(shape)
            view[...] = x
            found.append(session.run([view])[0].copy())
    _core.set_threads(0)
    exact = CONV.conv2d(x.astype(np.float64), weight)
    within(opgraft.Tensor(found[0]), exact, CONV.bound(0, x.astype(np.float64), weight))
    assert all(f.tobytes() == found[0].tobytes() for f in found)


@MODES
def test_normalisation_pools_and_flatten(mode):
    opgraft.set_context(mode=mode)
    x, norm = normal(2, 3, 7, 9), nn.BatchNorm2d(3, eps=1e-3)
    for k, p in enumerate((norm.gamma, norm.beta, norm.moving_mean)):
        p.set_data(normal(3, seed=k))
    norm.moving_variance.set_data(np.array([0.5, 1, 2]))
    vectors = [p.asnumpy() for p in (norm.gamma, norm.beta, norm.moving_mean, norm.moving_variance)]
    wide = [a.astype(np.float64) for a in (x, *vectors)]
    batch, pool = CASES["batch_norm"], CASES["pool"]
    within(norm(x), batch.batch_norm(*wide, epsilon=1e-3)[0], batch.bound(0, *wide, epsilon=1e-3)[0])
    sizes = ((2, 2, "valid"), ((3, 2), (1, 2), "same"))
    for (kernel, stride, mode_), layout in itertools.product(sizes, ("NCHW", "NHWC")):
        attrs = {"kernel_size": list(CONV.pair(kernel)), "strides": list(CONV.pair(stride)), "pad_mode": mode_,
                 "format": layout}  # fmt: skip
        largest = nn.MaxPool2d(kernel, stride, mode_, data_format=layout)
        np.testing.assert_array_equal(largest(x).asnumpy(), pool.max_pool(x, **attrs))
        np.testing.assert_array_equal(largest(x[0]).asnumpy(), pool.max_pool(x[:1], **attrs)[0])
        within(nn.AvgPool2d(kernel, stride, mode_, data_format=layout)(x), pool.avg_pool(wide[0], **attrs),
               pool.avg_bound(0, wide[0], **attrs))  # fmt: skip
    np.testing.assert_array_equal(nn.ReLU6()(9 * x).asnumpy(), np.clip(9 * x, 0, 6))
    for cell, want in [
        (nn.Flatten(), (2, 189)), (nn.Flatten(2), (2, 3, 63)), (nn.Flatten(0, -2), (42, 9)),
        (nn.Flatten(1, 1), x.shape),
    ]:  # fmt: skip
        np.testing.assert_array_equal(cell(x).asnumpy(), x.reshape(want))
    np.testing.assert_array_equal(ops.flatten(Tensor(x), order="F").asnumpy(), x.T.reshape(9, -1))


@MODES
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_pools_with_given_padding(mode, ceil_mode):
    opgraft.set_context(mode=mode)
    pool, x = CASES["pool"], normal(2, 3, 8, 9)
    attrs = {"ceil_mode": ceil_mode}
    largest = nn.MaxPool2d((3, 2), 2, "pad", 1, (1, 2), True, ceil_mode)
    want = pool.max_pool_3d(x[:, :, None], [1, 3, 2], [1, 2, 2], [0, 1, 1], [1, 1, 2], **attrs)
    for got, w in zip(largest(x), want, strict=True):
        np.testing.assert_array_equal(got.asnumpy(), w[:, :, 0])
    np.testing.assert_array_equal(largest(x[0])[1].asnumpy(), want[1][0, :, 0])
    plain = nn.MaxPool2d(3, 2, "pad", 1)
    np.testing.assert_array_equal(plain(x).asnumpy(), nn.MaxPool2d(3, 2, "pad", 1, return_indices=True)(x)[0].asnumpy())
    wide = x[:, :, None].astype(np.float64)
    for include, divisor in ((True, None), (False, None), (True, 7)):
        attrs |= {"kernel_size": [1, 1, 1, 3, 2], "strides": [1, 1, 1, 2, 3], "pad": [0, 0, 1, 1, 0, 0],
                  "count_include_pad": include, "divisor_override": divisor or 0}  # fmt: skip
        mean = nn.AvgPool2d((3, 2), (2, 3), "pad", (1, 0), ceil_mode, include, divisor)
        within(mean(x), pool.avg_pool_3d(wide, **attrs)[:, :, 0], pool.avg_bound_3d(0, wide, **attrs)[:, :, 0])


def test_initial_values():
    for init, want in [("zeros", 0.0), ("ones", 1.0), (0.5, 0.5), (Tensor(normal(4, 3, 2, 2)), normal(4, 3, 2, 2))]:
        assert (nn.Conv2d(3, 4, 2, weight_init=init).weight.asnumpy() == want).all()
    for init, limit in [("he_uniform", 0.5**0.5), ("XavierUniform", (6 / 28) ** 0.5), (None, 12**-0.5)]:
        drawn = np.abs(nn.Conv2d(3, 4, 2, weight_init=init).weight.asnumpy())
        assert 0.8 * limit < drawn.max() <= limit
    net = nn.Conv2d(3, 4, 2, has_bias=True, dtype=opgraft.float16)
    assert net.weight.dtype == net.bias.dtype == np.float16
    assert [p.name for p in nn.BatchNorm2d(3).trainable_params()] == ["gamma", "beta"]
    assert [p.requires_grad for p in nn.BatchNorm2d(3, affine=False).get_parameters()] == [False] * 4


CONV_ARGS = {"in_channels": 3, "out_channels": 4, "kernel_size": 3}


@pytest.mark.parametrize("make,kwargs,error,match", [
    (nn.Conv2d, CONV_ARGS | {"padding": 1}, ValueError, "padding must be 0 where .* 'pad', got 1 with 'same'"),
    (nn.Conv2d, CONV_ARGS | {"pad_mode": "full"}, ValueError, "pad_mode must be one of .*, got 'full'"),
    (nn.Conv2d, CONV_ARGS | {"group": 2}, ValueError, "must be multiples of group 2, got 3 and 4"),
    (nn.Conv2d, CONV_ARGS | {"data_format": "NCDHW"}, ValueError, "must be one of 'NCHW', 'NHWC', got 'NCDHW'"),
    (nn.Conv2d, CONV_ARGS | {"stride": 1.5}, TypeError, "stride must be an int or a tuple of ints, got 1.5"),
    (nn.Conv2d, CONV_ARGS | {"kernel_size": 0}, ValueError, "kernel_size must be positive"),
    (nn.Conv2d, CONV_ARGS | {"has_bias": 1}, TypeError, "has_bias must be a bool, got int"),
    (nn.Conv2d, CONV_ARGS | {"in_channels": True}, TypeError, "in_channels must be an int, got True"),
    (nn.Conv2d, CONV_ARGS | {"weight_init": "xavier"}, ValueError, "weight_init must be a Tensor, .*got 'xavier'"),
    (nn.Conv2d, CONV_ARGS | {"weight_init": normal(4)}, ValueError, r"weight_init.shape must be .*, got \(4,\)"),
    (nn.BatchNorm2d, {"num_features": 0}, ValueError, "num_features must be positive, got 0"),
    (nn.BatchNorm2d, {"num_features": 3, "momentum": 2}, ValueError, r"momentum must be in \[0, 1\], got 2"),
    (nn.BatchNorm2d, {"num_features": 3, "use_batch_statistics": True}, ValueError, "opgraft runs inference only"),
    (nn.MaxPool2d, {"kernel_size": (2, 0)}, ValueError, r"kernel_size must be positive, .*got \(2, 0\)"),
    (nn.MaxPool2d, {"kernel_size": 2, "padding": 1, "ceil_mode": True}, ValueError,
     "padding, ceil_mode must be left out where pad_mode is not 'pad', got pad_mode 'valid'"),
    (nn.MaxPool2d, {"kernel_size": 2, "pad_mode": "pad", "padding": (1, 1, 1)}, ValueError, "padding must be not neg"),
    (nn.AvgPool2d, {"kernel_size": 2, "count_include_pad": False}, ValueError, "count_include_pad must be left out"),
    (nn.AvgPool2d, {"pad_mode": "pad", "divisor_override": 0}, ValueError, "divisor_override must be positive, got 0"),
    (nn.AvgPool2d, {"pad_mode": "pad", "data_format": "NHWC"}, ValueError,
     "AvgPool2d: data_format must be 'NCHW' where pad_mode is 'pad', got 'NHWC'"),
    (nn.MaxPool2d, {"data_format": "NCDHW"}, ValueError, "data_format must be one of 'NCHW', 'NHWC', got 'NCDHW'"),
    (ops.Conv2D, {"out_channel": 3, "kernel_size": 3, "mode": 0}, ValueError, "Conv2D: mode must be 1, got 0"),
    (ops.Conv2D, {"out_channel": 3, "kernel_size": 3, "stride": (1, 2, 3)}, ValueError, "stride must be positive"),
    (ops.BatchNorm, {"is_training": True}, ValueError, "is_training must be False: opgraft runs inference only"),
    (ops.MaxPool, {"pad_mode": "pad"}, ValueError, "MaxPool: pad_mode must be one of 'VALID', 'SAME', got 'PAD'"),
])  # fmt: skip
def test_refused(make, kwargs, error, match):
    with pytest.raises(error, match=match):
        make(**kwargs)


def test_refused_inputs():
    with pytest.raises(ValueError, match=r"BatchNorm2d: x must have 4 dimensions, got shape \(2, 3\)"):
        nn.BatchNorm2d(3)(normal(2, 3))
    with pytest.raises(ValueError, match=r"Flatten: start_dim must be in \[-1, 1\), got 1"):
        nn.Flatten()(normal(3))
    with pytest.raises(ValueError, match="x must have weight's 3 channels times group 1, got shape"):
        nn.Conv2d(3, 4, 3)(normal(1, 5, 8, 8))
    with pytest.raises(TypeError, match="Conv2D: w must be a Tensor, got list"):
        ops.Conv2D(3, 3)(normal(1, 1, 8, 8), [1.0])


class Residual(nn.Cell):
    """A bottleneck, its own input or a shortcut added before the activation."""

    def __init__(self, norm, act, shortcut=False, group=1, layout="NCHW"):
        super().__init__()
        self.first = nn.Conv2d(6, 6, 3, has_bias=not norm, group=group, data_format=layout)
        variance = Tensor(np.linspace(0.5, 2, 6, dtype=np.float32))
        self.norm = nn.BatchNorm2d(6, data_format=layout, moving_var_init=variance, beta_init=0.25,
                                   moving_mean_init=-0.5, gamma_init=1.5) if norm else None  # fmt: skip
        self.shortcut = nn.Conv2d(6, 6, 1, has_bias=True, data_format=layout) if shortcut else None
        self.act = act()

    def construct(self, x):
        y = self.first(x)
        y = self.norm(y) if self.norm is not None else y
        return self.act(y + (self.shortcut(x) if self.shortcut is not None else x))


@pytest.mark.parametrize("group", [1, 6])
@pytest.mark.parametrize("shortcut", [False, True])
@pytest.mark.parametrize("act", [nn.ReLU, nn.ReLU6])
@pytest.mark.parametrize("norm,fused", [(False, "FusedConv2D"), (True, "FusedConv2DBatchNorm")])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_what_follows_a_convolution_is_grafted(norm, fused, act, shortcut, group, layout, tmp_path):
    net, x = Residual(norm, act, shortcut, group, layout), normal(2, 6, 9, 13)
    if layout == "NHWC":
        x = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    want, sums = net(x).asnumpy(), np.abs(net.first(x).asnumpy()).max()
    graph = opgraft.load(opgraft.export(net, x, file_name=str(tmp_path / "net")))
    report = rewrite.substitute(graph, prove=(x,))
    text = str(graph)
    nodes = [line.split(" = ")[1].split("(")[0] for line in text.splitlines() if " = " in line]
    first = ["FusedConv2D@1.0.0"] if shortcut else []
    assert sorted(nodes) == sorted([*first, f"{fused}@1.0.0"]), f"{report}\n{text}"
    assert f'activation="{act.__name__.lower()}"' in text and f'format="{layout}"' in text
    got = nn.GraphCell(graph)(x).asnumpy()
    # Both sides have the same sums; what follows rounds at most four times on each, a number that is at most the sum
    # times gamma / sqrt(variance), here 2.2, or 1, with mean and beta, and what is added.
    added = np.abs(net.shortcut(x).asnumpy() if shortcut else x).max()
    np.testing.assert_allclose(got, want, rtol=0, atol=8 * 2.0**-24 * (2.2 * (sums + 0.5) + 0.25 + added))
    assert (got == 0).any()


def same_sums(got, want, biased):
    """Both sides have the same sums, to which each adds the bias and then something else: two roundings on either, of
    `biased` and of the result."""
    assert (np.abs(got - want) <= 2 * 2.0**-24 * (np.abs(biased) + np.abs(want))).all(), np.abs(got - want).max()


def test_a_residual_that_broadcasts_over_open_sizes_stays_outside():
    """One number per channel, as in squeeze and excitation, beside a height and width that nobody knows."""

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(4, 8, 3, 2, pad_mode="same", has_bias=True)
            self.each = Parameter(np.arange(8, dtype=np.float32).reshape(1, 8, 1, 1))

        def construct(self, x):
            return self.conv(x) + self.each

    net, x = Net(), normal(1, 4, 8, 6)
    want, biased = net(Tensor(x)).asnumpy(), net.conv(Tensor(x)).asnumpy()
    net.set_inputs(Tensor(shape=[1, 4, None, None], dtype=opgraft.float32))
    report = rewrite.substitute(net, prove=(x,))
    assert [s["op"] for s in report.swapped] == ["FusedConv2D@1.0.0"], str(report)
    same_sums(net(Tensor(x)).asnumpy(), want, biased)


def test_a_residual_that_broadcasts_stays_outside():
    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3, has_bias=True)

        def construct(self, x, y):
            return self.conv(x) + y

    net, x, y = Net(), normal(1, 3, 5, 5), normal(1, 4, 1, 1)
    want, biased = net(x, y).asnumpy(), net.conv(x).asnumpy()
    report = rewrite.substitute(net, prove=(x, y))
    assert "swapped 1, left 1" in str(report)
    assert "Add does not fit FusedConv2D@1.0.0: residual.shape must equal the convolution's" in str(report)
    same_sums(net(x, y).asnumpy(), want, biased)


def test_a_bias_along_the_width_stays_outside():
    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.conv, self.bias = nn.Conv2d(3, 4, 3), opgraft.Parameter(normal(4))

        def construct(self, x):
            return ops.primitive("BiasAdd", self.conv(x), self.bias, data_format="NHWC")

    net, x = Net(), normal(1, 3, 4, 4)
    report = rewrite.substitute(net, prove=(x,))
    assert not report.swapped, str(report)


def test_an_open_batch_and_open_sizes():
    net = nn.SequentialCell(nn.Conv2d(3, 4, 3, has_bias=True), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten())
    x = [normal(n, 3, h, 8) for n, h in ((2, 6), (1, 9), (5, 6))]
    want = [net(a).asnumpy() for a in x]
    net.set_inputs(Tensor(shape=[None, 3, None, 8], dtype=opgraft.float32))
    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    for a, w in zip(x, want):
        np.testing.assert_array_equal(net(a).asnumpy(), w)


class Normed(nn.Cell):
    def __init__(self, kernel, group, bias, residual):
        super().__init__()
        self.conv, self.residual = nn.Conv2d(4, 4, kernel, group=group, has_bias=bias), residual
        self.norm = nn.BatchNorm2d(4, beta_init=0.5)

    def construct(self, x):
        y = self.norm(self.conv(x))
        return ops.relu(y + x if self.residual else y)


@pytest.mark.parametrize("kernel,group,bias,residual", [
    (3, 1, False, False), (3, 4, False, False), (3, 1, True, False), (3, 1, False, True), (1, 1, False, False),
    (1, 1, False, True), (1, 1, True, True), (1, 2, True, False),
])  # fmt: skip
def test_batch_norm_is_folded_when_the_model_is_planned(kernel, group, bias, residual):
    """Once planned, a run reads no statistics: it gives the same bits after they have been overwritten, until another
    size is planned."""
    net, x = Normed(kernel, group, bias, residual), normal(1, 4, 6, 7)
    net.set_inputs(Tensor(shape=[None, 4, 6, 7], dtype=opgraft.float32))
    report = rewrite.substitute(net, prove=(x,))
    assert report.swapped[-1]["op"] == f"FusedConv2D{'Bias' if bias else ''}BatchNorm@1.0.0", str(report)
    session = net.session(Tensor(x))
    want = session.run([x])[0].copy()
    for p in (net.norm.gamma, net.norm.beta, net.norm.moving_mean, net.norm.moving_variance):
        p._array[...] = np.nan  # in the memory that the model holds
    assert session.run([x])[0].tobytes() == want.tobytes() and want.any()
    assert np.isnan(session.run([normal(2, 4, 6, 7)])[0]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_neither_threads_nor_packed_weights_change_a_bit(dtype):
    """Few pixels and many channels, whose weights are copied (K = 1024); depthwise; enough units for four threads."""
    for shape, out, group in (((1, 256, 5, 6), 300, 1), ((2, 40, 30, 30), 40, 40), ((3, 8, 33, 31), 24, 2)):
        x, weight = normal(*shape).astype(dtype), normal(out, shape[1] // group, 2, 2, seed=1).astype(dtype)
        attrs = {"out_channel": out, "kernel_size": [2, 2], "pad_mode": "same", "group": group}
        found = []
        for threads in (1, 4):
            _core.set_threads(threads)
            found.append(_core.run_op(_core.resolve("Conv2D"), [x, weight], attrs)[0])
        _core.set_threads(0)
        net = nn.Conv2d(shape[1], out, 2, group=group, weight_init=weight, dtype=dtype)
        opgraft.set_context(mode=opgraft.GRAPH_MODE)
        found.append(net(x).asnumpy())
        opgraft.set_context(mode=opgraft.PYNATIVE_MODE)
        assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()
