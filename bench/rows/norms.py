"""Normalisations and Softmax, forward and backward."""

import numpy as np

from . import Row
from .elementwise import normal

U = 2.0**-24


def rms(x, gamma, epsilon=1e-5):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * gamma


def layer(x, gamma, beta, epsilon=1e-5):
    d = x - x.mean(-1, keepdims=True)
    return d / np.sqrt((d * d).mean(-1, keepdims=True) + epsilon) * gamma + beta


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def shifted(*shapes):
    """Parameters of a normalisation as trained ones are: about 1, then about 0."""
    return lambda rng: [
        (rng.standard_normal(s, np.float32) * np.float32(0.2) + np.float32(k == 0)) for k, s in enumerate(shapes)
    ]


def torch_rms(torch):
    return lambda x, gamma: torch.nn.functional.rms_norm(x, (x.shape[-1],), gamma, 1e-5)


def torch_add_rms(torch):
    def f(x, residual, gamma):
        s = x + residual
        return torch.nn.functional.rms_norm(s, (s.shape[-1],), gamma, 1e-5), s

    return f


def torch_layer(torch):
    return lambda x, gamma, beta: torch.nn.functional.layer_norm(x, (x.shape[-1],), gamma, beta, 1e-5)


def torch_add_layer(torch):
    def f(x, residual, gamma, beta):
        s = x + residual
        return torch.nn.functional.layer_norm(s, (s.shape[-1],), gamma, beta, 1e-5), s

    return f


def onnx_rms(g, x, gamma):
    return g.node("SimplifiedLayerNormalization", x, gamma, axis=-1, epsilon=1e-5)


def skip(op):
    """The sum and its normalisation as ONNX Runtime fuses them; mean and deviation are not asked for."""

    def f(g, *names):
        y, _, _, s = g.node(op, *names, outputs=4, domain="com.microsoft", epsilon=1e-5)
        g.nodes[-1].output[1] = g.nodes[-1].output[2] = ""
        return [y, s]

    return f


def onnx_add_layer(g, x, residual, gamma, beta):
    s = g.node("Add", x, residual)
    return [g.node("LayerNormalization", s, gamma, beta, axis=-1, epsilon=1e-5), s]


def mindspore_rms(ms):
    """MindSpore has no RmsNorm on CPU: as its LLaMA writes it."""
    ops = ms.ops

    def f(x, gamma):
        return x * ops.rsqrt(ops.mean(ops.square(x), -1, True) + 1e-5) * gamma

    return f


def mindspore_add_rms(ms):
    ops = ms.ops

    def f(x, residual, gamma):
        s = x + residual
        return s * ops.rsqrt(ops.mean(ops.square(s), -1, True) + 1e-5) * gamma, s

    return f


def mindspore_layer(ms):
    norm = ms.ops.LayerNorm(-1, -1, 1e-5)

    def f(x, gamma, beta):
        return norm(x, gamma, beta)[0]

    return f


def mindspore_add_layer(ms):
    norm = ms.ops.LayerNorm(-1, -1, 1e-5)

    def f(x, residual, gamma, beta):
        s = x + residual
        return norm(s, gamma, beta)[0], s

    return f


def mindspore_softmax(ms):
    op = ms.ops.Softmax(-1)

    def f(x):
        return op(x)

    return f


def mindspore_masked_softmax(ms):
    op = ms.ops.Softmax(-1)

    def f(x, mask):
        return op(x * 0.125 + mask)

    return f


def add_rms(x, residual, gamma):
    return rms(x + residual, gamma), x + residual


def add_layer(x, residual, gamma, beta):
    return layer(x + residual, gamma, beta), x + residual


def causal(rng):
    """Scores of 12 heads, and a mask that leaves out what comes later."""
    return [rng.standard_normal((12, 128, 128), np.float32) * 8, np.triu(np.full((1, 128, 128), -1e9, np.float32), 1)]


def rms_gradient(dy, x, gamma, epsilon=1e-5):
    rstd = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon)
    h, g = x * rstd, dy * gamma
    return rstd * (g - h * (g * h).mean(-1, keepdims=True)), (dy * h).sum(0)


def layer_gradient(x, dy, variance, mean, gamma, epsilon=1e-7):
    rstd = 1 / np.sqrt(variance + epsilon)
    h, g = (x - mean) * rstd, dy * gamma
    dx = rstd * (g - g.mean(-1, keepdims=True) - h * (g * h).mean(-1, keepdims=True))
    return dx, (dy * h).sum(0), dy.sum(0)


