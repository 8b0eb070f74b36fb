"""ops.Custom of operators made for MindSpore: eager, in a Cell's graph, in a model file."""

import os
import pathlib
import shutil
import subprocess
import sys
import threading

import numpy as np
import opgraft
import opgraft.compile
import pytest
from opgraft import Tensor, nn, ops
from opgraft.compile import compile_source
from opgraft.ops import CustomRegOp, DataType

SOURCES = pathlib.Path(__file__).resolve().parents[1] / "custom_ops"
x = np.arange(6, dtype=np.float32).reshape(2, 3)


def so(name):
    return compile_source(SOURCES / f"{name}.cc")


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory):
    before = os.environ.get("OPGRAFT_CACHE")
    os.environ["OPGRAFT_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    os.environ.pop("OPGRAFT_CACHE")
    if before is not None:
        os.environ["OPGRAFT_CACHE"] = before


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


class Net(nn.Cell):
    def __init__(self, custom):
        super().__init__()
        self.custom = custom

    def construct(self, a):
        return ops.add(self.custom(ops.add(a, a)), a)


def graph_mode(net, value):
    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    return net(Tensor(value)).asnumpy()


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


LOAD = "import sys, numpy as np, opgraft; from opgraft import nn, Tensor\n{before}\ntry:\n  g = nn.GraphCell(opgraft.load(sys.argv[1]))\nexcept Exception as e:\n  print(type(e).__name__, e); sys.exit()\nprint(g(Tensor(np.ones((2, 3), np.float32))).asnumpy()[0, 0])"  # noqa: E501


def in_new_process(file, before="", **env):
    run = subprocess.run(
        [sys.executable, "-c", LOAD.format(before=before), str(file)],
        env={**os.environ, **env}, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_a_model_loads_only_from_where_it_was_allowed(tmp_path):
    ops_dir, other = tmp_path / "ops", tmp_path / "other"
    ops_dir.mkdir(), other.mkdir()
    path = shutil.copy(so("scale"), ops_dir / "scale.so")
    net = Net(ops.Custom(f"{path}:Scale", factor=2.5))
    file = opgraft.export(net, Tensor(x), file_name=tmp_path / "net")
    refused = in_new_process(file)
    assert "its folder is on no white list" in refused and "set_whitelist" in refused and str(ops_dir) in refused
    assert "white list" in in_new_process(file, MS_CUSTOM_AOT_WHITE_LIST=str(other))
    assert in_new_process(file, MS_CUSTOM_AOT_WHITE_LIST=str(ops_dir)) == "6.0"
    assert in_new_process(file, f"opgraft.set_whitelist([{str(ops_dir)!r}])") == "6.0"
    assert in_new_process(file, f"opgraft.ops.Custom({str(path) + ':Scale'!r})") == "6.0"
    # A link in an allowed folder does not lead out of it.
    (other / "scale.so").symlink_to(path)
    linked = Net(ops.Custom(f"{other / 'scale.so'}:Scale", factor=2.5))
    link_file = opgraft.export(linked, Tensor(x), file_name=tmp_path / "link")
    assert "white list" in in_new_process(link_file, MS_CUSTOM_AOT_WHITE_LIST=str(other))
    # A file that moved is found in an allowed folder; one that is gone is named.
    moved = shutil.move(path, tmp_path / "moved.so")
    shutil.copy(moved, other / "copy.so")
    (other / "scale.so").unlink()
    assert "neither there nor" in in_new_process(file, MS_CUSTOM_AOT_WHITE_LIST=str(other))
    shutil.move(other / "copy.so", other / "scale.so")
    assert in_new_process(file, MS_CUSTOM_AOT_WHITE_LIST=str(other)) == "6.0"


FORTY_TWO = """extern "C" int Scale(int, void **params, int *, long **, const char **, void *, void *) {
  *static_cast<float *>(params[1]) = 42;
  return 0;
}"""


def test_a_library_beside_the_model_goes_before_the_path_in_it(tmp_path):
    ops_dir, models = tmp_path / "ops", tmp_path / "models"
    ops_dir.mkdir(), models.mkdir()
    path, beside = pathlib.Path(shutil.copy(so("scale"), ops_dir / "scale.so")), models / "scale.so"
    net = Net(ops.Custom(f"{path}:Scale", out_shape=lambda a: a, out_dtype=lambda a: a, factor=2.5))
    file = opgraft.export(net, Tensor(x), file_name=models / "net")
    (tmp_path / "other.cc").write_text(FORTY_TWO)
    shutil.copy(compile_source(tmp_path / "other.cc"), beside)
    assert in_new_process(file, MS_CUSTOM_AOT_WHITE_LIST=str(tmp_path)) == "43.0"
    # It must be allowed like any other: else the path counts, and without one it is refused.
    assert in_new_process(file, MS_CUSTOM_AOT_WHITE_LIST=str(ops_dir)) == "6.0"
    path.unlink()
    for allowed in ({}, {"MS_CUSTOM_AOT_WHITE_LIST": str(ops_dir)}):
        refused = in_new_process(file, **allowed)
        assert refused.startswith("ValueError") and "its folder is on no white list" in refused
        assert str(beside) in refused
    # Moved beside the model, which itself is named by a relative path or from elsewhere.
    shutil.copy(so("scale"), beside)
    for name in (file, os.path.relpath(file)):
        assert in_new_process(name, MS_CUSTOM_AOT_WHITE_LIST=str(models)) == "6.0"
    # A link beside it leads nowhere else.
    (tmp_path / "elsewhere").mkdir()
    beside.rename(tmp_path / "elsewhere" / "scale.so")
    beside.symlink_to(tmp_path / "elsewhere" / "scale.so")
    assert "its folder is on no white list" in in_new_process(file, MS_CUSTOM_AOT_WHITE_LIST=str(models))


def test_a_path_in_a_variable(tmp_path):
    """As MindSpore reads `path_from_env`; what the variable says is trusted no more than a path."""
    path = shutil.copy(so("scale"), tmp_path / "scale.so")
    net = Net(ops.Custom(f"{path}:Scale", factor=2.5))
    graph = opgraft.load(opgraft.export(net, Tensor(x), file_name=tmp_path / "net"))
    (tmp_path / "model").mkdir()
    file = tmp_path / "model" / "net.mindir"
    opgraft._core.write_mindir(graph, str(file), path_from_env=True)
    assert b"OPGRAFT_SCALE_SO:Scale" in file.read_bytes() and str(path).encode() not in file.read_bytes()
    assert "neither there nor" in in_new_process(file)
    assert "its folder is on no white list" in in_new_process(file, OPGRAFT_SCALE_SO=path)
    assert in_new_process(file, OPGRAFT_SCALE_SO=path, MS_CUSTOM_AOT_WHITE_LIST=str(tmp_path)) == "6.0"


def test_a_model_cannot_name_a_function_that_is_no_operator(tmp_path):
    shutil.copy(so("scale"), tmp_path / "scale.so")
    net = Net(ops.Custom(f"{tmp_path / 'scale.so'}:Scale", factor=2.5))
    file = pathlib.Path(opgraft.export(net, Tensor(x), file_name=tmp_path / "net"))
    data = file.read_bytes()
    assert data.count(b"scale.so:Scale") == 1
    file.write_bytes(data.replace(b"scale.so:Scale", b"scale.so:_init"))
    told = in_new_process(file, MS_CUSTOM_AOT_WHITE_LIST=str(tmp_path))
    assert "has no operator '_init', it has InitsOfScale, Rows, Scale" in told


def test_a_written_file_has_the_fields_that_mindspore_asks_for(tmp_path):
    data = pathlib.Path(opgraft.export(Net(lambda a: a), Tensor(x), file_name=tmp_path / "n")).read_bytes()

    def number(at):
        value = shift = 0
        while True:
            value |= (data[at] & 127) << shift
            shift, at = shift + 7, at + 1
            if data[at - 1] < 128:
                return value, at

    fields, at = {}, 0
    while at < len(data):
        key, at = number(at)
        size, at = number(at)
        if key & 7 == 2:
            fields[key >> 3], at = data[at : at + size], at + size
        else:
            fields[key >> 3] = size
    assert fields[1] == b"1.1" and fields[5] == b"2.10.0" and fields[10] == 1 and fields[13] == 3


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


def test_a_file_that_was_replaced_is_loaded_anew(tmp_path):
    path = tmp_path / "op.so"
    shutil.copy(so("add"), path)
    first = ops.Custom(f"{path}:CustomAdd", out_shape=lambda *a: a[0], out_dtype=lambda *a: a[0])
    shutil.copy(so("scale"), tmp_path / "new.so")
    os.replace(tmp_path / "new.so", path)
    second = ops.Custom(f"{path}:Scale", factor=3.0)
    np.testing.assert_array_equal(first(x, x), 2 * x)
    np.testing.assert_array_equal(second(x), 3 * x)
    with open(path, "ab") as f:
        f.write(b" ")
    with pytest.raises(RuntimeError, match="changed in place while it is loaded"):
        ops.Custom(f"{path}:Scale")
