"""ops.Custom of operators made for MindSpore: eager, in a Cell's graph, in a model file."""

import re
import subprocess
import threading

import numpy as np
import opgraft
import opgraft.compile
import pytest
from foreign import SOURCES, TAKES_VECTORS, Net, cache, graph_mode, so, x  # noqa: F401
from opgraft import Tensor, nn, ops
from opgraft.ops import CustomRegOp, DataType


def add(**more):
    given = {"out_shape": lambda a, b: a, "out_dtype": lambda a, b: a} | more
    return ops.Custom(f"{so('add')}:CustomAdd", **given)


def test_shapes_and_dtypes_in_every_form():
    float32 = opgraft.float32
    for shape in [lambda a, b: a, (2, 3), [2, 3]]:
        for dtype in [lambda a, b: a, float32, "float32"]:
            np.testing.assert_array_equal(add(out_shape=shape, out_dtype=dtype)(x, x), x + x)
    single = add(out_shape=((2, 3),))(x, x)  # as MindSpore: a tuple of one tuple gives a tuple of one
    assert isinstance(single, tuple) and len(single) == 1
    assert isinstance(add(out_shape=lambda a, b: (a,))(Tensor(x), Tensor(x))[0], Tensor)
    rows = ops.Custom(so("scale") + ":Rows", out_shape=lambda a: ([a[0]], [a[0]]), out_dtype=(float32, opgraft.int64))
    sums, lengths = rows(x)
    np.testing.assert_array_equal(sums, x.sum(1))
    np.testing.assert_array_equal(lengths, [3, 3])


def test_what_is_not_given_the_file_infers_or_says_that_it_cannot():
    f = ops.Custom(so("scale") + ":Scale", factor=2.5)
    np.testing.assert_array_equal(f(x), x * 2.5)
    np.testing.assert_array_equal(f(np.float32(2)), 5)
    with pytest.raises(ValueError, match=r"CustomAdd: out_shape must be given: .*add.* exports no CustomAddInferShape"):
        ops.Custom(so("add"), out_dtype=opgraft.float32)(x, x)
    with pytest.raises(ValueError, match="out_dtype must be given: .* exports no CustomAddInferType"):
        ops.Custom(so("add"), out_shape=lambda a, b: a)(x, x)
    two = CustomRegOp().input(0, "x").output(0, "sums").output(1, "lengths").get_op_info()
    np.testing.assert_array_equal(ops.Custom(so("scale") + ":Rows", reg_info=two)(x)[1], [3, 3])
    with pytest.raises(RuntimeError, match="not one shape; the number of outputs"):
        ops.Custom(so("scale") + ":Rows")(x)
    with pytest.raises(RuntimeError, match="not a list of 2 shapes"):
        ops.Custom(so("scale") + ":Scale", reg_info=two)(x)


def test_wrong_arguments():
    path = so("add")
    for error, match, call in [
        (ValueError, "func_type must be 'aot', got 'pyfunc'", lambda: ops.Custom(path, func_type="pyfunc")),
        (TypeError, "func must be a str", lambda: ops.Custom(np.add)),
        (TypeError, "bprop must be a function", lambda: ops.Custom(path, bprop=3)),
        (TypeError, "out_shape must be a function", lambda: ops.Custom(path, out_shape=3)),
        (TypeError, "dtype must be one of", lambda: ops.Custom(path, out_dtype="float31")),
        (TypeError, "out_shape must consist of int, got 1.5", lambda: add(out_shape=(1.5,))(x, x)),
        (ValueError, "holds InitsOfScale, Rows, Scale: name one", lambda: ops.Custom(so("scale"))),
        (RuntimeError, "symbol Nope is missing", lambda: ops.Custom(path + ":Nope")),
        (TypeError, "takes no keyword arguments", lambda: add()(x, y=x)),
        (TypeError, "input 1 must be a Tensor or a NumPy array, got str", lambda: add()(x, "a")),
    ]:
        with pytest.raises(error, match=match):
            call()


def test_arrays_in_any_layout_and_numbers():
    wide = np.arange(12, dtype=np.float32).reshape(2, 6)[:, ::2]
    np.testing.assert_array_equal(add()(wide, x), wide + x)
    np.testing.assert_array_equal(add()(x.astype(">f4"), x), x + x)
    assert add()(np.float32(1), 2.5) == 3.5
    np.testing.assert_array_equal(add()((Tensor(x), x)).asnumpy(), x + x)  # a tuple arrives flattened
    assert add()(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)).shape == (0, 3)


