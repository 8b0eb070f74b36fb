"""The tokenizer of opgraft_generate (infer/cli/text) beside `tokenizers`: ids and texts on a seeded corpus, and files
that are damaged."""

import json
import pathlib
import subprocess
import sys
import unicodedata

import numpy as np
import opgraft
import pytest

pytest.importorskip("gguf")
pytest.importorskip("jinja2")
pytest.importorskip("tokenizers")
from small_llama import llama, smollm2  # noqa: E402
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers  # noqa: E402

PROGRAM = pathlib.Path(opgraft.__file__).parents[2] / "tests" / "tokenize"
pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="it needs PCRE2 and a build of the C++ tests")

SPECIAL = ["<|a|>", "<|a|><|b|>", "<|end|>", "é☃"]
WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
ALPHABET = [
    *"aeinrst", *"XÉßçñ", "1", "9", "²", "½", "٣", "Ⅷ", *"'.,!-_|<>", "'s", "'ll", " ", "  ", "\n", "\t", "\r\n",
    "\u00a0", "\u3000", "\u180e", "\u0085", "\u001c", "\u200b", "\u2028", "中", "文", "ก", "\u0301", "\u0e33", "😀",
    "👨‍👩‍👧", "\ufffd", "\ufeff", "\U000e0001", "\x00", *SPECIAL, "<|a", "|>",
]  # fmt: skip


