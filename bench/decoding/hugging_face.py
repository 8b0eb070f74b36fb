"""transformers' LlamaForCausalLM in float32, eager (not compiled), with its DynamicCache; `form` is how it attends:
sdpa is what transformers takes by itself."""

import torch
import transformers
from transformers import DynamicCache, LlamaForCausalLM

from . import SLOTS, Missing


def VERSION():
    return f"transformers {transformers.__version__} with torch {torch.__version__}"


class Decoder:
    def __init__(self, files, threads, variant):
        torch.set_num_threads(threads)
        self.model = LlamaForCausalLM.from_pretrained(
            files["transformers"], dtype=torch.float32, attn_implementation=variant
        )
        self.model.eval()
        self.caches, self.last = [None] * SLOTS, None

    def begin(self, slot, ids):
        self.caches[slot] = DynamicCache(config=self.model.config)
        return self._run(slot, ids)

    def step(self, slot, position, token):
        if self.caches[slot].get_seq_length() != position:
            self.caches[slot].crop(position - self.caches[slot].get_seq_length())
        return self._run(slot, [token])

    def _run(self, slot, ids):
        with torch.inference_mode():
            out = self.model(torch.tensor([ids]), past_key_values=self.caches[slot], use_cache=True, logits_to_keep=1)
            self.last = out.logits[0, -1]
            return int(self.last.argmax())

    def logits(self):
        return self.last.numpy()

    def kv(self, slot):
        """An append concatenates one layer's keys, then its values: one such tensor is there twice."""
        sizes = [t.nbytes for layer in self.caches[slot].layers for t in (layer.keys, layer.values)]
        return {"bytes": sum(sizes), "peak": sum(sizes) + max(sizes)}

    def sequences(self, bound, ids):
        """A batch, as `kv` counts it."""
        of_one = self._batch(1, len(ids))
        count = bound // of_one
        return {"count": count, "bytes": self._batch(count, len(ids))}

    def _batch(self, count, length):
        self.caches[0] = DynamicCache(config=self.model.config)
        with torch.inference_mode():
            for part in (length - 1, 1):
                self.model(
                    torch.ones((count, part), dtype=torch.long), past_key_values=self.caches[0], logits_to_keep=1
                )
        return self.kv(0)["peak"]

    def profile(self, **_):
        raise Missing("no profile")
