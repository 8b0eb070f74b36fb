"""Assign and its like: what they change, in eager calls, in Cells, in sessions and files."""

import numpy as np
import opgraft
import pytest
from opgraft import Parameter, Tensor, _core, nn, ops, rewrite

RNG = np.random.default_rng(0)


def normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "int64"])
@pytest.mark.parametrize("function,formula", [
    (ops.assign, lambda p, x: x), (ops.assign_add, lambda p, x: p + x), (ops.assign_sub, lambda p, x: p - x),
])  # fmt: skip
def test_the_variable_changes_in_place(function, formula, dtype):
    dtype = opgraft.dtype.to_dtype(dtype, "dtype")
    p, x = (10 * normal(5, 7)).astype(dtype), (10 * normal(5, 7)).astype(dtype)
    wide = np.float32 if dtype.kind not in "i" else dtype  # halves add in float32 and round once
    want = formula(p.astype(wide), x.astype(wide)).astype(dtype)
    variable = Parameter(p.copy())
    assert function(variable, Tensor(x)) is variable
    assert variable.asnumpy().tobytes() == want.tobytes()


def test_what_does_not_fit_changes_nothing():
    p = Parameter(np.ones((2, 3), np.float32))
    for value, error in [
        (np.ones((2, 1), np.float32), r"value.shape must equal variable.shape \(2, 3\), got \(2, 1\)"),
        (np.ones((2, 3), np.float64), "value.dtype must equal variable.dtype float32, got float64"),
        (2.0, r"value.shape must equal variable.shape \(2, 3\), got \(\)"),
    ]:
        with pytest.raises((ValueError, TypeError), match=f"Assign: {error}"):
            ops.assign(p, value)
    with pytest.raises(TypeError, match="AssignAdd: variable must be a Parameter or a Tensor, got ndarray"):
        ops.assign_add(np.ones(3, np.float32), np.ones(3, np.float32))
    np.testing.assert_array_equal(p.asnumpy(), 1)


def test_the_value_may_be_the_variable():
    p = Parameter(normal(50_000))
    want = p.asnumpy() * 2
    ops.assign(p, p)
    ops.assign_add(p, p)
    np.testing.assert_array_equal(p.asnumpy(), want)


class Average(nn.Cell):
    """A moving average of what it sees, and how often it was asked."""

    def __init__(self):
        super().__init__()
        self.mean = Parameter(np.zeros((2, 3), np.float32))
        self.count = Parameter(np.zeros((1,), np.int64))

    def construct(self, x):
        before = self.mean * 1.0
        ops.assign(self.mean, self.mean * 0.5 + x * 0.5)
        ops.assign_add(self.count, np.ones(1, np.int64))
        return self.mean - before, self.count * 10


def expected(xs):
    mean = np.zeros((2, 3), np.float32)
    for i, x in enumerate(xs):
        new = mean * np.float32(0.5) + x * np.float32(0.5)
        yield new - mean, np.array([10 * (i + 1)])
        mean = new


def check(run, xs):
    for x, want in zip(xs, expected(xs)):
        for got, w in zip(run(x), want, strict=True):
            np.testing.assert_array_equal(got, w)


XS = [normal(2, 3) for _ in range(4)]


@pytest.mark.parametrize("mode", [opgraft.PYNATIVE_MODE, opgraft.GRAPH_MODE])
def test_a_cell_updates_its_parameters(mode):
    opgraft.set_context(mode=mode)
    cell = Average()
    check(lambda x: [y.asnumpy() for y in cell(x)], XS)
    assert cell.count.asnumpy() == 4


def test_sessions_of_a_file_have_their_own(tmp_path):
    graph = opgraft.load(opgraft.export(Average(), Tensor(XS[0]), file_name=tmp_path / "average"))
    model = _core.Model(graph)
    for session in (_core.Session(model), _core.Session(model)):
        check(lambda x, session=session: session.run([x]), XS)
        session.reset()
        check(lambda x, session=session: session.run([x]), XS[:2])
    fork = session.fork()
    for s in (session, fork):
        np.testing.assert_array_equal(s.run([XS[2]])[0], list(expected(XS))[2][0])


class Between(nn.Cell):
    """SiLU spelled out, with an update of what it reads in the middle; `after`: outside of it."""

    def __init__(self, after):
        super().__init__()
        self.p, self.after = Parameter(normal(2, 3)), after

    def construct(self, x):
        s = ops.sigmoid(self.p)
        if not self.after:
            ops.assign_add(self.p, x)
        y = self.p * s
        if self.after:
            ops.assign_add(self.p, x)
        return y


