"""The layers include only downwards, and an operator needs no library but the C and C++ run-times."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ["include", "aot_ops", "registry", "infer", "python"]
# The shared pool is a library of the ops' layer that lies beside them; MindSpore's entry finds it there.
ALLOWED = {"libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libc.so.6", "ld-linux-x86-64.so.2"}


def layer_of_include(name):
    if name.startswith("opgraft/"):
        return "include"
    first = name.split("/")[0]
    return first if first in LAYERS else None


def sources(layer):
    return [p for p in (ROOT / layer).rglob("*") if p.suffix in {".h", ".cc"}]


@pytest.mark.parametrize("layer", LAYERS)
def test_includes_point_downwards_only(layer):
    seen = 0
    for path in sources(layer):
        for name in re.findall(r'#include "([^"]+)"', path.read_text()):
            other = layer_of_include(name)
            if other is not None:
                seen += 1
                assert LAYERS.index(other) <= LAYERS.index(layer), f"{path.relative_to(ROOT)} includes {name}"
    assert seen or layer == "python"


def test_the_engine_knows_no_operator():
    for path in sources("infer") + sources("registry"):
        assert not re.search(r'#include "aot_ops/(?!common/)', path.read_text()), path


def op_files():
    return sorted(p for p in (ROOT / "build" / "ops").glob("*.so") if not p.name.startswith("lib"))


@pytest.mark.parametrize("path", op_files(), ids=lambda p: p.stem)
def test_dependencies_of_an_op(path, record_property):
    out = subprocess.run(["readelf", "-dW", path], check=True, capture_output=True, text=True).stdout
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", out))
    print(path.name, "needs", ", ".join(sorted(needed)))
    record_property("needed", ", ".join(sorted(needed)))
    assert needed <= ALLOWED


def test_there_are_ops_to_check():
    assert op_files(), "no operator is built: run ./build.sh ops"
