"""The committed stubs against the module, and a user's script under mypy --strict."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import opgraft
import pytest

PACKAGE = Path(opgraft.__file__).absolute().parent
# What stubtest says of every pybind11 class.
ALLOWED = r"""opgraft\._core\.(Op|Graph|Rule|Model|Session)
opgraft\._core\.TensorBase
opgraft\._core\.CustomBase
opgraft\._core\.Op\.__init__
"""


def environment():
    return os.environ | {"MYPYPATH": str(PACKAGE.parent), "PYTHONPATH": str(PACKAGE.parent)}


def test_names_and_properties_agree_with_the_module(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "allowed.txt").write_text(ALLOWED)
    command = [sys.executable, "-m", "mypy.stubtest", "opgraft._core", "--allowlist", "allowed.txt"]
    command += ["--ignore-unused-allowlist"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def stub_functions():
    """(dotted name, parameter names, of them those with a default) of every function in the stub."""
    tree = ast.parse((PACKAGE / "_core.pyi").read_text())
    for scope, body in [("", tree.body)] + [(c.name, c.body) for c in tree.body if isinstance(c, ast.ClassDef)]:
        for f in body:
            if isinstance(f, ast.FunctionDef) and not any(getattr(d, "id", "") == "property" for d in f.decorator_list):
                names = [a.arg for a in f.args.args]
                yield f"{scope}.{f.name}".strip("."), names, names[len(names) - len(f.args.defaults) :]


def of_module(name):
    """The same from the first line of pybind11's docstring, or None where there is none."""
    found = opgraft._core
    for part in name.split("."):
        found = getattr(found, part)
    match = re.match(r"\w+\((.*)\) -> ", found.__doc__ or "")
    if match is None:
        return None
    depth, parts = 0, [""]
    for c in match[1]:
        depth += (c in "[(") - (c in "])")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    names = [re.match(r"\s*(\w+)", p)[1] for p in parts if p.strip()]
    return names, [n for n, p in zip(names, parts) if " = " in p]


def test_arguments_and_defaults_agree_with_the_module():
    checked = []
    for name, names, defaults in stub_functions():
        real = of_module(name)
        if real is None:
            continue
        checked.append(name)
        # An argument that was bound without a name is called arg0, arg1 … by pybind11.
        real_names = [n if re.fullmatch(r"arg\d+", r) else r for r, n in zip(real[0], names, strict=True)]
        assert real_names == names, name
        assert real[1] == defaults, name
    assert len(checked) > 40


SCRIPT = """
import numpy as np
import opgraft
from opgraft import Tensor, nn, ops, rewrite

class Scale(nn.Cell):
    def construct(self, x: Tensor) -> Tensor:
        return -x * 2


net = nn.SequentialCell(nn.Dense(4, 8), nn.GELU(False), Scale())
x = Tensor(np.ones((2, 4), np.float32))
report = rewrite.substitute(net, prove=(x,))
file: str = opgraft.export(net, x, file_name="net")
cell = nn.GraphCell(opgraft.load(file))
y: np.ndarray = (2 * ops.ReLU()(cell(x[:1])).reshape(-1, 4) + 1).asnumpy()
print(report, y.shape)
"""


def test_a_users_script_under_mypy_strict(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "mypy", "--strict", "--allow-untyped-calls", "--disable-error-code=type-arg"]
    command += ["--follow-imports=silent", "script.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