@pytest.mark.parametrize("after", [True, False])
def test_no_swap_carries_a_read_over_an_update(after):
    cell = Between(after)
    p = cell.p.asnumpy().copy()
    graph, _ = cell._trace([(np.dtype(np.float32), (2, 3))], opgraft.trace.flatten(((Tensor(XS[0]),), {}), []))
    report = rewrite.substitute(graph)
    assert [s["op"].split("@")[0] for s in report.swapped] == (["SiLU"] if after else [])
    if not after:
        assert any("updated in place changes in between" in left["why"] for left in report.left), report.left
    session = _core.Session(_core.Model(graph))
    for x in XS:
        want = (p if after else p + x) / (1 + np.exp(-p.astype(np.float64)))
        # SiLU within 4.2e-7, Sigmoid too (aot_ops/elementwise/README.md), and a product's rounding
        np.testing.assert_allclose(session.run([x])[0], want, rtol=4.2e-7 + 1.01 * 2.0**-24, atol=0)
        p += x


def test_a_variable_must_be_a_parameter_or_an_input():
    class Computed(nn.Cell):
        def construct(self, x):
            return ops.assign(x * 2, x)

    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    with pytest.raises(ValueError, match="Assign: variable is updated in place and must be a Parameter or an input of "
                       "the model, got a computed value"):  # fmt: skip
        Computed()(Tensor(XS[0]))


def test_a_parameter_that_a_graph_updates_has_a_name():
    p = Parameter(np.ones((2, 3), np.float32))
    update = opgraft.jit(lambda x: ops.assign_add(p, x) * 1.0)
    with pytest.raises(ValueError, match="AssignAdd: a Parameter that a graph updates in place must have a name"):
        update(Tensor(np.ones((2, 3), np.float32)))
    np.testing.assert_array_equal(p.asnumpy(), np.ones((2, 3)))
    ops.assign(p, Tensor(np.zeros((2, 3), np.float32)))  # one by one it may
    with pytest.raises(ValueError, match="must have a name"):
        update(Tensor(np.ones((2, 3), np.float32)))


def read_only(tmp_path, kind):
    """An array of 4 ones that may not be updated in place, or whose memory a tensor does not share."""
    if kind == "memory map":
        np.save(tmp_path / "ones.npy", np.ones(4, np.float32))
        return np.load(tmp_path / "ones.npy", mmap_mode="r")
    x = {
        "read-only": np.ones(4, np.float32),
        "strided": np.ones(8, np.float32)[::2],
        "misaligned": np.frombuffer(bytearray(b"\0" + np.ones(4, np.float32).tobytes()), np.uint8)[1:].view(np.float32),
        "other byte order": np.ones(4, ">f4"),
    }[kind]
    x.flags.writeable = kind != "read-only"
    return x


FIXED = "is updated in place and must be writable, contiguous, aligned and of native byte order"


@pytest.mark.parametrize("kind", ["memory map", "read-only", "strided", "misaligned", "other byte order"])
def test_what_cannot_be_updated_is_refused(tmp_path, kind):
    """Of a copy the update would be lost without a word, in memory that is only mapped to be read the process ends."""
    x = read_only(tmp_path, kind)
    g = _core.Graph("m")
    state, one = g.add_input("state", 43, [4]), g.add_constant(np.ones(4, np.float32))
    g.set_outputs([g.add_node("AssignAdd", [state, one], {})[1][0]], ["y"])
    with pytest.raises(ValueError, match=f"input state {FIXED}"):
        _core.Session(_core.Model(g)).run([x])
    with pytest.raises(ValueError, match=f"AssignAdd: input 0 {FIXED}"):
        _core.run_op(_core.resolve("AssignAdd"), [x, np.ones(4, np.float32)], {})
    np.testing.assert_array_equal(x, 1)


class Counts(nn.Cell):
    def __init__(self, x):
        super().__init__()
        self.n = Parameter(Tensor(x), name="n")

    def construct(self, x):
        return ops.assign_add(self.n, x)


@pytest.mark.parametrize("mode", [opgraft.PYNATIVE_MODE, opgraft.GRAPH_MODE])
@pytest.mark.parametrize("kind", ["memory map", "read-only"])
def test_a_parameter_of_read_only_memory_is_not_updated(tmp_path, kind, mode):
    x, before = read_only(tmp_path, kind), opgraft.get_context("mode")
    opgraft.set_context(mode=mode)
    try:
        with pytest.raises(ValueError, match=FIXED):
            Counts(x)(Tensor(np.ones(4, np.float32)))
    finally:
        opgraft.set_context(mode=before)
    np.testing.assert_array_equal(x, 1)
