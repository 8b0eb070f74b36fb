"""Products and scalings of eight-bit tensors, by MindSpore's names and argument order (2.10, ops.auto_generate)."""

import numpy as np

from . import dtype as dt
from .primitive import primitive
from .primitive import tensor as _tensor


def _given(op, dtype, **inputs):
    """Inputs as tensors, what is None in between as a tensor without elements, what is None at the end not at all."""
    names = [n for n, t in inputs.items() if t is not None]
    for name, t in inputs.items():
        yield np.zeros(0, dtype(name)) if t is None else _tensor(t, f"{op}: {name}")
        if name == names[-1]:
            return


def quant_batch_matmul(x1, x2, scale, offset=None, bias=None, pertokenScaleOptional=None, transpose_x1=False,
                       transpose_x2=False, dtype=dt.float16):  # fmt: skip
    """((x1 x2 + bias) scale pertokenScaleOptional) + offset of int8 x1 (..., M, K) and x2 (K, N), as dtype: the sums
    are exact. scale and offset have 1 or N elements, bias has N (int32), pertokenScaleOptional one a row of x1."""
    given = _given(
        "quant_batch_matmul", lambda name: np.int32 if name == "bias" else np.float32, x1=x1, x2=x2, scale=scale,
        offset=offset, bias=bias, pertokenScaleOptional=pertokenScaleOptional,
    )  # fmt: skip
    return primitive("QuantBatchMatmul", *given, transpose_x1=bool(transpose_x1), transpose_x2=bool(transpose_x2),
                     dtype=dt.name(dtype))  # fmt: skip


def weight_quant_batch_matmul(x, weight, antiquant_scale, antiquant_offset=None, quant_scale=None, quant_offset=None,
                              bias=None, transpose_x=False, transpose_weight=False,
                              antiquant_group_size=0):  # fmt: skip
    """x (weight + antiquant_offset) antiquant_scale + bias of an int8 weight (K, N), as x's dtype. Scale and offset
    have one element or N, bias has N. quant_scale and quant_offset must be None, antiquant_group_size 0."""
    scale = _tensor(antiquant_scale, "weight_quant_batch_matmul: antiquant_scale")
    given = _given(
        "weight_quant_batch_matmul", lambda name: scale.dtype, x=x, weight=weight, antiquant_scale=scale,
        antiquant_offset=antiquant_offset, quant_scale=quant_scale, quant_offset=quant_offset, bias=bias,
    )  # fmt: skip
    return primitive("WeightQuantBatchMatmul", *given, transpose_x=bool(transpose_x),
                     transpose_weight=bool(transpose_weight), antiquant_group_size=antiquant_group_size)  # fmt: skip


def quant_v2(x, scale, offset, sqrt_mode=False, rounding_mode="ROUND", dst_type=dt.int8):
    """scale x + offset, or scale^2 x + offset with sqrt_mode, to the nearest int8, ties to even, saturating. scale and
    offset have one element, or one for every index of an axis of x."""
    given = (_tensor(t, f"QuantV2: {n}") for n, t in (("x", x), ("scale", scale), ("offset", offset)))
    return primitive("QuantV2", *given, sqrt_mode=bool(sqrt_mode), rounding_mode=rounding_mode,
                     dst_type=dt.name(dst_type))  # fmt: skip


def dynamic_quant_ext(x, smooth_scales=None):
    """(y, scale): rows of x (..., N) as int8, scale (...) = max |x| / 127 in float32, y = x / scale to nearest even;
    x times smooth_scales (N,) where given."""
    given = _given("DynamicQuantExt", lambda name: None, x=x, smooth_scales=smooth_scales)
    return primitive("DynamicQuantExt", *given)


def anti_quant(x, scale, offset, sqrt_mode=False, dtype=dt.float16):
    """scale (x + offset), or scale^2 (x + offset) with sqrt_mode, of int8 x as dtype."""
    given = (_tensor(t, f"AntiQuant: {n}") for n, t in (("x", x), ("scale", scale), ("offset", offset)))
    return primitive("AntiQuant", *given, sqrt_mode=bool(sqrt_mode), dtype=dt.name(dtype))


def dequant(x, deq_scale, sqrt_mode=False, relu_flag=False, dtype=dt.float16):
    """deq_scale x, or deq_scale^2 x with sqrt_mode, of int32 x as dtype; at least 0 with relu_flag."""
    given = _tensor(x, "Dequant: x"), _tensor(deq_scale, "Dequant: deq_scale")
    return primitive("Dequant", *given, sqrt_mode=bool(sqrt_mode), relu_flag=bool(relu_flag), dtype=dt.name(dtype))
