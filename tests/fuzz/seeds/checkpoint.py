"""MindSpore's checkpoints."""

import zlib

TYPES = {"Bool": 1, "Int8": 1, "Int16": 2, "Int32": 4, "Int64": 8, "UInt8": 1, "UInt16": 2, "UInt32": 4, "UInt64": 8,
         "Float16": 2, "Float32": 4, "Float64": 8, "BFloat16": 2, "Complex64": 8}  # fmt: skip


def field(number, body):
    return bytes([number << 3 | 2, len(body)]) + body


def piece(name="w", dims=(2,), kind="Float32", content=bytes(8)):
    tensor = b"".join(bytes([8, d]) for d in dims) + field(2, kind.encode()) + field(3, content)
    return field(1, field(1, name.encode()) + field(2, tensor))


def crc(body):
    return body + b"crc_num" + zlib.crc32(body).to_bytes(10, "big")


def checkpoints():
    for kind, size in TYPES.items():
        yield f"type_{kind}", piece(kind=kind, content=bytes(range(1, 2 * size + 1)))
    yield "scalar", piece(dims=(), content=bytes(4))
    yield "scalar_old", piece(dims=(0,), content=bytes(4))
    yield "empty_tensor", piece(dims=(0, 3), content=b"")
    yield "packed", field(1, field(1, b"w") + field(2, b"\x0a\x02\x01\x02" + field(2, b"Int8") + field(3, b"ab")))
    yield "text", piece(dims=(0,), kind="str", content="text".encode("utf-32-le"))
    yield "pieces", piece(content=bytes(4)) + piece(content=bytes(4)) + piece("v")
    yield "pieces_differ", piece(content=bytes(4)) + piece(kind="Int32", content=bytes(4))
    yield "crc", crc(piece() + piece("v"))
    yield "crc_wrong", crc(piece())[:-1] + b"x"
    yield "twice", piece() + piece("v") + piece()
    yield "few_bytes", piece(content=bytes(7))
    yield "shape_huge", piece().replace(b"\x08\x02", b"\x08" + b"\xff" * 8 + b"\x7f")
    yield "map", field(1, field(1, b"w") + field(3, b""))
    yield "encrypted", b"\xd8\x5e\x3a\x7f" + bytes(20)
    yield "cut", piece()[:-3]
