"""Builds an operator folder (op.yaml, *.cc) into a shared object, with or without opgraft's repository."""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path


def _layout():
    """Where the package keeps (cmake project, manifest tool, include folders)."""
    package = Path(__file__).absolute().parent
    if (package / "cmake" / "op_project").is_dir():  # installed from the wheel
        return package / "cmake" / "op_project", package / "bin" / "opgraft-manifest", [package / "include"]
    root = Path(__file__).resolve().parents[2]  # build/python holds links into the repository
    return root / "cmake" / "op_project", package.parent.parent / "opgraft-manifest", [root / "include", root]


def _run(command, what):
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode != 0:
        raise RuntimeError(f"{what} failed: {' '.join(map(str, command))}\n{done.stdout.strip()}")
    return done.stdout


def build(dir, out=None):  # noqa: A002 (the command line's name)
    """Compiles the operator folder `dir` and returns the path of `<out>/<folder's name>.so`.

    `out` is the folder for the result, by default `dir` itself. Needs a C++20 compiler and CMake 3.25
    (`pip install cmake ninja` will do). Raises FileNotFoundError when `dir` holds no op.yaml or a tool is
    missing, ValueError when its name cannot be a file's, RuntimeError with the compiler's output when the build fails.
    """
    folder = Path(dir).resolve()
    if not (folder / "op.yaml").is_file():
        raise FileNotFoundError(f"build: dir must hold an op.yaml, got {dir}")
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", folder.name):
        raise ValueError(f"build: dir's name must be of letters, digits, _ . -, got {folder.name!r}")
    cmake = shutil.which("cmake")
    if cmake is None:
        raise FileNotFoundError("build: cmake was not found; install CMake 3.25 or newer, or `pip install cmake ninja`")
    project, tool, includes = _layout()
    if not tool.is_file():
        raise FileNotFoundError(f"build: {tool} is missing; build or install opgraft first")
    if not os.access(tool, os.X_OK):  # some installers drop the mode bits of a wheel's data files
        tool.chmod(0o755)
    target = Path(out).resolve() if out is not None else folder
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="opgraft-build-") as tree:
        configure = [
            *(cmake, "-S", project, "-B", tree),
            *(("-G", "Ninja") if shutil.which("ninja") else ()),
            f"-DOPGRAFT_OP_DIR={folder}",
            f"-DOPGRAFT_MANIFEST_TOOL={tool}",
            f"-DOPGRAFT_INCLUDE_DIRS={';'.join(map(str, includes))}",
            f"-DOPGRAFT_OPS_DIR={target}",
        ]
        _run(configure, f"configuring {folder.name}")
        _run([cmake, "--build", tree], f"building {folder.name}")
    return target / f"{folder.name}.so"
