"""Arguments of an eager Cell are the caller's objects; traced, they keep their structure."""

import collections

import numpy as np
import opgraft
import pytest
from opgraft import Tensor, jit, nn, ops

Pair = collections.namedtuple("Pair", "a b")
X = np.ones((2, 3), np.float32)


class Call(nn.Cell):
    """A Cell that applies a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def construct(self, *args, **kwargs):
        return self.function(*args, **kwargs)


def test_what_construct_puts_into_a_container_is_seen_outside():
    keep = Call(lambda x, cache, out=None: (cache.append(x), out.update(h=x + 1)))
    cache, out = [], {}
    Call(lambda x: (keep(x, cache, out=out), keep(x, cache, out=out)))(X)
    assert len(cache) == 2 and out["h"].asnumpy()[0, 0] == 2


@pytest.mark.parametrize("given", [
    Pair(X, Tensor(X)), Pair(Tensor(X), Tensor(X)), collections.OrderedDict(b=X, a=X), collections.deque([Tensor(X)]),
    [X, {"k": (X, 1)}], collections.defaultdict(list, a=X), slice(0, 1), {1, 2}, bytearray(b"ab"),
], ids=lambda given: type(given).__name__)  # fmt: skip
def test_arguments_keep_their_type_and_arrays_become_tensors(given):
    def arrays(tree):
        if isinstance(tree, dict):
            tree = list(tree.values())
        return sum(map(arrays, tree)) if isinstance(tree, (tuple, list)) else isinstance(tree, np.ndarray)

    cell = Call(lambda x, tree: tree)
    got = cell(X, given)
    assert type(got) is type(given) and arrays(got) == 0
    assert (got is given) == (arrays(given) == 0)
    if isinstance(given, dict):
        assert list(got) == list(given) and getattr(got, "default_factory", None) is getattr(
            given, "default_factory", None
        )


def test_a_slice_and_a_named_tuple_in_both_modes():
    cut = Call(lambda x, index: x[index])
    both = Call(lambda pair: Pair(pair.a + pair.b, ops.relu(pair.a)))
    for mode in (opgraft.PYNATIVE_MODE, opgraft.GRAPH_MODE):
        opgraft.set_context(mode=mode)
        got = both(Pair(X, X))
        assert type(got) is Pair and got.a.asnumpy()[0, 0] == 2
    got = jit(lambda pair: [pair])(Pair(X, 3))[0]
    assert type(got) is Pair and got.b == 3 and isinstance(got.a, Tensor)
    opgraft.set_context(mode=opgraft.PYNATIVE_MODE)
    assert cut(X, slice(0, 1)).shape == (1, 3)


def test_the_first_call_that_can_be_traced_tells_what_to_trace():
    cell = Call(lambda x, rest=None: x * 2)
    cell(X, rest={1})
    assert cell._specs is None
    cell(X)
    assert cell._specs[0] == [(X.dtype, X.shape)]
