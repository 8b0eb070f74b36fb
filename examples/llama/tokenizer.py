"""The tokenizer and the chat template of a GGUF file's own vocabulary."""

import json
import re

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from .checkpoint import GGUFError

_CONTROL = 3  # gguf.TokenType.CONTROL
_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # GPT-2's
_DIGITS = {"smollm"}  # kinds that split numbers into digits first
_KINDS = {*_DIGITS, "gpt-2", "default"}


def _raise_exception(message):
    raise TemplateError(message)


def environment():
    """Jinja as transformers sets it for chat templates, but for the date, so that a text stays what it is."""
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    made.globals["raise_exception"] = _raise_exception
    made.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    return made


class LlamaTokenizer:
    """encode, decode, chat; `eos`: ids that end a text."""

    def __init__(self, checkpoint):
        kind = checkpoint.metadata("tokenizer.ggml.model", str)
        pre = checkpoint.metadata("tokenizer.ggml.pre", str, "default")
        if kind != "gpt2" or pre not in _KINDS:
            known = ", ".join(sorted(_KINDS))
            raise GGUFError(f"{checkpoint.file}: tokenizer must be gpt2 with {known}, got {kind} with {pre}")
        self.tokens = checkpoint.array("tokenizer.ggml.tokens", str)
        merges = [tuple(m.split(" ", 1)) for m in checkpoint.array("tokenizer.ggml.merges", str)]
        types = checkpoint.array("tokenizer.ggml.token_type", int)
        try:
            self._tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(self.tokens)}, merges))
        except Exception as e:  # tokenizers raises just this
            raise GGUFError(f"{checkpoint.file}: its vocabulary is damaged: {e}") from None
        steps = [pre_tokenizers.Digits(individual_digits=True)] if pre in _DIGITS else []
        steps.append(pre_tokenizers.Split(Regex(_WORDS), "isolated"))
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
        self._tokenizer.decoder = decoders.ByteLevel()
        self._tokenizer.add_special_tokens(
            [AddedToken(t, special=True, normalized=False) for t, kind in zip(self.tokens, types) if kind == _CONTROL]
        )
        self.eos = {checkpoint.metadata("tokenizer.ggml.eos_token_id", int)}
        # Names that templates of transformers know.
        self._special = {f"{name}_token": self._token(checkpoint.metadata(f"tokenizer.ggml.{name}_token_id", int, -1))
                         for name in ("bos", "eos")}  # fmt: skip
        self._template = checkpoint.metadata("tokenizer.chat_template", str, "")
        self._file = checkpoint.file

    def _token(self, i):
        return self.tokens[i] if 0 <= i < len(self.tokens) else ""

    def encode(self, text):
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids):
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    def to_json(self):
        return self._tokenizer.to_str()

    def text(self, messages):
        """A conversation, [{"role": ..., "content": ...}, ...], up to where the answer begins."""
        if not self._template:
            raise GGUFError(f"{self._file}: has no chat template")
        try:
            template = environment().from_string(self._template)
            return template.render(messages=messages, add_generation_prompt=True, **self._special)
        except Exception as e:  # of Jinja, and whatever the template's own expressions raise
            raise GGUFError(f"{self._file}: chat template: {e}") from None

    def chat(self, messages):
        """The ids of a conversation."""
        return self.encode(self.text(messages))

    def chat_form(self):
        """What the template puts before and after the one thing that a person says, or None without a template."""
        if not self._template:
            return None
        form = self._around("user")
        if form is None:
            raise GGUFError(f"{self._file}: chat template: does not hold once what is said")
        return form

    def system_form(self):
        """The same before, between and after a system message and what a person says; None where the template takes no
        such message."""
        try:
            return self._around("system", "user") if self._template else None
        except GGUFError:  # templates raise where they want none
            return None

    def _around(self, *roles):
        marks = [f"\u2603{role}\u2603" for role in roles]
        text = self.text([{"role": role, "content": mark} for role, mark in zip(roles, marks)])
        if any(text.count(mark) != 1 for mark in marks):
            return None
        parts = re.split("|".join(marks), text)
        return tuple(parts) if text == "".join(p + m for p, m in zip(parts, [*marks, ""])) else None
