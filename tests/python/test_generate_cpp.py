"""opgraft_generate, the C++ program, beside `opgraft generate`: the same text, figures' names, errors and ends."""

import json
import re
import signal
import subprocess

import numpy as np
import opgraft
import pytest
from opgraft import _core, cli

pytest.importorskip("gguf")
pytest.importorskip("jinja2")
pytest.importorskip("tokenizers")
from generate_twins import PROGRAM, generate, needs_program, same_error, same_text  # noqa: E402
from small_llama import IDS, VOCABULARY, graph_of, llama, smollm2, write  # noqa: E402
from tokenizers.pre_tokenizers import ByteLevel  # noqa: E402

pytestmark = needs_program


def exported(file, out, info=None, **options):
    net, own = llama.build(file, **options)
    graph = graph_of(net)
    _core.substitute(graph, _core.rules())
    graph.user_info = own if info is None else info
    _core.write_mindir(graph, str(out))
    return out


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("generate")
    return exported(write(folder / "small.gguf"), folder / "small.mindir", weights="float32", rows=40)


@pytest.mark.parametrize("options", [
    [], ["--system", "thin"], ["--no-chat"], ["--max-tokens", "1"], ["--max-tokens", "12", "--threads", "2"],
    *(["--temperature", "1.5", "--seed", seed] for seed in ("0", "1", "7", "123456789", "4294967295")),
    ["--temperature", "2", "--top-k", "9", "--seed", "3"], ["--temperature", "1e1", "--top-p", "0.7", "--seed", "3"],
    ["--temperature", "0.8", "--top-k", "20", "--top-p", "0.9", "--seed", "2"],
], ids=" ".join)  # fmt: skip
def test_the_same_text_and_figures(small, python, options):
    same_text(python, "--model", small, "--prompt", "the thin tin", *options)


def test_seeds_draw_different_texts(small):
    drawn = [json.loads(generate("--model", small, "--prompt", "the", "--temperature", 2, "--seed", seed,
                                 "--json").stdout)["ids"] for seed in (1, 1, 2)]  # fmt: skip
    assert drawn[0] == drawn[1] != drawn[2]


def test_the_summary_is_pythons(small, python):
    args = ["--model", small, "--prompt=the tin", "--max-tok", 3]
    code, want, _ = python(*args)
    done = generate(*args)
    assert done.returncode == code == 0

    def masked(text):
        return re.sub(r"\d+\.\d tokens/s|\d+\.\d ms|peak memory \d+", "#", text)

    assert masked(done.stdout) == masked(want) and "#" in masked(want) and "\nended by length\n" in want


def test_options_are_pythons():
    shown = generate("--help")
    assert shown.returncode == 0
    options = set(re.findall(r"^  (--[a-z-]+)", shown.stdout, re.M))
    with pytest.raises(SystemExit):
        cli.main(["generate", "--nothing"])
    known = set(re.findall(r"--[a-z-]+", _usage()))
    # Python's command builds whatever model a folder of Cells says.
    assert known - options == {"--cells"} and options - known == {"--help"}


def _usage():
    parser = cli._parser()
    return parser._subparsers._group_actions[0].choices["generate"].format_usage()


@pytest.mark.parametrize("args,error", [
    (["--prompt", "the " * 40], r"the prompt has \d+ tokens, the model's context 40"),
    (["--prompt", "", "--no-chat"], "generate: ids must not be empty"),
    (["--prompt", "the Tin"], r"the model's vocabulary cannot spell U\+0054"),
    (["--prompt", "the", "--system", "☃"], r"the model's vocabulary cannot spell U\+2603"),
    (["--prompt", b"the \xff".decode(errors="surrogateescape")], "the prompt must be UTF-8 text"),
    (["--prompt", "the", "--system", "tin", "--no-chat"], "a system message needs a chat form, got a prompt outside"),
    (["--prompt", "the", "--seed", "-1"], r"the seed must be in \[0, 4294967295\], got -1"),
    (["--prompt", "the", "--seed", 2**32], r"the seed must be in \[0, 4294967295\], got 4294967296"),
    (["--prompt", "the", "--temperature", "-1"], "SampleToken: temperature must be at least 0"),
    (["--prompt", "the", "--temperature", "1", "--top-p", "0"], r"SampleToken: top_p must be in \(0, 1\]"),
    (["--prompt", "the", "--top-k", "-2"], "SampleToken: top_k must be at least 0, got -2"),
    (["--prompt", "the", "--state-bytes", 4096], "KVCacheAppend: the state has reached its bound"),
])  # fmt: skip
def test_errors_are_pythons(small, python, args, error):
    assert re.search(error, same_error(python, "--model", small, *args))


