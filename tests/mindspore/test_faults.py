"""What MindSpore's users suffer from, point by point: what MindSpore 2.10 does, and what opgraft does instead.

What is asserted of MindSpore is recorded: where a later MindSpore does better, the test says so by failing.
"""

import pathlib
import shutil
import subprocess
import sys

import mindspore as ms
import numpy as np
import opgraft
import opgraft.build
import opgraft.mindspore
import pytest
from foreign import TAKES_VECTORS
from helpers import BUILDS, HERE, compile_kernels, compile_text, doctor, one_custom
from hosts import Host

x = np.arange(6, dtype=np.float32).reshape(2, 3)
OURS = Host(opgraft)
THEIRS = Host(ms)
SEGFAULT, ABORT = -11, -6


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    """faults.cc in every build."""
    folder = tmp_path_factory.mktemp("faults")
    made = {}
    for k, build in enumerate(BUILDS):
        (folder / str(k)).mkdir()
        made[build] = compile_kernels(folder / str(k), build, "faults")
    return made


@pytest.fixture(autouse=True)
def _eager():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    opgraft.set_context(mode=opgraft.PYNATIVE_MODE)


def given_to_mindspore(text, folder):
    """(file, exit code, line, what else it wrote) of a source's function Op there, its shape and dtype inferred by
    Python."""
    so = compile_text(folder, text)
    return so, *one_custom("pynative", f"{so}:Op", folder, {"infer": "python"})


# 1. A .so of the other std::string than MindSpore's.


@pytest.mark.parametrize("build", BUILDS)
def test_1_the_string_abi_of_a_file(build, faults, tmp_path):
    func = f"{faults[build]}:Scale"
    if build.startswith("old"):
        code, said, log = one_custom("both", func, tmp_path, {"factor": 2.5})
        assert code == 0 and said == "gives: 0.0 2.5 5.0 7.5 10.0 12.5", log
    else:  # not a word
        for mode in ("pynative", "graph"):
            code, said, log = one_custom(mode, func, tmp_path, {"factor": 2.5})
            assert code == SEGFAULT and said == "" and "rror" not in log
    info = OURS.reg("Scale", 1, 1, factor=("float", 2.5))
    for mode in (opgraft.PYNATIVE_MODE, opgraft.GRAPH_MODE):
        opgraft.set_context(mode=mode)
        net = OURS.net(OURS.custom(func, reg_info=info))
        np.testing.assert_array_equal(net(opgraft.Tensor(x)).asnumpy(), x * np.float32(2.5))


@pytest.mark.parametrize("flags", [" ".join(f) for f in BUILDS.values()])
def test_1_an_operator_of_opgraft_in_mindspore_whatever_its_author_s_flags(flags, tmp_path, monkeypatch):
    monkeypatch.setenv("CXXFLAGS", flags)
    so = opgraft.build.build(HERE / "all_kinds", tmp_path)
    symbols = subprocess.run(["nm", "-D", so], capture_output=True, text=True, check=True).stdout
    if "static" not in flags:  # the flags did reach the compiler
        assert ("_ZNSs" in symbols) == ("ABI=0" in flags)
    attrs = {"flag": True, "number": 3, "factor": 0.5, "text": "ab", "ints": [1, 2], "floats": [0.25, 4.0],
             "ints2d": [[1, 2], [3]], "floats2d": [[0.5], [1.0, 2.0]],
             "an_attribute_of_more_than_fifteen_characters": "a value that is longer than that"}  # fmt: skip
    want = x + np.float32(1 + 3 + 0.5 + 2 + 32 + 3 + 4.25 + 2)
    said = "gives: " + " ".join(map(str, want.ravel()))
    code, got, log = one_custom("both", f"{so}:AllKinds", tmp_path, attrs)
    assert code == 0 and got == said, log
    # In a process of its own, too: a second operator of that name and version would be refused.
    script = f"import opgraft, numpy as np; f = opgraft.ops.Custom('{so}:AllKinds', **{attrs}); "
    script += "print('gives:', *f(np.arange(6, dtype=np.float32)))"
    ours = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ours.stdout.strip() == said, ours.stderr
    assert doctor(so) == (0, "loads: MindSpore loads it")


