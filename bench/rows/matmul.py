"""Products: square, skinny, a vector by a matrix; weights in float32, bfloat16 and int8."""

import numpy as np

from . import Row
from .elementwise import exact_gelu as gelu

# Sums of k products of standard normal numbers, one after another in float32: the worst of 4 million is 5.5 sqrt(k)
# and grows to that about evenly, so its k roundings, each 2^-24 / sqrt 3 of the sum so far, have a root mean square of
# 2^-24 5.5 k / 3; and the worst of 4 million errors is 5.5 times that.
ULP = 2.0**-24


def normal(*shapes):
    return lambda rng: [rng.standard_normal(s, np.float32) for s in shapes]


def sums(k):
    return 5.5 * 5.5 / 3 * ULP * k


def mindspore_matmul(ms):
    def f(a, b):
        return ms.ops.matmul(a, b)

    return f


def mindspore_linear(ms):
    product = ms.ops.MatMul(transpose_b=True)

    def f(x, w):
        return product(x, w)

    return f


def mindspore_dense_gelu(ms):
    product = ms.ops.MatMul(transpose_b=True)

    def f(x, w, bias):
        return ms.ops.gelu(product(x, w) + bias, approximate="none")

    return f


def product(name, m, k, n, constant, **more):
    a, b = normal((m, k)), normal((k, n))
    return Row(
        name, "MatMul", a if constant else normal((m, k), (k, n)), np.matmul, rtol=ULP, atol=sums(k),
        **({"weights": b} if constant else {}), flops=2.0 * m * k * n,
        numpy=np.matmul,
        torch=lambda torch: torch.matmul,
        onnx=lambda g, a, b: g.node("MatMul", a, b),
        mindspore=mindspore_matmul, **more,
    )  # fmt: skip


def linear(name, m, k, n, dtype="float32", **more):
    """x W^T, as frameworks keep the weights of a layer."""
    return Row(
        name, "MatMul", normal((m, k)), lambda x, w: x @ w.T, weights=normal((n, k)), attrs={"transpose_b": True},
        rtol=ULP if dtype == "float32" else 2.0**-8, atol=sums(k), dtype=dtype, flops=2.0 * m * k * n,
        numpy=(lambda x, w: x @ w.T) if dtype == "float32" else None,
        torch=lambda torch: torch.nn.functional.linear,
        onnx=lambda g, x, w: g.node("MatMul", x, g.node("Transpose", w, perm=[1, 0])),
        mindspore=mindspore_linear, **more,
    )  # fmt: skip


def gradients(a, b, dy):
    return dy @ b.T, a.T @ dy


def onnx_gradients(g, a, b, dy):
    turned = [g.node("Transpose", x, perm=[1, 0]) for x in (b, a)]
    return g.node("MatMul", dy, turned[0]), g.node("MatMul", turned[1], dy)


def mindspore_gradients(ms):
    first, second = ms.ops.MatMul(transpose_b=True), ms.ops.MatMul(transpose_a=True)

    def f(a, b, dy):
        return first(dy, b), second(a, dy)

    return f


def quantised(rng, n, k):
    """A weight [N, K] in eight bits and its scales."""
    w = rng.standard_normal((n, k), np.float32)
    scale = np.abs(w).max(1) / 127
    return [np.rint(w / scale[:, None]).astype(np.int8), scale]


def torch_int8(torch):
    def f(x, w, scale):
        return torch._weight_int8pack_mm(x, w, scale)

    return f


def onnx_int8(g, x, w, scale):
    # Not DequantizeLinear: ONNX Runtime then rounds x to eight bits, too.
    wide = g.node("Mul", g.node("Cast", w, to=1), g.node("Unsqueeze", scale, g.const(np.array([1]))))
    return g.node("MatMul", x, g.node("Transpose", wide, perm=[1, 0]))


def mindspore_int8(ms):
    product = ms.ops.MatMul(transpose_b=True)

    def f(x, w, scale):
        return product(x, w.astype(ms.float32) * scale.reshape((-1, 1)))

    return f


def int8(*shapes):
    return lambda rng: [rng.integers(-127, 128, s).astype(np.int8) for s in shapes]


