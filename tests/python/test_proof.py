"""Proofs of models that make steps of last bits."""

import opgraft
import pytest
from compare import normal
from opgraft import Parameter, Tensor, nn, ops, rewrite

pytestmark = pytest.mark.usefixtures("planned")


class Fraction(nn.Cell):
    """The fraction of a number of which its last bits are a quarter: what differs by one rounding differs by that."""

    def __init__(self, parameter):
        super().__init__()
        self.w = Parameter(normal(64, seed=1)) if parameter else None

    def construct(self, x):
        y = 0.5 * x * (1.0 + ops.erf(x / 1.4142135623730951))
        y = (y * self.w if self.w is not None else y) * 2.0**21
        return y - ops.round(y)


def test_whole_models_may_differ_as_far_as_the_model_does_by_itself():
    net, x = Fraction(parameter=True), Tensor(normal(8, 64))
    report = rewrite.substitute(net, prove=(x,))
    (swap,) = report.swapped
    assert swap["op"].startswith("FusedGeLU@") and swap["max_abs"] < 1e-6  # proven on its own, as ever
    assert "the model differs by" in report.note and report.note in str(report)
    assert report.to_dict()["note"] == report.note


def test_what_no_parameter_explains_is_refused():
    report = rewrite.substitute(Fraction(parameter=False), prove=(Tensor(normal(8, 64)),))
    assert not report.swapped and not report.note
    assert "the model's results differ" in report.left[0]["why"]


class Twice(nn.Cell):
    """As Fraction, but a swap is wrong: see below."""

    def __init__(self):
        super().__init__()
        self.w = Parameter(normal(64, seed=1))

    def construct(self, x):
        y = ops.relu(x) * self.w * 2.0**21
        return y - ops.round(y), ops.relu(x + 1.0)


def test_a_wrong_swap_is_refused_by_its_own_comparison():
    def pattern(x):
        return ops.relu(x)

    def replacement(x):
        return ops.relu6(x * 1.01)

    net = Twice()
    report = rewrite.substitute(net, pattern, replacement, prove=(Tensor(normal(8, 64)),))
    assert not report.swapped and len(report.left) == 2
    assert all("the results differ" in x["why"] for x in report.left)


def test_a_model_that_agrees_has_no_note():
    class Net(nn.Cell):
        def construct(self, x):
            return 0.5 * x * (1.0 + ops.erf(x / 1.4142135623730951))

    report = rewrite.substitute(Net(), prove=(Tensor(normal(8, 64)),))
    assert len(report.swapped) == 1 and not report.note and "note" not in report.to_dict()


class HalfFraction(nn.Cell):
    """The same of a half type, of whose numbers a rounding changes the last bits."""

    def __init__(self, dtype, factor):
        super().__init__()
        self.w, self.factor = Parameter(Tensor(normal(64, seed=1)).astype(dtype)), factor

    def construct(self, x):
        y = 0.5 * x * (1.0 + ops.erf(x / 1.4142135623730951)) * self.w * self.factor
        return y - ops.round(y)


@pytest.mark.parametrize("dtype, factor", [(opgraft.float16, 2.0**6), (opgraft.bfloat16, 2.0**3)])
def test_models_of_half_types_may_differ_as_far_as_they_do_by_themselves(dtype, factor):
    report = rewrite.substitute(HalfFraction(dtype, factor), prove=(Tensor(normal(8, 64)).astype(dtype),))
    (swap,) = report.swapped
    assert swap["op"].startswith("FusedGeLU@")
    assert "the model differs by" in report.note


class Sharp(nn.Cell):
    """What differs by a last bit of a half type differs by much, and no Parameter has a part in it."""

    def construct(self, x):
        y = ops.silu(x) * 512.0
        return y - ops.round(y)


@pytest.mark.parametrize("dtype", [opgraft.float16, opgraft.bfloat16])
def test_no_half_parameter_explains_what_has_none(dtype):
    net, x = Sharp(), Tensor(normal(8, 64)).astype(dtype)
    before = net(x).asnumpy()
    rewrite.substitute(net, prove=(x,))
    assert before.tobytes() == net(x).asnumpy().tobytes()
