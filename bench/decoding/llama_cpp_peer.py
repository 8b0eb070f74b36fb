"""llama.cpp by llama-cpp-python's low-level calls, which do no more than llama.cpp itself: the GGUF file as stored."""

import ctypes
import pathlib

import llama_cpp
import numpy as np

from . import SLOTS, Missing

ROWS = 2048  # of each text's cache, as of ours
_quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
llama_cpp.llama_log_set(_quiet, None)


def VERSION():
    return f"llama-cpp-python {llama_cpp.__version__}"


class Decoder:
    def __init__(self, files, threads, variant):
        how = llama_cpp.llama_model_default_params()
        if " amx_tile" in pathlib.Path("/proc/cpuinfo").read_text():
            how.use_extra_bufts = False  # its products by AMX crash (ggml-org/llama.cpp#20824)
        self.model = llama_cpp.llama_model_load_from_file(files[variant].encode(), how)
        if not self.model:
            raise Missing(f"{files[variant]} cannot be loaded")
        asked = llama_cpp.llama_context_default_params()
        asked.n_ctx, asked.n_seq_max, asked.n_threads, asked.n_threads_batch = ROWS, 1, threads, threads
        self.contexts = [llama_cpp.llama_init_from_model(self.model, asked) for _ in range(SLOTS)]
        vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.size = ctypes.c_float * vocabulary
        self.positions, self.last = [0] * SLOTS, None

    def begin(self, slot, ids):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.contexts[slot]), False)
        self.positions[slot] = 0
        return self._run(slot, ids)

    def step(self, slot, position, token):
        if self.positions[slot] != position:
            llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self.contexts[slot]), 0, position, -1)
            self.positions[slot] = position
        return self._run(slot, [token])

    def _run(self, slot, ids):
        tokens = (llama_cpp.llama_token * len(ids))(*ids)
        failed = llama_cpp.llama_decode(self.contexts[slot], llama_cpp.llama_batch_get_one(tokens, len(ids)))
        if failed:
            raise RuntimeError(f"llama_decode: {failed}")
        self.positions[slot] += len(ids)
        found = llama_cpp.llama_get_logits_ith(self.contexts[slot], -1)
        self.last = np.frombuffer(self.size.from_address(ctypes.addressof(found.contents)), np.float32)
        return int(np.argmax(self.last))

    def logits(self):
        return self.last

    def kv(self, slot):
        """Of float16, for all rows of the context at once; `bytes` are those of the rows filled."""
        model, rows = self.model, self.positions[slot]
        heads, queries = llama_cpp.llama_model_n_head_kv(model), llama_cpp.llama_model_n_head(model)
        row = 2 * 2 * llama_cpp.llama_model_n_layer(model) * heads * llama_cpp.llama_model_n_embd(model) // queries
        return {"bytes": rows * row, "peak": ROWS * row}

    def sequences(self, **_):
        raise Missing("takes its caches at once, for a stated context")

    def profile(self, **_):
        raise Missing("no profile")
