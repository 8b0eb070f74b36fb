"""The peers' virtual environments: .venv-torch and so on, in the repository's root, at pinned versions."""

import hashlib
import importlib.metadata
import json
import pathlib
import subprocess
import sys
import tempfile

from peers import PEERS

ROOT = pathlib.Path(__file__).resolve().parent.parent
HERE = pathlib.Path(__file__).resolve().parent


def find(names, install=False, peers=PEERS):
    """{peer: its Python, or None where it is not installed}; with `install`, those missing are installed. `peers` has
    a folder and requirements, or None, for each name."""
    found = {}
    for name in names:
        folder, requirements, *_ = peers[name]
        if requirements is None:
            python = ROOT / folder / "bin" / "python"
            found[name] = python if python.exists() else pathlib.Path(sys.executable)
            continue
        found[name] = _python(folder, requirements, install) or _this(requirements)
        if not found[name]:
            print(f"{name} is not installed (--install does): its column stays empty", file=sys.stderr)
    return found


def plot(result, path, install=False):
    """Draws the result, in an environment of its own."""
    python = _python(".venv-plot", "plot.txt", install)
    if python is None:
        print(f"{path} is not drawn: matplotlib is not installed (--install does)", file=sys.stderr)
        return
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(result, file)
        file.flush()
        subprocess.run([str(python), str(HERE / "plot.py"), file.name, "-o", str(path)], check=True)


def _this(requirements):
    """The Python that runs this, where it has what `requirements` asks for at these versions; else None."""
    for line in (HERE / "requirements" / requirements).read_text().split():
        name, _, version = line.partition("==")
        try:
            if importlib.metadata.version(name) != version:
                return None
        except importlib.metadata.PackageNotFoundError:
            return None
    return pathlib.Path(sys.executable)


def _python(folder, requirements, install):
    """The Python of the environment `folder`, or None where it is not there as `requirements` asks."""
    python = ROOT / folder / "bin" / "python"
    file = (HERE / "requirements" / requirements).resolve()
    stamp = ROOT / folder / ".requirements.sha256"
    wanted = hashlib.sha256(file.read_bytes()).hexdigest()
    ready = python.exists() and stamp.exists() and stamp.read_text().strip() == wanted
    if not ready and install and _install(ROOT / folder, file):
        stamp.write_text(wanted + "\n")
        ready = True
    return python if ready else None


def _install(folder, requirements):
    print(f"installing {requirements.stem} into {folder.name}", file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*pip, "-r", str(requirements)], stdin=subprocess.DEVNULL)
    if done.returncode:
        print(f"{requirements.name} could not be installed", file=sys.stderr)
    return done.returncode == 0
