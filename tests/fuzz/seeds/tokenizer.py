"""Tokenizers of opgraft_generate, a NUL and a text."""

import json


def whole(**parts):
    steps = [
        {"type": "Digits", "individual_digits": True},
        {"type": "Split", "pattern": {"Regex": r"'s| ?\p{L}+|\s+(?!\S)|\S+|\s+"}, "behavior": "Isolated"},
        {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
    ]
    vocab = {t: i for i, t in enumerate(["<e>", *"thein1Ġ", "th", "the", "Ċ", "Ģ", "ĺ"])}
    model = {"type": "BPE", "dropout": None, "ignore_merges": False, "vocab": vocab,
             "merges": [["t", "h"], ["th", "e"]]}  # fmt: skip
    added = [{"id": 0, "content": "<e>", "lstrip": False, "special": True}]
    return {"added_tokens": added, "normalizer": None, "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
            "decoder": {"type": "ByteLevel"}, "model": model} | parts  # fmt: skip


def tokenizers():
    def one(text, **parts):
        return json.dumps(whole(**parts), ensure_ascii=False).encode() + b"\0" + text

    yield "plain", one("the tin 11  ☃<e>\n<e".encode())
    yield "broken_text", one(b"the \xf0\x9f\x92 \xed\xa0\x80")
    yield "one_step", one(b"the", pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False, "use_regex": False})
    yield "normalizer", one(b"the", normalizer={"type": "NFC"})
    model = whole()["model"]
    yield "old_merges", one(b"the", model=model | {"merges": ["t h", "th e"]})
    yield "merge_of_nothing", one(b"the", model=model | {"merges": [["t", "x"]]})
    yield "id_huge", one(b"the", model=model | {"vocab": {"t": 2**40}})
    yield "bad_pattern", one(b"t", pre_tokenizer={"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "(("}, "behavior": "Isolated"}, {"type": "ByteLevel"}]})  # fmt: skip
    yield "nested", b"[" * 500
    yield "cut", one(b"the")[:200]
