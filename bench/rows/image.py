"""Operators on images: the sepia filter, forward and backward, as a convolution and as sums of channels."""

import numpy as np

from . import Row

U = 2.0**-24
SHAPE = (4, 3, 224, 224)
ROWS_OF_MATRIX = [[0.393, 0.769, 0.189], [0.349, 0.686, 0.168], [0.272, 0.534, 0.131]]
MATRIX = np.array(ROWS_OF_MATRIX, np.float32)


def images(rng):
    return [rng.random(SHAPE, np.float32)]


def both(rng):
    """The gradient, and images of which none lies where rounding would decide whether a result is cut."""
    x = rng.random(SHAPE, np.float32)
    y = mixed(MATRIX.astype(np.float64), x.astype(np.float64))
    near = (np.abs(y - 1.0) < 1e-5).any(axis=1, keepdims=True)
    return [rng.standard_normal(SHAPE, np.float32), np.where(near, np.float32(0.125), x)]


def mixed(matrix, x):
    return np.matmul(matrix, x.reshape(x.shape[0], 3, -1)).reshape(x.shape)


def sepia(x):
    return np.minimum(mixed(MATRIX.astype(x.dtype), x), np.asarray(1, x.dtype))


def gradient(dy, x):
    m = MATRIX.astype(x.dtype)
    return mixed(m.T, dy * (mixed(m, x) <= 1))


def kernel(matrix):
    return matrix.reshape(3, 3, 1, 1)


def sums(x, most, join):
    r, g, b = x[:, 0:1], x[:, 1:2], x[:, 2:3]
    return most(join([m[0] * r + m[1] * g + m[2] * b for m in ROWS_OF_MATRIX]))


def torch_sums(torch):
    return lambda x: sums(x, lambda y: torch.clamp(y, max=1.0), lambda y: torch.cat(y, 1))


def torch_conv(torch):
    w = torch.from_numpy(kernel(MATRIX))
    return lambda x: torch.nn.functional.conv2d(x, w).clamp(max=1.0)


def torch_gradient(torch):
    conv = torch.nn.functional.conv2d
    w, back = torch.from_numpy(kernel(MATRIX)), torch.from_numpy(kernel(np.ascontiguousarray(MATRIX.T)))
    return lambda dy, x: conv(dy * (conv(x, w) <= 1.0), back)


def onnx_conv(g, x):
    return g.node("Min", g.node("Conv", x, g.const(kernel(MATRIX))), g.const(np.array(1.0)))


def onnx_sums(g, x):
    r, green, b = g.node("Split", x, outputs=3, axis=1, num_outputs=3)
    rows = []
    for m in ROWS_OF_MATRIX:
        terms = [g.node("Mul", c, g.const(np.array(f))) for c, f in zip((r, green, b), m)]
        rows.append(g.node("Add", g.node("Add", *terms[:2]), terms[2]))
    return g.node("Min", g.node("Concat", *rows, axis=1), g.const(np.array(1.0)))


def onnx_gradient(g, dy, x):
    kept = g.node("LessOrEqual", g.node("Conv", x, g.const(kernel(MATRIX))), g.const(np.array(1.0)))
    cut = g.node("Where", kept, dy, g.const(np.array(0.0)))
    return g.node("Conv", cut, g.const(kernel(np.ascontiguousarray(MATRIX.T))))


def mindspore_sums(ms):
    def f(x):
        r, g, b = x[:, 0:1], x[:, 1:2], x[:, 2:3]
        y = ms.ops.concat((0.393 * r + 0.769 * g + 0.189 * b, 0.349 * r + 0.686 * g + 0.168 * b,
                           0.272 * r + 0.534 * g + 0.131 * b), 1)  # fmt: skip
        return ms.ops.minimum(y, 1.0)

    return f


def mindspore_conv(ms):
    conv, w = ms.ops.Conv2D(3, 1), ms.Tensor(kernel(MATRIX))

    def f(x):
        return ms.ops.minimum(conv(x, w), 1.0)

    return f


def mindspore_gradient(ms):
    conv, w, back = ms.ops.Conv2D(3, 1), ms.Tensor(kernel(MATRIX)), ms.Tensor(kernel(np.ascontiguousarray(MATRIX.T)))

    def f(dy, x):
        return conv(ms.ops.where(conv(x, w) <= 1.0, dy, ms.ops.zeros_like(dy)), back)

    return f


# A product and two sums of at most 1.351 each, float32 coefficients; of the gradient, dy up to 6.
FORWARD, BACKWARD = 4 * 1.351 * U, 8 * 6 * 1.989 * U
FLOPS = 15.0 * 4 * 224 * 224
ROWS = [
    Row(
        "Sepia 4x3x224x224", "Sepia", images, sepia, rtol=0.0, atol=FORWARD, flops=FLOPS, target=0.35, quick=True,
        numpy=sepia, torch=torch_sums, onnx=onnx_conv, mindspore=mindspore_sums,
    ),
    Row(
        "Sepia 4x3x224x224, peers the other way", "Sepia", images, sepia, rtol=0.0, atol=FORWARD, flops=FLOPS,
        target=0.35, torch=torch_conv, onnx=onnx_sums, mindspore=mindspore_conv,
        note="a convolution for torch and MindSpore, sums of channels for ONNX",
    ),
    Row(
        "Sepia backward 4x3x224x224", "SepiaGrad", both, gradient, rtol=0.0, atol=BACKWARD, flops=2 * FLOPS,
        target=0.35, numpy=gradient, torch=torch_gradient, onnx=onnx_gradient, mindspore=mindspore_gradient,
    ),
]  # fmt: skip
