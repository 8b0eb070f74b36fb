"""C++ sources of a Custom, compiled once: kept by what they were made of."""

import functools
import hashlib
import os
import pathlib
import shlex
import subprocess
import tempfile

SOURCES = (".cc", ".cpp", ".cxx")
# Optimised, but for every x86-64 machine: the cache may be shared. CXXFLAGS adds to these.
FLAGS = ["-O3", "-std=c++17", "-shared", "-fPIC"]


def cache() -> pathlib.Path:
    """The folder of compiled sources: $OPGRAFT_CACHE, else opgraft/ in the user's cache."""
    if given := os.environ.get("OPGRAFT_CACHE"):
        return pathlib.Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "opgraft"


def include_dir() -> pathlib.Path:
    """opgraft's headers; custom_aot_extra.h among them is what MindSpore's operators include."""
    package = pathlib.Path(__file__).absolute().parent
    installed = package / "include"
    return installed if installed.is_dir() else pathlib.Path(__file__).resolve().parents[2] / "include"


@functools.cache
def _version(compiler) -> str:
    try:
        return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        raise FileNotFoundError(f"Custom: the compiler {compiler!r} was not found; install g++, or set CXX") from None
    except subprocess.CalledProcessError as e:
        raise RuntimeError(f"Custom: {compiler} --version failed: {e.stderr.strip()}") from None


def _digest(*parts) -> str:
    h = hashlib.sha256()
    for p in parts:
        data = p if isinstance(p, bytes) else str(p).encode()
        h.update(len(data).to_bytes(8, "little") + data)
    return h.hexdigest()[:24]


def _headers_digest(listing) -> str | None:
    """Of the contents of the headers that `listing` names; None where one is gone."""
    try:
        return _digest(*(pathlib.Path(p).read_bytes() for p in listing.read_text().splitlines()))
    except OSError:
        return None


def _dependencies(rule):
    """The files a Makefile rule of -MMD names after its target."""
    text = rule.read_text().replace("\\\n", " ").split(":", 1)[1].replace("\\ ", "\0")
    return [p.replace("\0", " ") for p in text.split()]


def _put(part, target):
    """Whole or not at all, whoever else makes the same."""
    os.replace(part, target)


def compile_source(source) -> str:
    """The shared object of a C++ source, compiled unless the cache has it.

    It is found again by the content of the source and of the headers it includes (the system's aside), the flags
    and the compiler's version. FileNotFoundError: no source, or no compiler; RuntimeError: it does not compile.
    """
    source = pathlib.Path(source)
    if not source.is_file():
        raise FileNotFoundError(f"{source}: no such file")
    folder = source.resolve().parent
    compiler = os.environ.get("CXX", "g++")
    flags = [*FLAGS, *shlex.split(os.environ.get("CXXFLAGS", ""))]
    include = include_dir()
    flags += ["-I", str(folder), "-I", str(include), "-I", str(include / "opgraft")]
    base = cache() / f"{source.stem}-{_digest(source.read_bytes(), *flags, compiler, _version(compiler))}"
    listing = base.with_name(base.name + ".headers")
    found = _headers_digest(listing)
    built = base.with_name(f"{base.name}-{found}.so")
    if found is not None and built.exists():
        return str(built)
    base.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=base.parent, prefix=".build-") as work:
        part, rule, names = (pathlib.Path(work) / n for n in ("op.so", "op.d", "op.headers"))
        command = [compiler, *flags, str(source.resolve()), "-o", str(part)]
        done = subprocess.run([*command, "-MMD", "-MF", str(rule)], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"Custom: {source} does not compile:\n  {shlex.join(command)}\n{done.stderr.strip()}")
        names.write_text("".join(f"{os.path.abspath(p)}\n" for p in _dependencies(rule)))
        built = base.with_name(f"{base.name}-{_headers_digest(names)}.so")
        _put(part, built)
        _put(names, listing)
    return str(built)
