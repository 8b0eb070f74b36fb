"""No kernel computes with what its memory happened to hold, such as lanes behind the last element: a product with a
denormal number takes a hundred cycles on some processors, and a convolution took five times as long, or not, by chance.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from targets import TARGETS, machine_flags

HERE = pathlib.Path(__file__).resolve().parent
LIBRARY = HERE.parents[1] / "build" / "tests" / "denormals.so"


@pytest.mark.skipif(not LIBRARY.exists(), reason="it needs a build of the C++ tests")
@pytest.mark.parametrize("simd", TARGETS)
def test_what_memory_holds_is_not_computed_with(simd):
    if not TARGETS[simd] <= machine_flags():
        pytest.skip(f"this machine has no {simd}")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "denormals.py"), str(LIBRARY)], capture_output=True, text=True,
        timeout=600, env=os.environ | {"LD_PRELOAD": str(LIBRARY), "OPGRAFT_SIMD": simd},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["with_memory"] > 1000 and found["tried"] > found["with_memory"]
    assert found["wrong"] == []
