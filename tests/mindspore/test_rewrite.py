"""opgraft.mindspore.graft of a chain of calls: found and replaced through mindspore.rewrite, with proof."""

import os
import pathlib
import subprocess
import sys

import mindspore as ms
import numpy as np
import opgraft.mindspore
import pytest
from helpers import HERE, close
from mindspore import Parameter, Tensor, nn, ops
from models import MODELS, normal
from opgraft.mindspore import custom, graft

MODES = pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE, ms.GRAPH_MODE], ids=["pynative", "graph"])


class Gate(nn.Cell):
    """silu(gate) * up, by function and operator; the intermediate is a variable or not."""

    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Dense(8, 8), nn.Dense(8, 8)

    def construct(self, x):
        h = self.gate(x)
        h = ops.silu(h)
        return h * self.up(x)


class Net(nn.Cell):
    """The chain Dense, GELU in construct, in a SequentialCell, and in sub-cells of which one is called twice."""

    def __init__(self):
        super().__init__()
        self.fc, self.act = nn.Dense(8, 8), nn.GELU()
        self.twice = Gate()
        self.blocks = nn.CellList([Gate(), Gate()])
        self.seq = nn.SequentialCell(nn.Dense(8, 8), nn.GELU(), nn.Dense(8, 8), nn.GELU(), nn.ReLU())

    def construct(self, x):
        h = self.fc(x)
        h = self.act(h)
        h = self.twice(self.twice(h)) + x
        for block in self.blocks:
            h = block(h)
        return self.seq(h)


class FusedDense(nn.Cell):
    def __init__(self, dense, activation):
        super().__init__()
        self.weight, self.bias = dense.weight, dense.bias
        self.dense = custom("Dense", n_inputs=3, activation=activation)

    def construct(self, x):
        return self.dense(x, self.weight, self.bias)


class Gated(nn.Cell):
    def __init__(self):
        super().__init__()
        self.swiglu = custom("SwiGLU")

    def construct(self, gate, up):
        return self.swiglu(up, gate)


def fused(dense, gelu):
    return FusedDense(dense, "gelu_tanh" if gelu.approximate == "tanh" else "gelu")


def state(net):
    """What must not change in a Cell that is not to be touched."""
    return [(n, id(c), type(c)) for n, c in net.cells_and_names()], [(id(p), p.name) for p in net.get_parameters()]


@MODES
def test_cells_one_after_another_also_after_the_first_call(mode):
    ms.set_context(mode=mode)
    net, x = Net(), Tensor(normal(4, 8))
    want, before = net(x).asnumpy(), state(net)
    grafted, report = graft(net, [nn.Dense, nn.GELU], fused, prove=(x,))
    assert [s["node"] for s in report.swapped] == ["fc", "seq.0", "seq.2"] and not report.left
    assert report.matched == 3 and {s["op"] for s in report.swapped} == {"Dense+GELU"}
    for row in report.swapped:
        assert 0 <= row["mean_abs"] <= row["max_abs"] < 1e-5 and row["ms_before"] > 0 and row["ms_after"] > 0
    for one in (mode, ms.PYNATIVE_MODE, ms.GRAPH_MODE):
        ms.set_context(mode=one)
        close(grafted(x).asnumpy(), want)
    assert state(net) == before
    np.testing.assert_array_equal(net(x).asnumpy(), want)
    assert len(grafted.seq) == 3 and isinstance(grafted.seq[0], FusedDense)
    assert [p.name for p in grafted.get_parameters()]
    # The parameters are those of the original.
    net.fc.weight.set_data(net.fc.weight * 2)
    close(grafted(x).asnumpy(), net(x).asnumpy())


