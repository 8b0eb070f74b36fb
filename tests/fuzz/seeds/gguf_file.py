"""GGUF files."""

import struct

U8, I8, U16, I16, U32, I32, F32, BOOL, TEXT, ARRAY, U64, I64, F64 = range(13)
_FORMS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}
_SIZES = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20), "Q8_0": (8, 32, 34),
          "Q5_0": (6, 32, 22), "Q5_1": (7, 32, 24), "Q2_K": (10, 256, 84), "Q3_K": (11, 256, 110),
          "Q4_K": (12, 256, 144), "Q5_K": (13, 256, 176), "Q6_K": (14, 256, 210), "IQ4_XS": (23, 256, 136)}  # fmt: skip


def text(s):
    s = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(s)) + s


def array(kind, items):
    """A value's bytes: items as bytes already, or numbers, or texts."""
    body = b"".join(i if isinstance(i, bytes) else value(kind, i) for i in items)
    return struct.pack("<IQ", kind, len(items)) + body


def value(kind, v):
    if kind == TEXT:
        return text(v)
    return v if kind == ARRAY else struct.pack("<" + _FORMS[kind], v)


def gguf(keys, tensors=(), version=3, counts=None, alignment=32, magic=b"GGUF", cut=None):
    """keys: (name, kind, value); tensors: (name, dims as the file has them, type or its number[, offset])."""
    head = magic + struct.pack("<IQQ", version, *(counts or (len(tensors), len(keys))))
    for name, kind, v in keys:
        head += text(name) + struct.pack("<I", kind) + value(kind, v)
    data = 0
    for name, dims, type_, *offset in tensors:
        number, block, size = _SIZES[type_] if isinstance(type_, str) else (type_, 1, 1)
        at = offset[0] if offset else data
        head += text(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims) + struct.pack("<IQ", number, at)
        n = size
        for d in dims:
            n *= d
        data += (min(n // block, 1 << 16) + alignment - 1) // alignment * alignment
    head += bytes(-len(head) % alignment)
    return (head + bytes(data))[:cut]


TOKENS = ["<e>", "<s>", *"thein:\u010a\u0120", "th", "the"]
TEMPLATE = "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}<e>{% endfor %}"


def model(**changes):
    """Keys of a llama; `changes`: by the name's last part, (kind, value), None: without it."""
    keys = {
        "general.architecture": (TEXT, "llama"), "llama.block_count": (U32, 1), "llama.context_length": (U32, 16),
        "llama.embedding_length": (U32, 32), "llama.feed_forward_length": (U32, 32),
        "llama.attention.head_count": (U32, 2), "llama.attention.head_count_kv": (U16, 1),
        "llama.attention.layer_norm_rms_epsilon": (F32, 1e-5), "llama.rope.freq_base": (F64, 1e4),
        "llama.rope.dimension_count": (U64, 16), "tokenizer.ggml.model": (TEXT, "gpt2"),
        "tokenizer.ggml.pre": (TEXT, "smollm"), "tokenizer.ggml.tokens": (ARRAY, array(TEXT, TOKENS)),
        "tokenizer.ggml.token_type": (ARRAY, array(I32, [3, 3] + [1] * (len(TOKENS) - 2))),
        "tokenizer.ggml.merges": (ARRAY, array(TEXT, ["t h", "th e"])), "tokenizer.ggml.eos_token_id": (U32, 0),
        "tokenizer.ggml.bos_token_id": (I8, 1), "tokenizer.chat_template": (TEXT, TEMPLATE),
    }  # fmt: skip
    for part, change in changes.items():
        key = next((k for k in keys if k.endswith("." + part)), "llama." + part)
        keys.pop(key, None)
        if change is not None:
            keys[key] = change
    return [(k, *v) for k, v in keys.items()]


def ggufs():
    tensors = [("token_embd.weight", (32, len(TOKENS)), "Q8_0"), ("output_norm.weight", (32,), "F32"),
               ("blk.0.attn_q.weight", (32, 32), "Q4_1"), ("blk.0.attn_k.weight", (32, 16), "F16")]  # fmt: skip
    yield "whole", gguf(model(), tensors)
    yield "version2", gguf(model(), tensors, version=2)
    yield "output", gguf(model(), [*tensors, ("output.weight", (32, len(TOKENS)), "Q4_0")])
    yield "aligned", gguf([*model(), ("general.alignment", U32, 64)], tensors, alignment=64)
    for kind in ("Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"):
        yield kind, gguf(model(), [("t", (256, 2), kind)])
    every = [("a", k, 1) for k in _FORMS] + [("t", TEXT, "t"), ("n", ARRAY, array(ARRAY, [array(U8, [1, 2])] * 2))]
    yield "types", gguf([(f"{name}{i}", k, v) for i, (name, k, v) in enumerate(every)])
    for name, change in {
        "no_template": {"chat_template": None}, "system": {"chat_template": (TEXT, "{{ bos_token }}{{ messages }}")},
        "no_heads": {"head_count": (U32, 0)}, "heads_text": {"head_count": (TEXT, "2")},
        "heads_array": {"head_count": (ARRAY, array(U32, [2, 2]))}, "vocab": {"vocab_size": (U64, 2**64 - 1)},
        "key_length": {"attention.key_length": (U32, 3)}, "rotated": {"dimension_count": (U32, 8)},
        "pre": {"pre": (TEXT, "x")},
        "no_eos": {"eos_token_id": None}, "theta": {"freq_base": (F32, float("nan"))},
        "merges": {"merges": (ARRAY, array(TEXT, ["t x"]))}, "one": {"merges": (ARRAY, array(TEXT, ["th"]))},
        "types_text": {"token_type": (ARRAY, array(TEXT, ["3"]))}, "latin": {"pre": (TEXT, b"\xe9")},
        "architecture": {"architecture": (TEXT, "gpt2")}, "twice": {"tokens": (ARRAY, array(TEXT, ["t", "t", ""]))},
    }.items():  # fmt: skip
        yield name, gguf(model(**change))
    nested = array(U8, [1])
    for _ in range(12):
        nested = array(ARRAY, [nested])
    yield "nested", gguf([("n", ARRAY, nested)])
    yield "array_huge", gguf([("n", ARRAY, struct.pack("<IQ", U8, 2**60))])
    yield "texts_huge", gguf([("n", ARRAY, struct.pack("<IQ", TEXT, 2**61))])
    yield "text_huge", gguf([("n", U64, 2**63)]).replace(struct.pack("<I", U64), struct.pack("<I", TEXT), 1)
    yield "kind", gguf([("n", U8, 1)]).replace(b"n\0", b"n\x0d", 1)
    yield "key_twice", gguf([("n", U8, 1)] * 2)
    yield "key_latin", gguf([(b"\xff", U8, 1)])
    yield "counts", gguf([], counts=(2**63, 2**62))
    yield "alignment_text", gguf([("general.alignment", TEXT, "32")])
    yield "alignment_odd", gguf([("general.alignment", U32, 24)])
    for name, tensor in {
        "tensor_beyond": ("t", (8, 8), "F32", 32), "offset": ("t", (8,), "F32", 4), "type": ("t", (8,), 77),
        "offset_huge": ("t", (8,), "F32", 2**64 - 32), "dims": ("t", (2**40, 2**40), "F32"),
        "rank": ("t", (1,) * 5, "F32"), "blocks": ("t", (33,), "Q4_0"), "name": (b"\xff", (1,), "F32"),
        "known": ("t", (256,), "Q6_K"), "scalar": ("t", (), "F32"),
    }.items():  # fmt: skip
        yield f"tensor_{name}", gguf([], [tensor])
    yield "tensor_twice", gguf([], [("t", (1,), "F32")] * 2)
    yield "big_endian", gguf([], version=3 << 24)
    yield "version", gguf([], version=1)
    yield "magic", gguf([], magic=b"PK\3\4")
    yield "cut", gguf(model(), tensors, cut=300)
