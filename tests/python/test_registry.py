"""Files that are pinned, and who takes over from a kernel that fails."""

import hashlib
import pathlib
import shutil

import numpy as np
import opgraft
import pytest
from compare import close
from opgraft import _core, ops

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
    x = np.random.default_rng(0).standard_normal((1, 1, 3, 1100)).astype(np.float32)
    attention = ops.Custom.from_op("ScaledDotProductAttention")
    failures = _core.resolve("ScaledDotProductAttention").failures
    with pytest.warns(RuntimeWarning, match="head dimension must be at most 1024, got 1100; the reference takes over"):
        y = np.asarray(attention(x, x, x))
    assert _core.resolve("ScaledDotProductAttention").failures == failures + 1
    s = x.astype(np.float64) @ x.swapaxes(-1, -2) / np.sqrt(1100)
    w = np.exp(s - s.max(axis=-1, keepdims=True))
    # The reference computes in double precision and rounds once.
    close(y, w / w.sum(axis=-1, keepdims=True) @ x.astype(np.float64), 1.01)
