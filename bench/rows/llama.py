"""A layer of LLaMA-2-7B (width 4096, inner 11008, 32 heads) with seeded weights, and what is swapped in it: the Cells
of examples/llama, plain and grafted, beside torch eager as transformers writes it. Measured by bench/llama.py."""

import functools
import pathlib
import sys

import numpy as np

from . import SEED, Row
from .matmul import sums
from .norms import loose
from .rope import wide

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAME = "LLaMA-2-7B"
WIDTH, INNER, HEADS, SIZE, EPS, BASE = 4096, 11008, 32, 128, 1e-5, 1e4
PAST = 256  # tokens before the one that is decoded
U = 2.0**-24
SHAPES = {
    "input_layernorm": (WIDTH,), "self_attn.q_proj": (WIDTH, WIDTH), "self_attn.k_proj": (WIDTH, WIDTH),
    "self_attn.v_proj": (WIDTH, WIDTH), "self_attn.o_proj": (WIDTH, WIDTH), "post_attention_layernorm": (WIDTH,),
    "mlp.gate_proj": (INNER, WIDTH), "mlp.up_proj": (INNER, WIDTH), "mlp.down_proj": (WIDTH, INNER),
}  # fmt: skip
MATRICES = [s for s in SHAPES.values() if len(s) == 2]


@functools.lru_cache(maxsize=1)
def weights():
    """What passes through keeps its size. Query and key rows stand in pairs, as in GGUF files."""
    rng = np.random.default_rng(SEED)
    return [rng.standard_normal(s, np.float32) / np.float32(s[-1] ** 0.5) + np.float32(len(s) == 1)
            for s in SHAPES.values()]  # fmt: skip


def gamma():
    return weights()[0]


def angles(first, count):
    """cos and sin (count, SIZE), an entry for each element."""
    a = np.outer(np.arange(first, first + count), BASE ** (-np.arange(0, SIZE, 2) / SIZE))
    return [wide(f(a).astype(np.float32), True) for f in (np.cos, np.sin)]


def normal(*shapes):
    return lambda rng: [rng.standard_normal(s, np.float32) for s in shapes]


# --- the formulas, in float64 ---


def norm(x, weight):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * weight


def rope(x, cos, sin):
    turned = np.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)
    return x * cos + turned * sin


def swiglu(gate, up):
    return gate / (1 + np.exp(-gate)) * up


def layer(x, cos, sin, places, past_key, past_value, *weights):
    w = dict(zip(SHAPES, weights))
    count = x.shape[1]

    def split(y):
        return y.reshape(count, HEADS, SIZE).transpose(1, 0, 2)

    h = norm(x[0], w["input_layernorm"])
    q, k, v = (split(h @ w[f"self_attn.{n}_proj"].T) for n in "qkv")
    k = np.concatenate([past_key[0], rope(k, cos, sin)], 1)
    v = np.concatenate([past_value[0], v], 1)
    scores = rope(q, cos, sin) @ k.transpose(0, 2, 1) * SIZE**-0.5
    scores = np.where(np.arange(k.shape[1]) <= places[:, None], scores, -np.inf)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = (e / e.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(count, WIDTH)
    x = x[0] + mixed @ w["self_attn.o_proj"].T
    h = norm(x, w["post_attention_layernorm"])
    inner = swiglu(h @ w["mlp.gate_proj"].T, h @ w["mlp.up_proj"].T)
    return (x + inner @ w["mlp.down_proj"].T)[None]


# --- ours ---


def example():
    sys.path.insert(0, str(ROOT / "examples"))
    from llama import checkpoint, model

    return checkpoint, model


def swapped(opgraft, net, fused, shapes):
    if fused:
        net.set_inputs(*(opgraft.Tensor(shape=s, dtype=d) for s, d in shapes))
        opgraft.rewrite.substitute(net)
    return net


def floats(*shapes):
    return [(s, np.float32) for s in shapes]


def norm_cell(fused, count):
    def build(opgraft):
        net = example()[1].RMSNorm(WIDTH, EPS, opgraft.float32)
        net.weight.set_data(gamma())
        return swapped(opgraft, net, fused, floats((count, WIDTH)))

    return build


def rope_cell(fused, count):
    def build(opgraft):
        rotated = example()[1].rotated

        class Net(opgraft.nn.Cell):
            def construct(self, q, k, cos, sin):
                return rotated(q, cos, sin), rotated(k, cos, sin)

        heads = (1, HEADS, count, SIZE)
        return swapped(opgraft, Net(), fused, floats(heads, heads, (count, SIZE), (count, SIZE)))

    return build


def swiglu_cell(fused, count):
    def build(opgraft):
        class Net(opgraft.nn.Cell):
            def construct(self, gate, up):
                return opgraft.ops.silu(gate) * up

        return swapped(opgraft, Net(), fused, floats((count, INNER), (count, INNER)))

    return build


def layer_cell(fused, count, past):
    """Plain: caches that come in, are concatenated and go out. Grafted: caches in place, which hold the past."""

    def build(opgraft):
        checkpoint, model = example()
        config = checkpoint.LlamaConfig(
            vocab_size=32000, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=1,
            num_attention_heads=HEADS, num_key_value_heads=HEADS, head_dim=SIZE, max_position_embeddings=2048,
            rms_norm_eps=EPS, rope_theta=BASE, tie_word_embeddings=True,
        )  # fmt: skip
        hidden = np.arange(past + count) > np.arange(past, past + count)[:, None]

        class Net(opgraft.nn.Cell):
            def __init__(self):
                super().__init__()
                self.layer = model.Layer(config, opgraft.float32, past + count if fused else None)
                self.mask = opgraft.Parameter(np.where(hidden, np.float32(-10000), np.float32(0)), requires_grad=False)

            def construct(self, x, cos, sin, places, past_key, past_value):
                return self.layer(x, cos, sin, places, self.mask, past_key, past_value)

        net = Net()
        for name, a in zip(SHAPES, weights()):
            net.layer.parameters_dict()[f"{name}.weight"].set_data(a)
        if fused:
            for cache, a in zip((net.layer.self_attn.k_cache, net.layer.self_attn.v_cache), caches(past)):
                cache.set_data(np.concatenate([a, np.zeros((1, HEADS, count, SIZE), np.float32)], 2))
        heads = (1, HEADS, past, SIZE)
        given = floats((1, count, WIDTH), (count, SIZE), (count, SIZE))
        return swapped(opgraft, net, fused, [*given, ((count,), np.int32), *floats(heads, heads)])

    return build


# --- torch, as transformers writes it: the halves of a head in place of pairs ---


def torch_norm(torch):
    def f(x, weight):
        return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS))

    return f


