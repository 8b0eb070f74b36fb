"""Writes the hand-made seeds of the fuzzers: python3 tests/fuzz/seeds [FOLDER] (default: tests/fuzz/corpus).

The models of corpus/mindir that opgraft's own writer made come from the C++ tests:
OPGRAFT_WRITE_CORPUS=tests/fuzz/corpus/mindir build/tests/opgraft_tests --gtest_filter=MindirTest.*
"""

import pathlib
import sys

from checkpoint import checkpoints
from elf import elf
from gguf_file import ggufs
from manifest import YAML
from mindir import mindir
from npy import npys
from template import templates
from tokenizer import tokenizers

out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[1] / "corpus"
made = {"mindir": mindir(), "npy": npys(), "manifest": YAML.items(), "elf": elf(), "checkpoint": checkpoints(),
        "tokenizer": tokenizers(), "template": templates(), "gguf": ggufs()}  # fmt: skip
for fuzzer, seeds in made.items():
    folder = out / fuzzer
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in seeds:
        (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())
