"""Heads of keys that several of queries share, as MindSpore's models spell them, exported by MindSpore."""

import mindspore as ms
import numpy as np
import pytest
from helpers import close, normal, taken
from mindspore import Tensor, nn, ops

B, KV, N, S, T, D = 2, 2, 3, 5, 7, 8  # N query heads share one of KV


class FiveDimensions(nn.Cell):
    """The mask comes in five dimensions, too, added, or of bools that are true where a score stays."""

    def __init__(self, chosen):
        super().__init__()
        self.chosen = chosen

    def construct(self, q, k, v, m):
        s = ops.matmul(q.reshape(B, KV, N, S, D), k.expand_dims(2).swapaxes(3, 4)) / D**0.5
        s = ops.where(m, s, Tensor(-1e4, ms.float32)) if self.chosen else s + m
        return ops.matmul(ops.softmax(s, -1), v.expand_dims(2)).reshape(B, KV * N, S, D)


MASKS = {
    "of batches": (B, 1, 1, S, T),
    "of all batches": (1, 1, 1, S, T),
    "of each head": (B, KV, N, S, T),
    "of each head of keys": (1, KV, 1, 1, T),
    "of a group": (1, 1, N, S, T),
}


def given(mask):
    return normal(B, KV * N, S, D), normal(B, KV, T, D, seed=1), normal(B, KV, T, D, seed=2), mask


@pytest.mark.parametrize("chosen", [False, True], ids=["added", "chosen"])
@pytest.mark.parametrize("mask", MASKS)
def test_a_mask_of_five_dimensions(mask, chosen, tmp_path):
    m = normal(*MASKS[mask], seed=3)
    want, got, _ = taken(FiveDimensions(chosen), given(m > -0.5 if chosen else m), tmp_path)
    close(got, want)


class Mixed(nn.Cell):
    """Keys and values are repeated each in another way."""

    def __init__(self, k_by, v_by):
        super().__init__()
        self.by = k_by, v_by

    def repeated(self, x, by):
        if by == "broadcast_to":
            x = ops.broadcast_to(x[:, :, None], (B, KV, N, T, D))
        elif by == "tile":
            x = ops.tile(x.expand_dims(2), (1, 1, N, 1, 1))
        elif by == "stack":
            x = ops.stack((x,) * N, 2)
        elif by == "repeat_interleave":
            return ops.repeat_interleave(x, N, 1)
        else:
            return ops.gather(x, Tensor(np.repeat(np.arange(KV), N), ms.int32), 1)
        return x.reshape(B, KV * N, T, D)

    def construct(self, q, k, v, m):
        k, v = self.repeated(k, self.by[0]), self.repeated(v, self.by[1])
        s = ops.matmul(q, k.swapaxes(2, 3)) * (1.0 / D**0.5) + m
        return ops.bmm(ops.softmax(s, -1), v)


WAYS = ["broadcast_to", "tile", "stack", "gather", "repeat_interleave"]


@pytest.mark.parametrize("k_by,v_by", [*zip(WAYS, WAYS[1:] + WAYS[:1]), ("repeat_interleave", "repeat_interleave")])
def test_each_side_is_repeated_in_its_own_way(k_by, v_by, tmp_path):
    want, got, _ = taken(Mixed(k_by, v_by), given(normal(B, 1, S, T, seed=3)), tmp_path)
    close(got, want)
