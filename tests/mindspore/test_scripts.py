"""One script, two imports: what it prints with MindSpore and with opgraft under that name agrees to 1e-5."""

import os
import pathlib
import re
import subprocess
import sys

import opgraft
import pytest
from helpers import HERE, compile_kernels

PACKAGE = str(pathlib.Path(opgraft.__file__).absolute().parents[1])
SCRIPTS = sorted((HERE / "scripts").glob("*.py"))
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|inf|nan)")
ALIASED = """
import runpy, sys, opgraft
sys.modules |= {"mindspore": opgraft, "mindspore.nn": opgraft.nn, "mindspore.ops": opgraft.ops}
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    return compile_kernels(tmp_path_factory.mktemp("kernels"))


def printed(command, kernels, folder):
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=folder,
                          env=os.environ | {"KERNELS": kernels, "GLOG_v": "3", "PYTHONPATH": PACKAGE})  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda s: s.stem)
def test_prints_the_same(script, kernels, tmp_path):
    theirs = printed([str(script)], kernels, tmp_path)
    ours = printed(["-c", ALIASED, str(script)], kernels, tmp_path)
    assert theirs.strip()
    around = ["".join(NUMBER.sub("#", text).split()) for text in (ours, theirs)]
    assert around[0] == around[1], f"{ours}\ninstead of\n{theirs}"
    for got, want in zip(NUMBER.findall(ours), NUMBER.findall(theirs), strict=True):
        assert float(got) == pytest.approx(float(want), rel=1e-5, abs=1e-5, nan_ok=True), (
            f"{ours}\ninstead of\n{theirs}"
        )
