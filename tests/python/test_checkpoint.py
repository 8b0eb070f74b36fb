"""MindSpore's .ckpt: written and read, and what a damaged or hostile file does."""

import zlib

import numpy as np
import opgraft
import pytest
from opgraft import _core, dtype, nn

DTYPES = ["bool_", *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)), "float16", "float32", "float64",
          "bfloat16", "complex64"]  # fmt: skip


def field(number, body):
    return bytes([number << 3 | 2]) + varint(len(body)) + body


def varint(n):
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes(out + bytes([n]))


def piece(name, dims, kind, content):
    """A Checkpoint of one value, as protobuf writes it."""
    tensor = b"".join(b"\x08" + varint(d) for d in dims) + field(2, kind.encode()) + field(3, content)
    return field(1, field(1, name.encode()) + field(2, tensor))


def values():
    rng = np.random.default_rng(0)
    made = {n: (10 * rng.standard_normal((2, 3))).astype(getattr(dtype, n)) for n in DTYPES}
    return made | {"scalar": np.float32(2.5), "none": np.zeros((0, 3), np.float32), "epoch": 3, "rate": 0.5,
                   "note": "ein Text, 字"}  # fmt: skip


@pytest.mark.parametrize("crc", [False, True])
def test_round_trip(crc, tmp_path):
    file, given = tmp_path / "x.ckpt", values()
    opgraft.save_checkpoint(given, file, crc_check=crc)
    loaded = opgraft.load_checkpoint(file, crc_check=crc)
    assert list(loaded) == list(given) and loaded.pop("note") == given.pop("note")
    given["rate"] = np.float32(given["rate"])  # as MindSpore
    for name, value in given.items():
        want, got = np.asarray(value), loaded[name].asnumpy()
        assert (got.dtype, got.shape, got.tobytes()) == (want.dtype, want.shape, want.tobytes()), name
        assert isinstance(loaded[name], opgraft.Parameter) and loaded[name].name == name
    data = file.read_bytes()
    assert (data[-17:-10] == b"crc_num") == crc
    if crc:
        assert int.from_bytes(data[-10:], "big") == zlib.crc32(data[:-17])


def test_the_bytes_are_protobufs(tmp_path):
    file, x = tmp_path / "x.ckpt", np.arange(6, dtype=np.float32).reshape(2, 3)
    opgraft.save_checkpoint([{"name": "x", "data": opgraft.Tensor(x)}], file)
    assert file.read_bytes() == piece("x", (2, 3), "Float32", x.tobytes())


def test_pieces_of_large_parameters(tmp_path):
    file, x = tmp_path / "x.ckpt", np.arange(100, dtype=np.int16).reshape(4, 25)
    _core.write_checkpoint({"x": x, "y": x[:0], "t": "abc"}, str(file), slice=64)
    parts = [x.tobytes()[i : i + 64] for i in range(0, 200, 64)]
    want = b"".join(piece("x", x.shape, "Int16", p) for p in parts) + piece("y", (0, 25), "Int16", b"")
    assert file.read_bytes() == want + piece("t", (0,), "str", "abc".encode("utf-32-le"))
    loaded = opgraft.load_checkpoint(file)
    np.testing.assert_array_equal(loaded["x"].asnumpy(), x)
    assert loaded["y"].shape == (0, 25) and loaded["t"] == "abc"


def test_a_cell(tmp_path):
    net, other, file = nn.Dense(4, 3), nn.Dense(4, 3), tmp_path / "net.ckpt"
    opgraft.save_checkpoint(net, file, append_dict={"note": "kept"})
    assert opgraft.load_param_into_net(other, opgraft.load_checkpoint(file)) == ([], ["note"])
    x = np.ones((2, 4), np.float32)
    np.testing.assert_array_equal(net(opgraft.Tensor(x)).asnumpy(), other(opgraft.Tensor(x)).asnumpy())
    with pytest.warns(UserWarning, match="has no CRC to check"):
        opgraft.load_checkpoint(file, crc_check=True)


