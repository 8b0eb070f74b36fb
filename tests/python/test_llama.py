"""examples/llama: a small model with seeded weights against NumPy in float64, and SmolLM2 where it was fetched."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import opgraft
import pytest
from opgraft import _core, nn, rewrite
from opgraft.generation import Text, TextModel

pytest.importorskip("gguf")
pytest.importorskip("jinja2")
pytest.importorskip("tokenizers")
import gguf  # noqa: E402
from gguf.quants import dequantize, quantize  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))
import llama  # noqa: E402
from llama.checkpoint import GGUFError, tensor_name  # noqa: E402

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


def write(file, architecture="llama", heads=HEADS, left_out=(), pre="smollm", kind="Q4_1"):
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
    w.add_eos_token_id(0)
    w.add_chat_template(TEMPLATE)
    for name, array in tensors().items():
        if name in left_out:
            continue
        if array.ndim == 1 or kind is None:
            w.add_tensor(name, array)
        else:
            q = gguf.GGMLQuantizationType["Q8_0" if name == "token_embd.weight" else kind]
            w.add_tensor(name, quantize(array, q), raw_dtype=q)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return file


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write(tmp_path_factory.mktemp("llama") / "small.gguf")


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


def run(net, ids, begin=0):
    got = net(np.array([ids], np.int32), np.arange(begin, begin + len(ids), dtype=np.int32))
    return (got[0] if isinstance(got, tuple) else got).asnumpy()[0]


@pytest.fixture(autouse=True)
def graph_mode():
    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    yield
    opgraft.set_context(mode=opgraft.PYNATIVE_MODE)


def empty(net):
    return [np.zeros((1, KV, 0, WIDTH // HEADS), np.float32)] * (2 * LAYERS)


def test_the_plain_model_is_llama(file):
    net = llama.load(file, last_only=False)
    ids = np.array([IDS], np.int32)
    logits, *past = net(ids[:, :6], np.arange(6, dtype=np.int32), *empty(net))
    rest, *_ = net(ids[:, 6:], np.arange(6, 10, dtype=np.int32), *past)
    got = np.concatenate([logits.asnumpy()[0], rest.asnumpy()[0]])
    np.testing.assert_allclose(got, oracle(file, IDS), **CLOSE)


@pytest.mark.parametrize("grafted", [False, True], ids=["plain", "grafted"])
@pytest.mark.parametrize("stored", [False, True], ids=["expanded", "stored"])
def test_caches_in_place_are_the_same(file, stored, grafted):
    net = llama.build(file, "stored" if stored else "float32")[0]
    if grafted:
        report = rewrite.substitute(net)
        assert {s["op"].split("@")[0] for s in report.swapped} >= {
            "FusedAddRmsNorm",
            "RotaryPositionEmbedding",
            "SwiGLU",
        }
    want = oracle(file, IDS)
    for begin, end in [(0, 6), (6, 7), (7, 8), (8, 10)]:
        np.testing.assert_allclose(
            run(net, IDS[begin:end], begin)[-1], want[end - 1], **(CLOSE_STORED if stored else CLOSE)
        )


def test_the_grafted_plain_model_is_proven(file):
    net = llama.load(file)
    past = [np.random.default_rng(i).standard_normal((1, KV, 3, 16)).astype(np.float32) for i in range(2 * LAYERS)]
    inputs = [np.array([IDS[:4]], np.int32), np.arange(3, 7, dtype=np.int32), *past]
    report = rewrite.substitute(net, prove=[tuple(map(opgraft.Tensor, inputs))])
    found = {s["op"].split("@")[0] for s in report.swapped}
    assert found >= {"RotaryPositionEmbedding", "ScaledDotProductAttention", "SwiGLU"}, report


def test_the_file_carries_all_that_text_needs(file, tmp_path):
    net, info = llama.build(file, "float32", rows=40)
    out = opgraft.export(net, file_name=tmp_path / "m", user_info=info)
    model = TextModel(opgraft.load(out))
    assert model.text.context == 40 and model.text.eos == [0]
    ids = model.encode("the thin tin")
    tokenizer = llama.LlamaTokenizer(llama.Checkpoint(file))
    assert ids == tokenizer.chat([{"role": "user", "content": "the thin tin"}])
    assert tokenizer.decode(ids).endswith("assistant\n")
    np.testing.assert_allclose(model.logits(IDS, 0), oracle(file, IDS)[-1], **CLOSE)


def greedy(file, ids, n):
    """Ids that the oracle gives, and by how much each wins."""
    found, ids = [], list(ids)
    for _ in range(n):
        logits = oracle(file, ids)[-1]
        ids.append(int(np.argmax(logits)))
        found.append((ids[-1], float(np.diff(np.sort(logits)[-2:])[0])))
    return found


def test_text_is_the_oracles(file):
    net, info = llama.build(file)
    graph = _graph(net)
    rewrite.substitute(graph)
    model = TextModel(graph, Text.of(info))
    got = [i for i, _ in model.generate(IDS, 12)]
    want = greedy(file, IDS, 12)
    assert min(gap for _, gap in want) > 2 * CLOSE["atol"]
    ended = [i for i, _ in want].index(0) if 0 in [i for i, _ in want] else 12
    assert got == [i for i, _ in want[:ended]]


def _graph(net):
    leaves, structure = net._declared
    return net._trace([(t.dtype, t.shape) for t in leaves], structure)[0]


def text_model(file, rows=None):
    net, info = llama.build(file, rows=rows)
    return TextModel(_graph(net), Text.of(info))


def finish(steps):
    found = []
    while True:
        try:
            found.append(next(steps))
        except StopIteration as e:
            return found, e.value


def test_drawing_depends_on_the_seed_alone(file):
    model = text_model(file)
    draw = [finish(model.generate(IDS, 10, temperature=1.5, top_k=30, top_p=0.95, seed=s))[0] for s in (3, 3, 4)]
    assert draw[0] == draw[1] != draw[2]


def test_a_text_ends_at_the_context_and_at_the_limit(file):
    found, stats = finish(text_model(file, rows=16).generate(IDS, 100, temperature=2.0, seed=1))
    assert stats.end in ("length", "eos") and len(IDS) + len(found) <= 17
    found, stats = finish(text_model(file).generate(IDS, 2, temperature=2.0, seed=1))
    assert len(found) <= 2 and stats.prompt_tokens == len(IDS) and stats.first_token > 0


def test_stopping_keeps_the_text_so_far(file):
    heard = []
    model = text_model(file)
    found, stats = finish(
        model.generate(IDS, 30, temperature=2.0, seed=2, stop=lambda: heard.append(1) or len(heard) == 3)
    )
    assert len(found) == 3 and stats.end == "interrupted"


def test_pieces_are_the_text(file):
    model = text_model(file)
    found, _ = finish(model.generate(IDS, 20, temperature=1.0, seed=5))
    assert "".join(piece for _, piece in found) == model.tokenizer.decode([i for i, _ in found])


@pytest.mark.parametrize("ids,error", [
    ([1] * 17, "the prompt has 17 tokens, the model's context 16"),
    ([1, 10**6], r"generate: ids must be in \[0, 35\), got 1000000"),
    ([], "generate: ids must not be empty"),
])  # fmt: skip
def test_prompts_that_cannot_be(file, ids, error):
    with pytest.raises(ValueError, match=error):
        next(text_model(file, rows=16).generate(ids, 4))


def test_too_little_memory_is_said(file):
    model = text_model(file)
    model.model.limit_state(4096)
    with pytest.raises(MemoryError, match="KVCacheAppend: the state has reached its bound"):
        next(model.generate(IDS, 4))


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


def opgraft_command(*args, **more):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.run([sys.executable, "-m", "opgraft", *map(str, args)], capture_output=True, text=True, env=env,
                          cwd=ROOT, timeout=120, **more)  # fmt: skip


def test_the_pipeline_of_commands(file, tmp_path):
    model, best = tmp_path / "m.mindir", tmp_path / "best.mindir"
    done = opgraft_command("export", "examples/llama", "--model", file, "-o", model, "--weights", "float32")
    assert done.returncode == 0, done.stderr
    np.savez(
        tmp_path / "prove.npz", input_ids=np.array([IDS], np.int32), position_ids=np.arange(len(IDS), dtype=np.int32)
    )
    done = opgraft_command("optimize", model, "-o", best, "--prove", tmp_path / "prove.npz", "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["swapped"]) > 5
    texts = []
    for what in (model, best, file):
        done = opgraft_command("generate", "--model", what, "--prompt", "the tin", "--max-tokens", 8, "--json",
                               "--weights", "float32")  # fmt: skip
        assert done.returncode == 0, done.stderr
        texts.append(json.loads(done.stdout))
    assert texts[0]["ids"] == texts[1]["ids"] == texts[2]["ids"]
    assert texts[0]["kv_bytes"] > 0 and texts[0]["end"] in ("eos", "length")
    done = opgraft_command("generate", "--model", best, "--prompt", "the tin", "--max-tokens", 3)
    assert done.returncode == 0 and done.stdout.startswith(texts[0]["text"][:1]) and "first token" in done.stdout
    for options, said in [(["--model", "nothing.gguf"], "no such file"),
                          (["--model", "nothing.mindir"], "nothing.mindir"),
                          (["--model", best, "--state-bytes", 4096], "reached its bound")]:  # fmt: skip
        done = opgraft_command("generate", "--prompt", "the", *options)
        assert done.returncode == 1 and said in done.stderr and "Traceback" not in done.stderr


def smollm2():
    found = list((ROOT / "build" / "data" / "smollm2").rglob("*.gguf"))
    if not found and os.environ.get("OPGRAFT_REQUIRE_MODELS"):
        raise FileNotFoundError("build/data/smollm2: the model was not fetched")
    return found[0] if found else None


# shared/real-inputs.md: greedy, of the chat prompt.
QUESTION, ANSWER = "What is the capital of France?", [504, 3575, 282, 4649, 314, 7042, 30]


@pytest.mark.skipif(not smollm2(), reason="./build.sh test --all fetches the model")
@pytest.mark.parametrize("grafted", [False, True], ids=["plain", "grafted"])
def test_smollm2_knows_the_capital_of_france(tmp_path, grafted):
    net, info = llama.build(smollm2(), "float32", rows=64)
    graph = _graph(net)
    if grafted:
        rewrite.substitute(graph)
        graph.user_info = info
        _core.write_mindir(graph, str(tmp_path / "m.mindir"))
        graph = opgraft.load(tmp_path / "m.mindir")
    found, stats = finish(
        TextModel(graph, Text.of(info)).generate(TextModel(graph, Text.of(info)).encode(QUESTION), 20)
    )
    assert [i for i, _ in found] == ANSWER and stats.end == "eos"
    assert "".join(p for _, p in found) == "The capital of France is Paris."


def test_empty_caches_take_no_room_in_a_file(file, tmp_path):
    net, info = llama.build(file, "stored")
    opgraft.export(net, file_name=tmp_path / "m", user_info=info)
    data = (tmp_path / "m_variables" / "data_0").stat()
    assert data.st_blocks * 512 < data.st_size, "a hole for the 12 KiB of zeros of each layer"


@pytest.mark.skipif(not smollm2(), reason="./build.sh test --all fetches the model")
def test_ctrl_c_ends_the_text_and_tells_the_figures():
    command = [sys.executable, "-m", "opgraft", "generate", "--model", str(smollm2()), "--rows", "2048",
               "--prompt", "Tell me a long story.", "--max-tokens", "2000"]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=ROOT)
    begun = running.stdout.read(20)
    running.send_signal(signal.SIGINT)
    rest, said = running.communicate(timeout=60)
    assert running.returncode == 130 and "Traceback" not in said
    assert len(begun) == 20 and "ended by interrupted" in rest and "first token" in rest
