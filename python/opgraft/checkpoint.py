"""Weights and arrays in files."""

import pathlib
import zipfile
import zlib

import numpy as np

from .dtype import bfloat16
from .tensor import Parameter, Tensor

_NUMPY_MAGIC = (b"\x93NUMPY", b"PK\x03\x04", b"PK\x05\x06")  # .npy, .npz, .npz without arrays


def read_numpy(what, file):
    """The array of an .npy file, or a dict of those of an .npz file; errors begin with `what`."""
    try:
        with open(file, "rb") as f:
            if not f.read(6).startswith(_NUMPY_MAGIC):
                raise ValueError(f"{what} {file}: is not a NumPy file")
    except FileNotFoundError:
        raise FileNotFoundError(f"{what} {file}: no such file") from None
    try:
        found = np.load(file, allow_pickle=False)
        arrays = dict(found) if isinstance(found, np.lib.npyio.NpzFile) else {None: found}
    except (ValueError, EOFError, OSError, KeyError, zipfile.BadZipFile, zlib.error) as e:
        why = "holds Python objects instead of numbers" if "allow_pickle" in str(e) else e
        raise ValueError(f"{what} {file}: is no readable NumPy file: {why}") from None
    # NumPy writes bfloat16 as two plain bytes.
    arrays = {k: a.view(bfloat16) if a.dtype == np.dtype("V2") else a for k, a in arrays.items()}
    return arrays[None] if None in arrays else arrays


def _check_format(what, path, given):
    """MindSpore's `format`, where it is given, must say what the name says."""
    if given is not None and path.suffix != f".{given}":
        raise ValueError(f"{what}: format must be {path.suffix[1:]!r} as the name of {path} says, got {given!r}")


def load_checkpoint(file_name, net=None, *, format=None) -> dict:
    """Parameters by name from a .safetensors or .npz file; put into the Cell `net` where one is given."""
    path = pathlib.Path(file_name)
    _check_format("load_checkpoint", path, format)
    if path.suffix == ".safetensors":
        if not path.is_file():
            raise FileNotFoundError(f"load_checkpoint: {path}: no such file")
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            arrays = load_file(str(path))
        except SafetensorError as e:
            raise ValueError(f"load_checkpoint: {path} is no readable safetensors file: {e}") from None
    elif path.suffix == ".npz":
        arrays = read_numpy("load_checkpoint:", path)
        if not isinstance(arrays, dict):
            raise ValueError(f"load_checkpoint: {path} must hold arrays by name, got one array")
    else:
        raise ValueError(f"load_checkpoint: {path} must end in .safetensors or .npz")
    parameters = {k: Parameter(v, k) for k, v in arrays.items()}
    if net is not None:
        load_param_into_net(net, parameters)
    return parameters


def save_checkpoint(net, file_name, *, format=None):
    """Writes a Cell's parameters, or a dict of arrays, to .safetensors or .npz."""
    _check_format("save_checkpoint", pathlib.Path(file_name), format)
    values = net if isinstance(net, dict) else net.parameters_dict()
    arrays = {k: np.asarray(v.asnumpy() if isinstance(v, Tensor) else v, order="C") for k, v in values.items()}
    suffix = pathlib.Path(file_name).suffix
    if suffix == ".safetensors":
        from safetensors.numpy import save_file

        save_file(arrays, str(file_name))
    elif suffix == ".npz":
        np.savez(file_name, **arrays)
    else:
        raise ValueError(f"save_checkpoint: {file_name} must end in .safetensors or .npz")


def load_param_into_net(net, parameters, strict_load=False):
    """Puts parameters by name into a Cell. Returns (not loaded, not used)."""
    if not isinstance(parameters, dict):
        raise TypeError(f"load_param_into_net: parameters must be a dict, got {type(parameters).__name__}")
    missing = [n for n in net.parameters_dict() if n not in parameters]
    return missing, net.load_parameters(parameters, strict=strict_load)
