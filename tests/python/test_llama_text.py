"""Text of examples/llama: drawn, ended, refused; the commands; SmolLM2 where it was fetched."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import opgraft
import pytest
from opgraft import _core, rewrite
from opgraft.generation import Text, TextModel

pytest.importorskip("gguf")
pytest.importorskip("jinja2")
pytest.importorskip("tokenizers")
from small_llama import CLOSE, IDS, ROOT, finish, graph_of, llama, oracle, smollm2, text_model, write  # noqa: E402

pytestmark = pytest.mark.usefixtures("planned")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write(tmp_path_factory.mktemp("llama") / "small.gguf")


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
    graph = graph_of(net)
    rewrite.substitute(graph)
    model = TextModel(graph, Text.of(info))
    got = [i for i, _ in model.generate(IDS, 12)]
    want = greedy(file, IDS, 12)
    assert min(gap for _, gap in want) > 2 * CLOSE["atol"]
    ended = [i for i, _ in want].index(0) if 0 in [i for i, _ in want] else 12
    assert got == [i for i, _ in want[:ended]]


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


def test_a_system_message_stands_where_the_template_puts_it(file):
    model, tokenizer = text_model(file), llama.LlamaTokenizer(llama.Checkpoint(file))
    said = [{"role": "system", "content": "thin"}, {"role": "user", "content": "the tin"}]
    assert model.encode("the tin", system="thin") == tokenizer.chat(said)
    with pytest.raises(ValueError, match="a system message needs a chat form, got a prompt outside of it"):
        model.encode("the tin", chat=False, system="thin")
    model.text = Text(model.text.tokenizer, [0], None, 48)
    with pytest.raises(ValueError, match="the model's file has none with a system message"):
        model.encode("the tin", system="thin")


def test_templates_know_the_special_tokens(tmp_path):
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    text = text_model(write(tmp_path / "m.gguf", template=template)).text
    assert text.chat == ("<|start|>", "<|end|>") and text.system == ("<|start|>", "<|end|>", "<|end|>")


@pytest.mark.parametrize("prompt,error", [
    ("the Tin", r"the model's vocabulary cannot spell U\+0054"),
    ("\u2603", r"the model's vocabulary cannot spell U\+2603"),
    ("\udcff", "the prompt must be UTF-8 text"),
])  # fmt: skip
def test_what_cannot_be_spelled(file, prompt, error):
    with pytest.raises(ValueError, match=error):
        text_model(file).encode(prompt)


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_seeds_that_cannot_be(file, seed):
    with pytest.raises(ValueError, match=rf"the seed must be in \[0, 4294967295\], got {seed}"):
        next(text_model(file).generate(IDS, 4, seed=seed))


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


# shared/real-inputs.md: greedy, of the chat prompt.
QUESTION, ANSWER = "What is the capital of France?", [504, 3575, 282, 4649, 314, 7042, 30]


@pytest.mark.skipif(not smollm2(), reason="./build.sh test --all fetches the model")
@pytest.mark.parametrize("grafted", [False, True], ids=["plain", "grafted"])
def test_smollm2_knows_the_capital_of_france(tmp_path, grafted):
    net, info = llama.build(smollm2(), "float32", rows=64)
    graph = graph_of(net)
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
