"""MobileNetV3's hard-sigmoid and hard-swish in the ways they are written become HSigmoid and HSwish."""

import numpy as np
import opgraft
import pytest
from compare import U, close, graft, left, normal
from opgraft import nn, ops


def p(name, *inputs, **attrs):
    """A primitive as it stands, numbers as constants of float32."""
    return ops.primitive(name, *[np.float32(x) if isinstance(x, float) else x for x in inputs], **attrs)


SIX = {
    "relu6": ops.relu6,
    "clip": lambda x: ops.clip(x, 0, 6),
    "Minimum of Maximum": lambda x: ops.minimum(ops.maximum(x, 0.0), 6.0),
    "Minimum of ReLU": lambda x: ops.minimum(ops.relu(x), 6.0),
}
SIGMOIDS = {
    **{f"{name} / 6": lambda x, six=six: six(x + 3.0) / 6.0 for name, six in SIX.items()},
    "times 1 / 6": lambda x: (1 / 6) * ops.relu6(3.0 + x),
    "ONNX": lambda x: p("ClampScalar", p("Add", p("Mul", x, 1 / 6), 0.5), min=0.0, max=1.0),
    "ONNX by two": lambda x: p("Minimum", p("Maximum", p("Add", p("Div", x, 6.0), 0.5), 0.0), 1.0),
    "ONNX by two, the other way": lambda x: p("Maximum", p("Minimum", p("Add", p("Div", x, 6.0), 0.5), 1.0), 0.0),
}
SWISHES = {
    **{f"x times {name}": lambda x, f=f: x * f(x) for name, f in SIGMOIDS.items()},
    **{f"x {name} / 6": lambda x, six=six: x * six(x + 3.0) / 6.0 for name, six in SIX.items()},
    "all times 1 / 6": lambda x: ops.relu6(x + 3.0) * x * (1 / 6),
    "x over 6": lambda x: x / 6.0 * ops.relu6(x + 3.0),
    "x times 1 / 6": lambda x: ops.relu6(x + 3.0) * (x * (1 / 6)),
    "HSigmoid": lambda x: x * p("HSigmoid", x),
}


def exact(name, x):
    gate = np.clip(x + 3, 0, 6) / 6
    return gate if name == "HSigmoid" else x * gate


def check(write, name, folder):
    x = np.concatenate([normal(200) * 4, np.float32([-3, 3, 0, -0.0, -2.9999998, 100, -100])])
    names, _, (got,) = graft(write, x)
    assert names[-1] == name and left(write, (x,), folder) == [name]
    x = x.astype(np.float64)
    # A sum, 1 / 6 and two products.
    assert (np.abs(got - exact(name, x)) <= 5 * U * np.abs(exact(name, x))).all()


@pytest.mark.parametrize("how", SIGMOIDS)
def test_hard_sigmoid(how, tmp_path):
    check(SIGMOIDS[how], "HSigmoid", tmp_path)


@pytest.mark.parametrize("how", SWISHES)
def test_hard_swish(how, tmp_path):
    check(SWISHES[how], "HSwish", tmp_path)


@pytest.mark.parametrize("casts", [False, True])
@pytest.mark.parametrize("name", ["HSigmoid", "HSwish"])
def test_half_types(name, casts):
    def write(x):
        y = ops.cast(x, opgraft.float32) if casts else x
        y = (SIGMOIDS if name == "HSigmoid" else SWISHES)["relu6 / 6" if name == "HSigmoid" else "x relu6 / 6"](y)
        return ops.cast(y, opgraft.float16) if casts else y

    x = (normal(200) * 4).astype(np.float16)
    names, _, (got,) = graft(write, x)
    assert names[-1] == name and got.dtype == np.float16
    want = exact(name, x.astype(np.float64))
    assert (np.abs(got.astype(np.float64) - want) <= 1.01 * 2.0**-11 * np.abs(want) + 2.0**-25).all()


def test_what_float32_holds_stays_finite():
    x = np.float32([3e38, -3e38, np.inf, np.nan])
    np.testing.assert_array_equal(p("HSwish", x).asnumpy(), np.float32([3e38, 0, np.inf, np.nan]) + 0.0)
    np.testing.assert_array_equal(p("HSigmoid", x).asnumpy(), np.float32([1, 0, 1, np.nan]))


@pytest.mark.parametrize("write", [
    lambda x: x * ops.relu6(x + 2.0) / 6.0,
    lambda x: x * ops.relu6(x + 3.0) / 5.0,
    lambda x: x * ops.relu(x + 3.0) / 6.0,
    lambda x: x * ops.clip(x + 3.0, 0, 5) / 6.0,
    lambda x: ops.clip(x * 0.2 + 0.5, 0, 1),  # Keras's
    lambda x: ops.clip(x / 6.0 + 0.5, 0, 6),
    lambda x: (x + 1.0) * ops.relu6(x + 3.0),
])  # fmt: skip
def test_what_is_another_function(write):
    x = normal(200) * 4
    names, (before,), (after,) = graft(write, x, prove=False)
    assert not {"HSigmoid", "HSwish"} & set(names)
    np.testing.assert_array_equal(after, before)


def test_the_gate_of_another_value():
    """That of a squeeze and excitation: a hard sigmoid, and a product that is no hard swish."""
    x, y = normal(5, 7), normal(5, 7, seed=1)
    names, (before,), (after,) = graft(lambda x, y: x * (ops.relu6(y + 3.0) / 6.0), x, y)
    assert names[-1] == "HSigmoid"
    close(after, before, 5)  # a quotient and a product; two by 1 / 6, which is rounded itself, and one


def test_functions_and_cells():
    x = opgraft.Tensor(np.linspace(-5, 5, 1001, dtype=np.float32))
    for name, function in {"HSwish": ops.hardswish, "HSigmoid": ops.hardsigmoid}.items():
        got = function(x).asnumpy()
        np.testing.assert_array_equal(got, getattr(ops, name)()(x).asnumpy())
        np.testing.assert_array_equal(got, getattr(nn, name)()(x).asnumpy())
        want = exact(name, x.asnumpy().astype(np.float64))
        assert (np.abs(got - want) <= 4 * U * (np.abs(x.asnumpy()) + 3)).all()  # x + 3, over 6, and times x
