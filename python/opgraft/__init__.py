"""opgraft: operators built ahead of time, grafted into models. MindSpore's names, an engine of its own."""

from . import _core
from ._core import __version__, examine
from .context import GRAPH_MODE, PYNATIVE_MODE, get_context, set_context, set_device
from .dtype import (  # noqa: F401
    bfloat16,
    bool_,
    complex64,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)  # fmt: skip
from .program import jit
from .tensor import Parameter, Tensor, dim, from_dlpack

from . import ops, operators, nn, rewrite  # noqa: F401  isort: skip
from .checkpoint import load_checkpoint, load_param_into_net, save_checkpoint
from .serialization import export, load
from .sparse import COOTensor, CSRTensor

load_op = _core.load
set_whitelist = _core.set_whitelist
pin = _core.pin
__all__ = ["COOTensor", "CSRTensor", "GRAPH_MODE", "PYNATIVE_MODE", "Parameter", "Tensor", "__version__", "dim",
           "examine", "export", "from_dlpack", "get_context", "jit", "load", "load_checkpoint", "load_op",
           "load_param_into_net", "nn", "ops", "pin", "rewrite", "save_checkpoint", "set_context", "set_device",
           "set_whitelist"]  # fmt: skip
