"""A session's runs into the caller's arrays."""

import numpy as np
import opgraft
import pytest
from opgraft import Parameter, Tensor, nn, ops

RNG = np.random.default_rng(5)


class Net(nn.Cell):
    """Two results: a product, and its sign turned."""

    def __init__(self):
        super().__init__()
        self.weight = Parameter(Tensor(RNG.standard_normal((48, 64), np.float32)))

    def construct(self, x):
        y = ops.matmul(x, self.weight)
        return y, ops.neg(y)


@pytest.fixture
def graph_mode():
    before = opgraft.get_context("mode")
    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    yield
    opgraft.set_context(mode=before)


@pytest.fixture
def run(graph_mode):
    """(session, x, its results, the Parameter)"""
    net, x = Net(), RNG.standard_normal((5, 48)).astype(np.float32)
    session = net.session(Tensor(x))
    return session, x, [a.copy() for a in session.run([x])], net.weight.asnumpy()


def test_results_come_into_the_callers_arrays(run):
    session, x, want, weight = run
    # Sums of 48 products, in any order.
    assert (
        abs(want[0] - x.astype(np.float64) @ weight) <= 48 * 2.0**-24 * (abs(x).astype(np.float64) @ abs(weight))
    ).all()
    out = [np.full((5, 64), np.nan, np.float32) for _ in range(2)]
    assert session.run_into([x], out) is None
    for got, expected in zip(out, want):
        np.testing.assert_array_equal(got, expected)
    session.run_into([2 * x], out)
    np.testing.assert_array_equal(out[0], 2 * want[0])


def test_results_that_are_held_do_not_change_with_the_next_run(graph_mode):
    x = RNG.standard_normal((10000, 48)).astype(np.float32)  # results whose memory is used again
    session = Net().session(Tensor(x))
    held = [session.run([x * 2**k]) for k in range(4)]
    for k, results in enumerate(held):
        np.testing.assert_array_equal(results[1], -results[0])
        np.testing.assert_array_equal(results[0], 2**k * held[0][0])
    del results
    place = held.pop()[0].ctypes.data
    assert place in [a.ctypes.data for a in session.run([x])]


@pytest.mark.parametrize(
    "wrong, error, text",
    [
        (lambda x, w, o: [], ValueError, "it gives results, got room for none"),
        (lambda x, w, o: [o], ValueError, "gives 2 outputs, got room for 1"),
        (lambda x, w, o: [o, o[:4].copy()], ValueError, r"output 1 must be float32\(5, 64\), got float32\(4, 64\)"),
        (lambda x, w, o: [o, o.astype(np.float64)], ValueError, "output 1 must be float32.*got float64"),
        (lambda x, w, o: [o.copy(order="F"), o], ValueError, "output 0 must be writable, contiguous.*that is not"),
        (lambda x, w, o: [o.astype(">f4"), o], ValueError, "output 0 must be .* of native byte order"),
        (lambda x, w, o: [np.broadcast_to(o[:1], (5, 64)), o], ValueError, "output 0 must be writable"),
        (lambda x, w, o: [np.frombuffer(o.tobytes(), np.float32).reshape(5, 64), o], ValueError, "that is read-only"),
        (lambda x, w, o: [o, o], ValueError, "output 1 must have memory of its own, got that of output 0"),
        (lambda x, w, o: [x.base[:320].reshape(5, 64), o], ValueError, "output 0 .* that of input 0"),
        (lambda x, w, o: [w.reshape(-1)[:320].reshape(5, 64), o], ValueError, "output 0 .* that of Parameter weight"),
        (lambda x, w, o: [[0.0], o], TypeError, "expected a NumPy array, got list"),
    ],
)
def test_places_that_results_cannot_go_to_are_refused(run, wrong, error, text):
    session, x, want, weight = run
    memory = np.zeros(1000, np.float32)
    memory[:240] = x.reshape(-1)
    given = memory[:240].reshape(5, 48)
    before = weight.copy()
    with pytest.raises(error, match=text):
        session.run_into([given], wrong(given, weight, np.zeros((5, 64), np.float32)))
    np.testing.assert_array_equal(given, x)
    np.testing.assert_array_equal(weight, before)
    np.testing.assert_array_equal(session.run([given])[0], want[0])


def test_a_result_that_is_an_input_is_copied(graph_mode):
    class Same(nn.Cell):
        def construct(self, x):
            return x, ops.reshape(x, (6,))

    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    out = [np.zeros((2, 3), np.float32), np.zeros(6, np.float32)]
    Same().session(Tensor(x)).run_into([x], out)
    np.testing.assert_array_equal(out[0], x)
    np.testing.assert_array_equal(out[1], x.reshape(6))