def quant_product(name, m, k, n, **more):
    """int8 by a constant int8 weight, scaled by column; float32 out."""

    def torch_form(torch):
        def f(x, w, scale):
            return torch._int_mm(x, w) * scale

        return f

    return Row(
        name, "QuantBatchMatmul", int8((m, k)), lambda x, w, s: (x.astype(np.int64) @ w.astype(np.int64)) * s,
        weights=lambda rng: [*int8((k, n))(rng), rng.uniform(1e-4, 1e-3, n).astype(np.float32)],
        attrs={"dtype": "float32"},
        rtol=3 * ULP, atol=0.0,  # an exact sum, rounded to float32, scaled
        flops=2.0 * m * k * n,
        torch=torch_form,
        onnx=lambda g, x, w, s: g.node("Mul", g.node("Cast", g.node("MatMulInteger", x, w), to=1), s),
        missing={"numpy": "NumPy multiplies integers without BLAS", "mindspore": "no product of int8 on its CPU"},
        **more,
    )  # fmt: skip


GEMV = "GEMV 1x4096x11008 linear"
ROWS = [
    product("MatMul 512", 512, 512, 512, False, target=1.08, twin=3.0, quick=True),
    product("MatMul 512 weight", 512, 512, 512, True, target=1.08),
    # The twin would take a minute a call; every row of the product is the same work for it.
    product("MatMul 2048", 2048, 2048, 2048, False, target=1.08, twin=3.0, twin_rows=8),
    product("MatMul 2048 weight", 2048, 2048, 2048, True, target=1.08, twin=3.0, twin_rows=8),
    linear("MatMul 8x4096x4096", 8, 4096, 4096, target=1.08),
    linear("MatMul 512 bf16", 512, 512, 512, dtype="bfloat16", target=1.08),
    linear("MatMul 128x768x3072 bf16", 128, 768, 3072, dtype="bfloat16", target=1.08),
    Row(
        "MatMul backward 512", "MatMulGrad", normal(*[(512, 512)] * 3), gradients, rtol=ULP, atol=sums(512),
        flops=4.0 * 512**3, target=1.08, numpy=gradients, torch=lambda torch: gradients, onnx=onnx_gradients,
        mindspore=mindspore_gradients,
    ),
    Row(
        "Dense 128x768x3072 gelu", "Dense", normal((128, 768)), lambda x, w, b: gelu(x @ w.T + b),
        weights=normal((3072, 768), (3072,)), attrs={"activation": "gelu"},
        # An erf good to 2^-22 (ONNX Runtime's), times |x|, which is below 160.
        rtol=16 * ULP, atol=1.13 * sums(768) + 2.0**-22, flops=2.0 * 128 * 768 * 3072, target=1.0,
        numpy=None,
        torch=lambda torch: lambda x, w, b: torch.nn.functional.gelu(torch.nn.functional.linear(x, w, b)),
        onnx=lambda g, x, w, b: g.node("Gelu", g.node("Gemm", x, w, b, transB=1), domain="com.microsoft"),
        mindspore=mindspore_dense_gelu,
        missing={"numpy": "NumPy has no erf"},
    ),
    product("GEMV 1x4096x11008", 1, 4096, 11008, False, target=1.05, quick=True),
    product("GEMV 1x4096x11008 weight", 1, 4096, 11008, True, target=1.05),
    linear(GEMV, 1, 4096, 11008, target=1.05),
    linear(GEMV.replace("linear", "bf16"), 1, 4096, 11008, dtype="bfloat16", against=GEMV, target_against=0.55),
    Row(
        GEMV.replace("linear", "int8"), "WeightQuantBatchMatmul", normal((1, 4096)),
        lambda x, w, s: x @ (w * s[:, None]).T, weights=lambda rng: quantised(rng, 11008, 4096),
        attrs={"transpose_weight": True},
        # Two roundings more (of w * scale, where a peer widens the weights), and sums of numbers up to 1.01 in size.
        rtol=2 * ULP, atol=1.1 * sums(4096), flops=2.0 * 4096 * 11008, against=GEMV, target_against=0.3, quick=True,
        numpy=lambda x, w, s: x @ (w * s[:, None]).T,
        torch=torch_int8,
        onnx=onnx_int8,
        mindspore=mindspore_int8,
        note="weights of eight bits, float32 activations",
    ),
    quant_product("MatMul int8 512", 512, 512, 512, against="MatMul 512 weight", target=1.08, twin=3.0),
    quant_product("MatMul int8 1x4096x11008", 1, 4096, 11008, against=GEMV),
]  # fmt: skip
