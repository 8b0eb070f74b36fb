"""GGUF files of the architecture llama: hyperparameters, weights, vocabulary."""

import dataclasses
import pathlib

import numpy as np
import opgraft
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize


class GGUFError(ValueError):
    """A file that is no model of this kind; the message names file and cause."""


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
        architecture = self.metadata("general.architecture")
        if architecture != "llama":
            raise GGUFError(f"{file}: architecture must be llama, got {architecture}")
        self.config = self._config()

    def metadata(self, key, default=None):
        field = self._reader.get_field(key)
        if field is not None:
            return field.contents()
        if default is None:
            raise GGUFError(f"{self.file}: {key} is missing")
        return default

    def _config(self):
        heads, width = self.metadata("llama.attention.head_count"), self.metadata("llama.embedding_length")
        config = LlamaConfig(
            vocab_size=self.metadata("llama.vocab_size", len(self.metadata("tokenizer.ggml.tokens"))),
            hidden_size=width,
            intermediate_size=self.metadata("llama.feed_forward_length"),
            num_hidden_layers=self.metadata("llama.block_count"),
            num_attention_heads=heads,
            num_key_value_heads=self.metadata("llama.attention.head_count_kv", heads),
            head_dim=self.metadata("llama.attention.key_length", width // max(heads, 1)),
            max_position_embeddings=self.metadata("llama.context_length"),
            rms_norm_eps=self.metadata("llama.attention.layer_norm_rms_epsilon"),
            rope_theta=self.metadata("llama.rope.freq_base", 10000.0),
            tie_word_embeddings="output.weight" not in self._tensors,
        )
        for field in dataclasses.fields(config):
            if field.type in (int, "int") and getattr(config, field.name) <= 0:
                raise GGUFError(f"{self.file}: {field.name} must be positive, got {getattr(config, field.name)}")
        if heads % config.num_key_value_heads or config.head_dim % 2:
            raise GGUFError(f"{self.file}: {heads} heads of {config.head_dim} over {config.num_key_value_heads} key "
                            "and value heads are not a llama")  # fmt: skip
        rotated = self.metadata("llama.rope.dimension_count", config.head_dim)
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