def test_1_an_operator_of_opgraft_with_debug_vectors_is_not_built(tmp_path, monkeypatch):
    """_GLIBCXX_DEBUG gives std::vector four more words; MindSpore passes it some."""
    monkeypatch.setenv("CXXFLAGS", "-D_GLIBCXX_DEBUG")
    with pytest.raises(RuntimeError, match="of three pointers: build operators without _GLIBCXX_DEBUG"):
        opgraft.build.build(HERE / "all_kinds", tmp_path)
    assert not list(tmp_path.iterdir())


def test_1_debug_vectors_of_others(tmp_path):
    so = compile_text(tmp_path, TAKES_VECTORS, "-D_GLIBCXX_DEBUG")
    code, said, log = one_custom("pynative", f"{so}:Op", tmp_path)
    assert code in (ABORT, SEGFAULT) and said == "" and "_GLIBCXX_DEBUG" not in log
    assert doctor(so) == (1, "crashes: MindSpore would crash")
    with pytest.raises(RuntimeError, match=f"{so}: is built with _GLIBCXX_DEBUG"):
        OURS.custom(f"{so}:Op")


# 2. Failures in Init and dlopen have an empty message (Init: test_rows.py has all of them).


def test_2_a_failure_of_dlopen(tmp_path):
    file = tmp_path / "text.so"
    file.write_text("no shared object" * 100)
    code, said, log = one_custom("pynative", f"{file}:Op", tmp_path, {"infer": "python"})
    assert code == 0 and said == "raises: RuntimeError:" and "invalid ELF header" in log
    with pytest.raises(RuntimeError, match=f"{file}: not a shared object"):
        OURS.custom(f"{file}:Op")


def test_2_an_exception_that_is_no_std_exception_ends_mindspore(tmp_path):
    text = 'extern "C" int Op(int, void **, int *, long **, const char **, void *, void *) { throw 42; }'
    so, code, said, log = given_to_mindspore(text, tmp_path)
    assert code == -6 and said == "" and "terminate called after throwing an instance of 'int'" in log
    with pytest.raises(RuntimeError, match=f"Op: Op of {so} failed with an exception that is no std::exception"):
        OURS.custom(f"{so}:Op", lambda a: a, lambda a: a)(x)


# 3. A missing symbol is found at the first launch.


def test_3_a_missing_function(faults):
    so = faults["old std::string"]
    net = THEIRS.net(THEIRS.custom(f"{so}:Nowhere", lambda a: a, lambda a: a))  # nothing is said
    ms.set_context(mode=ms.GRAPH_MODE)
    net.compile(ms.Tensor(x))  # nor here
    with pytest.raises(RuntimeError, match="undefined symbol: Nowhere"):
        net(ms.Tensor(x)).asnumpy()
    with pytest.raises(RuntimeError, match=f"{so}: symbol Nowhere is missing: .* it exports Copy, Optimized"):
        OURS.custom(f"{so}:Nowhere")


def test_3_a_function_that_the_file_calls_and_nobody_has(tmp_path):
    text = 'extern "C" int nowhere(); extern "C" int Op(int, void **) { return nowhere(); }'
    so, code, said, log = given_to_mindspore(text, tmp_path)
    assert code == 127 and said == "" and "symbol lookup error" in log  # the process ends
    with pytest.raises(RuntimeError, match=f"{so}: undefined symbol: nowhere"):
        OURS.custom(f"{so}:Op")


# 4. Two sources of one base name.


