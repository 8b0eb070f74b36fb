"""Models that the reader takes or refuses."""

import struct

from mindir_forms import forms
from mindir_wire import (
    A_BOOL,
    A_DOUBLE,
    A_FLOAT,
    A_INT64,
    A_LIST,
    A_STRING,
    A_TENSOR,
    A_TENSORS,
    A_TUPLE,
    BOOL,
    F16,
    F32,
    F64,
    INT32,
    INT64,
    Double,
    attribute,
    constant,
    floats,
    integer,
    longs,
    many,
    message,
    model,
    node,
    real,
    tensor,
    value,
    varint,
)

X = value("x", (2, 3))
N = value("x", (-1, 3), denotation="n")


def states(one):
    """Parameters that are updated in place."""
    w = [tensor((2, 3), F32, (9, floats(*range(6))), (13, "w"), name="w")]
    u, mark = constant("u", attribute("value", 23)), attribute("side_effect_mem", A_BOOL, (3, 1))
    is_w = attribute("shape", A_TENSORS, (12, tensor((2, 3), F32, (13, "w"))))

    def update(op, monad, output, variable="w"):
        return node(op, [variable, "x", monad], output, mark, is_w)

    after = node("UpdateState", ["u", "a"], "v")
    yield (
        "state",
        one(u, node("Load", ["w", "u"], "old"), update("AssignAdd", "u", "a"), after, node("Load", ["w", "v"], "new"),
            node("Sub", ["new", "old"], "d"), node("UpdateState", ["v", "d"], "end"), node("Depend", ["d", "end"], "y"),
            parameters=w),
    )  # fmt: skip
    yield "state_is_its_result", one(u, update("Assign", "u", "a"), after, update("AssignSub", "v", "y", "a"),
                                     parameters=w)  # fmt: skip
    yield "state_in_no_order", one(u, update("Assign", "u", "a"), update("AssignAdd", "u", "y"), parameters=w)
    yield "state_two", one(u, update("Assign", "u", "a"), update("AssignAdd", "u", "b", "x"),
                           node("MakeTuple", ["a", "b"], "t"), node("UpdateState", ["u", "t"], "v"),
                           update("AssignSub", "v", "y"), parameters=w)  # fmt: skip
    yield "state_computed", one(u, node("Add", ["x", "x"], "z"), update("Assign", "u", "y", "z"))
    yield "state_of_nothing", one(u, node("UpdateState", ["u"], "v"))
    yield "state_no_monad", one(node("Load", ["w", "x"], "y"), parameters=w)


def views(one):
    """mint's views of x (2, 3), or of an open number of rows; what they name wrongly is refused."""

    def view(op, *numbers, inputs=(X,), rest=()):
        given = [constant(f"c{k}", n if isinstance(n, bytes) else integer(n)) for k, n in enumerate(numbers)]
        return one(*given, node(op, ["x", *(f"c{k}" for k in range(len(numbers)))], "y"), *rest, inputs=inputs)

    sizes = many(A_TUPLE, integer(1), integer(2))
    for axis in (-1, 0, 2):
        yield f"view_transpose_{axis}", view("TransposeExtView", axis, 1)
        yield f"view_narrow_{axis}", view("NarrowView", axis, 1, 1)
        yield f"view_sizes_{axis}", view("SplitWithSizeView", sizes, axis)
    for size in (-1, 1, 2, 3):
        yield f"view_parts_of_{size}", view("SplitTensorView", size, 1)
    yield "view_parts_open", view("SplitTensorView", 1, 0, inputs=(N,))
    yield "view_sizes_open", view("SplitWithSizeView", sizes, 0, inputs=(N,))
    yield "view_sizes_below_0", view("SplitWithSizeView", many(A_TUPLE, integer(-1), integer(4)), 1)
    for start in (-1, 1 << 40, -(1 << 40)):
        yield f"view_narrow_from_{start}", view("NarrowView", 0, start, 1)
    yield "view_narrow_length", view("NarrowView", 0, 0, -1)
    yield "view_operands", view("NarrowView", 0, 0)
    yield "view_real", view("SplitTensorView", real(1.0), 0)
    yield "view_unranked", view("TransposeExtView", 0, 1, inputs=(value("x", (-2,)),))
    more = [node("SplitTensorView", ["x", "c0", "c1"], f"y{k}") for k in range(4)]
    yield "view_many", view("SplitTensorView", 1, 0, inputs=(value("x", (6000,)),), rest=more)


