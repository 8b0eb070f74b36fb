"""examples/llama: a small model with seeded weights against NumPy in float64; files that are no such model."""

import numpy as np
import opgraft
import pytest
from opgraft import nn, rewrite

pytest.importorskip("gguf")
pytest.importorskip("jinja2")
pytest.importorskip("tokenizers")
from small_llama import (  # noqa: E402
    CLOSE,
    CLOSE_BFLOAT16,
    CLOSE_INT8,
    CLOSE_STORED,
    HEADS,
    IDS,
    KV,
    LAYERS,
    WIDTH,
    llama,
    oracle,
    write,
)

from llama.checkpoint import GGUFError, tensor_name  # noqa: E402 isort: skip


pytestmark = pytest.mark.usefixtures("planned")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write(tmp_path_factory.mktemp("llama") / "small.gguf")


def run(net, ids, begin=0):
    got = net(np.array([ids], np.int32), np.arange(begin, begin + len(ids), dtype=np.int32))
    return (got[0] if isinstance(got, tuple) else got).asnumpy()[0]


def empty(net):
    return [np.zeros((1, KV, 0, WIDTH // HEADS), np.float32)] * (2 * LAYERS)


def test_the_plain_model_is_llama(file):
    net = llama.load(file, last_only=False)
    ids = np.array([IDS], np.int32)
    logits, *past = net(ids[:, :6], np.arange(6, dtype=np.int32), *empty(net))
    rest, *_ = net(ids[:, 6:], np.arange(6, 10, dtype=np.int32), *past)
    got = np.concatenate([logits.asnumpy()[0], rest.asnumpy()[0]])
    np.testing.assert_allclose(got, oracle(file, IDS), **CLOSE)


# What is put in, beside what is in all, and how close the logits are.
KINDS = {
    "float32": ({"DenseQKV", "DenseSwiGLU"}, CLOSE),
    "bfloat16": ({"DenseQKV", "DenseSwiGLU"}, CLOSE_BFLOAT16),
    "stored": ({"BlockQuantQKV", "BlockQuantSwiGLU"}, CLOSE_STORED),
    "int8": ({"SwiGLU"}, CLOSE_INT8),
}


@pytest.mark.parametrize("grafted", [False, True], ids=["plain", "grafted"])
@pytest.mark.parametrize("weights", KINDS)
def test_caches_in_place_are_the_same(file, weights, grafted):
    net = llama.build(file, weights)[0]
    fused, close = KINDS[weights]
    if grafted:
        report = rewrite.substitute(net)
        found = [s["op"].split("@")[0] for s in report.swapped]
        assert set(found) >= {"FusedAddRmsNorm", "ApplyRotaryPosEmb", *fused}
        assert all(found.count(op) == LAYERS for op in fused)
    want = oracle(file, IDS)
    for begin, end in [(0, 6), (6, 7), (7, 8), (8, 10)]:
        got = run(net, IDS[begin:end], begin)[-1].astype(np.float64)
        np.testing.assert_allclose(got, want[end - 1], **close)


def test_the_grafted_plain_model_is_proven(file):
    net = llama.load(file)
    past = [np.random.default_rng(i).standard_normal((1, KV, 3, 16)).astype(np.float32) for i in range(2 * LAYERS)]
    inputs = [np.array([IDS[:4]], np.int32), np.arange(3, 7, dtype=np.int32), *past]
    report = rewrite.substitute(net, prove=[tuple(map(opgraft.Tensor, inputs))])
    found = {s["op"].split("@")[0] for s in report.swapped}
    assert found >= {"ApplyRotaryPosEmb", "ScaledDotProductAttention", "DenseQKV", "DenseSwiGLU"}, report


def test_files_that_are_no_such_model(file, tmp_path):
    whole = file.read_bytes()
    broken = tmp_path / "broken.gguf"
    for size in (0, 3, 20, 200, 2000, len(whole) - 100_000, len(whole) - 1):
        broken.write_bytes(whole[:size])
        with pytest.raises(GGUFError, match="broken.gguf"):
            llama.build(broken)
    broken.write_bytes(b"PK\3\4" + whole[4:])
    with pytest.raises(GGUFError, match="is no GGUF file"):
        llama.build(broken)
    with pytest.raises(GGUFError, match="architecture must be llama, got gpt2"):
        llama.build(write(tmp_path / "foreign.gguf", architecture="gpt2"))
    with pytest.raises(GGUFError, match="tensor blk.1.ffn_up.weight is missing"):
        llama.build(write(tmp_path / "less.gguf", left_out=["blk.1.ffn_up.weight"]))
    with pytest.raises(GGUFError, match="are not a llama|must have shape"):
        llama.build(write(tmp_path / "heads.gguf", heads=8))
    with pytest.raises(GGUFError, match="tokenizer must be gpt2"):
        llama.build(write(tmp_path / "pre.gguf", pre="deepseek"))
    with pytest.raises(FileNotFoundError, match="no such file"):
        llama.build(tmp_path / "nothing.gguf")
    with pytest.raises(ValueError, match=r"rows must be in \[1, 48\], the model's context, got 49"):
        llama.build(file, rows=49)


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_file_gives_an_error_or_a_model(file, tmp_path, seed):
    rng = np.random.default_rng(seed)
    data = bytearray(file.read_bytes())
    for at in rng.integers(0, 6000, 6):  # the header and the vocabulary
        data[at] = rng.integers(256)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(data)
    try:
        net, info = llama.build(broken)
    except (ValueError, MemoryError):
        return
    assert isinstance(net, nn.Cell) and info


def test_names_of_the_file():
    assert tensor_name("embed_tokens.embedding_table") == "token_embd.weight"
    assert tensor_name("layers.11.self_attn.o_proj.weight") == "blk.11.attn_output.weight"
    assert tensor_name("layers.0.post_attention_layernorm.weight") == "blk.0.ffn_norm.weight"


def test_empty_caches_take_no_room_in_a_file(file, tmp_path):
    net, info = llama.build(file, "stored")
    opgraft.export(net, file_name=tmp_path / "m", user_info=info)
    data = (tmp_path / "m_variables" / "data_0").stat()
    assert data.st_blocks * 512 < data.st_size, "a hole for the 12 KiB of zeros of each layer"
