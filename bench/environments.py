"""The peers' virtual environments: .venv-torch and so on, in the repository's root, at pinned versions."""

import hashlib
import pathlib
import subprocess
import sys

from peers import PEERS

ROOT = pathlib.Path(__file__).resolve().parent.parent
HERE = pathlib.Path(__file__).resolve().parent


def find(names, install=False):
    """{peer: its Python, or None where it is not installed}; with `install`, those missing are installed."""
    found = {}
    for name in names:
        folder, requirements, _ = PEERS[name]
        python = ROOT / folder / "bin" / "python"
        if requirements is None:
            found[name] = python if python.exists() else pathlib.Path(sys.executable)
            continue
        file = (HERE / "requirements" / requirements).resolve()
        stamp = ROOT / folder / ".requirements.sha256"
        wanted = hashlib.sha256(file.read_bytes()).hexdigest()
        ready = python.exists() and stamp.exists() and stamp.read_text().strip() == wanted
        if not ready and install:
            ready = _install(ROOT / folder, file)
            if ready:
                stamp.write_text(wanted + "\n")
        found[name] = python if ready else None
        if not ready:
            print(f"operators.py: {name} is not installed (--install does): its column stays empty", file=sys.stderr)
    return found


def _install(folder, requirements):
    print(f"installing {requirements.stem} into {folder.name}", file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*pip, "-r", str(requirements)], stdin=subprocess.DEVNULL)
    if done.returncode:
        print(f"operators.py: {requirements.name} could not be installed", file=sys.stderr)
    return done.returncode == 0
