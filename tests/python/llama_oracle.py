"""Writes llama_oracle.npz, what transformers makes of SmolLM2 in float32; test_llama_oracle.py compares with it.

    .venv-transformers/bin/python tests/python/llama_oracle.py FILE.gguf   (bench/requirements/transformers.txt)

transformers reads the GGUF file by itself: weights, vocabulary and chat template.
"""

import argparse
import pathlib

import numpy as np
import torch
import transformers

PROMPTS = [
    "What is the capital of France?",
    "Write a short story about a lighthouse keeper who finds a message in a bottle.",
    "Explain how photosynthesis works to a ten year old.",
    "List the planets of the solar system, with one fact about each.",
    "Write a Python function that returns the n-th Fibonacci number, and explain it.",
    "Translate to French: The weather is nice today, and we are going to the beach.",
    "What are the main differences between cats and dogs as pets?",
    "Give me a recipe for pancakes for four people.",
    "Why is the sky blue?",
    "Summarise the history of the Roman Empire in one paragraph.",
    "Write a poem about autumn leaves.",
    "How do I convince my boss to let me work from home two days a week?",
    "A train leaves at 14:05 and arrives at 17:50. How long does the journey take? Show each step.",
    "Name five inventions of the 19th century and who made them.",
    "Write a polite e-mail that declines an invitation to a wedding.",
    "What happens when you mix vinegar and baking soda?",
    "Describe the rules of chess for a beginner.",
    "Was ist der Unterschied zwischen Wetter und Klima?",
    "Compare TCP and UDP; when would you use which?",
    "Tell me about the deepest part of the ocean: its name, its depth, and what lives there.",
]
TOKENS, KEPT = 64, 400  # greedy tokens of each prompt; logits kept of each prompt's last token


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=pathlib.Path)
    file = parser.parse_args().gguf
    where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    model = transformers.LlamaForCausalLM.from_pretrained(**where, dtype=torch.float32, attn_implementation="eager")
    tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
    picked = np.sort(np.random.default_rng(0).choice(model.config.vocab_size, KEPT, replace=False))
    found = {"versions": f"transformers {transformers.__version__}, torch {torch.__version__}", "model": file.name,
             "prompts": PROMPTS, "picked": picked}  # fmt: skip
    prompts, texts, margins, logits = [], [], [], []
    for prompt in PROMPTS:
        said = [{"role": "user", "content": prompt}]
        ids = tokenizer.apply_chat_template(said, add_generation_prompt=True, return_dict=False)
        text, gaps, cache, step = [], [], None, torch.tensor([ids])
        for k in range(TOKENS):  # on after an end, too
            with torch.inference_mode():
                out = model(step, past_key_values=cache, use_cache=True)
            cache, last = out.past_key_values, out.logits[0, -1]
            if k == 0:
                logits.append(last[picked].numpy())
            best = torch.topk(last, 2).values
            text.append(int(last.argmax()))
            gaps.append(float(best[0] - best[1]))
            step = torch.tensor([[text[-1]]])
        prompts.append(ids)
        texts.append(text)
        margins.append(gaps)
        print(f"{min(gaps):.5f} {prompt} -> {tokenizer.decode(text)[:60]!r}", flush=True)
    longest = max(map(len, prompts))
    found["lengths"] = np.array([len(p) for p in prompts], np.int32)
    found["ids"] = np.array([p + [-1] * (longest - len(p)) for p in prompts], np.int32)
    found["greedy"], found["margins"] = np.array(texts, np.int32), np.array(margins, np.float32)
    found["logits"] = np.array(logits, np.float32)
    np.savez_compressed(pathlib.Path(__file__).with_suffix(".npz"), **found)


if __name__ == "__main__":
    main()