@MODES
@pytest.mark.parametrize("chain", [["SiLU", "Mul"], [ops.silu, ops.mul], [ops.silu, "mul"]], ids=str)
def test_functions_and_operators_in_sub_cells(chain, mode):
    ms.set_context(mode=mode)
    net, x = Net(), Tensor(normal(4, 8))
    want, before = net(x).asnumpy(), state(net)
    grafted, report = graft(net, chain, lambda silu, mul: Gated(), prove=(x,))
    assert [s["node"] for s in report.swapped] == ["twice.silu", "blocks.0.silu", "blocks.1.silu"]
    close(grafted(x).asnumpy(), want)
    assert state(net) == before
    assert all(any(isinstance(c, Gated) for c in b.cells()) for b in [grafted.twice, *grafted.blocks])
    again, report = graft(grafted, [nn.Dense, nn.GELU], fused, prove=(x,))  # a second chain in what the first one gave
    assert len(report.swapped) == 3
    close(again(x).asnumpy(), want)


@MODES
def test_a_wrong_replacement_is_left_alone(mode):
    ms.set_context(mode=mode)
    net, x = Net(), Tensor(normal(4, 8))
    want, before = net(x).asnumpy(), state(net)

    def some(dense, gelu):
        return FusedDense(dense, "silu") if dense is net.fc else fused(dense, gelu)

    grafted, report = graft(net, [nn.Dense, nn.GELU], some, prove=(x,))
    assert [s["node"] for s in report.swapped] == ["seq.0", "seq.2"]
    assert [x["node"] for x in report.left] == ["fc"] and "the results differ" in report.left[0]["why"]
    close(grafted(x).asnumpy(), want)
    grafted, report = graft(net, [nn.Dense, nn.GELU], lambda d, g: FusedDense(d, "silu"), prove=(x,))
    assert grafted is net and not report.swapped and len(report.left) == 3 and state(net) == before
    np.testing.assert_array_equal(net(x).asnumpy(), want)


@MODES
def test_parameters_of_the_new_cells(mode):
    class Doubled(FusedDense):
        def __init__(self, dense, gelu):
            super().__init__(dense, "gelu_tanh" if gelu.approximate == "tanh" else "gelu")
            self.half = Parameter(Tensor(np.float32(0.5)), name="half")

        def construct(self, x):
            return self.dense(x, self.weight * self.half * 2, self.bias)

    ms.set_context(mode=mode)
    net, x = Net(), Tensor(normal(4, 8))
    want = net(x).asnumpy()
    grafted, report = graft(net, [nn.Dense, nn.GELU], Doubled, prove=(x,))
    assert len(report.swapped) == 3, report
    close(grafted(x).asnumpy(), want)
    names = [p.name for p in grafted.get_parameters()]
    assert len(set(names)) == len(names) and sum("half" in n for n in names) == 3


def test_a_replacement_that_fails_says_why():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    net, x = Net(), Tensor(normal(4, 8))
    _, report = graft(net, [nn.Dense, nn.GELU], lambda d, g: custom("SwiGLU"), prove=(x,))
    assert len(report.left) == 3 and not report.swapped
    assert all(row["why"] and "differ" not in row["why"] for row in report.left)


@MODES
@pytest.mark.parametrize("name,chain,make_new,node", [
    ("bert layer", [nn.Dense, nn.GELU], fused, "up"),
    ("llama block", ["silu", "mul"], lambda silu, mul: Gated(), "silu"),
])  # fmt: skip
def test_models(name, chain, make_new, node, mode):
    """Their construct has methods, functions and generators of its own."""
    ms.set_context(mode=mode)
    make, inputs, _, sizes = MODELS[name]
    net, arrays = make(), tuple(Tensor(a) for a in inputs(*sizes[0]))
    want, before = net(*arrays).asnumpy(), state(net)
    grafted, report = graft(net, chain, make_new, prove=arrays)
    assert [s["node"] for s in report.swapped] == [node], report
    close(grafted(*arrays).asnumpy(), want)
    assert state(net) == before


