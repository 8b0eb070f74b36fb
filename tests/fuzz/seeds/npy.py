"""NumPy's .npy files."""

import struct


def npy(header, data=b"", version=1):
    size = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + size + header.encode() + data


def npy_header(descr="<f4", shape="(2,)", order="False"):
    return f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}\n"


def npys():
    for i, (descr, size) in enumerate(
        {"|b1": 1, "<i2": 2, "<f4": 4, "<f8": 8, "<c8": 8, "<V2": 2, "|V2": 2, "<f2": 2, "|u1": 1}.items()
    ):
        yield f"type{i}", npy(npy_header(descr), bytes(2 * size), 1 + i % 3)
    yield "scalar", npy(npy_header(shape="()"), bytes(4))
    yield "matrix", npy(npy_header(shape="(2, 3)"), bytes(24))
    yield "zero", npy(npy_header(shape="(0, 5)"))
    yield "type_unknown", npy(npy_header("<U4"), bytes(40))
    yield "type_big_endian", npy(npy_header(">f4"), bytes(8))
    yield "fortran", npy(npy_header(order="True"), bytes(8))
    yield "shape_huge", npy(npy_header(shape="(4294967296, 4294967296)"), bytes(8))
    yield "shape_negative", npy(npy_header(shape="(-2,)"), bytes(8))
    yield "shape_text", npy(npy_header(shape="(two,)"), bytes(8))
    yield "shape_none", npy(npy_header(shape="2"), bytes(8))
    yield "shape_rank", npy(npy_header(shape="(1,1,1,1,1,1,1,1,1)"), bytes(8))
    yield "few_bytes", npy(npy_header(), bytes(7))
    yield "no_shape", npy("{'descr': '<f4', 'fortran_order': False}", bytes(8))
    yield "no_value", npy("{'descr':", bytes(8))
    yield "version", npy(npy_header(), bytes(8), 9)
    yield "cut_header", npy(npy_header(), version=2)[:20]
    yield "cut_length", b"\x93NUMPY\2\0\1\0"
    yield "no_magic", b"NUMPY"
