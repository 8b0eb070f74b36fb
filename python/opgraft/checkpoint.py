"""Weights and arrays in files."""

import pathlib
import warnings
import zipfile
import zlib

import numpy as np

from . import _core
from .dtype import bfloat16, to_dtype
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


def _read_ckpt(path, crc_check):
    """Arrays and texts of MindSpore's own format."""
    found, has_crc = _core.read_checkpoint(str(path))
    if crc_check and not has_crc:
        warnings.warn(f"load_checkpoint: {path} has no CRC to check; save it with crc_check=True", stacklevel=3)
    try:
        return {name.decode(): v.decode("utf-32-le") if isinstance(v, bytes) else v for name, v in found}
    except UnicodeDecodeError as e:
        raise ValueError(f"load_checkpoint: {path}: a name or text is no Unicode: {e}") from None


def load_checkpoint(ckpt_file_name, net=None, *, format=None, crc_check=False) -> dict:
    """Parameters by name from a .ckpt, .safetensors or .npz file; put into the Cell `net` where one is given.

    A .ckpt is MindSpore's: texts in it (append_dict) are str; its CRC, where it has one, is always checked, and
    crc_check warns where there is none. Raises ValueError for a damaged or encrypted file.
    """
    path = pathlib.Path(ckpt_file_name)
    _check_format("load_checkpoint", path, format)
    if path.suffix in (".safetensors", ".ckpt") and not path.is_file():
        raise FileNotFoundError(f"load_checkpoint: {path}: no such file")
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            arrays = load_file(str(path))
        except SafetensorError as e:
            raise ValueError(f"load_checkpoint: {path} is no readable safetensors file: {e}") from None
    elif path.suffix == ".ckpt":
        arrays = _read_ckpt(path, crc_check)
    elif path.suffix == ".npz":
        arrays = read_numpy("load_checkpoint:", path)
        if not isinstance(arrays, dict):
            raise ValueError(f"load_checkpoint: {path} must hold arrays by name, got one array")
    else:
        raise ValueError(f"load_checkpoint: {path} must end in .ckpt, .safetensors or .npz")
    parameters = {k: v if isinstance(v, str) else Parameter(v, k) for k, v in arrays.items()}
    if net is not None:
        missing, _ = load_param_into_net(net, parameters)
        if missing:
            warnings.warn(f"load_checkpoint: {path} does not have {', '.join(missing)}, which stay as they are",
                          stacklevel=2)  # fmt: skip
    return parameters


def _to_save(save_obj, append_dict):
    """What is to be saved, by name: of a Cell, a dict, or MindSpore's list of dicts with name and data."""
    if isinstance(save_obj, list):
        if not all(isinstance(d, dict) and {"name", "data"} <= d.keys() for d in save_obj):
            raise TypeError("save_checkpoint: a list must be of dicts with name and data")
        save_obj = {d["name"]: d["data"] for d in save_obj}
    values = save_obj if isinstance(save_obj, dict) else save_obj.parameters_dict()

    def array(value):
        if isinstance(value, Tensor):
            value = value.asnumpy()
        return np.asarray(value, np.float32 if type(value) is float else None, order="C")

    values = {**values, **(append_dict or {})}
    return {k: v if isinstance(v, str) else array(v) for k, v in values.items()}


def save_checkpoint(save_obj, ckpt_file_name, *, append_dict=None, crc_check=False, format=None):
    """Writes a Cell's parameters, a dict of arrays, or a list of dicts with name and data, to a .ckpt (which MindSpore
    reads), .safetensors or .npz.

    append_dict has more to be saved: numbers, arrays and, in a .ckpt, texts. crc_check puts a CRC-32 at the end of a
    .ckpt.
    """
    path = pathlib.Path(ckpt_file_name)
    _check_format("save_checkpoint", path, format)
    arrays = _to_save(save_obj, append_dict)
    texts = [k for k, v in arrays.items() if isinstance(v, str)]
    if path.suffix == ".ckpt":
        arrays = {k: v if isinstance(v, str) else v.astype(to_dtype(v.dtype, k), copy=False) for k, v in arrays.items()}
        return _core.write_checkpoint(arrays, str(path), crc_check)
    if crc_check:
        raise ValueError(f"save_checkpoint: crc_check is for .ckpt, got {path}")
    if texts:
        raise ValueError(f"save_checkpoint: {texts[0]} is a text, which only a .ckpt takes, got {path}")
    if path.suffix == ".safetensors":
        from safetensors.numpy import save_file

        save_file(arrays, str(path))
    elif path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        raise ValueError(f"save_checkpoint: {path} must end in .ckpt, .safetensors or .npz")


def load_param_into_net(net, parameter_dict, strict_load=False):
    """Puts parameters by name into a Cell. Returns (not loaded, not used).

    A dtype is brought to the parameter's; strict_load: it must be equal. Integers are never brought to floats.
    """
    if not isinstance(parameter_dict, dict):
        raise TypeError(f"load_param_into_net: parameter_dict must be a dict, got {type(parameter_dict).__name__}")
    own = net.parameters_dict()
    for name, parameter in own.items():
        given, wanted = getattr(parameter_dict.get(name), "dtype", None), parameter.dtype
        kinds = {np.dtype(d).kind in "biu" for d in (given, wanted) if d is not None}
        if given is not None and (given != wanted if strict_load else len(kinds) > 1):
            raise ValueError(f"load_param_into_net: {name}.dtype must be {wanted}, got {given}")
    return [n for n in own if n not in parameter_dict], net.load_parameters(parameter_dict, strict=False)