class Mixed(nn.Cell):
    """A Cell and a primitive held as attributes, and a function with a constant by keyword."""

    def __init__(self):
        super().__init__()
        self.silu, self.mul = nn.SiLU(), ops.Mul()

    def construct(self, x, y):
        return ops.gelu(self.mul(y, self.silu(x)), approximate="tanh")


@MODES
def test_cells_primitives_and_constants(mode):
    ms.set_context(mode=mode)
    net, x, y = Mixed(), Tensor(normal(4, 8)), Tensor(normal(4, 8, seed=1))
    want = net(x, y).asnumpy()
    grafted, report = graft(net, [nn.SiLU, ops.Mul], lambda silu, mul: Gated(), prove=(x, y))
    assert [s["op"] for s in report.swapped] == ["SiLU+Mul"]
    grafted, report = graft(
        grafted, [ops.gelu], lambda gelu: custom("FusedGeLU", **gelu.keywords), prove=[(x, y), (y, x)]
    )
    assert [(s["op"], s["node"]) for s in report.swapped] == [("gelu", "gelu")], report
    close(grafted(x, y).asnumpy(), want)


def test_open_dimensions_and_precision_stay():
    ms.set_context(mode=ms.GRAPH_MODE)
    net = Net().to_float(ms.float16)
    net.set_train(False)
    net.set_inputs(Tensor(shape=[None, 8], dtype=ms.float32))
    grafted, report = graft(net, ["silu", "mul"], lambda silu, mul: Gated(), prove=(normal(4, 8),))
    assert len(report.swapped) == 3 and grafted.phase == net.phase and grafted.training == net.training
    for rows in (4, 7):
        x = Tensor(normal(rows, 8))
        want = net(x)
        assert grafted(x).dtype == want.dtype == ms.float16
        close(grafted(x).asnumpy(), want.asnumpy(), 1e-2)


@MODES
def test_gradients(mode):
    ms.set_context(mode=mode)
    net, x = Net(), Tensor(normal(4, 8))
    grafted, report = graft(net, [nn.Dense, nn.ReLU], lambda d, r: FusedDense(d, "relu"), prove=(x,))
    assert report.matched == 0 and grafted is net  # GELU stands between them
    grafted, report = graft(net, [nn.ReLU], lambda relu: nn.LeakyReLU(alpha=0.0), prove=(x,))
    assert [s["node"] for s in report.swapped] == ["seq.4"]
    close(ops.grad(grafted)(x).asnumpy(), ops.grad(net)(x).asnumpy())


class Torn(nn.Cell):
    """Chains that cannot be one node."""

    def __init__(self):
        super().__init__()
        self.fc, self.act, self.two, self.three = nn.Dense(8, 8), nn.GELU(), nn.Dense(8, 8), nn.Dense(8, 8)
        self.four = nn.Dense(8, 8)

    def construct(self, x):
        h = self.fc(x)
        y = self.act(h) + h  # h is read twice
        g = self.four(y)
        y = self.act(g)
        for _ in range(2):
            g += y  # reads and assigns it
        z = y * 2
        a = self.two(z)
        z = y + 1
        if self.training:
            y = y + 1
        else:
            y = y + a  # only this reads it, beside GELU
        a = self.act(a) + z
        if self.training:
            a = a * 2
        else:
            b = self.three(a)
            a = self.act(b)
        return a + y


def test_what_cannot_be_replaced_is_reported():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    net, x = Torn(), Tensor(normal(4, 8))
    grafted, report = graft(net, [nn.Dense, nn.GELU], fused, prove=(x,))
    why = {row["node"]: row["why"] for row in report.left}
    assert grafted is net and not report.swapped and report.matched == 4, report
    assert all(f"{name}'s result is also read by" in why[name] for name in ("fc", "two", "four")), why
    assert "it stands within an if or for" in why["three"]


class Anew(nn.Cell):
    def construct(self, x, y):
        a = ops.silu(x)
        x = x + 1
        return a * y + x