def tokenizer(digits):
    """All bytes, and merges by which every border between pieces shows: those of what may stand before it."""
    spelled = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [(first, second) for first in "a1!ĠĊ" for second in spelled]
    merges += [("th", "e"), ("t", "h"), ("i", "n"), ("Ġ", "the")]
    rng = np.random.default_rng(3)
    merges += [tuple(pair) for pair in rng.choice(spelled, (500, 2))]
    merges = list(dict.fromkeys(merges))
    tokens = dict.fromkeys([*SPECIAL, *spelled, "the", *(a + b for a, b in merges)])
    made = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    steps = [pre_tokenizers.Digits(individual_digits=digits == "single")] if digits else []
    steps += [pre_tokenizers.Split(Regex(WORDS), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    made.pre_tokenizer, made.decoder = pre_tokenizers.Sequence(steps), decoders.ByteLevel()
    made.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    return made


def through_the_program(made, given, folder):
    file = folder / "tokenizer.json"
    file.write_text(made if isinstance(made, str) else made.to_str(), encoding="utf-8", errors="surrogatepass")
    lines = "".join(json.dumps(item) + "\n" for item in given)
    return subprocess.run([PROGRAM, file], input=lines, capture_output=True, encoding="utf-8", errors="replace",
                          timeout=120)  # fmt: skip


def compare(made, texts, folder):
    done = through_the_program(made, texts, folder)
    assert done.returncode == 0, done.stderr
    got = [json.loads(line) for line in done.stdout.splitlines()]
    want = [e.ids for e in made.encode_batch(texts, add_special_tokens=False)]
    assert len(got) == len(want) == len(texts)
    assert [(t, g, w) for t, g, w in zip(texts, got, want) if g != w][:5] == []


def corpus(n, seed=11):
    rng = np.random.default_rng(seed)
    return ["".join(rng.choice(ALPHABET, rng.integers(1, 60))) for _ in range(n)]


@pytest.mark.parametrize("digits", [None, "single", "run"])
def test_ids_of_a_seeded_corpus(tmp_path, digits):
    spaces = [" " * n + end for n in range(1, 40) for end in ("", "a", "1", "\n", "!")]
    compare(tokenizer(digits), ["", *corpus(3000), *spaces, "a" * 20000, " " * 20000, "!1" * 5000], tmp_path)


# Characters that Python's version of Unicode has: others have newer ones, or not yet.
@pytest.mark.parametrize("digits", [None, "single"])
def test_every_character_is_of_the_same_class(tmp_path, digits):
    known = [chr(c) for c in range(sys.maxunicode + 1) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]
    assert len(known) > 280_000
    # One class each, and most of all: private use, Han, Hangul.
    names = ("CJK UNIFIED", "HANGUL SYLLABLE")
    large = [c for c in known if unicodedata.category(c) == "Co" or unicodedata.name(c, "").startswith(names)]
    known = sorted(set(known) - set(large)) + large[::97]
    assert len(known) > 30_000
    texts = [f"a{c} 1{c} !{c} {c}{c}1\n{c} \n{c}a" for c in known]
    compare(tokenizer(digits), texts, tmp_path)


def test_texts_of_ids(tmp_path):
    """Broken UTF-8 becomes U+FFFD alike, special tokens and ids that are none included."""
    made, rng = tokenizer(None), np.random.default_rng(5)
    spelled = sorted(pre_tokenizers.ByteLevel.alphabet())
    leads = [made.token_to_id(c) for c in spelled if ord(c) >= 0x7F]
    ids = [rng.integers(0, made.get_vocab_size() + 3, rng.integers(0, 30)).tolist() for _ in range(1000)]
    ids += [rng.choice(leads, rng.integers(1, 12)).tolist() for _ in range(3000)]
    valid = ["é", "\u0800", "\ud7ff", "\ue000", "\uffff", "\U00010000", "\U0010ffff", "\ufffd"]
    ids += [made.encode(text, add_special_tokens=False).ids[:cut] for text in valid for cut in (1, 2, 3, 4)]
    done = through_the_program(made, ids, tmp_path)
    assert done.returncode == 0, done.stderr
    got = [json.loads(line) for line in done.stdout.splitlines()]
    want = [made.decode(i, skip_special_tokens=False) for i in ids]
    assert [(i, g, w) for i, g, w in zip(ids, got, want) if g != w][:5] == [] and len(got) == len(want)
    assert sum("\ufffd" in text for text in want) > 2000


@pytest.mark.skipif(not smollm2(), reason="./build.sh test --all fetches the model")
def test_ids_of_smollm2(tmp_path):
    made = Tokenizer.from_str(llama.LlamaTokenizer(llama.Checkpoint(smollm2())).to_json())
    root = pathlib.Path(__file__).resolve().parents[2]
    texts = [p.read_text(encoding="utf-8") for p in [*root.glob("*.md"), *root.glob("docs/*.md"), *root.glob("*.sh")]]
    assert sum(map(len, texts)) > 50_000
    compare(made, [*texts, *corpus(2000), "<|im_start|>user\nHi<|im_end|>\n<|im_start|><|im_star"], tmp_path)


def changed(path, value):
    """The tokenizer with one part put in another's place."""
    whole = json.loads(tokenizer("single").to_str())
    at = whole
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return json.dumps(whole)


@pytest.mark.parametrize("text,error", [
    ("", "damaged"), ("[]", "damaged"), ("{}", "damaged"), ("[" * 100000, "damaged"), ("\udcff", "damaged"),
    (changed(["normalizer"], {"type": "NFC"}), "normalizer must be null, got object"),
    (changed(["model", "type"], "Unigram"), 'model.type must be "BPE", got "Unigram"'),
    (changed(["model", "unk_token"], "<|a|>"), "model.unk_token must be null"),
    (changed(["model", "byte_fallback"], True), "model.byte_fallback must be false, got true"),
    (changed(["model", "vocab"], []), "model.vocab must be an object, got array"),
    (changed(["model", "vocab", "the"], -1), "the id of 'the' is -1"),
    (changed(["model", "vocab", "the"], 2**31), "the id of 'the' is 2147483648"),
    (changed(["model", "vocab", "the"], 2**80), "the id of 'the' is 1.2"),
    (changed(["model", "merges"], [["a", "nothing"]]), "a merge names 'nothing', which is no token"),
    (changed(["model", "merges"], [["a"]]), "damaged"),
    (changed(["model", "merges"], ["ab"]), "the merge 'ab' is no pair"),
    (changed(["decoder", "type"], "Fuse"), 'decoder.type must be "ByteLevel", got "Fuse"'),
    (changed(["pre_tokenizer"], {"type": "Sequence", "pretokenizers": []}), "pre_tokenizer must not be empty"),
    (changed(["pre_tokenizer", "pretokenizers", 0], {"type": "Whitespace"}), "must be Digits, Split or ByteLevel"),
    (changed(["pre_tokenizer", "pretokenizers", 1, "pattern"], {"Regex": "(("}), "the pattern '((': missing"),
    (changed(["pre_tokenizer", "pretokenizers", 1, "pattern"], {"Regex": r"a\C"}), "the pattern"),
    (changed(["pre_tokenizer", "pretokenizers", 1, "behavior"], "Removed"), 'Split.behavior must be "Isolated"'),
    (changed(["pre_tokenizer", "pretokenizers", 2, "add_prefix_space"], True), "ByteLevel.add_prefix_space"),
    (changed(["added_tokens", 0, "lstrip"], True), "added token '<|a|>': lstrip must be false, got true"),
    (changed(["added_tokens", 0, "id"], 7), "added token '<|a|>' must be in the vocabulary as 7"),
    (changed(["added_tokens", 0, "content"], ""), "added token '' must be in the vocabulary as 0"),
])  # fmt: skip
def test_tokenizers_that_cannot_be(tmp_path, text, error):
    done = through_the_program(text, ["the"], tmp_path)
    assert done.returncode == 1 and error in done.stderr and done.stderr.startswith("the model's tokenizer")


def test_a_damaged_file_never_ends_the_program(tmp_path):
    """Bytes changed or cut: an error, or other ids."""
    whole, rng = tokenizer("single").to_str(), np.random.default_rng(1)
    small = json.loads(whole)
    small["model"]["merges"] = small["model"]["merges"][:3]
    whole = json.dumps(small)
    ends = set()
    for _ in range(150):
        at = int(rng.integers(len(whole)))
        text = whole[:at] if rng.random() < 0.3 else whole[:at] + chr(rng.integers(32, 127)) + whole[at + 1 :]
        done = through_the_program(text, ["the tin 12 <|a|>"], tmp_path)
        ends.add(done.returncode)
        assert done.returncode in (0, 1), (done.returncode, done.stderr)
    assert ends == {0, 1}


def test_a_pattern_that_never_ends_is_an_error(tmp_path):
    made = changed(["pre_tokenizer", "pretokenizers", 1, "pattern"], {"Regex": r"(a+)+$"})
    done = through_the_program(made, ["a" * 60 + "b"], tmp_path)
    assert done.returncode == 1 and "match limit exceeded" in done.stderr


def test_empty_matches_cut_nothing(tmp_path):
    made = changed(["pre_tokenizer", "pretokenizers", 1, "pattern"], {"Regex": r"x*"})
    done = through_the_program(made, ["théxx☃e"], tmp_path)
    assert done.returncode == 0 and json.loads(done.stdout)
