"""opgraft doctor --host mindspore without MindSpore; tests/mindspore/test_doctor.py compares with the real one."""

import json
import subprocess
import sys
from pathlib import Path

import opgraft
import pytest
from foreign import TAKES_VECTORS

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(opgraft.__file__).parents[2]
BAD_OPS = BUILD / "tests" / "bad_ops"


def doctor(*args, rc=0):
    command = [sys.executable, "-m", "opgraft.cli", "doctor", *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == rc and "Traceback" not in done.stderr, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("file,code,line", [
    (BAD_OPS / "foreign_abi0.so", 0, "ok   std::string: built with _GLIBCXX_USE_CXX11_ABI=0, as MindSpore is"),
    (BAD_OPS / "foreign_abi1.so", 0, "may crash: MindSpore loads it, and crashes if it asks for an attribute; --probe"),
    (BUILD / "ops" / "swiglu.so", 0, "ok   std::string: opgraft's operators read attributes whatever"),
    (BAD_OPS / "missing_dependency.so", 1, "FAIL dependencies: needs the library libvanished.so, which is not found; "
                                           "MindSpore fails when the operator is first used"),
    (BAD_OPS / "undefined_symbol.so", 1, "FAIL dependencies: undefined symbol: opgraft_test_defined_nowhere, in none"),
    (ROOT / "README.md", 1, "FAIL elf: "),
])  # fmt: skip
def test_what_mindspore_would_make_of_a_file(file, code, line):
    assert line in doctor("--host", "mindspore", file, rc=code)


def test_a_file_whose_constructor_ends_the_process(tmp_path):
    (tmp_path / "op.cc").write_text(
        '#include <cstdlib>\nstatic int made = (abort(), 0);\nextern "C" int Op() { return made; }\n'
    )
    subprocess.run(["g++", "-shared", "-fPIC", tmp_path / "op.cc", "-o", tmp_path / "op.so"], check=True)
    assert "FAIL dlopen: ends the process that opens it" in doctor("--host", "mindspore", tmp_path / "op.so", rc=1)


@pytest.mark.parametrize("infers,verdict", [(True, "crashes: "), (False, "may crash: ")])
def test_debug_vectors(tmp_path, infers, verdict):
    (tmp_path / "op.cc").write_text(TAKES_VECTORS if infers else TAKES_VECTORS.replace("OpInfer", "_Part"))
    file = tmp_path / "op.so"
    subprocess.run(["g++", "-D_GLIBCXX_DEBUG", "-shared", "-fPIC", tmp_path / "op.cc", "-o", file], check=True)
    for more in ([], ["--probe"]):
        told = doctor("--host", "mindspore", *more, file, rc=1)
        assert "FAIL std::vector: built with _GLIBCXX_DEBUG, whose std::vector has another layout" in told
        assert told.splitlines()[-1].startswith(verdict)


def test_the_white_list_is_mindspore_s(tmp_path, monkeypatch):
    file = BUILD / "ops" / "swiglu.so"  # opgraft's own folder is not on it
    for folder, code, line in [
        (tmp_path, 1, "FAIL whitelist: "),
        ("", 1, "FAIL whitelist: "),
        (file.parent, 0, "ok   whitelist: lies in "),
    ]:
        monkeypatch.setenv("MS_CUSTOM_AOT_WHITE_LIST", str(folder))
        assert line in doctor("--host", "mindspore", file, rc=code)


PROBED = {  # what the entry does before it would ask for an attribute -> what the probe says
    "": "FAIL calls: Op asks for an attribute with a std::string of _GLIBCXX_USE_CXX11_ABI=1",
    "if (nparam != 6) return 3;": "FAIL calls: Op asks for",
    "if (nparam != 60) return 3;": "ok   calls: Op failed before it asked",
    "if (nparam) return 0;": "ok   calls: no function asks for an attribute",
    "if (nparam) abort();": "ok   calls: Op failed before it asked",
    "if (nparam) throw 1;": "ok   calls: Op failed before it asked",
    "if (nparam) exit(0);": "ok   calls: Op failed before it asked",
    "if (nparam) *(volatile int *)8 = 1;": "ok   calls: Op failed before it asked",
    'while (nparam) asm volatile("");': "ok   calls: Op failed before it asked",
    "if (!fork()) while (nparam) sleep(1); else sleep(9);": "ok   calls: Op failed before it asked",
}


@pytest.mark.parametrize("code", PROBED)
def test_its_functions_are_called_where_that_is_asked_for(tmp_path, code):
    (tmp_path / "op.cc").write_text(
        "#include <cstdlib>\n#include <unistd.h>\n"
        '#include "opgraft/custom_aot_extra.h"\n'
        'extern "C" int Op(int nparam, void **, int *, int64_t **, const char **, void *, void *extra) {\n'
        f'  {code}\n  return static_cast<AotExtra *>(extra)->HasAttr("k");\n}}\n'
    )
    file = tmp_path / "op.so"
    # With -O3 no symbol tells of the short string.
    subprocess.run(["g++", "-O3", "-shared", "-fPIC", "-D_GLIBCXX_USE_CXX11_ABI=1", f"-I{ROOT / 'include'}",
                    tmp_path / "op.cc", "-o", file], check=True)  # fmt: skip
    assert "may crash: " in doctor("--host", "mindspore", file)
    crashes = PROBED[code].startswith("FAIL")
    report = json.loads(doctor("--host", "mindspore", "--probe", "--json", file, rc=int(crashes)))
    last = report["checks"][-1]
    assert f"{'ok  ' if last['ok'] else 'FAIL'} {last['check']}: {last['detail']}".startswith(PROBED[code])
    assert report["verdict"] == ("crashes" if crashes else "loads" if "no function" in PROBED[code] else "may crash")
    assert report["accepted"] is not crashes


@pytest.mark.parametrize("status,verdict", [(0, "crashes"), (5, "may crash")])
def test_init_comes_first(tmp_path, status, verdict):
    (tmp_path / "op.cc").write_text(
        '#include "opgraft/custom_aot_extra.h"\n'
        'extern "C" int OpInit(int *, int64_t **, const char **, AotExtra *extra) {\n'
        f"  extra->SetKernelData(new AotKernelData);\n  return {status};\n}}\n"
        'extern "C" int Op(int, void **, int *, int64_t **, const char **, void *, void *extra) {\n'
        "  auto *e = static_cast<AotExtra *>(extra);\n  if (!e->KernelData()) return 1;\n"
        '  return e->HasAttr("k");\n}\n'
    )
    file = tmp_path / "op.so"
    subprocess.run(["g++", "-O3", "-shared", "-fPIC", "-D_GLIBCXX_USE_CXX11_ABI=1", f"-I{ROOT / 'include'}",
                    tmp_path / "op.cc", "-o", file], check=True)  # fmt: skip
    assert f"\n{verdict}: " in doctor("--host", "mindspore", "--probe", file, rc=int(verdict == "crashes"))


def test_nothing_of_the_file_runs_unless_asked_for(tmp_path):
    mark = tmp_path / "mark"
    (tmp_path / "op.cc").write_text(
        f'#include <cstdio>\nextern "C" int Op() {{ fclose(fopen("{mark}", "w")); return 0; }}\n'
    )
    subprocess.run(["g++", "-shared", "-fPIC", tmp_path / "op.cc", "-o", tmp_path / "op.so"], check=True)
    assert "it can hold no std::string" in doctor("--host", "mindspore", tmp_path / "op.so")
    assert not mark.exists()
    doctor("--host", "mindspore", "--probe", tmp_path / "op.so")
    assert mark.exists()
    assert "--probe goes with --host mindspore" in doctor("--probe", tmp_path / "op.so", rc=2)
