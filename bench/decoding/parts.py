"""The engine's profile of one call, by operator and by what the operators make up in a LLaMA."""

import json
import re

OF_OPERATOR = {
    "MatMul": "products", "QuantBatchMatmul": "products", "DynamicQuantExt": "products",
    "DenseQKV": "products", "DenseSwiGLU": "products",  # which take almost all of its time
    "FusedRmsNorm": "RMSNorm", "FusedAddRmsNorm": "RMSNorm", "RotaryPositionEmbedding": "RoPE",
    "ApplyRotaryPosEmb": "RoPE", "SwiGLU": "SwiGLU",
    "KVCacheAppend": "caches", "CachedAttention": "attention", "ScaledDotProductAttention": "attention",
    "Gather": "embedding", "BlockQuantGather": "embedding",
}  # fmt: skip
# Of examples/llama's attention: the rotation of queries and of keys comes first.
ROTATION = re.compile(r"self_attn/(StridedSlice|Neg|Concat(_1)?$|Mul(_[123])?$|Add(_1)?$)")


def part(node, op):
    """RMSNorm counts with the sum before it, which FusedAddRmsNorm makes, too."""
    name = node.rpartition(":")[2]
    if op in OF_OPERATOR:
        return OF_OPERATOR[op]
    if op.startswith("BlockQuant"):
        return "products"
    if "norm/" in name:
        return "RMSNorm"
    if "mlp/" in name:
        return "SwiGLU"
    if "self_attn/" in name:
        if op == "Transpose":
            return "layout"
        return "RoPE" if ROTATION.search(name) else "caches" if op == "Concat" else "attention"
    return "RMSNorm" if op == "Add" else "other"


def profile(session, inputs, runs):
    """{"total_us", "ops": {operator: us}, "parts": {part: us}}"""
    found = json.loads(session.profile(inputs, runs))
    sums = {}
    for node in found["nodes"]:
        at = part(node["node"], node["op"])
        sums[at] = sums.get(at, 0.0) + node["us"]
    return {"total_us": found["total_us"], "ops": {o["op"]: o["us"] for o in found["ops"]}, "parts": sums}