def test_reg_info_names_attributes_and_checks_inputs():
    info = (
        CustomRegOp("Scale")
        .input(0, "x")
        .output(0, "y")
        .attr("factor", "required", "float", value=2.5)
        .dtype_format(DataType.F32_Default, DataType.F32_Default)
        .target("CPU")
    )
    f = ops.Custom(so("scale") + ":Scale", reg_info=info.get_op_info())
    np.testing.assert_array_equal(f(x), x * 2.5)
    with pytest.raises(TypeError, match=r"Scale: input dtypes must be \(x float32\) as reg_info .* got \(float64\)"):
        f(x.astype(np.float64))
    with pytest.raises(ValueError, match="takes 1 inputs"):
        f(x, x)
    with pytest.raises(ValueError, match="one entry per input and output, 2, got 1"):
        info.dtype_format(DataType.F32_Default)
    with pytest.raises(TypeError, match="attribute factor must be of type float, got 'a'"):
        CustomRegOp().attr("factor", value_type="float", value="a")
    with pytest.raises(ValueError, match="target must be 'CPU'"):
        CustomRegOp().target("GPU")


def test_trailing_attributes_and_one_init_for_each():
    import ctypes

    inits = ctypes.CDLL(so("scale")).InitsOfScale
    info = CustomRegOp().input(0, "x").output(0, "y").attr("factor", "required", "float").get_op_info()
    f = ops.Custom(so("scale") + ":Scale", reg_info=info)
    before = inits()
    for _ in range(3):
        for factor in (2.0, 3.0):
            np.testing.assert_array_equal(f(x, factor), x * factor)
    assert inits() - before == 2
    with pytest.raises(TypeError, match="attribute factor must be given"):
        f(x)
    with pytest.raises(TypeError, match="attribute factor must be of type float, got 'a'"):
        f(x, "a")
    optional = CustomRegOp().input(0, "x").attr("factor", "optional", "float", default_value=4.0)
    np.testing.assert_array_equal(ops.Custom(so("scale") + ":Scale", reg_info=optional)(x), x * 4)


@pytest.mark.parametrize("how", ["runtime_error", "bad_alloc", "int", "missing"])
@pytest.mark.parametrize("where", ["", "Init", "InferShape", "InferType"])
def test_exceptions_stay_inside(where, how):
    error = MemoryError if how == "bad_alloc" else RuntimeError
    text = {"runtime_error": "a runtime error", "bad_alloc": "memory", "int": "no std::exception", "missing": "nothing"}
    with pytest.raises(error, match=f"Faulty: Faulty{where} of .*faulty.*{text[how]}"):
        ops.Custom(so("faulty"), where=where, how=how)(x)


def test_return_codes():
    with pytest.raises(RuntimeError, match=r"Faulty: Faulty of .*faulty.*\.so returned 7, expected 0"):
        ops.Custom(so("faulty"), where="", how="code")(x)
    with pytest.raises(RuntimeError, match="FaultyInit of .* returned 7"):
        ops.Custom(so("faulty"), where="Init", how="code")(x)


def test_symbols_that_tell_the_wrong_string_abi(tmp_path):
    """An operator with the new std::string beside a part with the old one, whose symbols alone are seen."""
    (tmp_path / "op.cc").write_text(
        '#include "custom_aot_extra.h"\n'
        'extern "C" int helper(const char *);\n'
        'extern "C" int Op(int, void **params, int *, int64_t **, const char **, void *, void *extra) {\n'
        "  auto *e = static_cast<AotExtra *>(extra);\n"
        '  const float k = e->HasAttr("mode") ? e->Attr<std::string>("mode").size() : helper("no");\n'
        "  for (int i = 0; i < 6; ++i) static_cast<float *>(params[1])[i] = static_cast<float *>(params[0])[i] * k;\n"
        "  return 0;\n}\n"
    )
    (tmp_path / "helper.cc").write_text(
        '#include <string>\nextern "C" int helper(const char *s) { return (s + std::string(s)).size(); }\n'
    )
    include = opgraft.compile.include_dir() / "opgraft"
    for name, abi in [("op", 1), ("helper", 0)]:
        flags = ["-c", "-O3", "-fPIC", f"-D_GLIBCXX_USE_CXX11_ABI={abi}", f"-I{include}", tmp_path / f"{name}.cc"]
        subprocess.run(["g++", *flags, "-o", tmp_path / f"{name}.o"], check=True)
    file = tmp_path / "op.so"
    subprocess.run(["g++", "-shared", tmp_path / "op.o", tmp_path / "helper.o", "-o", file], check=True)
    symbols = subprocess.run(["nm", "-D", file], capture_output=True, text=True, check=True).stdout
    assert "_ZNSs" in symbols and "__cxx1112basic_string" not in symbols
    declared = {"out_shape": lambda a: a, "out_dtype": lambda a: a}
    for mode in ("abc", "a mode of more than fifteen characters"):
        np.testing.assert_array_equal(ops.Custom(f"{file}:Op", **declared, mode=mode)(x), len(mode) * x)
    np.testing.assert_array_equal(ops.Custom(f"{file}:Op", **declared)(x), 4 * x)


