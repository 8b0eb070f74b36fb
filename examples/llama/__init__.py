"""LLaMA from GGUF files: `opgraft export examples/llama --model FILE.gguf -o llama.mindir`, `opgraft generate`."""

import opgraft
from opgraft.generation import Text

from .checkpoint import Checkpoint
from .model import LlamaForCausalLM, load
from .tokenizer import LlamaTokenizer

__all__ = ["Checkpoint", "LlamaForCausalLM", "LlamaTokenizer", "build", "load"]
WEIGHTS = {"float32": opgraft.float32, "bfloat16": opgraft.bfloat16, "stored": opgraft.float32}


def build(checkpoint, weights="float32", rows=None):
    """(LlamaForCausalLM with caches of `rows` tokens, the model's context where None; what goes with it in a file).

    weights: float32 or bfloat16, to which the file's are expanded, or "stored": as the file has them, float32 between.
    """
    if weights not in WEIGHTS:
        raise ValueError(f"weights must be one of {', '.join(WEIGHTS)}, got {weights!r}")
    checkpoint = Checkpoint(checkpoint)
    most = checkpoint.config.max_position_embeddings
    rows = most if rows is None else rows
    if not 1 <= rows <= most:
        raise ValueError(f"rows must be in [1, {most}], the model's context, got {rows}")
    net = load(checkpoint, WEIGHTS[weights], stored=weights == "stored", rows=rows)
    length = opgraft.dim("length")
    net.set_inputs(opgraft.Tensor(shape=[1, length], dtype=opgraft.int32),
                   opgraft.Tensor(shape=[length], dtype=opgraft.int32))  # fmt: skip
    tokenizer = LlamaTokenizer(checkpoint)
    return net, Text(tokenizer.to_json(), sorted(tokenizer.eos), tokenizer.chat_form(), rows).user_info()
