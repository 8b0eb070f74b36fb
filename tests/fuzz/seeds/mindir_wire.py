"""Models in protobuf's wire format; field numbers as in infer/mindir_wire.cc."""

import struct


def varint(n):
    n &= (1 << 64) - 1
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


class Double(float):
    pass


def message(*fields):
    """(field, value) pairs: an int is a varint, a float 4 bytes, a Double 8, bytes and text are length-delimited."""
    out = b""
    for tag, v in fields:
        if isinstance(v, int):
            out += varint(tag << 3) + varint(v)
        elif isinstance(v, Double):
            out += varint(tag << 3 | 1) + struct.pack("<d", v)
        elif isinstance(v, float):
            out += varint(tag << 3 | 5) + struct.pack("<f", v)
        else:
            v = v.encode() if isinstance(v, str) else v
            out += varint(tag << 3 | 2) + varint(len(v)) + v
    return out


F32, INT32, INT64, BOOL, F16, F64 = 1, 6, 7, 9, 10, 11
A_FLOAT, A_INT64, A_STRING, A_BOOL, A_DOUBLE, A_TENSOR, A_TENSORS, A_TUPLE, A_LIST = 1, 7, 8, 9, 11, 17, 19, 20, 21


def tensor(dims, dtype=F32, *more, name=""):
    return message((7, name), *((1, d) for d in dims), (2, dtype), *more)


def floats(*v):
    return struct.pack(f"<{len(v)}f", *v)


def longs(*v):
    return struct.pack(f"<{len(v)}q", *v)


def value(name, dims=(), dtype=F32, denotation="", doc=""):
    return message((1, name), (2, tensor(dims, dtype)), (3, doc), (4, denotation))


def attribute(name, kind, *fields):
    return message((1, name), *fields, (16, kind))


def integer(v, name=""):
    return attribute(name, A_INT64, (3, v))


def real(v, name=""):
    return attribute(name, A_FLOAT, (2, float(v)))


def many(kind, *items, name=""):
    return attribute(name, kind, *((17, i) for i in items))


def node(op, inputs, output, *attributes, domain=""):
    return message(*((1, i) for i in inputs), (2, output), (4, op), *((5, a) for a in attributes), (7, domain))


def constant(output, attribute_):
    return node("Constant", [], output, attribute_)


def model(nodes, outputs, inputs=(), parameters=(), primitives=(), extra=()):
    graph = message(
        *((1, n) for n in nodes),
        (2, "g"),
        *((3, p) for p in parameters),
        *((5, i) for i in inputs),
        *((6, o if isinstance(o, bytes) else message((1, o))) for o in outputs),
    )
    return message(*((12, p) for p in primitives), *extra, (7, graph))
