"""The names that opgraft shares with MindSpore take what MindSpore's take, in its order."""

import inspect

import api
import opgraft
import pytest
from helpers import HERE

LAYERS = [(n, a, b) for n, a, b in api.shared("mindspore.nn") if inspect.isclass(a) and issubclass(a, opgraft.nn.Cell)]
# Any cells or arguments by *args there; the others' own settings.
FREE = {"Cell", "CellList", "SequentialCell"}


@pytest.mark.parametrize("ours,theirs", [row[1:] for row in LAYERS if row[0] not in FREE],
                         ids=[row[0] for row in LAYERS if row[0] not in FREE])  # fmt: skip
def test_a_layer_takes_its_arguments_in_mindspores_order(ours, theirs):
    got, want = api.parameters(ours), api.parameters(theirs)
    assert got == want[: len(got)]


@pytest.mark.parametrize("name", ["split", "layer_norm", "sum", "softmax", "avg_pool2d", "conv2d", "batch_norm"])
def test_a_function_takes_its_arguments_in_mindspores_order(name):
    """The first is the tensor, which goes by position."""
    got, want = (api.parameters(getattr(module, name)) for module in api.MODULES["mindspore.ops"])
    assert got[1:] == want[1 : len(got)]


def test_the_list_is_as_written():
    assert (HERE.parents[1] / "docs" / "mindspore_api.md").read_text() == api.document()
