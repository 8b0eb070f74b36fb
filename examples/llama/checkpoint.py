"""GGUF files of the architecture llama: hyperparameters, weights, vocabulary."""

import dataclasses
import math
import pathlib

import numpy as np
import opgraft
from gguf import GGMLQuantizationType, GGUFReader
from gguf import GGUFValueType as Kind
from gguf.quants import dequantize

_WHOLE = {Kind.UINT8, Kind.INT8, Kind.UINT16, Kind.INT16, Kind.UINT32, Kind.INT32, Kind.UINT64, Kind.INT64}
# What metadata may be asked for.
_KINDS = {int: ("a whole number", _WHOLE), float: ("a number", _WHOLE | {Kind.FLOAT32, Kind.FLOAT64}),
          str: ("a text", {Kind.STRING})}  # fmt: skip
_MOST = 2**31 - 1  # of a hyperparameter


class GGUFError(ValueError):
    """A file that is no model of this kind; the message names file and cause."""


def _kind(field):
    return " of ".join(kind.name.lower() for kind in field.types)


@dataclasses.dataclass(frozen=True)
class LlamaConfig:
    """Hyperparameters by the names of transformers' LlamaConfig."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool


class Checkpoint:
    """A GGUF file, mapped into memory. `config`; `weights()`; `metadata(key)`."""

    def __init__(self, file):
        self.file = pathlib.Path(file)
        if not self.file.is_file():
            raise FileNotFoundError(f"{file}: no such file")
        with open(self.file, "rb") as f:
            magic = f.read(4)
        if magic != b"GGUF":
            raise GGUFError(f"{file}: is no GGUF file: it begins with {magic!r}")
        try:
            self._reader = GGUFReader(self.file)
        except Exception as e:  # of NumPy's, wherever the file ends before what its header says
            raise GGUFError(f"{file}: cannot be read, cut short or damaged: {e}") from None
        self._tensors = {t.name: t for t in self._reader.tensors}
        for t in self._reader.tensors:
            if (t.data_offset - self._reader.data_offset) % self._reader.alignment:
                raise GGUFError(f"{file}: cannot be read, cut short or damaged: tensor {t.name} begins at no multiple "
                                f"of {self._reader.alignment}")  # fmt: skip
        architecture = self.metadata("general.architecture", str)
        if architecture != "llama":
            raise GGUFError(f"{file}: architecture must be llama, got {architecture}")
        self.config = self._config()

    def metadata(self, key, kind, default=None):
        """A value of `kind`: int, float, str."""
        field = self._field(key, default)
        if field is None:
            return default
        name, kinds = _KINDS[kind]
        if field.types[0] not in kinds:
            raise GGUFError(f"{self.file}: {key} must be {name}, got {_kind(field)}")
        return self._contents(key, field)

    def array(self, key, kind):
        """A list of int or str."""
        field = self._field(key)
        name, kinds = _KINDS[kind]
        if field.types[0] != Kind.ARRAY or len(field.types) > 2 or not kinds.issuperset(field.types[1:]):
            raise GGUFError(f"{self.file}: {key} must be an array, each {name}, got {_kind(field)}")
        return self._contents(key, field)

    def _field(self, key, default=None):
        field = self._reader.get_field(key)
        if field is None and default is None:
            raise GGUFError(f"{self.file}: {key} is missing")
        return field

    def _contents(self, key, field):
        try:
            return field.contents()
        except UnicodeDecodeError:
            raise GGUFError(f"{self.file}: {key} must be UTF-8 text") from None

    def _config(self):
        def whole(key, default=None):
            return self.metadata(f"llama.{key}", int, default)

        heads, width = whole("attention.head_count"), whole("embedding_length")
        config = LlamaConfig(
            vocab_size=whole("vocab_size", len(self.array("tokenizer.ggml.tokens", str))),
            hidden_size=width,
            intermediate_size=whole("feed_forward_length"),
            num_hidden_layers=whole("block_count"),
            num_attention_heads=heads,
            num_key_value_heads=whole("attention.head_count_kv", heads),
            head_dim=whole("attention.key_length", width // max(heads, 1)),
            max_position_embeddings=whole("context_length"),
            rms_norm_eps=self.metadata("llama.attention.layer_norm_rms_epsilon", float),
            rope_theta=self.metadata("llama.rope.freq_base", float, 10000.0),
            tie_word_embeddings="output.weight" not in self._tensors,
        )
        for field in dataclasses.fields(config):
            if field.type in (int, "int") and not 0 < (got := getattr(config, field.name)) <= _MOST:
                limit = "positive" if got <= 0 else f"at most {_MOST}"
                raise GGUFError(f"{self.file}: {field.name} must be {limit}, got {got}")
        if not 1 <= config.rope_theta < math.inf:
            raise GGUFError(f"{self.file}: rope_theta must be a number of at least 1, got {config.rope_theta}")
        if heads % config.num_key_value_heads or config.head_dim % 2:
            raise GGUFError(f"{self.file}: {heads} heads of {config.head_dim} over {config.num_key_value_heads} key "
                            "and value heads are not a llama")  # fmt: skip
        rotated = whole("rope.dimension_count", config.head_dim)
        if rotated != config.head_dim:
            raise GGUFError(f"{self.file}: rope.dimension_count must be {config.head_dim}, got {rotated}")
        return config

    def _tensor(self, name, shape):
        if name not in self._tensors:
            raise GGUFError(f"{self.file}: tensor {name} is missing")
        tensor = self._tensors[name]
        got = tuple(int(n) for n in reversed(tensor.shape))
        if got != tuple(shape):
            raise GGUFError(f"{self.file}: tensor {name} must have shape {tuple(shape)}, got {got}")
        return tensor

    def weight(self, name, shape, dtype=opgraft.float32):
        """The tensor of the file's name as an array of dtype; what the file quantises is expanded."""
        tensor = self._tensor(name, shape)
        if tensor.tensor_type == GGMLQuantizationType.F32:
            data = tensor.data
        else:
            try:
                data = dequantize(tensor.data, tensor.tensor_type)
            except NotImplementedError:
                raise GGUFError(f"{self.file}: tensor {name} is of type {tensor.tensor_type.name}, which is not "
                                "known") from None  # fmt: skip
        return np.asarray(data, dtype).reshape(shape)

    def stored(self, name, shape):
        """(rows of blocks as the file has them, their format), or None where the tensor is not in such blocks."""
        tensor = self._tensor(name, shape)
        if tensor.tensor_type.name not in ("Q4_0", "Q4_1", "Q8_0"):
            return None
        return np.asarray(tensor.data), tensor.tensor_type.name.lower()


# A parameter of LlamaForCausalLM -> the file's tensor.
_PARTS = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
_LAYER_PARTS = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def tensor_name(parameter):
    """The file's name of a parameter of LlamaForCausalLM: layers.0.mlp.up_proj.weight -> blk.0.ffn_up.weight."""
    part, _, _ = parameter.rpartition(".")
    if part.startswith("layers."):
        _, layer, part = part.split(".", 2)
        return f"blk.{layer}.{_LAYER_PARTS[part]}.weight"
    return f"{_PARTS[part]}.weight"
