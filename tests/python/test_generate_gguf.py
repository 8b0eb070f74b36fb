"""opgraft_generate with a GGUF file beside `opgraft generate`: the same graph, the same bits, the same text; files that
are damaged."""

import re
import subprocess
import sys

import numpy as np
import pytest
from opgraft import _core

gguf = pytest.importorskip("gguf")
pytest.importorskip("jinja2")
pytest.importorskip("tokenizers")
import small_llama  # noqa: E402
from generate_twins import PROGRAM, generate, needs_program, same_error, same_text  # noqa: E402
from gguf.quants import quantize  # noqa: E402
from small_llama import IDS, ROOT, graph_of, llama, smollm2, text_model, write  # noqa: E402

sys.path.append(str(ROOT / "tests" / "fuzz" / "seeds"))
import gguf_file as raw  # noqa: E402

GRAPH = PROGRAM.parent / "tests" / "llama_graph"
pytestmark = needs_program
KINDS = [(None, "float32"), (None, "bfloat16"), (None, "stored"), (None, "int8"), ("F16", "stored"),
         ("F16", "bfloat16"), ("BF16", "stored"), ("BF16", "bfloat16"), ("Q4_0", "stored"), ("Q4_0", "float32"),
         ("Q4_1", "stored"), ("Q4_1", "float32"), ("Q4_1", "bfloat16"), ("Q4_1", "int8"), ("Q8_0", "stored"),
         ("Q8_0", "bfloat16")]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("gguf")


@pytest.fixture(scope="module")
def small(folder):
    return write(folder / "small.gguf")


def numbered(dump):
    """A dump with values numbered by the order in which they stand there."""
    seen = {}
    return re.sub(r"%\d+", lambda m: seen.setdefault(m.group(), f"%{len(seen)}"), dump)


def check_graph(folder, file, weights):
    """That both programs make one graph of the file, and the same bits of a prompt."""
    graph = graph_of(llama.build(file, weights, rows=20)[0])
    for form in ("plain", "fused"):
        if form == "fused":
            _core.substitute(graph, _core.rules())
        command = [GRAPH, file, weights, 20, form, folder / "logits.npy", *IDS]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert numbered(done.stdout) == numbered(graph.dump()), form
        ids, places = np.array([IDS], np.int32), np.arange(len(IDS), dtype=np.int32)
        want = _core.Session(_core.Model(graph)).run([ids, places])[0]
        got = np.load(folder / "logits.npy")
        assert got.tobytes() == np.asarray(want).tobytes() and np.unique(np.asarray(want)).size > 20


needs_graph = pytest.mark.skipif(not GRAPH.exists(), reason="it needs a build of the C++ tests")


@needs_graph
@pytest.mark.parametrize("kind,weights", KINDS, ids=lambda x: str(x))
def test_the_graph_and_its_bits_are_pythons(folder, kind, weights):
    check_graph(folder, write(folder / f"{kind}.gguf", kind=kind, output=weights == "bfloat16"), weights)


# Blocks of 256 that PyPI's gguf reads and does not write: where their halves lie, and about how large those are of
# weights as this model has them.
BLOCKS = {"Q2_K": ((80, 82), 4e-3), "Q3_K": ((108,), 1e-3), "Q4_K": ((0, 2), 2e-4), "Q5_K": ((0, 2), 1e-4),
          "Q6_K": ((208,), 2e-5)}  # fmt: skip


