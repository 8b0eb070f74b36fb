"""Files that are pinned, and who takes over from a kernel that fails."""

import hashlib
import pathlib
import shutil
import subprocess
import sys

import opgraft
import pytest
from opgraft import _core

OPS = pathlib.Path(_core.resolve("SwiGLU").path).parent


def test_pinned_file(tmp_path):
    file = tmp_path / "swiglu.so"
    shutil.copy(OPS / "swiglu.so", file)
    opgraft.pin(str(file), hashlib.sha256(b"another").hexdigest())
    with pytest.raises(RuntimeError, match=rf"{file}: sha256 must be .* as pinned, got "):
        opgraft.load_op(str(file))
    # With the right digest the file passes this step and is refused at the last: the process has these operators.
    opgraft.pin(str(file), hashlib.sha256(file.read_bytes()).hexdigest().upper())
    with pytest.raises(RuntimeError, match="is registered already"):
        opgraft.load_op(str(file))


@pytest.mark.parametrize("digest", ["", "12", "g" * 64])
def test_what_is_no_digest(digest, tmp_path):
    with pytest.raises(ValueError, match="sha256 must be 64 hexadecimal digits"):
        opgraft.pin(str(tmp_path / "x.so"), digest)


def test_reference_takes_over():
    """In a process of its own: operators stay registered."""
    code = """
import warnings, numpy as np, opgraft
from opgraft import _core, ops
opgraft.load_op({so!r})
fails = ops.Custom.from_op("Thrower", where="kernel", what="nothing_written")
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    y = np.asarray(fails(np.arange(4, dtype=np.float32)))
print([str(w.message) for w in said], _core.resolve("Thrower").failures, y.tolist())
"""
    file = OPS.parent / "tests" / "bad_ops" / "thrower.so"
    done = subprocess.run([sys.executable, "-c", code.format(so=str(file))], capture_output=True, text=True)
    said = "Thrower@1.0.0: Thrower: not here; the reference takes over"
    assert done.stdout == f"{[said]} 1 [1.0, 2.0, 3.0, 4.0]\n", done.stderr
