"""Moving elements: transposes; and narrowing and widening them: int8 from float32 and back."""

import numpy as np

from . import Row
from .elementwise import normal

U = 2.0**-24


def transpose(name, shape, perm, **more):
    def mindspore_form(ms):
        def f(x):
            return ms.ops.transpose(x, perm)

        return f

    return Row(
        f"Transpose {name}", "Transpose", normal(shape), lambda x: x.transpose(perm), rtol=0.0, atol=0.0,
        attrs={"perm": list(perm)}, target=1.0,
        numpy=lambda x: np.ascontiguousarray(x.transpose(perm)),
        torch=lambda torch: lambda x: x.permute(perm).contiguous(),
        onnx=lambda g, x: g.node("Transpose", x, perm=list(perm)),
        mindspore=mindspore_form, **more,
    )  # fmt: skip


SHAPE = (512, 4096)
COUNT = 512 * 4096


def scales(channel, powers):
    """A scale and no offset, of the tensor or of each column; `powers` of two leave nothing to round but the result."""

    def make(rng):
        width = SHAPE[1] if channel else 1
        scale = 2.0 ** rng.integers(4, 7, width) if powers else rng.uniform(0.01, 0.1, width)
        scale = scale.astype(np.float32).reshape((1, width) if channel else (1,))
        return [scale, np.zeros_like(scale)]

    return make


def integers(dtype, low, high):
    return lambda rng: [rng.integers(low, high, SHAPE).astype(dtype)]


def numpy_quantise(x, scale, offset):
    return np.clip(np.rint(x * scale + offset), -128, 127).astype(np.int8)


def numpy_dequantise(x, scale, *offset):
    return x.astype(np.float32) * scale


def torch_quantise(torch):
    def f(x, scale, offset):
        return torch.clamp(torch.round(x * scale + offset), -128, 127).to(torch.int8)

    return f


def torch_dequantise(torch):
    return lambda x, scale, *offset: x * scale


def mindspore_quantise(ms):
    low, high = ms.Tensor(-128.0), ms.Tensor(127.0)

    def f(x, scale, offset):
        return ms.ops.clamp(ms.ops.round(x * scale + offset), low, high).astype(ms.int8)

    return f


def mindspore_dequantise(ms):
    def f(x, scale, offset=None):
        return x.astype(ms.float32) * scale

    return f


def flat(g, scale):
    return g.node("Reshape", scale, g.const(np.array([-1], np.int64)))


def onnx_quantise(channel):
    def f(g, x, scale, offset):
        zero = g.const(np.zeros(SHAPE[1] if channel else 1, np.int8))
        return g.node("QuantizeLinear", x, g.node("Reciprocal", flat(g, scale)), zero, axis=1)

    return f


def onnx_dequantise(g, x, scale, *offset):
    return g.node("DequantizeLinear", x, flat(g, scale), axis=1)


def quantise(channel):
    return Row(
        f"Quantise 512x4096 to int8, per {'channel' if channel else 'tensor'}", "QuantV2", normal(SHAPE),
        lambda x, scale, offset: np.clip(np.rint(x * scale + offset), -128, 127), weights=scales(channel, True),
        rtol=0.0, atol=0.0, bytes=5.0 * COUNT, flops=2.0 * COUNT, target=1.0,
        numpy=numpy_quantise, torch=torch_quantise, onnx=onnx_quantise(channel), mindspore=mindspore_quantise,
    )  # fmt: skip


def dequantise(op, name, inputs, element, channel):
    """One rounding of a product; of an int32 another, as a float32."""
    offsets = 1 if op == "AntiQuant" else 0
    return Row(
        f"Dequantise 512x4096 {name}, per {'channel' if channel else 'tensor'}", op, inputs,
        lambda x, scale, *offset: x * scale, weights=lambda rng: scales(channel, False)(rng)[: 1 + offsets],
        rtol=(2 - offsets) * U, atol=0.0, attrs={"dtype": "float32"}, bytes=(4.0 + element) * COUNT,
        flops=1.0 * COUNT, target=1.0,
        numpy=numpy_dequantise, torch=torch_dequantise, onnx=onnx_dequantise, mindspore=mindspore_dequantise,
    )  # fmt: skip


ROWS = [
    transpose("0213 8x128x12x32", (8, 128, 12, 32), (0, 2, 1, 3), quick=True, note="heads of attention, as in MiniLM"),
    transpose("0213 1x512x32x128", (1, 512, 32, 128), (0, 2, 1, 3)),
    transpose("512x512", (512, 512), (1, 0)),
    transpose("2048x2048", (2048, 2048), (1, 0)),
    transpose("NCHW to NHWC 8x64x56x56", (8, 64, 56, 56), (0, 2, 3, 1)),
    *(quantise(channel) for channel in (False, True)),
    *(dequantise("AntiQuant", "int8", integers(np.int8, -128, 128), 1, channel) for channel in (False, True)),
    dequantise("Dequant", "int32", integers(np.int32, -(2**24), 2**24), 4, True),
]
