"""The programs whose decoding is compared, one file each, run by bench/decoding/worker.py in an environment of its own.

A file has `VERSION()` and `Decoder(files, threads, variant)`:
  begin(slot, ids) -> id      a new text in `slot`: its first tokens at once, and the likeliest next
  step(slot, position, token) -> id   one token more at `position`; what stood there or behind it is forgotten
  logits() -> (vocab,) float32, of the last call
  kv(slot) -> {"bytes": keys and values of the text, "peak": with what an append holds beside them}
  sequences(bound, ids) -> {"count", "bytes"}, of texts of these ids whose keys and values fit the bound at once
  profile(slot, position, ids) -> {"decode", "prefill"}: as parts.profile gives them, of ours
"""

from dataclasses import dataclass

SLOTS = 4  # texts that a Decoder keeps apart


class Missing(Exception):
    pass


@dataclass(frozen=True)
class Variant:
    folder: str  # the environment under the repository's root
    requirements: str | None  # beside bench/requirements
    module: str
    form: str  # what `files` has for it, or the option of the peer
    exact: bool  # float32: its text is to be the oracle's, token by token
    width: float | None = None  # bytes of a weight's element; None: as the file stores it

    def __iter__(self):
        return iter((self.folder, self.requirements))


OURS = (".venv", None, "ours")
TRANSFORMERS = (".venv-transformers", "transformers.txt", "hugging_face")
VARIANTS = {
    "opgraft plain f32": Variant(*OURS, "plain", True, 4),
    "opgraft grafted f32": Variant(*OURS, "float32", True, 4),
    "opgraft grafted bf16": Variant(*OURS, "bfloat16", False, 2),
    "opgraft grafted Q4_1": Variant(*OURS, "stored", False),
    "transformers f32": Variant(*TRANSFORMERS, "sdpa", True, 4),
    "transformers f32, eager attention": Variant(*TRANSFORMERS, "eager", True, 4),
    "llama.cpp Q4_1": Variant(".venv-llama-cpp", "llama-cpp.txt", "llama_cpp_peer", "gguf", False),
}