def test_4_sources_of_the_same_name(tmp_path, monkeypatch):
    monkeypatch.setenv("OPGRAFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)  # MindSpore's cache lies here
    results = {}
    for value, folder in enumerate(["a", "b"]):
        source = tmp_path / folder / "k.cc"
        source.parent.mkdir()
        source.write_text(
            'extern "C" int Op(int, void **params, int *, long **, const char **, void *, void *) {\n'
            f"  *static_cast<float *>(params[1]) = {value};\n  return 0;\n}}\n"
        )
        for host in (THEIRS, OURS):
            custom = host.custom(f"{source}:Op", lambda a: a, lambda a: a)
            results[host, folder] = float(custom(host.Tensor(np.zeros(1, np.float32))).asnumpy()[0])
    assert [results[THEIRS, f] for f in "ab"] == [0, 0]  # the first one's code, silently
    assert [results[OURS, f] for f in "ab"] == [0, 1]


# 5. Init under open dimensions.


def test_5_init_under_open_dimensions(faults):
    found = {}
    for host in (THEIRS, OURS):
        host.package.set_context(mode=host.package.GRAPH_MODE)
        net = host.net(host.custom(f"{faults['old std::string']}:Stale", reg_info=host.reg("Stale", 1, 1)))
        net.set_inputs(host.Tensor(shape=[None, 2], dtype=host.float32))
        found[host] = [net(host.Tensor(np.ones((n, 2), np.float32))).asnumpy().ravel()[:2].tolist() for n in (2, 5)]
    # (bytes of workspace, rows that Init saw): -8 as a size_t, and once for all
    assert found[THEIRS] == [[float(np.float32(2**64 - 8)), -1]] * 2
    assert found[OURS] == [[16, 2], [40, 5]]


# 6. C++ inference without reg_info.


def test_6_inference_by_the_file_without_reg_info(faults):
    func = f"{faults['old std::string']}:Copy"
    ms.set_context(mode=ms.GRAPH_MODE)
    with pytest.raises(RuntimeError, match=r"The pointer\[value\] is null"):
        THEIRS.net(THEIRS.custom(func))(ms.Tensor(x))
    np.testing.assert_array_equal(OURS.custom(func)(opgraft.Tensor(x)).asnumpy(), x)


# 7. A cell replaced after the first call.


def test_7_a_cell_replaced_after_compilation():
    found = {}
    for host in (THEIRS, OURS):
        nn = host.nn

        class Twice(nn.Cell):
            def construct(self, a):
                return a * 2.0

        class Net(nn.Cell):
            def __init__(self, nn):
                super().__init__()
                self.act = nn.ReLU()

            def construct(self, a):
                return self.act(a)

        host.package.set_context(mode=host.package.GRAPH_MODE)
        net = Net(nn)
        before = net(host.Tensor(x)).asnumpy()
        net.act = Twice()
        found[host] = before, net(host.Tensor(x)).asnumpy()
    np.testing.assert_array_equal(found[THEIRS][1], found[THEIRS][0])  # ignored
    np.testing.assert_array_equal(found[OURS][1], 2 * found[OURS][0])
    # and by opgraft's graft in MindSpore itself: test_graft.py


# 8. The absolute path inside a model (test_rows.py moves a file made for MindSpore).


def test_8_a_model_whose_operator_lies_elsewhere_now(tmp_path):
    so = pathlib.Path(shutil.copy(opgraft._core.resolve("SwiGLU").path, tmp_path))
    shutil.copy(so.parent / so.name, tmp_path / "kept")
    info = THEIRS.reg("SwiGLUMoved", 2, 1, n_inputs=("int", 2))
    ms.set_context(mode=ms.GRAPH_MODE)
    net = THEIRS.net(THEIRS.custom(f"{so}:SwiGLU", lambda a, b: a, lambda a, b: a, reg_info=info))
    file = tmp_path / "net.mindir"
    ms.export(net, ms.Tensor(x), ms.Tensor(x), file_name=str(file), file_format="MINDIR")
    assert str(so).encode() in file.read_bytes()
    so.unlink()
    with pytest.raises(RuntimeError, match="couldn't find the AOT binary file"):
        ms.nn.GraphCell(ms.load(str(file)))(ms.Tensor(x), ms.Tensor(x)).asnumpy()
    got = opgraft.nn.GraphCell(opgraft.load(file))(opgraft.Tensor(x), opgraft.Tensor(x))
    np.testing.assert_array_equal(got.asnumpy(), opgraft.ops.Custom.from_op("SwiGLU")(x, x))


# 9. The header, and 10. compilation without optimisation.


def test_9_the_header_and_10_optimisation(tmp_path, monkeypatch):
    monkeypatch.setenv("OPGRAFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    alone, beside = tmp_path / "alone.cc", tmp_path / "with" / "beside.cc"
    beside.parent.mkdir()
    for source in (alone, beside):
        shutil.copy(HERE / "faults.cc", source)
    with pytest.raises(Exception, match="custom_aot_extra.h: No such file"):
        THEIRS.custom(f"{alone}:Optimized", lambda a: a, lambda a: a)(ms.Tensor(x)).asnumpy()
    # A user fetches it; then it compiles, without optimisation.
    shutil.copy(pathlib.Path(opgraft.compile.include_dir()) / "opgraft" / "custom_aot_extra.h", beside.parent)
    result = THEIRS.custom(f"{beside}:Optimized", lambda a: a, lambda a: a)(ms.Tensor(x)).asnumpy()
    np.testing.assert_array_equal(result, np.zeros_like(x))
    result = OURS.custom(f"{alone}:Optimized", lambda a: a, lambda a: a)(opgraft.Tensor(x)).asnumpy()
    np.testing.assert_array_equal(result, np.ones_like(x))


# 11. Operators that work in PYNATIVE_MODE only.


def test_11_python_inference_with_open_dimensions(faults, tmp_path):
    func = f"{faults['old std::string']}:Copy"
    net = THEIRS.net(THEIRS.custom(func, lambda a: a, lambda a: a))
    net.set_inputs(ms.Tensor(shape=[None, 3], dtype=ms.float32))
    np.testing.assert_array_equal(net(ms.Tensor(x)).asnumpy(), x)
    ms.set_context(mode=ms.GRAPH_MODE)
    with pytest.raises(RuntimeError, match=r"The pointer\[value\] is null"):
        net(ms.Tensor(x))
    net = OURS.net(OURS.custom(func, lambda a: a, lambda a: a))
    net.set_inputs(opgraft.Tensor(shape=[None, 3], dtype=opgraft.float32))
    for mode in (opgraft.PYNATIVE_MODE, opgraft.GRAPH_MODE):
        opgraft.set_context(mode=mode)
        for rows in (2, 7):
            some = np.ones((rows, 3), np.float32)
            np.testing.assert_array_equal(net(opgraft.Tensor(some)).asnumpy(), some)


def test_11_functions_of_a_custom_op_builder_cannot_be_exported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "twice.cc").write_text(
        '#include "pybind11/pybind11.h"\n'
        "PYBIND11_MODULE(MS_EXTENSION_NAME, m) {\n"
        '  m.def("twice", [](pybind11::object x) -> pybind11::object { return x.attr("__mul__")(2.0); });\n}\n'
    )
    built = ms.ops.CustomOpBuilder("twice_of_faults", str(tmp_path / "twice.cc"), backend="CPU").load()

    class Net(ms.nn.Cell):
        def construct(self, a):
            return built.twice(a)

    np.testing.assert_array_equal(Net()(ms.Tensor(x)).asnumpy(), 2 * x)
    with pytest.raises(ValueError, match="in graph mode"):
        ms.export(Net(), ms.Tensor(x), file_name=str(tmp_path / "net"), file_format="MINDIR")
    # opgraft's Custom runs eagerly, in a graph and from a model file: each row of test_rows.py
