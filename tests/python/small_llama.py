"""A LLaMA of two layers with seeded weights: its GGUF file, and its logits by NumPy in float64."""

import os
import pathlib
import sys

import gguf
import numpy as np
from gguf.quants import dequantize, quantize
from opgraft.generation import Text, TextModel

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))
import llama  # noqa: E402

WIDTH, INNER, HEADS, KV, LAYERS, CONTEXT, EPS, BASE = 64, 96, 4, 2, 2, 48, 1e-5, 1e4
SPECIAL = ["<|end|>", "<|start|>"]
LETTERS = [chr(c) for c in range(ord("a"), ord("z") + 1)] + ["Ġ", "Ċ", ":"]
MERGES = ["t h", "th e", "Ġ the", "i n"]
VOCABULARY = [*SPECIAL, *LETTERS, *(m.replace(" ", "") for m in MERGES)]
TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def tensors():
    """{name: array} of a model, the projections to be quantised."""
    rng = np.random.default_rng(7)

    def normal(*shape):
        return (rng.standard_normal(shape) * shape[-1] ** -0.5).astype(np.float32)

    size = WIDTH // HEADS
    found = {"token_embd.weight": normal(len(VOCABULARY), WIDTH), "output_norm.weight": 1 + normal(WIDTH)}
    shapes = {"attn_q": (HEADS * size, WIDTH), "attn_k": (KV * size, WIDTH), "attn_v": (KV * size, WIDTH),
              "attn_output": (WIDTH, WIDTH), "ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH),
              "ffn_down": (WIDTH, INNER)}  # fmt: skip
    for i in range(LAYERS):
        found |= {f"blk.{i}.{name}.weight": 1 + normal(WIDTH) for name in ("attn_norm", "ffn_norm")}
        found |= {f"blk.{i}.{name}.weight": normal(*shape) for name, shape in shapes.items()}
    return found


def write(file, architecture="llama", heads=HEADS, left_out=(), pre="smollm", kind="Q4_1", template=TEMPLATE,
          output=False):  # fmt: skip
    """kind: of the matrices, None: float32; the table's is Q8_0 where they are in blocks. output: a matrix of its own
    gives the logits."""
    w = gguf.GGUFWriter(file, architecture)
    w.add_block_count(LAYERS)
    w.add_context_length(CONTEXT)
    w.add_embedding_length(WIDTH)
    w.add_feed_forward_length(INNER)
    w.add_head_count(heads)
    w.add_head_count_kv(KV)
    w.add_rope_freq_base(BASE)
    w.add_layer_norm_rms_eps(EPS)
    w.add_vocab_size(len(VOCABULARY))
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_list(VOCABULARY)
    w.add_token_types([3] * len(SPECIAL) + [1] * (len(VOCABULARY) - len(SPECIAL)))
    w.add_token_merges(MERGES)
    w.add_bos_token_id(1)
    w.add_eos_token_id(0)
    w.add_chat_template(template)
    found = tensors()
    if output:
        found["output.weight"] = found["token_embd.weight"][::-1].copy()
    for name, array in found.items():
        if name in left_out:
            continue
        if array.ndim == 1 or kind is None:
            w.add_tensor(name, array)
        else:
            table = name == "token_embd.weight" and kind.startswith("Q")
            q = gguf.GGMLQuantizationType["Q8_0" if table else kind]
            w.add_tensor(name, quantize(array, q), raw_dtype=q)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return file


def oracle(checkpoint, ids):
    """Logits (S, vocab) of a LLaMA in float64 (Touvron et al. 2023), pairs of elements rotated as GGUF has them."""
    reader = gguf.GGUFReader(checkpoint)
    w = {
        t.name: (t.data if t.tensor_type == 0 else dequantize(t.data, t.tensor_type)).astype(np.float64)
        for t in reader.tensors
    }
    size, s = WIDTH // HEADS, len(ids)

    def norm(x, weight):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * weight

    angle = np.arange(s)[:, None] * BASE ** (-np.arange(0, size, 2) / size)
    turn = np.exp(1j * angle)[:, None]

    def rope(x):
        pairs = (x[..., ::2] + 1j * x[..., 1::2]) * turn
        return np.stack([pairs.real, pairs.imag], -1).reshape(x.shape)

    x = w["token_embd.weight"][ids]
    for i in range(LAYERS):
        p = {k.split(".")[2]: v for k, v in w.items() if k.startswith(f"blk.{i}.")}
        h = norm(x, p["attn_norm"])
        q, k, v = ((h @ p[f"attn_{n}"].T).reshape(s, -1, size) for n in "qkv")
        q, k = rope(q), rope(k)
        k, v = (np.repeat(t, HEADS // KV, 1) for t in (k, v))
        scores = np.einsum("shd,thd->hst", q, k) * size**-0.5
        scores = np.where(np.tri(s, dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        x = x + np.einsum("hst,thd->shd", weights, v).reshape(s, -1) @ p["attn_output"].T
        h = norm(x, p["ffn_norm"])
        gate = h @ p["ffn_gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ p["ffn_up"].T)) @ p["ffn_down"].T
    return norm(x, w["output_norm.weight"]) @ w["token_embd.weight"].T


IDS = [1, 5, 9, 30, 17, 2, 8, 34, 20, 11]
# Logits of size 4 out of two layers: some hundred roundings of sums of 64 to 96 terms, each 2^-24 of values up to 4.
CLOSE = {"rtol": 0, "atol": 400 * 2.0**-24 * 4}
# With int8 between: half a step of 127 of the largest element a product, of which 14 stand one after another; each is
# off by 0.4 % / sqrt(3) of its size at most, and they add up like random steps: 14^0.5 * 0.25 % of up to 4, twice.
CLOSE_STORED = {"rtol": 0, "atol": 2 * 14**0.5 * 0.0025 * 4}
# Weights have such an error, too, and it is independent of x's.
CLOSE_INT8 = {"rtol": 0, "atol": 2**0.5 * CLOSE_STORED["atol"]}
# In bfloat16, weights and tables too: a layer has about 34 roundings on the way of its sum (norms 3 each, the weight
# and the result of each of 7 products, tables, rotations, probabilities, their sum, SiLU, gate, sums), embedding, last
# norm and head 6. Each is off by 2^-9 / 3^0.5 of its size, they add up like random steps, and a layer keeps the size of
# what passes: logits, of size 1.1, by so much on the average, and the worst of some hundred, which share errors, by 5
# times that.
CLOSE_BFLOAT16 = {"rtol": 0, "atol": 5 * 74**0.5 * 2.0**-9 / 3**0.5 * 1.1}


def graph_of(net):
    leaves, structure = net._declared
    return net._trace([(t.dtype, t.shape) for t in leaves], structure)[0]


def text_model(file, rows=None):
    net, info = llama.build(file, rows=rows)
    return TextModel(graph_of(net), Text.of(info))


def finish(steps):
    found = []
    while True:
        try:
            found.append(next(steps))
        except StopIteration as e:
            return found, e.value


def smollm2():
    """The GGUF file of the real model, or None where it was not fetched."""
    found = list((ROOT / "build" / "data" / "smollm2").rglob("*.gguf"))
    if not found and os.environ.get("OPGRAFT_REQUIRE_MODELS"):
        raise FileNotFoundError("build/data/smollm2: the model was not fetched")
    return found[0] if found else None
