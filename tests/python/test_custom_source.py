"""ops.Custom from a C++ source: compiled once, kept by content."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from opgraft import ops
from opgraft.compile import compile_source

SOURCES = pathlib.Path(__file__).resolve().parents[1] / "custom_ops"
x = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OPGRAFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def built(cache):
    return sorted(p.name for p in cache.glob("*.so"))


def source(path, constant, header=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    include = f'#include "{header}"\n' if header else f"constexpr float kStep = {constant};\n"
    path.write_text(
        f"#include <cstdint>\n{include}"
        'extern "C" int Step(int, void **p, int *, int64_t **s, const char **, void *, void *) {\n'
        "  for (int64_t i = 0; i < s[0][0]; ++i) ((float *)p[1])[i] = ((float *)p[0])[i] + kStep;\n  return 0;\n}\n"
    )
    return path


def step(path):
    f = ops.Custom(str(path), out_shape=lambda a: a, out_dtype=lambda t: t)
    return float(f(np.zeros(1, np.float32))[0])


def test_a_source_runs_and_is_compiled_once(cache, monkeypatch):
    f = ops.Custom(f"{SOURCES / 'add.cc'}:CustomAdd", out_shape=lambda a, b: a, out_dtype=lambda a, b: a)
    np.testing.assert_array_equal(f(x, x), x + x)
    assert len(built(cache)) == 1
    monkeypatch.setattr("opgraft.compile.subprocess.run", lambda *a, **k: pytest.fail("compiled again"))
    assert compile_source(SOURCES / "add.cc") == str(cache / built(cache)[0])


def test_same_name_other_content(cache, tmp_path):
    # MindSpore's cache goes by base name: the second would run the first's code.
    assert step(source(tmp_path / "a" / "k.cc", 1)) == 1
    assert step(source(tmp_path / "b" / "k.cc", 2)) == 2
    assert step(source(tmp_path / "a" / "k.cc", 3)) == 3
    assert len(built(cache)) == 3


def test_a_changed_header_and_other_flags_compile_anew(cache, tmp_path, monkeypatch):
    header = tmp_path / "step.h"
    header.write_text("constexpr float kStep = 4;\n")
    path = source(tmp_path / "k.cc", None, "step.h")
    assert step(path) == 4
    header.write_text("constexpr float kStep = 5;\n")
    assert step(path) == 5
    assert len(built(cache)) == 2
    monkeypatch.setenv("CXXFLAGS", "-DUNUSED=1")
    assert step(path) == 5 and len(built(cache)) == 3
    header.unlink()
    with pytest.raises(RuntimeError, match="step.h"):
        step(path)


def test_errors_show_command_and_message(cache, tmp_path, monkeypatch):
    bad = tmp_path / "bad.cc"
    bad.write_text('extern "C" int Bad(int) { return undeclared; }\n')
    with pytest.raises(RuntimeError) as e:
        ops.Custom(f"{bad}:Bad")
    assert "does not compile" in str(e.value) and "-O3" in str(e.value) and "undeclared" in str(e.value)
    assert built(cache) == []
    with pytest.raises(FileNotFoundError, match="missing.cc"):
        ops.Custom(str(tmp_path / "missing.cc"))
    with pytest.raises(RuntimeError, match='found _Z9CustomAdd.*extern "C"'):
        ops.Custom(f"{SOURCES / 'mangled.cc'}:CustomAdd")
    with pytest.raises(ValueError, match="holds no operator"):
        ops.Custom(str(SOURCES / "mangled.cc"))
    with pytest.raises(RuntimeError, match=r"custom_ops/add.cc: symbol MyAdd is missing.*it exports CustomAdd$"):
        ops.Custom(f"{SOURCES / 'add.cc'}:MyAdd")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(FileNotFoundError, match="no-such-compiler"):
        ops.Custom(str(SOURCES / "add.cc"))


def test_the_string_abi_of_an_undefined_symbol_is_told(cache, tmp_path, monkeypatch):
    path = tmp_path / "k.cc"
    path.write_text(
        "#include <string>\nint helper(std::string);\n"
        'extern "C" int Op(int n, void **, int *, int64_t **, const char **, void *, void *) {\n'
        "  std::string s(size_t(n), 'a');\n  s.append(s);\n  return helper(s);\n}\n"
    )
    with pytest.raises(RuntimeError, match=r"undefined symbol.*__cxx11.*built with the new std::string ABI"):
        ops.Custom(f"{path}:Op")
    monkeypatch.setenv("CXXFLAGS", "-D_GLIBCXX_USE_CXX11_ABI=0")
    with pytest.raises(RuntimeError, match=r"undefined symbol: _Z6helperSs.*old std::string ABI"):
        ops.Custom(f"{path}:Op")


def test_processes_may_race(cache):
    code = (
        "import numpy as np, sys; from opgraft import ops; x = np.ones(3, np.float32)\n"
        f"f = ops.Custom({str(SOURCES / 'add.cc')!r}, out_shape=lambda a, b: a, out_dtype=lambda a, b: a)\n"
        "assert (f(x, x) == 2).all()"
    )
    runs = [subprocess.Popen([sys.executable, "-c", code], env=dict(os.environ)) for _ in range(4)]
    assert [p.wait() for p in runs] == [0] * 4
    assert len(built(cache)) == 1 and not [p for p in cache.iterdir() if p.is_dir()]