def files(small, folder):
    """Models that are none: (name, what is said)."""
    whole = small.read_bytes()
    info = dict(opgraft.load(small).user_info)
    fields = json.loads(info["opgraft.text"])
    gguf = write(folder / "model.gguf")

    def other(name, text):
        exported(gguf, folder / name, text if isinstance(text, dict) else {"opgraft.text": text})

    (folder / "cut.mindir").write_bytes(whole[: len(whole) // 2])
    yield "cut.mindir", "cut.mindir"
    (folder / "foreign.mindir").write_bytes(gguf.read_bytes())
    yield "foreign.mindir", "foreign.mindir"
    (folder / "empty.mindir").write_bytes(b"")
    yield "empty.mindir", "empty.mindir"
    yield "missing.mindir", "missing.mindir: no such file"
    other("silent.mindir", {})
    yield "silent.mindir", "the model says nothing of a tokenizer: its user_info has no opgraft.text"
    for i, damaged in enumerate(["", "[]", "{}", "[" * 10000, json.dumps(fields | {"eos": 3}),
                                 json.dumps(fields | {"context": 0}), json.dumps(fields | {"chat": ["a"]}),
                                 json.dumps(fields | {"system": [1, 2, 3]}),
                                 json.dumps(fields | {"tokenizer": 5})]):  # fmt: skip
        other(f"damaged{i}.mindir", damaged)
        yield f"damaged{i}.mindir", "the model's opgraft.text in user_info is damaged"
    other("tokenizer.mindir", json.dumps(fields | {"tokenizer": "{}"}))
    yield "tokenizer.mindir", "the model's tokenizer is damaged: "


def test_files_that_are_no_models(small, python, tmp_path):
    seen = 0
    for name, error in files(small, tmp_path):
        code, _, said = python("--model", tmp_path / name, "--prompt", "the")
        done = generate("--model", tmp_path / name, "--prompt", "the")
        assert done.returncode == code == 1, (name, done.returncode, done.stderr)
        assert error in done.stderr and error in said, (name, done.stderr, said)
        seen += 1
    assert seen == 15


def test_a_model_of_something_else(tmp_path):
    row = opgraft.Tensor(np.zeros(3, np.float32))
    info = llama.build(write(tmp_path / "m.gguf"))[1]
    opgraft.export(opgraft.nn.ReLU(), row, file_name=tmp_path / "m", user_info=info)
    done = generate("--model", tmp_path / "m.mindir", "--prompt", "the")
    assert done.returncode == 1 and "the model must take input_ids and position_ids, got x" in done.stderr


def test_a_file_without_chat_forms(small, python, tmp_path):
    """One without: the prompt as it is; a system message is refused."""
    fields = json.loads(opgraft.load(small).user_info["opgraft.text"])
    del fields["system"]
    plain = {"opgraft.text": json.dumps(fields | {"chat": None})}
    file = exported(write(tmp_path / "m.gguf"), tmp_path / "m.mindir", plain)
    got = same_text(python, "--model", file, "--prompt", "the tin", "--max-tokens", 3)
    assert got["prompt_tokens"] < len(IDS)
    said = same_error(python, "--model", file, "--prompt", "the", "--system", "tin")
    assert "the model's file has none with a system message" in said


@pytest.mark.parametrize("args,error", [
    ([], "--model is missing"), (["--model", "m.mindir"], "--prompt is missing"),
    (["--model"], "--model needs a value"), (["--modle", "m"], "unknown option '--modle'"),
    (["--model", "m", "--prompt", "p", "more"], "unknown argument 'more'"),
    (["--max-tokens", "0"], "--max-tokens takes a positive number, got '0'"),
    (["--max-tokens", "9" * 30], "--max-tokens takes a positive number, got '9"),
    (["--seed", "x"], "--seed takes a whole number, got 'x'"),
    (["--temperature", "warm"], "--temperature takes a number, got 'warm'"),
    (["--threads", "257"], "--threads takes a number from 1 to 256, got '257'"),
    (["--state-bytes", "-5"], "--state-bytes takes a positive number, got '-5'"),
    (["--rows", "0"], "--rows takes a positive number, got '0'"),
    (["--weights", "int4"], "--weights takes float32, bfloat16, stored or int8, got 'int4'"),
    (["--json=3"], "unknown option '--json=3'"),
])  # fmt: skip
def test_wrong_usage(args, error):
    done = generate(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"opgraft_generate: {error}") and done.stderr.endswith("Try --help.\n")


def test_what_cannot_be_written_is_an_error(small):
    with open("/dev/full", "w") as full:
        done = subprocess.run([PROGRAM, "--model", small, "--prompt", "the"], stdout=full, stderr=subprocess.PIPE,
                              text=True, timeout=60)  # fmt: skip
    assert done.returncode == 1 and "cannot write the text: No space left on device" in done.stderr


def test_pieces_are_whole_characters(python, tmp_path):
    """A vocabulary of bytes, most of them parts of characters: each write is UTF-8, and the text is Python's."""
    fields = json.loads(llama.build(write(tmp_path / "m.gguf"))[1]["opgraft.text"])
    tokenizer = json.loads(fields["tokenizer"])
    spelled = bytes_to_spelling()
    parts = [*"☃é😀中".encode(), 0x98, 0xBF, 0x84, *range(ord("a"), ord("z"))]
    special = [t["content"] for t in tokenizer["added_tokens"]]
    tokens = list(dict.fromkeys([*special, *(spelled[b] for b in parts)]))[: len(VOCABULARY)]
    assert len(tokens) == len(VOCABULARY)
    tokenizer["model"] |= {"vocab": {t: i for i, t in enumerate(tokens)}, "merges": []}
    info = {"opgraft.text": json.dumps(fields | {"tokenizer": json.dumps(tokenizer), "chat": None})}
    file, texts = exported(tmp_path / "m.gguf", tmp_path / "m.mindir", info), []
    for seed in range(12):
        args = ["--model", file, "--prompt", "☃é😀中", "--temperature", "3", "--seed", str(seed)]
        texts.append(same_text(python, *args)["text"])
        running = subprocess.Popen([PROGRAM, *args], stdout=subprocess.PIPE, bufsize=0)
        read = ""
        while chunk := running.stdout.read(65536):
            read += chunk.decode()  # raises within a character
        assert running.wait() == 0 and read.startswith(texts[-1] + "\n\n")
    held = "".join(texts)
    assert "\ufffd" in held and any(ord(c) > 127 for c in held.replace("\ufffd", ""))


def bytes_to_spelling():
    """{byte: how a vocabulary spells it}, by the library itself."""
    made = ByteLevel(add_prefix_space=False, use_regex=False)
    low = {b: made.pre_tokenize_str(chr(b))[0][0] for b in range(128)}
    pairs = [(chr(c).encode(), made.pre_tokenize_str(chr(c))[0][0]) for c in range(128, 0x800)]
    wide = [(chr(c).encode(), made.pre_tokenize_str(chr(c))[0][0]) for c in (0x2603, 0x4E2D, 0x1F600)]
    return low | {b: s for raw, spelling in pairs + wide for b, s in zip(raw, spelling)}


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    return exported(smollm2(), tmp_path_factory.mktemp("smollm2") / "m.mindir", weights="stored", rows=2048)


needs_model = pytest.mark.skipif(not smollm2(), reason="./build.sh test --all fetches the model")


@needs_model
@pytest.mark.parametrize("options", [
    ["--prompt", "What is the capital of France?"],
    ["--prompt", "Écris 3 mots ☃ 中文:", "--system", "Answer with emoji.", "--temperature", "1", "--seed", "4"],
    ["--prompt", "Once upon", "--no-chat", "--temperature", "0.9", "--top-k", "50", "--top-p", "0.95", "--seed", "6"],
], ids=["greedy", "system", "plain"])  # fmt: skip
def test_smollm2_writes_the_same(large, python, options):
    got = same_text(python, "--model", large, "--max-tokens", 40, "--threads", 1, *options)
    assert got["tokens"] > 4


@needs_model
def test_ctrl_c_ends_the_text_and_tells_the_figures(large):
    command = [PROGRAM, "--model", large, "--prompt", "Tell me a long story.", "--max-tokens", "2000"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    begun = running.stdout.read(40)
    running.send_signal(signal.SIGINT)
    rest, said = running.communicate(timeout=60)
    assert running.returncode == 130 and said == b""
    assert len(begun) == 40 and "ended by interrupted" in rest.decode() and "first token" in rest.decode()
