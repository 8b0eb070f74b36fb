"""What a model that writes text needs beside its layers: caches, weights in blocks, drawing the next token."""

import math

from .primitive import primitive
from .primitive import tensor as _tensor


def kv_cache_append(k_cache, v_cache, key, value, position_ids):
    """Writes key and value (B, Hkv, S, D) into caches (B, Hkv, Tmax, D), in place, at the rows position_ids, (S,) or
    (B, S), which count on by 1. Returns lengths (B,), the rows up to and with the last, for `cached_attention`."""
    return primitive(
        "KVCacheAppend", *(_tensor(t, "kv_cache_append: tensors") for t in (k_cache, v_cache, key, value, position_ids))
    )


def cached_attention(q, k_cache, v_cache, lengths, scale=None):
    """Attention of the last tokens, q (B, H, S, D), over caches (B, Hkv, Tmax, D) of which `lengths` (B,) rows are
    filled, those of q's tokens among them: each sees what is before it and itself. scale None: 1 / sqrt(D)."""
    return primitive(
        "CachedAttention", *(_tensor(t, "cached_attention: tensors") for t in (q, k_cache, v_cache, lengths)),
        scale=math.nan if scale is None else float(scale),
    )  # fmt: skip


def block_quant_matmul(x, weight, format):
    """x (..., K) times the transpose of a weight in rows of blocks, uint8 (N, bytes): `format` q4_0, q4_1 or q8_0, as
    GGUF files store them. x is turned into eight bits by blocks of 32."""
    name = "block_quant_matmul"
    return primitive("BlockQuantMatMul", _tensor(x, f"{name}: x"), _tensor(weight, f"{name}: weight"), format=format)


def block_quant_gather(table, indices, format, dtype="float32"):
    """Rows of a table in blocks, as numbers."""
    given = (_tensor(t, f"block_quant_gather: {n}") for t, n in ((table, "table"), (indices, "indices")))
    return primitive("BlockQuantGather", *given, format=format, dtype=dtype)


def sample_token(logits, uniform, temperature=1.0, top_k=0, top_p=1.0):
    """An index of each row of logits (..., V), drawn by uniform (...) in [0, 1): among the top_k largest (0: all), of
    these the fewest whose probabilities reach top_p. temperature 0: the largest."""
    given = (_tensor(t, f"sample_token: {n}") for t, n in ((logits, "logits"), (uniform, "uniform")))
    return primitive("SampleToken", *given, temperature=float(temperature), top_k=int(top_k), top_p=float(top_p))
