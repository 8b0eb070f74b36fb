"""Text from a model that keeps its own caches: (input_ids (1, S), position_ids (S,)) -> logits (1, 1, vocab), the
last token's.

What goes with the model (tokenizer, chat form, limits) stands in its file's user_info: see `Text`. The C++ program
opgraft_generate (infer/cli) reads the same and writes the same text.
"""

import dataclasses
import json
import time

import numpy as np

from . import _core
from .decoding import sample_token

_KEY = "opgraft.text"  # in user_info


@dataclasses.dataclass(frozen=True)
class Text:
    """tokenizer: as `tokenizers` writes it, JSON. eos: ids that end a text. chat: what stands before and after what a
    person says, where the model was made to answer. context: positions that there are. system: what stands before,
    between and after a system message and what a person says, where the chat form has one."""

    tokenizer: str
    eos: list[int]
    chat: tuple[str, str] | None
    context: int
    system: tuple[str, str, str] | None = None

    def user_info(self):
        return {_KEY: json.dumps(dataclasses.asdict(self))}

    @staticmethod
    def of(user_info):
        if _KEY not in user_info:
            raise ValueError(f"the model says nothing of a tokenizer: its user_info has no {_KEY}")
        try:
            fields = json.loads(user_info[_KEY])
            text = Text(fields["tokenizer"], [int(i) for i in fields["eos"]], _texts(fields["chat"], 2),
                        int(fields["context"]), _texts(fields.get("system"), 3))  # fmt: skip
        except (ValueError, KeyError, TypeError, RecursionError) as e:
            raise ValueError(f"the model's {_KEY} in user_info is damaged: {e!r}") from None
        if text.context < 1 or not isinstance(text.tokenizer, str):
            raise ValueError(f"the model's {_KEY} in user_info is damaged")
        return text


def _texts(found, n):
    if found is None:
        return None
    if not isinstance(found, list) or len(found) != n or not all(isinstance(t, str) for t in found):
        raise ValueError(f"{n} texts, got {found!r}")
    return tuple(found)


@dataclasses.dataclass
class Statistics:
    """Of one text. Seconds; memory in bytes."""

    prompt_tokens: int = 0
    tokens: int = 0
    first_token: float = 0.0
    rest: float = 0.0
    kv_bytes: int = 0
    end: str = ""  # "eos", "length", "interrupted"

    def to_dict(self):
        rate = (self.tokens - 1) / self.rest if self.tokens > 1 and self.rest > 0 else None
        prompt = self.prompt_tokens / self.first_token if self.first_token else None
        return {"prompt_tokens": self.prompt_tokens, "tokens": self.tokens, "first_token_ms": 1e3 * self.first_token,
                "prompt_tokens_per_s": prompt, "decode_tokens_per_s": rate, "kv_bytes": self.kv_bytes,
                "end": self.end}  # fmt: skip


class TextModel:
    """A model and its tokenizer; `session` keeps one text's caches."""

    def __init__(self, graph, text=None):
        from tokenizers import Tokenizer

        self.text = text or Text.of(graph.user_info)
        names = [graph.value_name(v) for v in graph.inputs]
        if names != ["input_ids", "position_ids"]:
            raise ValueError(f"the model must take input_ids and position_ids, got {', '.join(names) or 'nothing'}")
        self.model = _core.Model(graph)
        self.session = _core.Session(self.model)
        try:
            self.tokenizer = Tokenizer.from_str(self.text.tokenizer)
        except Exception as e:  # tokenizers raises just this
            raise ValueError(f"the model's tokenizer is damaged: {e}") from None

    def encode(self, prompt, chat=True, system=None):
        """Ids of what a person says, within the model's chat form where it has one; `system`: what the model is told
        before it."""
        said = (system or "") + prompt
        try:
            said.encode()
        except UnicodeEncodeError:
            raise ValueError("the prompt must be UTF-8 text") from None
        if system is not None:
            if not chat or self.text.system is None:
                what = "the model's file has none with a system message" if chat else "got a prompt outside of it"
                raise ValueError(f"a system message needs a chat form, {what}")
            before, between, after = self.text.system
            whole = before + system + between + prompt + after
        else:
            before, after = self.text.chat if chat and self.text.chat else ("", "")
            whole = before + prompt + after
        if self._spelled(whole) != whole:  # `tokenizers` drops what the vocabulary lacks
            lost = next((f"U+{ord(c):04X}" for c in said if self._spelled(c) != c), "the model's own chat form")
            raise ValueError(f"the model's vocabulary cannot spell {lost}")
        return self._ids(whole)

    def _ids(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def _spelled(self, text):
        return self.tokenizer.decode(self._ids(text), skip_special_tokens=False)

    def logits(self, ids, position):
        """(vocab,) after these ids, the first of which stands at `position`."""
        ids = np.asarray([ids], np.int32)
        return self.session.run([ids, np.arange(position, position + ids.shape[1], dtype=np.int32)])[0].reshape(-1)

    def generate(self, ids, max_tokens, temperature=0.0, top_k=0, top_p=1.0, seed=0, stop=lambda: False):
        """Yields (id, piece of text) as they come; returns Statistics. A text ends before an id of `eos`, and where
        `stop`, asked after each, says so."""
        ids = [int(i) for i in ids]
        if not ids:
            raise ValueError("generate: ids must not be empty")
        vocabulary = self.tokenizer.get_vocab_size()
        if bad := [i for i in ids if not 0 <= i < vocabulary]:
            raise ValueError(f"generate: ids must be in [0, {vocabulary}), got {bad[0]}")
        if len(ids) > self.text.context:
            raise ValueError(f"the prompt has {len(ids)} tokens, the model's context {self.text.context}")
        if not 0 <= seed < 2**32:
            raise ValueError(f"the seed must be in [0, {2**32 - 1}], got {seed}")
        # The Mersenne Twister, whose numbers are those of C++'s std::mt19937.
        rng, stats = np.random.RandomState(seed), Statistics(prompt_tokens=len(ids))
        pieces = self._pieces()
        position, begin = 0, time.perf_counter()
        self.session.reset()
        while not stats.end:
            logits = self.logits(ids, position)
            position += len(ids)
            uniform = np.float32(min(rng.random(), 1 - 2.0**-24))
            drawn = int(sample_token(logits, np.asarray(uniform), temperature, top_k, top_p))
            now = time.perf_counter()
            if stats.tokens == 0:
                stats.first_token, begin = now - begin, now
            stats.rest, stats.kv_bytes = now - begin, self.session.state_bytes
            if drawn in self.text.eos:
                stats.end = "eos"
                break
            stats.tokens += 1
            ids = [drawn]
            yield drawn, pieces.send(drawn)
            if stop():
                stats.end = "interrupted"
            elif stats.tokens >= max_tokens or position >= self.text.context:
                stats.end = "length"
        return stats

    def _pieces(self):
        """Takes ids, gives the text that each adds; a character's bytes wait until they are all there."""

        def pieces():
            ids, given = [], ""
            piece = ""
            while True:
                ids.append((yield piece))
                text = self.tokenizer.decode(ids, skip_special_tokens=True)
                piece = "" if text.endswith("\ufffd") else text[len(given) :]
                given += piece

        started = pieces()
        next(started)
        return started