def mindir():
    def one(*nodes, out="y", inputs=(X,), **more):
        return model(nodes, [out], inputs, **more)

    yield "encrypted", b"\xd8\x5e\x3a\x7f and more"
    yield "empty_graph", message((7, b""))
    yield "no_graph", message((10, 1))
    yield "big_endian", model([], ["x"], [X], extra=[(10, 0)])
    yield "identity", model([], [value("x", (2, 3), doc="named")], [X])
    yield "not_protobuf", b"\x3a\xff\xff\xff\xff\x7f" + b"x" * 20
    yield "wrong_wire_type", message((7, 5))
    for what, x in {
        "unranked": value("x", (-2,)),
        "dimension": value("x", (-3, 4)),
        "huge": value("x", (1 << 40, 1 << 40)),
        "type": value("x", (2,), 99),
        "rank": value("x", (1,) * 9),
        "tuple": message((1, "x"), (2, tensor((2,))), (2, tensor((2,)))),
        "unnamed": value("", (2,)),
    }.items():
        yield f"input_{what}", model([], ["x"], [x])
    yield "input_twice", model([], ["x"], [X, X])
    symbols = [value(f"x{i}", (-1,), denotation=d) for i, d in enumerate(["n", "2*n+1", "n*n-n", "n+m", "?", "n"])]
    yield "symbols", model([], ["x0", "x5"], symbols)
    w = tensor((3, 2), F32, (9, floats(*range(6))), name="7_net:layer.weight")
    yield "matmul", one(node("MatMul", ["x", "7_net:layer.weight"], "y", domain="net/up"), parameters=[w])
    parameters = {
        "floats": tensor((2,), F32, (3, floats(1, 2)), name="p"),
        "float": tensor((1,), F32, (3, 1.5), name="p"),
        "doubles": tensor((2,), F64, (10, struct.pack("<2d", 1, 2)), name="p"),
        "double": tensor((1,), F64, (10, Double(1)), name="p"),
        "ints": tensor((3,), INT32, (4, varint(1) + varint(-2) + varint(3)), name="p"),
        "longs": tensor((1,), INT64, (6, 1 << 40), name="p"),
        "packed_dims": message((7, "p"), (1, varint(2) + varint(1)), (2, F32), (9, floats(1, 2))),
        "typed_few": tensor((4,), F32, (3, floats(1, 2)), name="p"),
        "cut_list": tensor((2,), F32, (3, b"12345"), name="p"),
        "raw_few": tensor((4,), F32, (9, floats(1, 2)), name="p"),
        "none": tensor((4,), name="p"),
        "compressed": tensor((1,), F32, (9, floats(1)), (15, 1), name="p"),
        "type": tensor((1,), 99, (9, floats(1)), name="p"),
        "rank": tensor((1,) * 9, F32, (9, floats(1)), name="p"),
        "negative": tensor((-1,), F32, (9, floats(1)), name="p"),
        "huge": tensor((1 << 40, 1 << 40), F32, (9, floats(1)), name="p"),
        "huge_bytes": tensor((1 << 62,), F64, (9, floats(1)), name="p"),
        "nothing": tensor((0, 4), F32, (9, b""), name="p"),
    }
    for what, p in parameters.items():
        yield f"parameter_{what}", model([], ["p"], parameters=[p])
    # The fuzzer lays m_variables/data_0, 4096 bytes, beside the model.
    for what, (location, offset, length) in {
        "good": ("m_variables/data_0", 64, 8),
        "past_end": ("m_variables/data_0", 4092, 8),
        "negative": ("m_variables/data_0", -1, 8),
        "missing": ("m_variables/data_1", 0, 8),
        "folder": ("m_variables", 0, 8),
        "absolute": ("/etc/hostname", 0, 8),
        "outside": ("../m_variables/data_0", 0, 8),
        "none": ("", 0, 8),
        "zero_byte": ("m_variables/data\0_0", 0, 8),
    }.items():
        where = message((1, location), (2, offset), (3, length), (9, 1))
        yield f"external_{what}", model([], ["p"], parameters=[tensor((2,), F32, (12, where), name="p")])
    shape = many(A_TUPLE, integer(3), integer(2))
    yield "reshape_tuple", one(constant("s", shape), node("Reshape", ["x", "s"], "y"))
    raw = tensor((2,), INT64, (9, longs(3, 2)))
    for kind in (A_TENSOR, A_TENSORS):
        at = attribute("value", kind, (6, raw))
        yield f"reshape_tensor{kind}", one(constant("s", at), node("Reshape", ["x", "s"], "y"))
    yield (
        "reshape_ints",
        one(constant("s", attribute("", A_INT64, (10, varint(3) + varint(2)))), node("Reshape", ["x", "s"], "y")),
    )
    elements = {
        "bool": tensor((3,), BOOL, (9, b"\1\0\1")),
        "int32": tensor((2,), INT32, (9, struct.pack("<2i", 1, 0))),
        "float": tensor((2,), F32, (9, floats(1, 0))),
        "double": tensor((2,), F64, (9, struct.pack("<2d", 1, 0))),
        "half": tensor((2,), F16, (9, b"\0\0\0\0")),
        "scalar": tensor((), INT64, (9, longs(1))),
        "matrix": tensor((1, 2), INT64, (9, longs(1, 0))),
    }
    for what, t in elements.items():
        at = constant("p", attribute("value", A_TENSOR, (6, t)))
        yield f"transpose_{what}", one(at, node("Transpose", ["x", "p"], "y"))
        yield f"softmax_{what}", one(at, node("Softmax", ["x", "p"], "y"))
    scalars = {
        "bool": attribute("value", A_BOOL, (3, 1)),
        "int": integer(3, "value"),
        "int32": attribute("value", 6, (3, 3)),
        "float": real(0.5, "value"),
        "float_exact": attribute("value", A_FLOAT, (2, 0.1), (4, Double(0.1))),
        "double": attribute("value", A_DOUBLE, (4, Double(0.1))),
        "string": attribute("value", A_STRING, (5, "text")),
        "strings": attribute("value", A_STRING, (11, "a"), (11, "b")),
        "floats": attribute("value", A_FLOAT, (8, floats(1, 2))),
        "float_each": attribute("value", A_FLOAT, (8, 1.0), (8, 2.0)),
        "doubles": attribute("value", A_DOUBLE, (9, struct.pack("<2d", 1, 2))),
        "ints_each": attribute("value", A_INT64, (10, 1), (10, 2)),
        "monad": attribute("value", 23),
        "none": attribute("value", 25),
        "unknown": attribute("value", 1000),
        "two_tensors": attribute("value", A_TENSORS, (12, raw), (12, raw)),
        "type": attribute("value", A_TENSORS, (12, tensor((), F16))),
        "mixed": many(A_LIST, integer(1), real(2), attribute("", A_BOOL, (3, 1))),
        "rows": many(A_TUPLE, many(A_TUPLE, integer(1)), many(A_TUPLE, integer(2))),
        "empty": many(A_TUPLE),
        "bools": many(A_TUPLE, attribute("", A_BOOL, (3, 1)), attribute("", A_BOOL, (3, 0))),
    }
    for what, a in scalars.items():
        yield f"mul_{what}", one(constant("c", a), node("Mul", ["x", "c"], "y"))
        yield f"cast_{what}", one(constant("c", a), node("Cast", ["x", "c"], "y"))
    yield "two_values", one(node("Constant", [], "c", real(1), integer(2, "value")), node("Add", ["x", "c"], "y"))
    yield "no_value", one(node("Constant", [], "c"))
    deep = integer(1)
    for _ in range(20):
        deep = many(A_TUPLE, deep)
    yield "deep_value", one(constant("c", deep), node("Mul", ["x", "c"], "y"))
    # tuples, side effects
    shapes = [constant("c", integer(0)), constant("s", integer(-1)), node("Shape", ["x"], "sh")]
    yield (
        "shape",
        one(
            *shapes,
            node("TupleGetItem", ["sh", "c"], "d"),
            node("MakeTuple", ["d", "s"], "t"),
            node("Reshape", ["x", "t"], "y"),
            inputs=[N],
        ),
    )
    tuples = [node("MakeTuple", ["x", "x"], "t"), constant("c", integer(-1))]
    yield "tuple", one(*tuples, node("TupleGetItem", ["t", "c"], "y"))
    yield "list", one(node("MakeList", ["x"], "t"), constant("c", integer(0)), node("ListGetItem", ["t", "c"], "y"))
    yield "tuple_output", one(*tuples, node("MakeTuple", ["t", "x"], "y"))
    yield "tuple_index", one(*tuples, constant("k", integer(7)), node("TupleGetItem", ["t", "k"], "y"))
    yield "tuple_no_index", one(*tuples, node("TupleGetItem", ["t", "x"], "y"))
    yield (
        "tuple_of_literal",
        one(constant("t", shape), constant("c", integer(1)), node("TupleGetItem", ["t", "c"], "y")),
    )
    yield "tuple_of_tensor", one(constant("c", integer(0)), node("TupleGetItem", ["x", "c"], "y"))
    yield "tuple_of_tensor_1", one(constant("c", integer(1)), node("TupleGetItem", ["x", "c"], "y"))
    yield "tuple_of_tuples", one(*tuples, node("MakeTuple", ["t", "t"], "u"), node("Reshape", ["x", "u"], "y"))
    yield (
        "tuple_deep",
        one(
            node("MakeTuple", ["x"], "t0"),
            *(node("MakeTuple", [f"t{i}"] * 2, f"t{i + 1}") for i in range(18)),
            out="t18",
        ),
    )
    yield (
        "tuple_wide",
        one(
            node("MakeTuple", ["x"] * 8, "t0"),
            *(node("MakeTuple", [f"t{i}"] * 8, f"t{i + 1}") for i in range(6)),
            out="t6",
        ),
    )
    literals = [constant("a", integer(3)), constant("b", integer(2)), node("MakeTuple", ["a", "b"], "t")]
    yield "tuple_of_constants", one(*literals, node("Reshape", ["x", "t"], "y"))
    written = message((1, "p"), (2, "MakeTuple"), (3, attribute("opgraft_value", A_BOOL, (3, 1))))
    yield (
        "tuple_value",
        one(
            *shapes,
            node("TupleGetItem", ["sh", "c"], "d"),
            node("REF::p", ["d", "s"], "t"),
            node("Reshape", ["x", "t"], "y"),
            inputs=[N],
            primitives=[written],
        ),
    )
    yield (
        "effects",
        one(
            constant("u", attribute("value", 23)),
            node("Load", ["w", "u"], "l"),
            node("UpdateState", ["u", "l"], "v"),
            node("Depend", ["l", "v"], "y"),
            parameters=[tensor((1,), F32, (9, floats(1)), name="w")],
        ),
    )
    yield from states(one)
    yield from views(one)
    yield from forms()
    yield "load_nothing", one(node("Load", [], "y"))
    # operands
    yield "concat", one(node("MakeTuple", ["x", "x"], "t"), constant("a", integer(1)), node("Concat", ["t", "a"], "y"))
    yield "concat_each", one(constant("a", integer(0)), node("Concat", ["x", "x", "a"], "y"))
    yield "split", one(node("Split", ["x"], "y", integer(1, "axis"), integer(3, "output_num")))
    yield (
        "split_first",
        one(
            constant("c", integer(0)),
            node("Split", ["x"], "s", integer(1, "axis"), integer(3, "output_num")),
            node("TupleGetItem", ["s", "c"], "y"),
        ),
    )
    yield "axis_computed", one(node("Softmax", ["x", "x"], "y"))
    yield "too_many", one(node("Add", ["x", "x", "x"], "y"))
    yield "too_few", one(node("Add", ["x"], "y"))
    yield "does_not_fit", model([node("Add", ["x", "z"], "y")], ["y"], [X, value("z", (5,))])
    yield "undefined", one(node("Add", ["x", "nowhere"], "y"))
    yield "unknown_op", one(node("Strange", ["x"], "y"))
    yield "no_primitive", one(node("REF::nowhere", ["x"], "y"))
    yield (
        "layout",
        one(
            node("BiasAdd", ["x", "b"], "y", integer(0, "data_format")),
            parameters=[tensor((3,), F32, (9, floats(1, 2, 3)), name="b")],
        ),
    )
    yield "wrong_attribute", one(node("Softmax", ["x"], "y", attribute("axis", A_STRING, (5, "last"))))
    yield "none_attribute", one(node("Softmax", ["x"], "y", attribute("axis", 25)))
    yield "none_operand", one(constant("c", attribute("value", 25)), node("ReduceSum", ["x", "c"], "y"))
    attention = ["q", "k", "v"]
    yield (
        "left_out",
        model(
            [constant("c", attribute("value", 25)), node("ScaledDotProductAttention", [*attention, "c", "q"], "y")],
            ["y"],
            [value(n, (1, 2, 4, 8)) for n in attention],
        ),
    )
    # Custom
    custom_attributes = {
        "bool": [(3, 1), (16, A_BOOL)],
        "int": [(3, 3), (16, A_INT64)],
        "float": [(2, 0.5), (16, A_FLOAT)],
        "text": [(5, "text"), (16, A_STRING)],
        "ints": [(10, varint(1) + varint(2)), (16, A_INT64)],
        "floats": [(8, floats(1, 2)), (16, A_FLOAT)],
        "texts": [(11, "a"), (11, "b"), (16, A_STRING)],
        "rows": [(17, many(A_TUPLE, integer(1))), (16, A_TUPLE)],
        "real_rows": [(17, many(A_TUPLE, real(1))), (16, A_TUPLE)],
    }
    fallback = model(
        [node("SiLU", ["g"], "s"), node("Mul", ["s", "a"], "y")], ["y"], [value("a", (2, 3)), value("g", (2, 3))]
    )
    for what, fields in {
        "spec": [attribute("opgraft_spec", A_STRING, (5, "SwiGLU@^1"))],
        "exact": [attribute("opgraft_op", A_STRING, (5, "SwiGLU@1.0.0"))],
        "func": [attribute("func_name", A_STRING, (5, "swiglu.so:SwiGLU"))],
        "fallback": [
            attribute("opgraft_op", A_STRING, (5, "SwiGLU")),
            attribute("opgraft_fallback", A_STRING, (5, fallback)),
        ],
        "bad_fallback": [
            attribute("opgraft_op", A_STRING, (5, "SwiGLU")),
            attribute("opgraft_fallback", A_STRING, (5, fallback[:-9])),
        ],
        "unknown": [attribute("func_name", A_STRING, (5, "nowhere.so:Nothing"))],
        "nothing": [],
    }.items():
        primitive = message((1, "c"), (2, "Custom"), *((3, f) for f in fields))
        calls = [node("REF::c", ["x", "x"], "z"), node("REF::c", ["z", "x"], "y")]
        yield f"custom_{what}", one(*calls, primitives=[primitive])
    # Functions: of a file that is allowed (function.so, which run.sh builds), and of others.
    every = [
        *(message((1, f"a_{what}"), *((k, v) for k, v in fields)) for what, fields in custom_attributes.items()),
        attribute("out_shape", A_STRING, (5, "2,?")),
    ]
    outputs = [attribute("shape", A_TENSORS, (12, tensor((2, -1))), (12, tensor((3,), F16)))]
    typed = [many(A_TUPLE, attribute("", A_TENSORS, (12, tensor((-2,)))), name="shape")]
    for what, (func, kind, stated) in {
        "": ("function.so:Copy", "aot", outputs),
        "_elsewhere": ("/nowhere/function.so:Copy", "aot", outputs),
        "_unranked": ("function.so:Copy", "aot", typed),
        "_silent": ("function.so:Copy", "aot", []),
        "_type": ("function.so:Copy", "akg", outputs),
        "_missing": ("function.so:Absent", "aot", outputs),
        "_native": ("/nowhere/swiglu.so:SwiGLU", "aot", outputs),
        "_outside": ("/bin/true:main", "aot", outputs),
    }.items():
        fields = [attribute("func_name", A_STRING, (5, func)), attribute("func_type", A_STRING, (5, kind)), *every]
        primitive = message((1, "c"), (2, "Custom"), *((3, f) for f in fields))
        calls = [node("REF::c", ["x"], "t", *stated), constant("i", integer(0)), node("TupleGetItem", ["t", "i"], "y")]
        yield f"function{what}", one(*calls, primitives=[primitive])
    nested = model([], ["x"], [X])
    for _ in range(6):
        nested = one(
            node(
                "Custom",
                ["x", "x"],
                "y",
                attribute("opgraft_op", A_STRING, (5, "SwiGLU")),
                attribute("opgraft_fallback", A_STRING, (5, nested)),
            )
        )
    yield "custom_nested", nested