F = np.float32(1).tobytes()
BAD = {
    "encrypted": (b"\xd8\x5e\x3a\x7f" + bytes(40), "is encrypted, which opgraft does not read"),
    "encrypted with another mode": (b"\xda\x5e\x3a\x7f" + bytes(40), "is encrypted"),
    "empty": (b"", "holds no parameters"),
    "text": (b"no checkpoint at all", "no checkpoint"),
    "size": (piece("w", (2, 2), "Float32", F), r"parameter 'w' float32\(2, 2\) needs 16 bytes, the file has 4"),
    "negative": (piece("w", (2**64 - 1,), "Float32", F), r"parameter 'w' has the impossible shape \(-1\)"),
    "overflow": (piece("w", (2**62, 2**62), "Int8", b""), "impossible shape"),
    "huge": (piece("w", (2**40,), "Int8", b""), "needs 1099511627776 bytes, the file has 0"),
    "rank": (piece("w", (1,) * 9, "Float32", F), "has rank 9, at most 8"),
    "dtype": (piece("w", (1,), "Int4", b"1"), "parameter 'w' has the unsupported dtype 'Int4'"),
    "half a character": (piece("w", (0,), "str", b"abc"), "is a text of 3 bytes"),
    "no character": (piece("w", (0,), "str", b"\xff" * 4), "is no Unicode"),
    "name": (piece("w", (1,), "Float32", F).replace(b"w", b"\xff"), "is no Unicode"),
    "no name": (piece("", (1,), "Float32", F), "without a name"),
    "twice": (piece("w", (1,), "Float32", F) + piece("v", (1,), "Float32", F) + piece("w", (1,), "Float32", F),
              "parameter 'w' stands there twice"),
    "name of a dtype": (piece("w", (1,), "Int16", F).replace(b"Int", b"\xc9nt"), r"unsupported dtype '\\xc9nt16'"),
    "two kinds": (piece("w", (2,), "Float32", F) + piece("w", (2,), "Int32", F), "pieces of different shapes"),
    "map": (field(1, field(1, b"w") + field(3, b"")), "parameter 'w' is a MapParameter"),
    "no tensor": (field(1, field(1, b"w")), "parameter 'w' has no tensor"),
    "wire type": (b"\x08\x01", "field 1 has wire type 0, expected 2"),
    "other field": (field(2, b""), "unknown field 2"),
    "crc": (piece("w", (1,), "Float32", F) + b"crc_num" + bytes(10), "is damaged: its CRC-32 is .*, the file says 0"),
    "large crc": (piece("w", (1,), "Float32", F) + b"crc_num" + b"\xff" * 10, "is damaged: its CRC-32 is"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_a_bad_file_is_refused(what, tmp_path):
    content, message = BAD[what]
    file = tmp_path / "bad.ckpt"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=rf"bad\.ckpt: .*{message}"):
        opgraft.load_checkpoint(file)


def test_what_cannot_be_saved_or_found(tmp_path):
    with pytest.raises(FileNotFoundError, match="none.ckpt: no such file"):
        opgraft.load_checkpoint(tmp_path / "none.ckpt")
    with pytest.raises(ValueError, match="note is a text, which only a .ckpt takes"):
        opgraft.save_checkpoint({"note": "x"}, tmp_path / "x.npz")
    with pytest.raises(ValueError, match="crc_check is for .ckpt"):
        opgraft.save_checkpoint({"x": np.ones(2)}, tmp_path / "x.safetensors", crc_check=True)
    with pytest.raises(TypeError, match="x must be one of .*, got dtype"):
        opgraft.save_checkpoint({"x": np.zeros(2, np.complex128)}, tmp_path / "x.ckpt")
    with pytest.raises(TypeError, match="a list must be of dicts with name and data"):
        opgraft.save_checkpoint([1], tmp_path / "x.ckpt")
    with pytest.raises(ValueError, match="nowhere/x.ckpt: cannot create"):
        opgraft.save_checkpoint({"x": np.ones(2)}, tmp_path / "nowhere" / "x.ckpt")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("crc", [False, True])
def test_a_file_cut_off_anywhere(crc, tmp_path):
    """Every beginning of a file is refused, but where it ends between two parameters: without a CRC nothing tells."""
    file = tmp_path / "x.ckpt"
    given = {"a": np.arange(5, dtype=np.int16), "b": np.ones((2, 2), np.float32), "c": "text"}
    opgraft.save_checkpoint(given, file, crc_check=crc)
    data, whole = file.read_bytes(), []
    for n in range(len(data)):
        file.write_bytes(data[:n])
        try:
            whole.append(list(opgraft.load_checkpoint(file)))
        except ValueError as e:
            assert str(file) in str(e)
    # With a CRC, what is left without its last bytes is a body, or one with something behind it.
    assert whole == [["a"], ["a", "b"]] + [["a", "b", "c"]] * crc


def test_a_changed_byte(tmp_path):
    """It is refused, or read as what the bytes then say: nothing else comes out. With a CRC it is always refused."""
    file, plain = tmp_path / "x.ckpt", {"a": np.arange(5, dtype=np.int16), "b": np.ones((2, 2), np.float32)}
    for crc in (False, True):
        opgraft.save_checkpoint(plain, file, crc_check=crc)
        data, read = bytearray(file.read_bytes()), 0
        for i in range(len(data) - 17 * crc):
            for bit in range(8):
                data[i] ^= 1 << bit
                file.write_bytes(data)
                try:
                    loaded = opgraft.load_checkpoint(file)
                    read += 1
                    assert sum(t.asnumpy().nbytes for t in loaded.values()) <= len(data)
                except ValueError as e:
                    assert str(file) in str(e)
                data[i] ^= 1 << bit
        assert (read == 0) if crc else (read >= 8 * (10 + 16))  # every bit of the contents
