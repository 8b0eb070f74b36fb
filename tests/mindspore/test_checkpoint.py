"""Checkpoints, written by MindSpore and loaded by opgraft, and the reverse."""

import mindspore as ms
import numpy as np
import opgraft
import pytest
from mindspore import Tensor, nn
from models import normal

DTYPES = ["bool_", *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)), "float16", "float32", "float64",
          "bfloat16"]  # fmt: skip


def arrays():
    """Of every dtype that MindSpore loads; a matrix, a vector and a 0-d one."""
    made = {n: (10 * normal(2, 3)).astype(getattr(opgraft, n)) for n in DTYPES}
    return made | {f"{n}_{k}": a.reshape(-1)[:k] if k else a[0, 0] for n, a in made.items() for k in (0, 1)}


def theirs(a):
    """MindSpore's Tensor of opgraft's array, bits kept."""
    a = np.asarray(a)
    if a.dtype == opgraft.bfloat16:
        return Tensor(a.astype(np.float32)).astype(ms.bfloat16)
    return Tensor(a)


def numpy_of(t):
    """An array of MindSpore's Tensor."""
    return t.float().asnumpy().astype(opgraft.bfloat16) if t.dtype == ms.bfloat16 else t.asnumpy()


def same(got, want):
    want = np.asarray(want)
    assert (got.dtype, got.shape, got.tobytes()) == (want.dtype, want.shape, want.tobytes())


@pytest.mark.parametrize("crc", [False, True])
def test_from_mindspore_to_opgraft(crc, tmp_path):
    file, given = str(tmp_path / "x.ckpt"), arrays()
    ms.save_checkpoint([{"name": n, "data": theirs(a)} for n, a in given.items()], file, crc_check=crc,
                       append_dict={"epoch": 3, "rate": 0.5, "flag": True, "note": "ein Text, 字"})  # fmt: skip
    loaded = opgraft.load_checkpoint(file, crc_check=crc)
    assert loaded.pop("note") == "ein Text, 字"
    assert {n: loaded.pop(n).asnumpy()[()] for n in ("epoch", "rate", "flag")} == {
        "epoch": 3,
        "rate": 0.5,
        "flag": True,
    }
    assert list(loaded) == list(given)
    for name, a in given.items():
        same(loaded[name].asnumpy(), a)


@pytest.mark.parametrize("crc", [False, True])
def test_from_opgraft_to_mindspore(crc, tmp_path):
    file, given = str(tmp_path / "x.ckpt"), arrays()
    opgraft.save_checkpoint(given, file, append_dict={"epoch": 3, "rate": 0.5, "note": "ein Text, 字"}, crc_check=crc)
    loaded = ms.load_checkpoint(file, crc_check=crc)
    assert loaded.pop("note") == "ein Text, 字"
    assert loaded.pop("epoch").asnumpy() == 3 and loaded.pop("rate").asnumpy() == 0.5
    assert list(loaded) == list(given)
    for name, a in given.items():
        same(numpy_of(loaded[name]), a)


def test_the_bytes_are_the_same(tmp_path):
    x = normal(2, 3)
    ms.save_checkpoint([{"name": "x", "data": Tensor(x)}], str(tmp_path / "a.ckpt"), crc_check=True)
    opgraft.save_checkpoint([{"name": "x", "data": opgraft.Tensor(x)}], tmp_path / "b.ckpt", crc_check=True)
    assert (tmp_path / "a.ckpt").read_bytes() == (tmp_path / "b.ckpt").read_bytes()


def test_a_model_trained_there_runs_here(tmp_path):
    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.set_seed(2)  # of the weights: a row whose three results are nearly equal would be worse conditioned
    net, x = nn.SequentialCell(nn.Dense(4, 3), nn.LayerNorm((3,))), normal(2, 4)
    file = str(tmp_path / "net.ckpt")
    ms.save_checkpoint(net, file)
    other = opgraft.nn.SequentialCell(opgraft.nn.Dense(4, 3), opgraft.nn.LayerNorm((3,)))
    assert opgraft.load_param_into_net(other, opgraft.load_checkpoint(file)) == ([], [])
    got, want = other(opgraft.Tensor(x)).asnumpy(), net(Tensor(x)).asnumpy()
    # y = x w + b: every term is rounded as a product and in four sums, 5 u of `most` = |x| |w| + |b|. The mean has the
    # same, two sums and a division; the difference of both is at most twice `most`, rounded once.
    u, (dense, norm) = 2.0**-24, net
    w, b = (np.abs(p.asnumpy().astype(np.float64)) for p in (dense.weight, dense.bias))
    difference = (5 + 5 + 3 + 2) * u * (np.abs(x) @ w.T + b).max(-1, keepdims=True)
    # The deviation is off by no more than what it is the mean of, by half of the five roundings of its square (the
    # squares, two sums, a division, epsilon) and by a root; the quotient, weight and bias round once each.
    y = dense(Tensor(x)).asnumpy().astype(np.float64)
    deviation = np.sqrt(y.var(-1, keepdims=True) + norm.epsilon)
    one_side = difference / deviation * (1 + np.abs(want)) + (2.5 + 1 + 3) * u * np.abs(want)
    assert (np.abs(got - want) <= 2 * one_side).all(), np.abs(got - want) / one_side


@pytest.mark.parametrize("mode", ["AES-GCM", "AES-CBC", "SM4-CBC"])
def test_an_encrypted_file_is_refused(mode, tmp_path):
    file = str(tmp_path / "x.ckpt")
    ms.save_checkpoint([{"name": "x", "data": Tensor(normal(4))}], file, enc_key=b"0123456789abcdef", enc_mode=mode)
    with pytest.raises(ValueError, match=r"x\.ckpt: is encrypted, which opgraft does not read"):
        opgraft.load_checkpoint(file)


def test_a_file_that_mindspore_finds_damaged(tmp_path):
    file = tmp_path / "x.ckpt"
    ms.save_checkpoint([{"name": "x", "data": Tensor(normal(4))}], str(file), crc_check=True)
    data = bytearray(file.read_bytes())
    data[-20] ^= 1  # of the contents
    file.chmod(0o600)
    file.write_bytes(data)
    with pytest.raises(ValueError, match="Failed to read the checkpoint file"):
        ms.load_checkpoint(str(file), crc_check=True)
    with pytest.raises(ValueError, match=r"x\.ckpt: is damaged: its CRC-32 is .*, the file says"):
        opgraft.load_checkpoint(file)
