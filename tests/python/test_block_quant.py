"""Products with weights in blocks: those of one x become one operator, as far as they belong together."""

import numpy as np
import pytest
from compare import cases
from opgraft import Parameter, Tensor, nn, ops, rewrite

pytestmark = pytest.mark.usefixtures("planned")
TABLE = cases("block_quant")
K, ROWS = 64, 3


class Net(nn.Cell):
    """As many products as there are (rows, format), of one x or, from `apart` on, of another; `body` of them."""

    def __init__(self, weights, body=lambda *y: y, apart=None):
        super().__init__()
        self.body, self.apart, self.formats = body, len(weights) if apart is None else apart, [f for _, f in weights]
        for i, (n, f) in enumerate(weights):
            setattr(self, f"w{i}", Parameter(np.array(TABLE.weight(n, K, f, i)[1], np.uint8), requires_grad=False))

    def construct(self, x):
        other = x * 2.0
        return self.body(*(
            ops.block_quant_matmul(x if i < self.apart else other, getattr(self, f"w{i}"), f)
            for i, f in enumerate(self.formats)
        ))  # fmt: skip


def swapped(net):
    """Operators that went in, beside products; the results are the same to the bit: the same sums in the same order."""
    x = Tensor(np.random.default_rng(0).standard_normal((ROWS, K)).astype(np.float32))
    want = net(x)
    report = rewrite.substitute(net, prove=[[x]])
    for a, b in zip(want, net(x), strict=True):
        assert np.array_equal(a.asnumpy(), b.asnumpy())
    return sorted(s["op"].split("@")[0] for s in report.swapped)


FOUR = [(16, "q4_1"), (8, "q4_1"), (9, "q4_1"), (5, "q4_1")]


@pytest.mark.parametrize("format", TABLE.BYTES)
def test_three_products_of_one_x_become_one_operator(format):
    assert swapped(Net([(n, format) for n, _ in FOUR[:3]])) == ["BlockQuantQKV"]


def test_a_fourth_product_stays():
    assert swapped(Net(FOUR)) == ["BlockQuantQKV"]


def test_two_products_are_left_alone():
    assert swapped(Net(FOUR[:2])) == []


def test_products_of_different_formats_are_left_alone():
    assert swapped(Net([*FOUR[:2], (9, "q8_0")])) == []


def test_products_of_different_x_are_left_alone():
    assert swapped(Net(FOUR[:3], apart=2)) == []


@pytest.mark.parametrize("format", TABLE.BYTES)
def test_gate_and_up_become_one_operator(format):
    net = Net([(24, format)] * 2, lambda gate, up: (ops.silu(gate) * up,))
    x = Tensor(np.random.default_rng(0).standard_normal((ROWS, K)).astype(np.float32))
    report = rewrite.substitute(net, prove=[[x]])
    assert [s["op"].split("@")[0] for s in report.swapped] == ["BlockQuantSwiGLU"]


def test_a_gate_that_is_used_elsewhere_stays():
    net = Net([(24, "q4_1")] * 2, lambda gate, up: (ops.silu(gate) * up, gate))
    x = Tensor(np.random.default_rng(0).standard_normal((ROWS, K)).astype(np.float32))
    report = rewrite.substitute(net, prove=[[x]])
    assert [s["op"].split("@")[0] for s in report.swapped] == ["SwiGLU"]