def drawn(array, kind):
    """Blocks of any bits for an array's place, but for their halves, which are numbers."""
    if kind.name not in BLOCKS:
        return quantize(array, kind)
    (places, size), (each, length) = BLOCKS[kind.name], gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(array.size)
    rows = rng.integers(0, 256, (len(array), array.shape[1] // each, length), np.uint8)
    for at in places:
        halves = (size * rng.uniform(-1, 1, rows.shape[:2])).astype(np.float16)
        rows[..., at : at + 2] = halves[..., None].view(np.uint8)
    return rows.reshape(len(array), -1)


@needs_graph
@pytest.mark.parametrize("weights", ["float32", "bfloat16", "stored", "int8"])
@pytest.mark.parametrize("kind", ["Q5_0", "Q5_1", *BLOCKS])
def test_blocks_that_are_expanded(folder, kind, weights, monkeypatch):
    for name, value in (("WIDTH", 256), ("INNER", 512), ("quantize", drawn)):
        monkeypatch.setattr(small_llama, name, value)
    check_graph(folder, write(folder / f"wide_{kind}.gguf", kind=kind, output=True), weights)


@pytest.mark.parametrize("options", [
    [], ["--weights", "float32", "--system", "thin"], ["--weights", "bfloat16", "--no-chat"],
    ["--weights", "int8", "--temperature", "1.5", "--seed", "7"], ["--plain-operators", "--rows", "20", "--no-chat"],
    ["--rows", "48", "--threads", "2", "--max-tokens", "3"],
], ids=" ".join)  # fmt: skip
def test_the_same_text(small, python, options):
    got = same_text(python, "--model", small, "--prompt", "the thin tin", *options)
    assert got["prompt_tokens"] > 3


TEMPLATES = {
    "special": "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}",
    "no_system": "{% set m = messages[0] %}{{ raise_exception('no') if m.role == 'system' }}:{{ m.content }}:",
}


@pytest.mark.parametrize("template", ["", *TEMPLATES])
def test_chat_forms(folder, python, template):
    file = write(folder / "template.gguf", template=TEMPLATES.get(template, ""))
    got = same_text(python, "--model", file, "--prompt", "thin", "--max-tokens", 3)
    text, model = "thin", text_model(file)
    if template == "special":
        assert model.text.chat == ("<|start|>", "<|end|>")
        same_text(python, "--model", file, "--prompt", "thin", "--system", "tin", "--max-tokens", 3)
    else:
        assert model.text.system is None and model.text.chat == (template and (":", ":") or None)
        said = same_error(python, "--model", file, "--prompt", "thin", "--system", "tin")
        assert "the model's file has none with a system message" in said
    assert got["prompt_tokens"] == len(model.encode(text))


WRONG = {
    "architecture must be llama, got gpt2": {"architecture": (raw.TEXT, "gpt2")},
    "general.architecture must be a text, got uint32": {"architecture": (raw.U32, 1)},
    "llama.attention.head_count is missing": {"head_count": None},
    "llama.attention.head_count must be a whole number, got array of uint32":
        {"head_count": (raw.ARRAY, raw.array(raw.U32, [2]))},
    "llama.block_count must be a whole number, got float32": {"block_count": (raw.F32, 1.0)},
    "llama.rope.freq_base must be a number, got string": {"freq_base": (raw.TEXT, "1e4")},
    "num_hidden_layers must be positive, got 0": {"block_count": (raw.U32, 0)},
    "num_key_value_heads must be positive, got -1": {"head_count_kv": (raw.I32, -1)},
    "vocab_size must be at most 2147483647, got 2147483648": {"vocab_size": (raw.U64, 2**31)},
    "rope_theta must be a number of at least 1, got nan": {"freq_base": (raw.F32, float("nan"))},
    "rope_theta must be a number of at least 1, got 0.5": {"freq_base": (raw.F64, 0.5)},
    "2 heads of 5 over 1 key and value heads are not a llama": {"attention.key_length": (raw.U32, 5)},
    "rope.dimension_count must be 16, got 8": {"dimension_count": (raw.U32, 8)},
    "tensor token_embd.weight is missing": {},
    "tokenizer.ggml.tokens must be an array, each a text, got array of uint8":
        {"tokens": (raw.ARRAY, raw.array(raw.U8, [1]))},
}  # fmt: skip


@pytest.mark.parametrize("error", WRONG)
def test_wrong_hyperparameters(folder, python, error):
    file = folder / "wrong.gguf"
    file.write_bytes(raw.gguf(raw.model(**WRONG[error])))
    assert f"{file}: {error}\n" in same_error(python, "--model", file, "--prompt", "the")


def whole_model(**changes):
    """A file that is whole but for `changes` of its metadata, all weights 0."""
    n, norms = len(raw.TOKENS), ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm")
    shapes = {"token_embd": (32, n), "blk.0.attn_k": (32, 16), "blk.0.attn_v": (32, 16)}
    shapes |= {f"blk.0.{p}": (32, 32) for p in ("attn_q", "attn_output", "ffn_gate", "ffn_up", "ffn_down")}
    types = changes.pop("types", {})
    tensors = [(f"{name}.weight", dims, types.get(name, "Q8_0")) for name, dims in shapes.items()]
    return raw.gguf(raw.model(**changes), tensors + [(f"{name}.weight", (32,), "F32") for name in norms])


VOCABULARIES = {
    "tokenizer must be gpt2 with default, gpt-2, smollm, got gpt2 with deepseek": {"pre": (raw.TEXT, "deepseek")},
    "tokenizer must be gpt2 with default, gpt-2, smollm, got llama with smollm": {"model": (raw.TEXT, "llama")},
    "tokenizer.ggml.eos_token_id is missing": {"eos_token_id": None},
    "tokenizer.ggml.merges must be an array, each a text, got uint8": {"merges": (raw.U8, 1)},
    "tokenizer.ggml.token_type must be an array, each a whole number, got array of float32":
        {"token_type": (raw.ARRAY, raw.array(raw.F32, [1.0]))},
    "tokenizer.ggml.pre must be UTF-8 text": {"pre": (raw.TEXT, b"\xe9")},
    "tokenizer.ggml.tokens must be UTF-8 text":
        {"tokens": (raw.ARRAY, raw.array(raw.TEXT, [raw.text(b"\xff")] * len(raw.TOKENS)))},
    "chat template: does not hold once what is said": {"chat_template": (raw.TEXT, "{{ bos_token }}")},
}  # fmt: skip


@pytest.mark.parametrize("error", VOCABULARIES)
def test_wrong_vocabularies(folder, python, error):
    file = folder / "wrong.gguf"
    file.write_bytes(whole_model(**VOCABULARIES[error]))
    assert f"{file}: {error}\n" in same_error(python, "--model", file, "--prompt", "the")


@pytest.mark.parametrize("data,error", [
    (whole_model(merges=(raw.ARRAY, raw.array(raw.TEXT, ["t x"]))), "its vocabulary is damaged: "),
    (whole_model(merges=(raw.ARRAY, raw.array(raw.TEXT, ["th"]))), "its vocabulary is damaged: "),
    (whole_model(chat_template=(raw.TEXT, "{% for %}")), "chat template: "),
    (whole_model(chat_template=(raw.TEXT, "{{ 1 + 'a' }}")), "chat template: "),
    (whole_model(types={"blk.0.attn_k": "Q4_0", "token_embd": 77}), "cannot be read, cut short or damaged: "),
    (raw.gguf(raw.model(), [("t", (33,), "Q4_0")]), "cannot be read, cut short or damaged: "),
    (raw.gguf(raw.model(), [("t", (8,), "F32", 4), ("s", (8,), "F32", 64)]), "cannot be read, cut short or damaged: "),
    (raw.gguf(raw.model(), [("t", (8,), "F32", 4096)]), "cannot be read, cut short or damaged: "),
    (raw.gguf(raw.model(), [("t", (2**40, 2**40), "F32")]), "cannot be read, cut short or damaged: "),
    (raw.gguf(raw.model(), [("t", (1,), "F32")] * 2), "cannot be read, cut short or damaged: "),
    (raw.gguf(raw.model() * 2), "cannot be read, cut short or damaged: "),
    (raw.gguf([], counts=(2**62, 2**63)), "cannot be read, cut short or damaged: "),
    (raw.gguf(raw.model(), version=9), "cannot be read, cut short or damaged: "),
    (b"PK\3\4" + bytes(100), "is no GGUF file: it begins with "), (b"", "is no GGUF file: it begins with "),
], ids=range(15))  # fmt: skip
def test_damaged_files(folder, python, data, error):
    """Errors of the same kind; how a library puts it after that is its own."""
    file = folder / "damaged.gguf"
    file.write_bytes(data)
    code, _, said = python("--model", file, "--prompt", "the")
    done = generate("--model", file, "--prompt", "the")
    assert done.returncode == code == 1, (done, said)
    assert f"{file}: {error}" in said and f"{file}: {error}" in done.stderr


def test_the_whole_model_is_one(folder, python):
    file = folder / "zeros.gguf"
    for changes in ({}, {"vocab_size": (raw.U8, len(raw.TOKENS))}, {"head_count_kv": (raw.U8, 1)}):
        file.write_bytes(whole_model(**changes))
        assert same_text(python, "--model", file, "--prompt", "thin:", "--no-chat")["end"] == "eos"


def test_numbers_of_a_type_that_is_not_known(folder, python):
    file = folder / "known.gguf"
    keys = raw.model(embedding_length=(raw.U32, 256), dimension_count=(raw.U32, 128), vocab_size=(raw.U32, 4))
    file.write_bytes(raw.gguf(keys, [("token_embd.weight", (256, 4), "IQ4_XS")]))
    done = generate("--model", file, "--prompt", "the")
    assert done.returncode == 1 and "tensor token_embd.weight is of type IQ4_XS, which is not known" in done.stderr


def test_a_file_cut_anywhere_is_an_error(small, folder):
    data, file = small.read_bytes(), folder / "cut.gguf"
    for size in [*range(0, 64, 5), *np.linspace(64, len(data) - 32, 60).astype(int)]:
        file.write_bytes(data[:size])
        done = generate("--model", file, "--prompt", "the")
        assert done.returncode == 1 and done.stderr.startswith(f"opgraft_generate: {file}: "), (size, done)


def test_a_file_damaged_anywhere_is_an_error_or_a_model(small, folder, python):
    """As Python's: the same is refused."""
    data, file, rng, refused = small.read_bytes(), folder / "bits.gguf", np.random.default_rng(5), 0
    for _ in range(24):
        broken = bytearray(data)
        broken[rng.integers(8, 4000)] = rng.integers(256)
        file.write_bytes(broken)
        args = ["--model", file, "--prompt", "thin", "--max-tokens", "1"]
        done, want = generate(*args), python(*args)
        assert done.returncode == want[0], (done, want)
        refused += done.returncode
    assert 3 < refused < 24


@pytest.mark.parametrize("args,error", [
    (["--rows", "49"], r"rows must be in \[1, 48\], the model's context, got 49"),
    (["--state-bytes", "4096"], "KVCacheAppend: the state has reached its bound"),
])  # fmt: skip
def test_what_does_not_fit(small, python, args, error):
    assert re.search(error, same_error(python, "--model", small, "--prompt", "the", *args))


def test_files_that_are_not_there(folder, python):
    for file in (folder / "nothing.gguf", folder):
        assert same_error(python, "--model", file, "--prompt", "the") == f"opgraft: {file}: no such file\n"


def test_too_little_memory_is_said(folder):
    """Angles of two thousand million positions."""
    file = folder / "long.gguf"
    file.write_bytes(whole_model(context_length=(raw.U32, 2**31 - 1)))
    limited = f"ulimit -v 4000000; exec '{PROGRAM}' --model '{file}' --prompt the --rows 8"
    done = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "opgraft_generate: too little memory\n")


@pytest.mark.skipif(not smollm2(), reason="./build.sh test --all fetches the model")
def test_smollm2_writes_the_same(python):
    got = same_text(python, "--model", smollm2(), "--prompt", "What is the capital of France?", "--max-tokens", 16,
                    "--rows", 256, "--threads", 1)  # fmt: skip
    assert got["tokens"] > 4
