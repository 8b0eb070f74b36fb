"""LLaMA from GGUF files: `opgraft export examples/llama --model FILE.gguf -o llama.mindir`, `opgraft generate`."""

import opgraft
from opgraft.generation import Text

from .checkpoint import Checkpoint
from .model import LlamaForCausalLM, load
from .tokenizer import LlamaTokenizer

__all__ = ["Checkpoint", "LlamaForCausalLM", "LlamaTokenizer", "build", "load"]
WEIGHTS = {
    "float32": {"dtype": opgraft.float32}, "bfloat16": {"dtype": opgraft.bfloat16}, "stored": {"stored": True},
    "int8": {"int8": True},
}  # fmt: skip


def build(checkpoint, weights="float32", rows=None):
    """(LlamaForCausalLM with caches of `rows` tokens, the model's context where None; what goes with it in a file).

    weights: float32 or bfloat16, to which the file's are expanded; "stored": as the file has them, or "int8" with
    a scale for each row, float32 between them.
    """
    if weights not in WEIGHTS:
        raise ValueError(f"weights must be one of {', '.join(WEIGHTS)}, got {weights!r}")
    checkpoint = Checkpoint(checkpoint)
    most = checkpoint.config.max_position_embeddings
    rows = most if rows is None else rows
    if not 1 <= rows <= most:
        raise ValueError(f"rows must be in [1, {most}], the model's context, got {rows}")
    net = load(checkpoint, rows=rows, **WEIGHTS[weights])
    length = opgraft.dim("length")
    net.set_inputs(opgraft.Tensor(shape=[1, length], dtype=opgraft.int32),
                   opgraft.Tensor(shape=[length], dtype=opgraft.int32))  # fmt: skip
    tokenizer = LlamaTokenizer(checkpoint)
    forms = tokenizer.chat_form(), rows, tokenizer.system_form()
    return net, Text(tokenizer.to_json(), sorted(tokenizer.eos), *forms).user_info()
