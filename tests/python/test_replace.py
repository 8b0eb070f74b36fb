"""rewrite.replace_cell: what goes in place of cells, what a proof keeps, and that the order of cells stays."""

import numpy as np
import opgraft
import pytest
from compare import SLOPE, close
from opgraft import nn, ops, rewrite


def model():
    return nn.SequentialCell(nn.Dense(4, 8), nn.GELU(False), nn.Dense(8, 4), nn.Dropout(), nn.GELU(False))


def normal(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("mode", [opgraft.PYNATIVE_MODE, opgraft.GRAPH_MODE])
def test_a_custom_operator_in_place_of_a_cell_after_the_first_call(mode):
    opgraft.set_context(mode=mode)
    net, x = model(), normal(3, 4)
    before = net(x).asnumpy()
    # Of both sides: a product of 4 terms and one of 8, each with a bias, 8 roundings of each GELU.
    terms = np.abs(x) @ np.abs(net[0].weight.asnumpy()).T @ np.abs(net[2].weight.asnumpy()).T
    roundings = 2 * (SLOPE**2 * (4 + 1) + SLOPE * 8 + SLOPE * (8 + 1) + 8)
    seen = []

    def factory(cell):
        seen.append(cell)
        return ops.Custom.from_op("FusedGeLU", approximate="none")

    report = rewrite.replace_cell(net, nn.GELU, factory, prove=(x,))
    assert [s["node"] for s in report.swapped] == ["1", "4"] and len(seen) == 2 and report.left == []
    for s in report.swapped:
        assert s["op"] == "FusedGeLU" and 0 <= s["mean_abs"] <= s["max_abs"] < 1e-5
        assert s["ms_before"] > 0 and s["ms_after"] > 0
    close(net(x).asnumpy(), before, roundings, terms)
    assert "FusedGeLU" in str(report) and not any(isinstance(c, nn.GELU) for c in net)
    unproven = rewrite.replace_cell(net, nn.Dense, lambda cell: lambda x: ops.matmul(x, cell.weight, False, True) * 0)
    assert [s["max_abs"] for s in unproven.swapped] == [None, None]
    assert (net(x).asnumpy() == 0).all()


def test_what_disagrees_stays():
    net, x = model(), normal(3, 4)
    before = net(x).asnumpy()
    report = rewrite.replace_cell(net, nn.GELU, lambda cell: nn.ReLU(), prove=(x,))
    assert report.matched == 2 and report.swapped == []
    assert [x["node"] for x in report.left] == ["1", "4"]
    assert all("the results differ: element 0" in x["why"] for x in report.left)
    np.testing.assert_array_equal(net(x).asnumpy(), before)


def test_a_proof_is_at_two_sizes():
    class Rows(nn.Cell):  # right for three rows
        def construct(self, x):
            return ops.gelu(x, "none") if x.shape[0] == 3 else x

    report = rewrite.replace_cell(model(), nn.GELU, lambda cell: Rows(), prove=(normal(3, 4),))
    assert report.swapped == [] and "the results differ" in report.left[0]["why"]


def test_only_faster():
    class Slow(nn.Cell):
        def construct(self, x):
            for _ in range(20):
                ops.gelu(x, "none")
            return ops.gelu(x, "none")

    x = normal(64, 4)
    report = rewrite.replace_cell(model(), nn.GELU, lambda cell: Slow(), prove=(x,), only_faster=True)
    assert report.swapped == [] and all("not 5 % faster" in left["why"] for left in report.left)
    report = rewrite.replace_cell(
        nn.SequentialCell(Slow()), Slow, lambda _: nn.GELU(False), prove=(x,), only_faster=True
    )
    assert len(report.swapped) == 1


def test_what_is_left_alone_and_why():
    class Unused(nn.Cell):
        def __init__(self):
            super().__init__()
            self.used, self.other = nn.ReLU(), nn.ReLU()

        def construct(self, x):
            return self.used(x)

    net = Unused()
    report = rewrite.replace_cell(net, nn.ReLU, lambda cell: ops.relu, prove=(normal(2),))
    assert [s["node"] for s in report.swapped] == ["used"]
    assert report.left == [{"op": "ReLU", "node": "other", "why": "the proof's inputs do not reach it"}]
    report = rewrite.replace_cell(net, nn.Cell, lambda cell: None)
    assert {x["why"] for x in report.left} == {"the factory gave no other cell"}


def test_refusals():
    net = model()
    with pytest.raises(ValueError, match="replace_cell: prove must be inputs of the model, got none"):
        rewrite.replace_cell(net, nn.GELU, lambda cell: nn.ReLU(), prove=())
    with pytest.raises(ValueError, match="replace_cell: only_faster needs prove=inputs"):
        rewrite.replace_cell(net, nn.GELU, lambda cell: nn.ReLU(), only_faster=True)
    with pytest.raises(TypeError, match="factory must return a Cell or a callable, got int"):
        rewrite.replace_cell(net, nn.GELU, lambda cell: 3)
    with pytest.raises(TypeError, match="net must be a Cell, got list"):
        rewrite.replace_cell([], nn.GELU, lambda cell: nn.ReLU())


class Masked(nn.Cell):
    def construct(self, x, mask=None, *, scale=1.0):
        return (ops.relu(x) if mask is None else ops.relu(x) * mask) * scale


class Calls(nn.Cell):
    """Calls a cell in a way of its own."""

    def __init__(self, cell, call):
        super().__init__()
        self.cell, self.call = cell, call

    def construct(self, x):
        return self.call(self.cell, x)


CALLS = {
    "keywords": lambda cell, x: cell(x, mask=x, scale=2.0),
    "construct": lambda cell, x: cell.construct(x),
    "under jit": opgraft.jit(lambda cell, x: cell(x)),
}


@pytest.mark.parametrize("how", CALLS)
def test_a_cell_is_swapped_however_it_is_called(how):
    class Other(nn.Cell):
        def construct(self, x, mask=None, scale=1.0):
            return ops.maximum(x, 0.0) * (1.0 if mask is None else mask) * scale

    for new in (Other(), lambda x, mask=None, scale=1.0: Other()(x, mask, scale)):
        net, x = Calls(Masked(), CALLS[how]), normal(3, 4)
        before = net(x).asnumpy()
        report = rewrite.replace_cell(net, Masked, lambda cell, new=new: new, prove=(x,))
        assert [s["node"] for s in report.swapped] == ["cell"] and not isinstance(net.cell, Masked)
        np.testing.assert_array_equal(net(x).asnumpy(), before)


class Jitted(nn.Cell):
    def __init__(self):
        super().__init__()
        self.cell = nn.ReLU()

    @opgraft.jit
    def construct(self, x):
        return self.cell(x) + 1


def test_a_proof_sees_through_a_jit_construct():
    net, x = Jitted(), normal(3, 4)
    want = net(x).asnumpy()
    report = rewrite.replace_cell(net, nn.ReLU, lambda cell: nn.SiLU(), prove=(x,))
    assert report.swapped == [] and "the results differ" in report.left[0]["why"]
    report = rewrite.replace_cell(net, nn.ReLU, lambda cell: lambda x: ops.maximum(x, 0.0), prove=(x,))
    assert len(report.swapped) == 1
    np.testing.assert_array_equal(net(x).asnumpy(), want)


def test_what_a_model_reads_of_a_cell_must_be_there():
    def both(cell, x):
        return cell(x) + ops.matmul(x, cell.weight)

    class Same(nn.Dense):
        def construct(self, x):
            return super().construct(x) * 1.0

    def same(cell):
        made = Same(4, 4)
        made.weight = cell.weight
        return made

    net, x = Calls(nn.Dense(4, 4), both), normal(3, 4)
    before = net(x).asnumpy()
    dense = ops.Custom.from_op("Dense", transpose_b=True)
    op = lambda cell: lambda x: dense(x, cell.weight, cell.bias)  # noqa: E731
    report = rewrite.replace_cell(net, nn.Dense, op, prove=(x,))
    assert report.swapped == [] and report.left[0]["why"].startswith("the model fails: AttributeError(")
    assert "no attribute 'weight'" in report.left[0]["why"]
    assert len(rewrite.replace_cell(net, nn.Dense, same, prove=(x,)).swapped) == 1
    np.testing.assert_array_equal(net(x).asnumpy(), before)


@pytest.mark.parametrize("error", [IndexError, AttributeError, KeyError, ZeroDivisionError])
def test_a_replacement_that_fails_is_left(error):
    def fail(x):
        raise error("no such thing")

    net, x = model(), normal(3, 4)
    report = rewrite.replace_cell(net, (nn.GELU, nn.Dropout), lambda cell: fail, prove=(x,))
    assert report.swapped == [] and {left["op"] for left in report.left} == {"GELU", "Dropout"}
    assert {left["why"] for left in report.left} == {f"{error.__name__}('no such thing')"}


@pytest.mark.filterwarnings("error")
def test_a_replacement_that_swaps_nothing_leaves_the_model_as_it_was():
    net, x = nn.SequentialCell(nn.Dense(4, 4), nn.SiLU(), nn.ReLU()), normal(3, 4)
    assert rewrite.substitute(net, prove=(x,)).swapped
    programs, version, cells = list(net._grafted), net._version, list(net)
    differs = rewrite.replace_cell(net, nn.ReLU, lambda cell: nn.SiLU(), prove=(x,))
    assert "results differ" in differs.left[0]["why"]
    with pytest.raises(ZeroDivisionError):
        rewrite.replace_cell(net, nn.ReLU, lambda cell: 1 / 0, prove=(x,))
    # Good on what reaches it, not in the model.
    odd = rewrite.replace_cell(Calls(Masked(), lambda cell, x: cell(x) * cell(-x)), Masked, lambda cell: Odd(), prove=x)
    assert odd.swapped == [] and "the model's results differ" in odd.left[0]["why"]
    assert net._grafted == programs and net._version == version and list(net) == cells
    with pytest.warns(RuntimeWarning, match="changed after rewrite.substitute"):
        assert rewrite.replace_cell(net, nn.ReLU, lambda cell: Odd(), prove=(x,)).swapped


class Odd(nn.Cell):
    """The ReLU of what has a positive first element."""

    def construct(self, x, mask=None):
        return ops.relu(x) if x._array is None or x.asnumpy().flat[0] > 0 else x
