"""LLaMA in its plain form: every normalisation, rotation and attention spelled out in primitives."""

import numpy as np
import opgraft
from opgraft import Parameter, nn, ops

from .checkpoint import Checkpoint, tensor_name


class RMSNorm(nn.Cell):
    """x / sqrt(mean of x^2 + eps) * weight over the last dimension, the mean in float32."""

    def __init__(self, width, eps, dtype):
        super().__init__()
        self.weight = Parameter(np.ones(width, dtype))
        self.eps = eps

    def construct(self, x):
        wide = ops.cast(x, opgraft.float32)
        wide = wide * ops.rsqrt(ops.mean(ops.square(wide), -1, keep_dims=True) + self.eps)
        return ops.cast(wide, x.dtype) * self.weight


def rotated(x, cos, sin):
    """Pairs (x[2i], x[2i + 1]) turned by the angles of cos and sin, which have an entry for each element. GGUF's query
    and key rows stand in this order."""
    even, odd = x[..., ::2], x[..., 1::2]
    turned = ops.concat([ops.expand_dims(ops.neg(odd), -1), ops.expand_dims(even, -1)], -1).reshape(x.shape)
    return x * cos + turned * sin


class Attention(nn.Cell):
    """Past keys and values are concatenated with the new ones, or, with `rows`, kept in caches of so many rows that are
    updated in place: Parameters, of which a session has its own."""

    def __init__(self, config, dtype, rows=None):
        super().__init__()
        self.heads, self.kv_heads, self.size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        width, kv = self.heads * self.size, self.kv_heads * self.size

        def dense(n_in, n_out):
            return nn.Dense(n_in, n_out, weight_init="zeros", has_bias=False, dtype=dtype)

        self.q_proj, self.o_proj = dense(config.hidden_size, width), dense(width, config.hidden_size)
        self.k_proj, self.v_proj = dense(config.hidden_size, kv), dense(config.hidden_size, kv)
        self.rows = rows
        if rows is not None:
            self.k_cache, self.v_cache = (
                Parameter(np.zeros((1, self.kv_heads, rows, self.size), dtype), requires_grad=False) for _ in range(2)
            )

    def construct(self, x, cos, sin, position_ids, mask=None, past_key=None, past_value=None):
        batch, length, _ = x.shape

        def split(y, heads):
            return y.reshape(batch, length, heads, self.size).transpose(0, 2, 1, 3)

        def joined(y):
            return self.o_proj(y.transpose(0, 2, 1, 3).reshape(batch, length, self.heads * self.size))

        q = rotated(split(self.q_proj(x), self.heads), cos, sin)
        key = rotated(split(self.k_proj(x), self.kv_heads), cos, sin)
        value = split(self.v_proj(x), self.kv_heads)
        if self.rows is not None:
            lengths = ops.kv_cache_append(self.k_cache, self.v_cache, key, value, position_ids)
            return (joined(ops.cached_attention(q, self.k_cache, self.v_cache, lengths)),)
        key, value = ops.concat([past_key, key], 2), ops.concat([past_value, value], 2)
        scores = ops.bmm(q, self._repeated(key), transpose_b=True) * self.size**-0.5 + mask
        mixed = ops.bmm(ops.softmax(scores, -1), self._repeated(value))
        return joined(mixed), key, value

    def _repeated(self, x):
        """Every key or value head once for each of its query heads."""
        groups, (batch, heads, length, size) = self.heads // self.kv_heads, x.shape
        x = ops.broadcast_to(ops.expand_dims(x, 2), (batch, heads, groups, length, size))
        return x.reshape(batch, self.heads, length, size)


class Embedding(nn.Embedding):
    """nn.Embedding whose table is the last layer's weight, too."""

    def project(self, x):
        return ops.matmul(x, self.embedding_table, transpose_b=True)


class StoredDense(nn.Cell):
    """nn.Dense without a bias over a weight as the file stores it: rows of blocks, (N, bytes)."""

    def __init__(self, weight, format):
        super().__init__()
        self.weight, self.format = Parameter(weight, requires_grad=False), format

    def construct(self, x):
        return ops.block_quant_matmul(x, self.weight, self.format)


class StoredEmbedding(StoredDense):
    """Embedding over a table as the file stores it."""

    def construct(self, indices):
        return ops.block_quant_gather(self.weight, indices, self.format)

    def project(self, x):
        return super().construct(x)


class ChannelDense(nn.Cell):
    """nn.Dense without a bias over a weight of eight bits, (N, K), with a scale for each row; x is turned into eight
    bits, too, each of its rows with a scale of its own."""

    def __init__(self, weight):
        super().__init__()
        codes, scale = ops.DynamicQuantExt()(opgraft.Tensor(weight))
        self.weight = Parameter(codes, requires_grad=False)
        self.scale = Parameter(scale, requires_grad=False)

    def construct(self, x):
        rows, token = ops.DynamicQuantExt()(x.reshape(-1, x.shape[-1]))
        y = ops.quant_batch_matmul(rows, self.weight, self.scale, pertokenScaleOptional=token, transpose_x2=True,
                                   dtype=x.dtype)  # fmt: skip
        return y.reshape(*x.shape[:-1], self.weight.shape[0])


