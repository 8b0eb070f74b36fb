"""Element-wise operators and activations."""

import math

import numpy as np

from . import Row


def normal(*shapes):
    return lambda rng: [rng.standard_normal(s, np.float32) for s in shapes]


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gelu_slope(x):
    t = np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x * x)


def erf(x):
    """NumPy has none: the C library's, by element."""
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def exact_gelu(x):
    return 0.5 * x * (1 + erf(x / np.sqrt(2)))


def silu_slope(x):
    s = 1 / (1 + np.exp(-x))
    return s * (1 + x * (1 - s))


def swiglu_slopes(x, gate, dy):
    return dy * silu(gate), dy * x * silu_slope(gate)


def numpy_gelu(x):
    return 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def mindspore_swiglu(ms):
    def f(x, gate):
        return x * ms.ops.silu(gate)

    return f


def mindspore_interleaved(ms):
    def f(x):
        return x[:, ::2] * ms.ops.silu(x[:, 1::2])

    return f


def mindspore_halves(ms):
    def f(x):
        gate, up = ms.ops.split(x, x.shape[-1] // 2, -1)
        return ms.ops.silu(gate) * up

    return f


def mindspore_gelu(approximate):
    def build(ms):
        def f(x):
            return ms.ops.gelu(x, approximate=approximate)

        return f

    return build


def mindspore_gelu_grad(ms):
    from mindspore.ops.auto_generate import GeLUGrad

    grad = GeLUGrad()

    def f(x, dy):  # GeLUGrad's third operand, the forward result, is not read
        return grad(dy, x, x)

    return f


def mindspore_swiglu_grad(ms):
    from mindspore.ops.auto_generate import SiLUGrad

    grad = SiLUGrad()

    def f(x, gate, dy):
        return dy * ms.ops.silu(gate), grad(dy * x, gate)

    return f


def torch_swiglu_backward(torch):
    def f(x, gate, dy):
        return dy * torch.nn.functional.silu(gate), torch.ops.aten.silu_backward(dy * x, gate)

    return f


def onnx_interleaved(g, x):
    axes, step, end = (g.const(np.array([v], np.int64)) for v in (1, 2, 2**62))
    even, odd = (g.node("Slice", x, g.const(np.array([k], np.int64)), end, axes, step) for k in (0, 1))
    return g.node("Mul", even, g.node("Mul", odd, g.node("Sigmoid", odd)))


def onnx_halves(g, x):
    gate, up = g.node("Split", x, outputs=2, axis=-1, num_outputs=2)
    return g.node("Mul", g.node("Mul", gate, g.node("Sigmoid", gate)), up)


def torch_halves(torch):
    def f(x):
        gate, up = x.chunk(2, -1)
        return torch.nn.functional.silu(gate) * up

    return f


def torch_gelu_backward(torch):
    return lambda x, dy: torch.ops.aten.gelu_backward(dy, x, approximate="tanh")


# In float32 exp (ONNX Runtime's is good to 2^-18), a sum, a quotient, a product; in bfloat16 a peer that is not
# compiled rounds twice, 2^-8 each.
EXP = {"float32": 2.0**-17, "bfloat16": 2.0**-17 + 2.0**-7}
# GELU by 1 + tanh, as every peer computes it: tanh is good to some 2^-22 and the sum cancels, times |x| / 2 <= 2.5.
TANH = 2.0**-20
N = 1_000_000
ROWS = [
    Row(
        "VectorAdd 1M", "Add", normal((N,), (N,)), np.add, rtol=2.0**-24, atol=0.0,  # one rounding
        flops=N, target=1.05, mindspore_target=3.0, quick=True,
        numpy=np.add,
        torch=lambda torch: torch.add,
        onnx=lambda g, x, y: g.node("Add", x, y),
        mindspore=lambda ms: ms.ops.add,
    ),
    *(
        Row(
            f"SwiGLU {m}x11008{suffix}", "SwiGLU", normal((m, 11008), (m, 11008)), lambda x, g: x * silu(g),
            rtol=EXP[dtype], atol=1e-30, dtype=dtype,
            flops=5 * m * 11008, target=0.9 if m == 1 else 0.65, mindspore_target=1.8, quick=dtype == "float32",
            numpy=(lambda x, g: x * silu(g)) if dtype == "float32" else None,
            torch=lambda torch: lambda x, g: x * torch.nn.functional.silu(g),
            onnx=lambda g, x, gate: g.node("Mul", x, g.node("Mul", gate, g.node("Sigmoid", gate))),
            mindspore=mindspore_swiglu,
        )
        for dtype, suffix in (("float32", ""), ("bfloat16", " bf16"))
        for m in (1, 128)
    ),
    Row(
        "SwiGLU interleaved 128x22016", "SwiGLUInterleaved", normal((128, 22016)),
        lambda x: x[:, ::2] * silu(x[:, 1::2]), rtol=EXP["float32"], atol=1e-30,
        flops=5 * 128 * 11008, target=0.45, mindspore_target=1.8,
        numpy=lambda x: x[:, ::2] * silu(x[:, 1::2]),
        torch=lambda torch: lambda x: x[:, ::2] * torch.nn.functional.silu(x[:, 1::2]),
        onnx=onnx_interleaved,
        mindspore=mindspore_interleaved,
    ),
    Row(
        "SwiGLU halves 128x22016", "Swiglu", normal((128, 22016)),
        lambda x: silu(x[:, :11008]) * x[:, 11008:], rtol=EXP["float32"], atol=1e-30,
        flops=5 * 128 * 11008, mindspore_target=1.8,
        numpy=lambda x: silu(x[:, :11008]) * x[:, 11008:],
        torch=torch_halves,
        onnx=onnx_halves,
        mindspore=mindspore_halves,
    ),
    *(
        Row(
            f"GeLU tanh {m}x{n}", "GeLU", normal((m, n)), gelu, rtol=EXP["float32"], atol=TANH,
            flops=10 * m * n, target=0.9, mindspore_target=3.0, quick=m == 1,
            numpy=numpy_gelu,
            torch=lambda torch: lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
            onnx=lambda g, x: g.node("Gelu", x, approximate="tanh"),
            mindspore=mindspore_gelu("tanh"),
        )
        for m, n in ((1, 4096), (512, 3072))
    ),
    *(
        Row(
            f"GeLU tanh backward {m}x{n}", "GeLUGrad", normal((m, n), (m, n)), lambda x, dy: dy * gelu_slope(x),
            # Two such terms, times |dy| <= 5.
            rtol=EXP["float32"], atol=10 * TANH,
            flops=20 * m * n, target=0.35 if m > 1 else None, mindspore_target=3.0,
            numpy=lambda x, dy: dy * gelu_slope(x),
            torch=torch_gelu_backward,
            missing={"onnx": "ONNX has no gradients"},
            mindspore=mindspore_gelu_grad,
        )
        for m, n in ((1, 4096), (512, 3072))
    ),
    Row(
        # An erf that is good to 2^-22, in a sum that cancels, times |x| / 2 <= 2.5.
        "GeLU erf 512x3072", "FusedGeLU", normal((512, 3072)), exact_gelu, rtol=EXP["float32"], atol=TANH,
        attrs={"approximate": "none"}, flops=10 * 512 * 3072, target=1.0, mindspore_target=3.0,
        torch=lambda torch: torch.nn.functional.gelu,
        onnx=lambda g, x: g.node("Gelu", x),
        mindspore=mindspore_gelu("none"),
        missing={"numpy": "NumPy has no erf"},
    ),
    Row(
        "SiLU 512x3072", "SiLU", normal((512, 3072)), silu, rtol=EXP["float32"], atol=1e-30,
        flops=4 * 512 * 3072, target=1.0,
        numpy=silu,
        torch=lambda torch: torch.nn.functional.silu,
        onnx=lambda g, x: g.node("Mul", x, g.node("Sigmoid", x)),
        mindspore=lambda ms: ms.ops.silu,
    ),
    Row(
        # A slope's sum of two terms that cancel where it is 0, of an exp of 2^-18, times |x dy| <= 25.
        "SwiGLU backward 128x11008", "SwiGLUGrad", normal(*[(128, 11008)] * 3), swiglu_slopes,
        rtol=EXP["float32"], atol=25 * 2.0**-18, flops=15 * 128 * 11008, target=1.0, mindspore_target=1.8,
        numpy=swiglu_slopes,
        torch=torch_swiglu_backward,
        mindspore=mindspore_swiglu_grad,
        missing={"onnx": "ONNX has no gradients"},
    ),
]  # fmt: skip
