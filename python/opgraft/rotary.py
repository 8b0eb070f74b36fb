"""Rotary position embedding."""

from .primitive import primitive
from .primitive import tensor as _tensor


def rotary_position_embedding(x, cos, sin, mode=0, rotary_dim=0):
    """Turns the pairs of x's last dimension by the angles whose cosines and sines broadcast to x; mode 0: the pair of
    element i is i + half of the dimension, 1: 2i and 2i + 1. rotary_dim: the first elements, that are turned, of which
    the tables may have an entry each or one for each pair; 0: as many as the tables have columns."""
    name = "rotary_position_embedding"
    given = (_tensor(t, f"{name}: {n}") for t, n in ((x, "x"), (cos, "cos"), (sin, "sin")))
    return primitive("RotaryPositionEmbedding", *given, mode=mode, rotary_dim=rotary_dim)


def apply_rotary_pos_emb(query, key, cos, sin, position_ids=None, mode=0, rotary_dim=0, layout="BSHD"):
    """The same of query and key in one call, (B, S, H, D), (B, H, S, D) by `layout` BHSD, or packed, (B, S, H * D): the
    rows of cos and sin (P, rotary_dim or half of it) are chosen by position_ids: (B, S), (S,), (B,) where S is 1, or
    the first row's alone. mode 2 and 3: 0 and 1, of tables that have a row for each token instead. Without position_ids
    the tables broadcast to query and key, as rotary_position_embedding's do, and layout says nothing."""
    named = {"query": query, "key": key, "cos": cos, "sin": sin}
    if position_ids is not None:
        named["position_ids"] = position_ids
    given = (_tensor(t, f"apply_rotary_pos_emb: {n}") for n, t in named.items())
    return primitive("ApplyRotaryPosEmb", *given, mode=mode, rotary_dim=rotary_dim, layout=layout)
