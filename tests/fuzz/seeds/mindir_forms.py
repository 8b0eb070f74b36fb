"""Models of primitives that are read as nodes of other operators, and of what these refuse."""

from mindir_wire import A_BOOL, A_TUPLE, attribute, constant, integer, many, model, node, real, value

X, IMAGES = value("x", (2, 3)), value("x", (1, 2, 4, 5))
NONE, YES, NO = (attribute("value", 25), attribute("value", A_BOOL, (3, 1)), attribute("value", A_BOOL, (3, 0)))


def forms():
    def form(op, *operands, inputs=(X,), **attributes):
        given = [constant(f"c{k}", v if isinstance(v, bytes) else integer(v)) for k, v in enumerate(operands)]
        made = node(op, ["x", *(f"c{k}" for k in range(len(operands)))], "y", *attributes.values())
        return model([*given, made], ["y"], inputs)

    def sizes(*numbers):
        return many(A_TUPLE, *map(integer, numbers))

    for op in ("Var", "Std", "VarMean", "StdMean"):
        yield f"form_{op}", form(op, sizes(-1), 0, YES)
        yield f"form_{op}_plain", form(op)
    yield "form_var_none", form("Var", NONE, 1, NO)
    yield "form_var_correction", form("Var", sizes(0), 2)
    yield "form_var_axis", form("Var", sizes(7))
    yield "form_var_real", form("Var", real(1.0))
    for axis in (-1, 0, 5):
        yield f"form_log_softmax_{axis}", form("LogSoftmaxExt", axis, NONE)
    yield "form_log_softmax_dtype", form("LogSoftmaxExt", 0, 43)
    yield "form_log_softmax_no_axis", form("LogSoftmaxExt", NONE)
    for k in (-1, 0, 2, 4, 1 << 40):
        yield f"form_topk_{k}", form("TopkExt", k)
        yield f"form_topk_other_{k}", form("TopkExt", k, 0, NO, YES)
        yield f"form_topk_plain_{k}", form("TopK", k, sorted=attribute("sorted", A_BOOL, (3, 1)))
    yield "form_topk_number", form("TopkExt", 1, inputs=(value("x"),))

    def pool(inputs=(IMAGES,), **sizes_of):
        given = {"kernel_size": (1, 1, 2, 2), "strides": (1, 1, 2, 1), "pads": (1, 1, 1, 0), "dilation": (1, 1, 1, 1)}
        named = {k: many(A_TUPLE, *map(integer, v), name=k) for k, v in (given | sizes_of).items()}
        named["argmax_type"] = integer(3, "argmax_type")
        return form("MaxPoolWithArgmaxV2", inputs=inputs, **named)

    yield "form_pool", pool()
    yield "form_pool_open", pool(inputs=(value("x", (-1, 2, -1, 5), denotation="n,,h"),))
    yield "form_pool_sizes", pool(kernel_size=(1, 2, 3))
    yield "form_pool_huge", pool(pads=(1, 1, 1 << 40, 0))
    yield "form_pool_rank", pool(inputs=(X,))