class Into(nn.Cell):
    def construct(self, x, y):
        a = ops.silu(x)
        x[0] = 1
        return a * y + x


@pytest.mark.parametrize("cls", [Anew, Into])
def test_an_input_that_changes_in_between(cls):
    ms.set_context(mode=ms.PYNATIVE_MODE)
    _, report = graft(cls(), ["silu", "mul"], lambda s, m: Gated(), prove=(normal(4, 8), normal(4, 8, seed=1)))
    assert not report.swapped and "x is changed by" in report.left[0]["why"]


def test_nothing_that_matches():
    net = Net()
    grafted, report = graft(net, [nn.GELU, nn.Dense, nn.Softmax], fused, prove=(normal(4, 8),))
    assert grafted is net and report.to_dict() == {"matched": 0, "merged": 0, "swapped": [], "left": []}
    with pytest.raises(TypeError, match="graft: the chain must be of types, functions and names, got 3"):
        graft(net, [nn.Dense, 3], fused, prove=(normal(4, 8),))
    with pytest.raises(ValueError, match="graft: the chain must name at least one call, got none"):
        graft(net, [], fused, prove=(normal(4, 8),))
    assert opgraft.mindspore.Grafted is type(graft(net, ["none"], fused, prove=(normal(4, 8),)))


class Peeks(nn.Cell):
    """Reaches a cell of its SequentialCell alone."""

    def __init__(self):
        super().__init__()
        self.seq = nn.SequentialCell(nn.Dense(8, 8), nn.GELU())

    def construct(self, x, features=False):
        if features:
            return self.seq[0](x)
        return self.seq(x)


def test_a_sequence_whose_cells_are_reached_one_by_one_is_left_alone():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    net, x = Peeks(), Tensor(normal(4, 8))
    grafted, report = graft(net, [nn.Dense, nn.GELU], fused, prove=(x,))
    assert not report.swapped and "Peeks uses self.seq otherwise than by calling it" in str(report.left)
    np.testing.assert_array_equal(grafted(x, True).asnumpy(), net(x, True).asnumpy())


class Counts(nn.Cell):
    def __init__(self):
        super().__init__()
        self.norm, self.dense, self.act = nn.BatchNorm1d(8), nn.Dense(8, 8), nn.GELU()

    def construct(self, x):
        h = self.dense(self.norm(x))
        return self.act(h)


def test_a_proof_leaves_the_parameters_as_they_were():
    """In training, BatchNorm moves its statistics at every run."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    net, x = Counts().set_train(True), Tensor(normal(4, 8) + 3)
    before = [p.asnumpy().copy() for p in net.get_parameters()]
    assert graft(net, [nn.Dense, nn.GELU], fused, prove=(x,))[1].swapped
    assert graft(net, nn.GELU, lambda cell: custom("FusedGeLU", approximate="tanh"), prove=(x,))[1].swapped
    for p, value in zip(net.get_parameters(), before, strict=True):
        np.testing.assert_array_equal(p.asnumpy(), value)


LINKED = """import os, sys
site, link = sys.argv[1:]
sys.path = [p for p in sys.path if os.path.realpath(p) != site] + [link]
import mindspore as ms
import numpy as np
from mindspore import Tensor
from test_rewrite import Gated, Net
from opgraft.mindspore import graft
assert ms.__file__.startswith(link)
before = list(sys.path)
print(graft(Net(), ["silu", "mul"], lambda silu, mul: Gated(), prove=Tensor(np.ones((4, 8), np.float32))).report)
assert sys.path == before
"""


def test_an_environment_that_is_reached_by_a_link(tmp_path):
    site, link = os.path.realpath(pathlib.Path(ms.__file__).parents[1]), tmp_path / "link"
    link.symlink_to(site)
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), os.environ["PYTHONPATH"]])}
    done = subprocess.run([sys.executable, "-c", LINKED, site, link], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("matched 3, swapped 3, left 0"), done.stdout