def halves(torch, x, cos, sin):
    half = SIZE // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def torch_rope(torch):
    """Pairs: views of the even and odd elements; the halves' layout is the layer's."""

    def turn(x, cos, sin):
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)

    def f(q, k, cos, sin):
        cos, sin = cos[..., ::2], sin[..., ::2]
        return [turn(q, cos, sin), turn(k, cos, sin)]

    return f


def torch_swiglu(torch):
    return lambda gate, up: torch.nn.functional.silu(gate) * up


def torch_layer(torch):
    f, once = torch.nn.functional, {}

    def prepared(cos, sin, past_key, weights):
        """What a model loads and computes once: rows and caches in halves."""
        order = torch.cat([torch.arange(0, SIZE, 2), torch.arange(1, SIZE, 2)])
        w = dict(zip(SHAPES, weights))
        for n in "qk":
            w[f"self_attn.{n}_proj"] = w[f"self_attn.{n}_proj"].view(HEADS, SIZE, WIDTH)[:, order].reshape(WIDTH, WIDTH)
        once.update(w=w, cos=cos[:, order], sin=sin[:, order], past=past_key[..., order].contiguous())

    def run(x, cos, sin, places, past_key, past_value, *weights):
        if not once:
            prepared(cos, sin, past_key, weights)
        w, normed, act = once["w"], torch_norm(torch), torch_swiglu(torch)

        def split(y):
            return y.view(1, -1, HEADS, SIZE).transpose(1, 2)

        h = normed(x, w["input_layernorm"])
        q, k, v = (split(f.linear(h, w[f"self_attn.{n}_proj"])) for n in "qkv")
        q, k = (halves(torch, t, once["cos"], once["sin"]) for t in (q, k))
        k, v = torch.cat([once["past"], k], 2), torch.cat([past_value, v], 2)
        mixed = f.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)
        x = x + f.linear(mixed.transpose(1, 2).reshape(x.shape), w["self_attn.o_proj"])
        h = normed(x, w["post_attention_layernorm"])
        return x + f.linear(act(f.linear(h, w["mlp.gate_proj"]), f.linear(h, w["mlp.up_proj"])), w["mlp.down_proj"])

    return run


# --- the rows ---


def caches(past):
    rng = np.random.default_rng(SEED + 1)
    return [rng.standard_normal((1, HEADS, past, SIZE), np.float32) for _ in range(2)]


def pair(name, cell, *args, **common):
    """The Cell grafted, which is to be no slower than the plain one, and plain."""
    common |= {"op": "", "extra": True, "missing": {p: "not written" for p in ("numpy", "onnxruntime", "mindspore")}}
    name = f"{NAME} {name}"
    return [Row(name, **common, cell=cell(True, *args), against=f"{name} plain", target_against=1.0, target=1.0),
            Row(f"{name} plain", **common, cell=cell(False, *args), target=1.0)]  # fmt: skip


def of(count):
    heads, past = (1, HEADS, count, SIZE), PAST if count == 1 else 0
    turned = angles(PAST, count)
    return [
        *pair(f"RMSNorm {count}x{WIDTH}", norm_cell, count, inputs=normal((count, WIDTH)), exact=norm,
              weights=lambda rng: [gamma()], rtol=loose(WIDTH), atol=1e-30, torch=torch_norm),
        # Two products and a sum of numbers that are at most 5.5, rounded once each.
        *pair(f"RoPE {count}x{HEADS}x{SIZE}", rope_cell, count,
              inputs=lambda rng: [*normal(heads, heads)(rng), *turned], torch=torch_rope,
              exact=lambda q, k, cos, sin: [rope(q, cos, sin), rope(k, cos, sin)], rtol=U, atol=3 * 5.5 * U),
        # exp, of an argument up to 5.5 that is itself rounded, a sum, a quotient and a product.
        *pair(f"SwiGLU {count}x{INNER}", swiglu_cell, count, inputs=normal((count, INNER), (count, INNER)),
              exact=swiglu, rtol=(5.5 + 6) * U, atol=1e-30, torch=torch_swiglu),
        # The errors of the products, one after another, as of MiniLM's (rows/models.py).
        *pair(f"layer, {count} at {past}", layer_cell, count, past,
              inputs=lambda rng: [*normal((1, count, WIDTH))(rng), *angles(past, count),
                                  np.arange(past, past + count, dtype=np.int32), *caches(past)],
              exact=layer, weights=lambda rng: weights(), torch=torch_layer, rtol=0.0,
              atol=sum(sums(k) / k**0.5 for _, k in MATRICES), flops=2.0 * count * sum(n * k for n, k in MATRICES)),
    ]  # fmt: skip


ROWS = [*of(1), *of(128)]