def with_statistics(rng):
    x, dy = rng.standard_normal((2, 512, 1024), np.float32)
    return [x, dy, x.var(-1, keepdims=True), x.mean(-1, keepdims=True)]


def slopes_of_softmax(rng):
    dy, x = rng.standard_normal((2, 12, 128, 128), np.float32)
    return [dy, softmax(x)]


class TorchGradient:
    """torch's backward alone, of `forward(x, *parameters)`: the forward, with what it saves, is kept from the first
    call. `x`, `parameters`: positions among the row's arrays, -1: zeros like the last; `dy`: the slope's."""

    def __init__(self, torch, forward, x, parameters, dy):
        self.torch, self.forward, self.places, self.dy, self.kept = torch, forward, (x, *parameters), dy, None
        import torch._functorch.config as compiled

        compiled.donated_buffer = False  # what is kept serves more than once

    def __call__(self, *given):
        if self.kept is None:
            wanted = []
            for i in self.places:
                wanted.append((given[i].clone() if i >= 0 else self.torch.zeros_like(wanted[-1])).requires_grad_())
            self.kept = self.forward(*wanted), wanted
        return self.torch.autograd.grad(*self.kept, given[self.dy], retain_graph=True)


def torch_rms_gradient(torch):
    return TorchGradient(torch, torch_rms(torch), 1, (2,), 0)


def torch_layer_gradient(torch):
    def forward(x, gamma, beta):
        return torch.nn.functional.layer_norm(x, (x.shape[-1],), gamma, beta, 1e-7)

    return TorchGradient(torch, forward, 0, (4, -1), 1)


def mindspore_rms_gradient(ms):
    """It has no RmsNormGrad on CPU: its own derivative of the formula."""
    gradient = ms.ops.GradOperation(get_all=True, sens_param=True)(mindspore_rms(ms))

    def f(dy, x, gamma):
        return gradient(x, gamma, dy)

    return f


def mindspore_softmax_gradient(ms):
    """It has no SoftmaxBackward on CPU: the formula."""

    def f(dy, y):
        return y * (dy - (dy * y).sum(-1, keepdims=True))

    return f


def mindspore_layer_gradient(ms):
    from mindspore.ops.auto_generate.gen_ops_prim import LayerNormGrad

    gradient = LayerNormGrad(-1, -1)

    def f(x, dy, variance, mean, gamma):
        return gradient(x, dy, variance, mean, gamma)

    return f


# A row's sum of n positive terms goes through at most n additions, most peers' through n / 8 and less; its root halves
# the error: n / 16 + 8 roundings, relative. In bfloat16 a peer that is not compiled rounds after each of the square,
# the mean, the root and two products, and rounds the sum with a residual first.
def loose(n, dtype="float32"):
    return (n / 16 + 8) * U if dtype == "float32" else 6 * 2.0**-8