@pytest.mark.parametrize("flags", [["-O0"], ["-O3"], ["-O3", "-static-libstdc++"]], ids=" ".join)
def test_debug_vectors_are_refused(flags, tmp_path):
    """_GLIBCXX_DEBUG gives std::vector four more words."""
    (tmp_path / "op.cc").write_text(TAKES_VECTORS)
    command = ["g++", *flags, "-shared", "-fPIC", tmp_path / "op.cc", "-o"]
    subprocess.run([*command, tmp_path / "plain.so"], check=True)
    np.testing.assert_array_equal(ops.Custom(f"{tmp_path / 'plain.so'}:Op")(x), 2 * x)
    file = tmp_path / "debug.so"
    subprocess.run([*command, file, "-D_GLIBCXX_DEBUG"], check=True)
    why = f"{re.escape(str(file))}: is built with _GLIBCXX_DEBUG, whose std::vector has another layout than the host's"
    with pytest.raises(RuntimeError, match=why):
        ops.Custom(f"{file}:Op")


def test_debug_vectors_do_not_compile_with_the_header(monkeypatch):
    monkeypatch.setenv("CXXFLAGS", "-D_GLIBCXX_DEBUG")
    with pytest.raises(RuntimeError, match="of three pointers: build operators without _GLIBCXX_DEBUG"):
        so("scale")


CUSTOMS = {
    "foreign, inferred": lambda: ops.Custom(so("scale") + ":Scale", factor=2.5),
    "foreign, declared": lambda: ops.Custom(
        so("scale") + ":Scale", out_shape=lambda a: a, out_dtype=lambda a: a, factor=2.5
    ),
    "source": lambda: ops.Custom(str(SOURCES / "scale.cc") + ":Scale", factor=2.5),
}


@pytest.mark.parametrize("form", CUSTOMS)
def test_eager_graph_and_file_agree(form, tmp_path):
    net = Net(CUSTOMS[form]())
    want = net(Tensor(x)).asnumpy()
    np.testing.assert_array_equal(want, 2 * x * np.float32(2.5) + x)
    np.testing.assert_array_equal(graph_mode(net, x), want)
    file = opgraft.export(net, Tensor(x), file_name=tmp_path / "net")
    loaded = nn.GraphCell(opgraft.load(file))
    np.testing.assert_array_equal(loaded(Tensor(x)).asnumpy(), want)
    open_file = opgraft.export(net, Tensor(shape=[None, 3], dtype=opgraft.float32), file_name=tmp_path / "open")
    loaded = nn.GraphCell(opgraft.load(open_file))
    for rows in (1, 5):
        v = np.ones((rows, 3), np.float32)
        np.testing.assert_array_equal(loaded(Tensor(v)).asnumpy(), 6 * v)


def test_a_native_file_in_graph_and_file(tmp_path):
    path = next(o.path for o in opgraft._core.list_ops() if o.name == "SwiGLU")
    f = ops.Custom(f"{path}:SwiGLU", out_shape=lambda a, b: a, out_dtype=lambda a, b: a)

    class Two(nn.Cell):
        def construct(self, a):
            return f(a, a)

    want = Two()(Tensor(x)).asnumpy()
    np.testing.assert_array_equal(graph_mode(Two(), x), want)
    loaded = nn.GraphCell(opgraft.load(opgraft.export(Two(), Tensor(x), file_name=tmp_path / "two")))
    np.testing.assert_array_equal(loaded(Tensor(x)).asnumpy(), want)


def test_shape_functions_over_open_dimensions(tmp_path):
    def net(shape):
        return Net(ops.Custom(so("scale") + ":Scale", out_shape=shape, out_dtype=lambda a: a))

    spec = Tensor(shape=[None, 3], dtype=opgraft.float32)
    for shape in [lambda a: [a[0] * 2 // 2, a[1]], lambda a: [a[0] + 3 - a[1], 3], lambda a: [1 * a[0], 3]]:
        loaded = nn.GraphCell(opgraft.load(opgraft.export(net(shape), spec, file_name=tmp_path / "n")))
        np.testing.assert_array_equal(loaded(Tensor(np.ones((4, 3), np.float32))).asnumpy(), np.full((4, 3), 3))
    with pytest.raises(ValueError, match="out_shape looks at dimension i0.0, which is not known"):
        opgraft.export(net(lambda a: [max(a[0], 4), 3]), spec, file_name=tmp_path / "n")
    assert graph_mode(net(lambda a: [max(a[0], 2), 3]), x).shape == (2, 3)  # known: any Python will do


def test_many_threads_share_one_custom():
    f = ops.Custom(so("scale") + ":Scale", factor=2.0)
    value = np.arange(1 << 16, dtype=np.float32)
    bad = []

    def work(k):
        for _ in range(50):
            if not np.array_equal(f(value + k), (value + k) * 2):
                bad.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert not bad


def test_substitution_by_a_foreign_operator():
    gelu = ops.Custom(so("scale") + ":Scale", factor=3.0)
    net = Net(nn.ReLU())
    opgraft.rewrite.replace_cell(net, nn.ReLU, lambda cell: gelu)
    np.testing.assert_array_equal(graph_mode(net, x), 7 * x)
