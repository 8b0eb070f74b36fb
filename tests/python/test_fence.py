"""What tests/cpp/fence.c, with which tests/stages.sh runs these tests, and fenced() of kernels.py find."""

import ctypes
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest
from kernels import fenced
from opgraft import Tensor, _core

HERE = pathlib.Path(__file__).resolve().parent
LIBRARY = HERE.parents[1] / "build" / "tests" / "fence.so"
BEGIN = """
import ctypes, numpy as np
from kernels import fenced
from opgraft import _core
x = np.arange(16, dtype=np.float32)
y = _core.run_op(_core.resolve("Add"), [x, x], {})[0]
assert y[15] == 30
"""


def run(program):
    return subprocess.run(
        [sys.executable, "-c", BEGIN + program], cwd=HERE, capture_output=True, text=True, timeout=60,
        env=os.environ | {"LD_PRELOAD": str(LIBRARY)},
    )  # fmt: skip


@pytest.mark.skipif(not LIBRARY.exists(), reason="it needs a build of the C++ tests")
@pytest.mark.parametrize(
    "program,ends",
    [
        ("ctypes.string_at(y.ctypes.data, y.nbytes)", 0),
        ("ctypes.string_at(y.ctypes.data, y.nbytes + 1)", -signal.SIGSEGV),
        ("ctypes.memset(y.ctypes.data + y.nbytes, 0, 1)", -signal.SIGSEGV),
        ("at = y.ctypes.data; del y; ctypes.string_at(at, 1)", -signal.SIGSEGV),
        ("ctypes.memset(y.ctypes.data - 1, 0, 1); del y", -signal.SIGABRT),
    ],
)
def test_an_access_outside_a_result_ends_the_process(program, ends):
    done = run(program)
    assert done.returncode == ends, done.stderr
    assert ("fence: something wrote before the memory" in done.stderr) == (ends == -signal.SIGABRT)


@pytest.mark.skipif(not LIBRARY.exists(), reason="it needs a build of the C++ tests")
def test_what_nobody_wrote_is_no_number():
    program = """
libc = ctypes.CDLL(None)
libc.aligned_alloc.restype, libc.aligned_alloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t] * 2
print(np.isnan(np.ctypeslib.as_array((ctypes.c_float * 2000).from_address(libc.aligned_alloc(64, 8000)))).all())
"""
    assert run(program).stdout == "True\n"


@pytest.mark.skipif(not LIBRARY.exists(), reason="it needs a build of the C++ tests")
def test_a_process_of_few_addresses_has_memory_as_ever():
    done = subprocess.run(
        ["prlimit", f"--as={1 << 32}", sys.executable, "-c", BEGIN + "print(ctypes.CDLL(None).fence_taken())"],
        cwd=HERE, capture_output=True, text=True, timeout=60, env=os.environ | {"LD_PRELOAD": str(LIBRARY)},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


@pytest.mark.parametrize("at", ["a.nbytes", "-1 - a.itemsize"])
def test_an_access_outside_a_fenced_array_ends_the_process(at):
    program = (
        f"a = fenced(x, ends={at == 'a.nbytes'}); assert (a == x).all()\nctypes.string_at(a.ctypes.data + {at}, 1)"
    )
    done = subprocess.run([sys.executable, "-c", BEGIN + program], cwd=HERE, capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGSEGV, done.stderr


def test_a_fenced_array_is_one_element_past_a_page_or_ends_with_it():
    a = np.arange(1500, dtype=np.float16).reshape(3, 500)
    for ends, where in [(True, -a.nbytes % 4096), (False, 2)]:
        copy = fenced(a, ends)
        assert copy.ctypes.data % 4096 == where and copy.flags.writeable
        np.testing.assert_array_equal(copy, a)


@pytest.mark.skipif("fence.so" not in os.environ.get("LD_PRELOAD", ""), reason="not run by build.sh test")
def test_this_process_is_fenced():
    taken = ctypes.CDLL(None).fence_taken
    taken.restype = ctypes.c_uint64
    before = taken()
    held = Tensor(np.ones(3, np.float32)), _core.run_op(_core.resolve("ReLU"), [np.ones(3, np.float32)], {})
    assert taken() > before and held
