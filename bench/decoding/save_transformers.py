"""FILE.gguf FOLDER: transformers reads the one and writes the other, in float32."""

import pathlib
import sys

import torch
import transformers

file, folder = map(pathlib.Path, sys.argv[1:])
model = transformers.LlamaForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, dtype=torch.float32)
if hasattr(model.config, "quantization_config"):
    del model.config.quantization_config
model.is_quantized, model.hf_quantizer = False, None
model.save_pretrained(folder)