class ChannelEmbedding(ChannelDense):
    """Embedding over such a table."""

    def construct(self, indices):
        rows = ops.cast(ops.gather(self.weight, indices), opgraft.float32)
        return rows * ops.gather(self.scale, indices).expand_dims(-1)

    def project(self, x):
        return super().construct(x)


class MLP(nn.Cell):
    def __init__(self, config, dtype):
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Dense(width, inner, weight_init="zeros", has_bias=False, dtype=dtype)
        self.up_proj = nn.Dense(width, inner, weight_init="zeros", has_bias=False, dtype=dtype)
        self.down_proj = nn.Dense(inner, width, weight_init="zeros", has_bias=False, dtype=dtype)

    def construct(self, x):
        return self.down_proj(ops.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Cell):
    def __init__(self, config, dtype, rows):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.self_attn = Attention(config, dtype, rows)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.mlp = MLP(config, dtype)

    def construct(self, x, *where_and_past):
        mixed, *present = self.self_attn(self.input_layernorm(x), *where_and_past)
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), *present


class LlamaForCausalLM(nn.Cell):
    """(input_ids (B, S) int32, position_ids (S,) int32, past keys and values (B, Hkv, T, D), two for each layer) ->
    (logits (B, S, vocab), or (B, 1, vocab) of the last token; keys and values (B, Hkv, T + S, D), as they came)."""

    def __init__(self, config, dtype=opgraft.float32, rows=None, last_only=True):
        super().__init__()
        self.config, self.last_only = config, last_only
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, embedding_table="zeros", dtype=dtype)
        self.layers = nn.CellList(Layer(config, dtype, rows) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Dense(config.hidden_size, config.vocab_size, weight_init="zeros", has_bias=False,
                                    dtype=dtype)  # fmt: skip
        # Python's power and not NumPy's, which is another one on some CPUs: opgraft_generate has the same tables.
        inverse = [config.rope_theta ** (-i / config.head_dim) for i in range(0, config.head_dim, 2)]
        angles = np.repeat(np.outer(np.arange(config.max_position_embeddings), inverse), 2, axis=1)
        self.cos_table = Parameter(np.cos(angles).astype(dtype), requires_grad=False)
        self.sin_table = Parameter(np.sin(angles).astype(dtype), requires_grad=False)
        self.places = Parameter(np.arange(config.max_position_embeddings, dtype=np.int32), requires_grad=False)

    def construct(self, input_ids, position_ids, *past):
        x = self.embed_tokens(input_ids)
        cos, sin = ops.gather(self.cos_table, position_ids), ops.gather(self.sin_table, position_ids)
        where = [cos, sin, position_ids]
        if past:
            seen = self.places[: past[0].shape[2] + input_ids.shape[1]]
            hidden = ops.greater(seen.expand_dims(0), position_ids.expand_dims(1))
            where.append(ops.cast(hidden, x.dtype) * -10000.0)
        present = []
        for i, layer in enumerate(self.layers):
            x, *kept = layer(x, *where, *past[2 * i : 2 * i + 2])
            present += kept
        if self.last_only:
            x = x[:, -1:]
        x = self.norm(x)
        logits = self.embed_tokens.project(x) if self.config.tie_word_embeddings else self.lm_head(x)
        return logits, *present


def load(file, dtype=opgraft.float32, stored=False, int8=False, **more):
    """LlamaForCausalLM with the weights of a GGUF file: expanded to dtype; as `stored`, where the file has blocks; or
    in `int8`, every row with a scale."""
    checkpoint = file if isinstance(file, Checkpoint) else Checkpoint(file)
    net = LlamaForCausalLM(checkpoint.config, dtype, **more)
    for name, cell in list(net.cells_and_names()) if stored or int8 else []:
        if not isinstance(cell, (nn.Dense, Embedding)):
            continue
        table = isinstance(cell, Embedding)
        tensor, shape = tensor_name(f"{name}.weight"), (cell.embedding_table if table else cell.weight).shape
        parent, _, key = name.rpartition(".")
        if int8:
            kind, found = ChannelEmbedding if table else ChannelDense, (checkpoint.weight(tensor, shape),)
        else:
            kind, found = StoredEmbedding if table else StoredDense, checkpoint.stored(tensor, shape)
        if found is not None:
            setattr(dict(net.cells_and_names())[parent], key, kind(*found))
    for name, parameter in net.parameters_dict().items():
        expanded = parameter.dtype not in (np.uint8, np.int8)
        if expanded and (name.endswith("weight") or name.endswith("embedding_table")):
            parameter.set_data(checkpoint.weight(tensor_name(name), parameter.shape, parameter.dtype))
    return net
