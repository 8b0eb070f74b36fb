import numpy as np
import pytest
from opgraft import Tensor, nn, ops, rewrite


class Gated(nn.Cell):
    def construct(self, x, gate):
        return ops.mul(ops.silu(gate), x)


def test_proven_swap():
    net = Gated()
    x = np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32)
    before = net(x, x).asnumpy()
    report = rewrite.substitute(net, prove=(x, x))
    assert [s["op"].split("@")[0] for s in report.swapped] == ["SwiGLU"]
    np.testing.assert_allclose(net(x, x).asnumpy(), before, rtol=1e-5, atol=1e-6)
    assert "SwiGLU" in str(report) and report.to_dict()["matched"] >= 1


def test_pattern_from_functions():
    net, x = Gated(), np.ones((2, 3, 4), np.float32)
    swiglu = ops.Custom.from_op("SwiGLU")
    report = rewrite.substitute(net, lambda a, b: ops.mul(ops.silu(b), a), lambda a, b: swiglu(a, b), prove=(x, x))
    assert len(report.swapped) == 1


def test_refusals():
    with pytest.raises(ValueError, match="give prove=inputs"):
        rewrite.substitute(Gated())
    with pytest.raises(ValueError, match="got none"):
        rewrite.substitute(Gated(), prove=())
    with pytest.raises(TypeError, match="expected a Cell or a graph"):
        rewrite.substitute(Tensor([1.0]))