ROWS = [
    *(
        Row(
            f"RMSNorm {m}x4096{suffix}", "FusedRmsNorm", normal((m, 4096)), rms, weights=shifted((4096,)),
            rtol=loose(4096, dtype), atol=1e-30, attrs={"epsilon": 1e-5}, dtype=dtype, flops=4 * m * 4096,
            target=0.6 if m == 1 else 0.9, mindspore_target=3.2, quick=dtype == "float32" and m == 512,
            numpy=rms if dtype == "float32" else None, torch=torch_rms, onnx=onnx_rms, mindspore=mindspore_rms,
        )
        for m, dtype, suffix in ((1, "float32", ""), (512, "float32", ""), (512, "bfloat16", " bf16"))
    ),
    Row(
        "AddRMSNorm 512x4096", "FusedAddRmsNorm", normal((512, 4096), (512, 4096)), add_rms, weights=shifted((4096,)),
        rtol=loose(4096) + 2 * U, atol=8 * U, attrs={"epsilon": 1e-5}, flops=5 * 512 * 4096,
        target=0.9, mindspore_target=3.2,
        numpy=add_rms, torch=torch_add_rms, onnx=skip("SkipSimplifiedLayerNormalization"), mindspore=mindspore_add_rms,
    ),
    Row(
        # As RMSNorm, but the mean's part is absolute: of rows that are about 4 at most.
        "LayerNorm 1x512x1024", "FusedLayerNorm", normal((1, 512, 1024)), layer, weights=shifted((1024,), (1024,)),
        rtol=loose(1024), atol=loose(1024), attrs={"epsilon": 1e-5}, flops=8 * 512 * 1024,
        target=0.9, mindspore_target=2.5, quick=True,
        numpy=layer, torch=torch_layer, mindspore=mindspore_layer,
        onnx=lambda g, x, gamma, beta: g.node("LayerNormalization", x, gamma, beta, axis=-1, epsilon=1e-5),
    ),
    Row(
        "AddLayerNorm 1x512x1024", "AddLayerNorm", normal((1, 512, 1024), (1, 512, 1024)), add_layer,
        weights=shifted((1024,), (1024,)), rtol=loose(1024), atol=loose(1024), attrs={"epsilon": 1e-5},
        flops=9 * 512 * 1024, target=0.9, mindspore_target=2.5,
        numpy=add_layer, torch=torch_add_layer, onnx=onnx_add_layer, mindspore=mindspore_add_layer,
    ),
    Row(
        # Differences up to 9 times 2^-24, exp (ONNX Runtime's is good to 2^-18), a sum of 128, a quotient.
        "Softmax 12x128x128", "Softmax", normal((12, 128, 128)), softmax, rtol=2.0**-17 + 32 * U, atol=1e-30,
        flops=20 * 12 * 128 * 128, target=0.9, quick=True,
        numpy=softmax, torch=lambda torch: lambda x: torch.softmax(x, -1), mindspore=mindspore_softmax,
        onnx=lambda g, x: g.node("Softmax", x, axis=-1),
    ),
    Row(
        # As above; the scores reach 5 and their differences 10. What is masked is 0, or denormal.
        "Softmax scaled and masked 12x128x128", "ScaledMaskedSoftmax", causal,
        lambda x, mask: softmax(x * 0.125 + mask), rtol=2.0**-17 + 64 * U, atol=1e-30, attrs={"scale": 0.125},
        flops=22 * 12 * 128 * 128, target=0.9,
        numpy=lambda x, mask: softmax(x * np.float32(0.125) + mask),
        torch=lambda torch: lambda x, mask: torch.softmax(x * 0.125 + mask, -1), mindspore=mindspore_masked_softmax,
        onnx=lambda g, x, mask: g.node("Softmax", g.node("Add", g.node("Mul", x, g.const(0.125)), mask), axis=-1),
    ),
    Row(
        # A sum of 128 products, and a difference of it.
        "Softmax backward 12x128x128", "SoftmaxBackward", slopes_of_softmax,
        lambda dy, y: y * (dy - (dy * y).sum(-1, keepdims=True)), rtol=4 * U, atol=64 * U,
        flops=4 * 12 * 128 * 128, target=1.0,
        numpy=lambda dy, y: y * (dy - (dy * y).sum(-1, keepdims=True)),
        torch=lambda torch: lambda dy, y: torch.ops.aten._softmax_backward_data(dy, y, -1, torch.float32),
        mindspore=mindspore_softmax_gradient, missing={"onnx": "ONNX has no gradients"},
    ),
    # Sums over 512 rows of numbers about 1: their partial sums reach 5 sqrt(512), and roundings, which come as they
    # like, add up to sqrt(512) of them: 2^-12.6.
    Row(
        "RMSNorm backward 512x4096", "FusedRmsNormGrad", normal((512, 4096), (512, 4096)), rms_gradient,
        weights=shifted((4096,)), rtol=loose(4096), atol=2.0**-12, attrs={"epsilon": 1e-5}, flops=12 * 512 * 4096,
        target=0.9, numpy=rms_gradient,
        torch=torch_rms_gradient, mindspore=mindspore_rms_gradient, missing={"onnx": "ONNX has no gradients"},
    ),
    Row(
        "LayerNorm backward 512x1024", "LayerNormGrad", with_statistics, layer_gradient, weights=shifted((1024,)),
        rtol=loose(1024), atol=2.0**-12, attrs={"epsilon": 1e-7}, flops=14 * 512 * 1024, target=0.9,
        mindspore_target=2.5, numpy=layer_gradient, mindspore=mindspore_layer_gradient,
        torch=torch_layer_gradient, missing={"onnx": "ONNX has no gradients"},
    ),
]  # fmt: skip
