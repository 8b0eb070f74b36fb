"""opgraft: a model of `opgraft export` and `optimize`, or the plain one, which concatenates its caches."""

import numpy as np
import opgraft
from opgraft import _core

from . import SLOTS, parts


def VERSION():
    return f"opgraft {opgraft.__version__}"


class Decoder:
    def __init__(self, files, threads, variant):
        _core.set_threads(threads)
        self.graph = graph = opgraft.load(files[variant])
        self.concatenates = len(graph.inputs) > 2
        self.empty = [np.zeros([1, graph.dims(i)[1], 0, graph.dims(i)[3]], np.float32) for i in graph.inputs[2:]]
        self.model = _core.Model(graph)
        self.sessions = [_core.Session(self.model) for _ in range(SLOTS)]
        self.past, self.held = [self.empty] * SLOTS, [0] * SLOTS
        self.last = None

    def begin(self, slot, ids):
        if self.concatenates:
            self.past[slot] = self.empty
        else:
            self.sessions[slot].reset()
        return self._run(slot, 0, ids)

    def step(self, slot, position, token):
        if self.concatenates and self.past[slot][0].shape[2] != position:
            self.past[slot] = [np.ascontiguousarray(a[:, :, :position]) for a in self.past[slot]]
        return self._run(slot, position, [token])

    def _run(self, slot, position, ids):
        inputs = self._inputs(slot, position, ids)
        self.last, *new = self.sessions[slot].run(inputs)
        if self.concatenates:  # for this moment both are there
            self.held[slot] = sum(a.nbytes for a in inputs[2:] + new)
            self.past[slot] = new
        return int(np.argmax(self.last))

    def _inputs(self, slot, position, ids):
        ids = np.asarray([ids], np.int32)
        return [ids, np.arange(position, position + ids.shape[1], dtype=np.int32), *self.past[slot]]

    def logits(self):
        return self.last.reshape(-1)

    def kv(self, slot):
        if self.concatenates:
            return {"bytes": sum(a.nbytes for a in self.past[slot]), "peak": self.held[slot]}
        return {"bytes": self.sessions[slot].state_bytes, "peak": self.sessions[slot].state_bytes}

    def sequences(self, bound, ids):
        """How many texts of ids fit `bound` bytes, and the bytes they take. In place each has its session, and goes on
        until the bound refuses one; concatenated caches of a batch are there twice while it is appended to."""
        if self.concatenates:
            of_one = self._batch(1, len(ids) - 1)
            count = bound // of_one
            return {"count": count, "bytes": self._batch(count, len(ids) - 1)}
        model = _core.Model(self.graph)
        model.limit_state(bound)
        found, used = [], 0
        try:
            while True:
                found.append(_core.Session(model))
                for position, part in ((0, ids[:-1]), (len(ids) - 1, ids[-1:])):
                    places = np.arange(position, position + len(part), dtype=np.int32)
                    found[-1].run([np.asarray([part], np.int32), places])
                used = model.state_bytes
        except MemoryError:
            return {"count": len(found) - 1, "bytes": used}

    def _batch(self, count, length):
        """Bytes of the caches before and after an append to `count` texts at once."""
        past = [np.zeros((count, a.shape[1], length, a.shape[3]), a.dtype) for a in self.empty]
        inputs = [np.ones((count, 1), np.int32), np.array([length], np.int32), *past]
        new = self.sessions[0].run(inputs)[1:]
        return sum(a.nbytes for a in past + new)

    def profile(self, slot, position, ids, runs=8):
        """Of a step at `position`, and of a text's first tokens `ids`."""
        decode = parts.profile(self.sessions[slot], self._inputs(slot, position, ids[:1]), runs)
        self.past[slot] = self.empty
        return {"decode": decode, "prefill": parts.profile(self.sessions[slot], self._inputs(slot, 0, ids), runs)}
