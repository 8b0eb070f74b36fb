"""Activations between casts of a half type, SwiGLU of parts of one tensor, and clips, of models that MindSpore
exported."""

import mindspore as ms
import numpy as np
import opgraft
import pytest
from helpers import close
from mindspore import Tensor, mint, nn, ops
from opgraft import _core, rewrite


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def wide(x):
    return ops.cast(x, ms.float32)


# MindSpore parses sources: functions by name, no lambdas.
def silu(x):
    return ops.cast(ops.silu(wide(x)), ms.float16)


def silu_sigmoid(x):
    y = x.astype(ms.float32)
    return (y * ops.sigmoid(y)).astype(ms.float16)


def gelu(x):
    return ops.cast(ops.gelu(wide(x)), ms.float16)


def gelu_erf(x):
    y = wide(x)
    return ops.cast(0.5 * y * (1 + ops.erf(y / 1.4142135623730951)), ms.float16)


def gelu_tanh(x):
    y = wide(x)
    return ops.cast(0.5 * y * (1 + ops.tanh(0.7978845608028654 * (y + 0.044715 * ops.pow(y, 3)))), ms.float16)


def gated_halves(x):
    gate, up = ops.split(x, 8, -1)
    return ops.cast(ops.silu(wide(gate)) * wide(up), ms.float16)


def gated_widened(x):
    gate, up = ops.chunk(wide(x), 2, -1)
    return ops.cast(ops.silu(gate) * up, ms.float16)


def gated_silu_alone(x):
    """LLaMA with the activation alone in float32."""
    gate, up = ops.split(x, 8, -1)
    return ops.cast(ops.silu(wide(gate)), ms.float16) * up


def gated_interleaved(x):
    return ops.cast(ops.silu(wide(x[..., 1::2])) * wide(x[..., ::2]), ms.float16)


def to_bfloat16(x):
    return ops.cast(ops.cast(ops.silu(wide(x)), ms.bfloat16), ms.float32)


HALF = [(silu, "SiLU"), (silu_sigmoid, "SiLU"), (gelu, "FusedGeLU"), (gelu_erf, "FusedGeLU"), (gelu_tanh, "FusedGeLU"),
        (gated_halves, "Swiglu"), (gated_widened, "Swiglu"), (gated_silu_alone, "Swiglu"),
        (gated_interleaved, "SwiGLUInterleaved")]  # fmt: skip


def exported(write, x, folder):
    class Net(nn.Cell):
        def construct(self, x):
            return write(x)

    ms.set_context(mode=ms.GRAPH_MODE)
    net = Net()
    want = net(Tensor(x)).asnumpy()
    ms.export(net, Tensor(x), file_name=str(folder / "net"), file_format="MINDIR")
    graph = opgraft.load(folder / "net.mindir")
    rewrite.substitute(graph, prove=(x,))
    return graph, want, _core.Session(_core.Model(graph)).run([x])[0]


@pytest.mark.parametrize("write,name", HALF, ids=[f.__name__ for f, _ in HALF])
def test_between_casts(write, name, tmp_path):
    graph, want, got = exported(write, normal(5, 16).astype(np.float16), tmp_path)
    assert [n["op"] for n in graph.nodes] == [name], str(graph)
    # Of MindSpore's steps two round to float16 where SiLU alone is cast, and its Tanh is off by 1e-4.
    close(got.astype(np.float64), want.astype(np.float64), 2.0**-9)


def test_a_cast_to_another_half_type_stays(tmp_path):
    graph, want, got = exported(to_bfloat16, normal(5, 16).astype(np.float16), tmp_path)
    assert "SiLU" in [n["op"] for n in graph.nodes] and [n["op"] for n in graph.nodes].count("Cast") >= 2, str(graph)
    close(got, want, 2.0**-8)


def reshaped_index(x):
    r = x.reshape(5, 2, 8)
    return ops.silu(r[:, 0]) * r[:, 1]


def reshaped_pairs(x):
    r = x.reshape(5, 8, 2)
    return ops.silu(r[..., 1]) * r[..., 0]


def reshaped_split(x):
    gate, up = ops.split(x.reshape(5, 2, 8), 1, 1)
    return ops.silu(gate.squeeze(1)) * up.squeeze(1)


def reshaped_chunk(x):
    gate, up = ops.chunk(x.reshape(5, 8, 2), 2, -1)
    return ops.silu(gate.reshape(5, 8)) * up.reshape(5, 8)


def reshaped_mint(x):
    gate, up = mint.chunk(x.reshape(5, 2, 8), 2, 1)
    return mint.nn.functional.silu(mint.squeeze(gate, 1)) * mint.squeeze(up, 1)


def one_part_twice(x):
    r = x.reshape(5, 2, 8)
    return ops.silu(r[:, 0]) * r[:, 0]


def other_rows(x):
    r = x.reshape(2, 5, 8)
    return ops.silu(r[0]) * r[1]


PARTS = [(reshaped_index, "Swiglu"), (reshaped_pairs, "SwiGLUInterleaved"), (reshaped_split, "Swiglu"),
         (reshaped_chunk, "SwiGLUInterleaved"), (reshaped_mint, "Swiglu"), (one_part_twice, None),
         (other_rows, None)]  # fmt: skip


@pytest.mark.parametrize("write,name", PARTS, ids=[f.__name__ for f, _ in PARTS])
def test_parts_of_a_reshape(write, name, tmp_path):
    graph, want, got = exported(write, normal(5, 16), tmp_path)
    left = [n["op"] for n in graph.nodes]
    assert left == [name] if name else not {"Swiglu", "SwiGLUInterleaved"} & set(left), str(graph)
    close(got, want)


def channels_chunk(x):
    gate, up = ops.chunk(x, 2, 1)
    return ops.silu(gate) * up


def channels_slices(x):
    return x[:, :3] * ops.silu(x[:, 3:])


@pytest.mark.parametrize("write", [channels_chunk, channels_slices])
def test_halves_of_the_channels(write, tmp_path):
    graph, want, got = exported(write, normal(2, 6, 5, 7), tmp_path)
    assert [n["op"] for n in graph.nodes] == ["Swiglu"], str(graph)
    close(got, want)


def maximum(x):
    return ops.maximum(x, 0.0)


def minimum_of_maximum(x):
    return ops.minimum(ops.maximum(x, 0.0), 6.0)


def minimum_of_relu(x):
    return ops.minimum(ops.relu(x), 6.0)


def clamped(x):
    return ops.clamp(x, 0.0, 6.0)


def clamped_from_zero(x):
    return ops.clamp(x, 0.0)


def hardtanh(x):
    return ops.hardtanh(x, 0.0, 6.0)


def clipped(x):
    return ops.clip_by_value(x, Tensor(0.0, ms.float32), Tensor(6.0, ms.float32))


def clipped_to_five(x):
    return ops.minimum(ops.maximum(x, 0.0), 5.0)


CLIPS = [(maximum, "ReLU"), (clamped_from_zero, "ReLU"), (minimum_of_maximum, "ReLU6"), (minimum_of_relu, "ReLU6"),
         (clamped, "ReLU6"), (hardtanh, "ReLU6"), (clipped, "ReLU6"), (clipped_to_five, None)]  # fmt: skip


@pytest.mark.parametrize("write,name", CLIPS, ids=[f.__name__ for f, _ in CLIPS])
def test_clips(write, name, tmp_path):
    graph, want, got = exported(write, normal(5, 16) * 6, tmp_path)
    left = [n["op"] for n in graph.nodes]
    assert left == ([name] if name else ["ReLU", "Minimum"]), str(graph)
    np.testing.assert_array_equal(got, want)
