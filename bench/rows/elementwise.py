"""Element-wise operators and activations."""

import numpy as np

from . import Row


def normal(*shapes):
    return lambda rng: [rng.standard_normal(s, np.float32) for s in shapes]


def silu(x):
    return x / (1 + np.exp(-x))


def mindspore_swiglu(ms):
    def f(x, gate):
        return x * ms.ops.silu(gate)

    return f


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
            # In float32 exp (ONNX Runtime's is good to 2^-18), a sum, a quotient, a product; in bfloat16
            # a peer that is not compiled rounds twice.
            rtol=2.0**-17 + (2.0**-7 if dtype == "bfloat16" else 0), atol=1e-30, dtype=dtype,
            flops=5 * m * 11008, target=0.9 if m == 1 else 0.65, mindspore_target=1.8, quick=dtype == "float32",
            numpy=(lambda x, g: x * silu(g)) if dtype == "float32" else None,
            torch=lambda torch: lambda x, g: x * torch.nn.functional.silu(g),
            onnx=lambda g, x, gate: g.node("Mul", x, g.node("Mul", gate, g.node("Sigmoid", gate))),
            mindspore=mindspore_swiglu,
        )
        for dtype, suffix in (("float32", ""), ("bfloat16", " bf16"))
        for m in (1, 128)
    ),
]  # fmt: skip
