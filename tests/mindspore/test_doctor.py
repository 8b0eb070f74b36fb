"""opgraft doctor --host mindspore against what MindSpore does with the very file, in a process of its own."""

import os
import shutil

import opgraft
import pytest
from helpers import BUILDS, compile_kernels, compile_so, compile_text, customs, doctor, one_custom

PLAIN = (
    'extern "C" int Op(int, void **params, int *, long **, const char **, void *, void *) {\n'
    "  for (int i = 0; i < 6; ++i) static_cast<float *>(params[1])[i] = static_cast<float *>(params[0])[i] FACTOR;\n"
    "  return 0;\n}\n"
)
LOADS, MAY_CRASH = "loads: MindSpore loads it", "may crash: MindSpore loads it, and crashes if it asks for an attribute"
CRASHES, REFUSES = "crashes: MindSpore would crash", "refuses: MindSpore would refuse it"
SEGFAULT, SYMBOL_LOOKUP_ERROR = -11, 127
ATTRS = {"factor": 2.0}
TWICE, ONCE = "gives: 0.0 2.0 4.0 6.0 8.0 10.0", "gives: 0.0 1.0 2.0 3.0 4.0 5.0"


def kernels(build):
    return lambda folder: compile_kernels(folder, build, "faults")


def source(text, *flags):
    return lambda folder: compile_text(folder, text, *flags)


def plain(factor, declare="", *flags):
    return source(declare + "\n" + PLAIN.replace("FACTOR", factor), *flags)


def without_attributes(build):
    return source(
        '#include "custom_aot_extra.h"\n' + PLAIN.replace("FACTOR", "").replace("long", "int64_t")
        + 'extern "C" std::vector<int64_t> OpInferShape(int *n, int64_t **s, AotExtra *) '
        "{ return {s[0], s[0] + n[0]}; }\n"
        'extern "C" TypeId OpInferType(std::vector<TypeId> types, AotExtra *) { return types[0]; }\n',
        *BUILDS[build],
    )  # fmt: skip


def needs_a_lost_library(folder):
    (folder / "lost.cc").write_text('extern "C" float lost() { return 1; }')
    library = compile_so(folder / "lost.cc", folder / "liblost.so")
    so = plain("* lost()", 'extern "C" float lost();', "-Wl,--no-as-needed", library)(folder)
    os.remove(library)
    return so


def no_object(folder):
    (folder / "op.so").write_text("no shared object " * 100)
    return str(folder / "op.so")


def ours(folder):
    return shutil.copy(opgraft._core.resolve("ReLU").path, folder)


# file, function, attributes, verdict, verdict with --probe, MindSpore's exit code, what it said
CASES = {
    "old std::string": (kernels("old std::string"), "Scale", ATTRS, LOADS, LOADS, 0, TWICE),
    "new std::string": (kernels("new std::string"), "Scale", ATTRS, MAY_CRASH, CRASHES, SEGFAULT, ""),
    "old, static": (kernels("old, static libstdc++"), "Scale", ATTRS, MAY_CRASH, LOADS, 0, TWICE),
    "new, static": (kernels("new, static libstdc++"), "Scale", ATTRS, MAY_CRASH, CRASHES, SEGFAULT, ""),
    "asks for nothing": (without_attributes("new std::string"), "Op", {}, MAY_CRASH, LOADS, 0, ONCE),
    "asks for nothing, static": (without_attributes("new, static libstdc++"), "Op", {}, MAY_CRASH, LOADS, 0, ONCE),
    "holds no string": (plain("* 2"), "Op", {"infer": "python"}, LOADS, LOADS, 0, TWICE),
    "calls what nobody has": (plain("* gone()", 'extern "C" float gone();'), "Op", {"infer": "python"}, CRASHES,
                              CRASHES, SYMBOL_LOOKUP_ERROR, ""),
    "the same, bound at once": (plain("* gone()", 'extern "C" float gone();', "-Wl,-z,now"), "Op",
                                {"infer": "python"}, REFUSES, REFUSES, 0, "raises: RuntimeError:"),
    "reads what nobody has": (plain("* gone", "extern float gone;"), "Op", {"infer": "python"}, REFUSES, REFUSES, 0,
                              "raises: RuntimeError:"),
    "a lost library": (needs_a_lost_library, "Op", {"infer": "python"}, REFUSES, REFUSES, 0, "raises: RuntimeError:"),
    "no shared object": (no_object, "Op", {"infer": "python"}, REFUSES, REFUSES, 0, "raises: RuntimeError:"),
    "opgraft's own": (ours, "ReLU", {}, LOADS, LOADS, 0, ONCE),
}  # fmt: skip


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """(file, MindSpore's exit code, what it said) of every case; those that do not end the process in one."""
    files, out = {}, {}
    for case, (make, function, attrs, *_) in CASES.items():
        files[case] = f"{make(tmp_path_factory.mktemp('case'))}:{function}", attrs
    together = [case for case in CASES if CASES[case][5] == 0]
    folder = tmp_path_factory.mktemp("run")
    code, lines, log = customs("pynative", folder, *(files[case] for case in together))
    assert code == 0 and len(lines) == len(together), log
    out = {case: (0, line) for case, line in zip(together, lines)}
    out |= {case: one_custom("pynative", f[0], folder, f[1])[:2] for case, f in files.items() if case not in out}
    return {case: (files[case][0].rpartition(":")[0], *out[case]) for case in CASES}


@pytest.mark.parametrize("case", CASES)
def test_the_verdict_is_what_mindspore_does(case, found):
    *_, verdict, probed, code, said = CASES[case]
    so, *did = found[case]
    assert did == [code, said]
    line = doctor(so)[1]
    assert line.removesuffix("; --probe finds out") == verdict
    assert doctor(so, "--probe") == (int(probed in (CRASHES, REFUSES)), probed)


def test_a_file_outside_the_white_list(tmp_path):
    so = plain("* 2")(tmp_path)
    for folder, verdict, said in [(tmp_path, LOADS, TWICE), (tmp_path / "other", REFUSES, "raises: TypeError: ")]:
        allowed = {"MS_CUSTOM_AOT_WHITE_LIST": str(folder)}
        assert doctor(so, **allowed)[1] == verdict
        code, line, log = one_custom("pynative", f"{so}:Op", tmp_path, {"infer": "python"}, **allowed)
        assert line.startswith(said) if code == 0 else "the legal path for the file is" in log


def test_a_white_list_set_to_nothing(tmp_path):
    so, env = plain("* 2")(tmp_path), {"MS_CUSTOM_AOT_WHITE_LIST": ""}
    assert doctor(so, **env)[1] == REFUSES
    said = one_custom("pynative", f"{so}:Op", tmp_path, {"infer": "python"}, **env)[1]
    assert said.startswith("raises: RuntimeError: Illegal white list path set in MS_CUSTOM_AOT_WHITE_LIST")


def test_a_constructor_that_ends_the_process(tmp_path):
    so = plain("* 2", "#include <cstdlib>\nstatic int made = (abort(), 0);")(tmp_path)
    assert doctor(so) == (1, CRASHES)
    assert one_custom("pynative", f"{so}:Op", tmp_path, {"infer": "python"})[0] == -6


def test_a_file_without_a_function(tmp_path):
    so = source("static int nothing;")(tmp_path)
    assert doctor(so) == (1, REFUSES)
    said = one_custom("pynative", f"{so}:Op", tmp_path, {"infer": "python"})[1]
    assert said.startswith("raises: RuntimeError: For 'Custom' on CPU, error occurs when fetching function 'Op'")
