"""opgraft.mindspore.graft: a real MindSpore Cell, swapped by type or through its graph, with proof."""

import mindspore as ms
import numpy as np
import opgraft.mindspore
import pytest
from helpers import close
from mindspore import Tensor, nn
from models import MODELS, Mlp, normal
from opgraft.mindspore import custom, graft

MODES = pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE, ms.GRAPH_MODE], ids=["pynative", "graph"])


def gelu(cell):
    return custom("FusedGeLU", approximate="tanh")


@MODES
def test_cells_of_a_type_also_after_the_first_call(mode):
    ms.set_context(mode=mode)
    net, x = Mlp(), Tensor(normal(4, 16))
    want = net(x).asnumpy()
    grafted, report = graft(net, nn.GELU, gelu, prove=(x,))
    assert grafted is net and [s["node"] for s in report.swapped] == ["layers.3"]
    row = report.swapped[0]
    assert 0 <= row["mean_abs"] <= row["max_abs"] < 1e-5 and row["ms_before"] > 0 and row["ms_after"] > 0
    close(net(x).asnumpy(), want)
    assert not any(isinstance(c, nn.GELU) for _, c in net.cells_and_names())
    # Something that gives another result is seen to run: the swap is not ignored.
    wrong = opgraft.mindspore.custom("SiLU")
    net.layers[3] = type(net.layers[3])(wrong)
    opgraft.mindspore_graft._outdate(net)
    assert np.abs(net(x).asnumpy() - want).max() > 1e-3


@MODES
def test_a_wrong_cell_is_left_alone(mode):
    ms.set_context(mode=mode)
    net, x = Mlp(), Tensor(normal(4, 16))
    want = net(x).asnumpy()
    _, report = graft(net, nn.GELU, lambda cell: custom("SiLU"), prove=(x,))
    assert not report.swapped and "the results differ" in report.left[0]["why"]
    np.testing.assert_array_equal(net(x).asnumpy(), want)


@pytest.mark.parametrize("name", MODELS)
def test_the_whole_graph(name):
    ms.set_context(mode=ms.GRAPH_MODE)
    make, inputs, placeholders, sizes = MODELS[name]
    net = make()
    want = {size: make_outputs(net, inputs(*size)) for size in sizes}
    if placeholders:
        net.set_inputs(*placeholders)
    grafted, report = graft(net, prove=tuple(inputs(*sizes[0])))
    assert report.swapped and grafted is not net
    for size in sizes:
        close(make_outputs(grafted, inputs(*size)), want[size])


def make_outputs(net, arrays):
    return net(*[Tensor(a) for a in arrays]).asnumpy()


def test_what_cannot_be_grafted_is_refused():
    net = Mlp()
    with pytest.raises(TypeError, match="graft: cell must be a mindspore.nn.Cell, got int"):
        graft(3, prove=(1,))
    with pytest.raises(ValueError, match="cls and factory go together"):
        graft(net, nn.GELU, prove=(normal(4, 16),))
    with pytest.raises(ValueError, match="prove must be inputs of the model, got none"):
        graft(net, prove=())
