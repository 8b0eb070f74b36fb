"""Case tables of the operators, found beside them."""

import contextlib
import gc
import importlib.util
import os
import pathlib

import numpy as np
import opgraft
import pytest
from opgraft import cli
from opgraft.dtype import to_dtype

pytest.register_assert_rewrite("generate_twins")
ROOT = pathlib.Path(__file__).resolve().parents[2]


def pytest_collection_finish():
    """Tens of thousands of tests stay to the end: garbage is not looked for among them."""
    gc.collect()
    gc.freeze()


def tables():
    # OPGRAFT_CASES: a folder of operator folders to test instead of the project's.
    folder = pathlib.Path(os.environ.get("OPGRAFT_CASES", ROOT / "aot_ops"))
    paths = sorted(folder.glob("*/cases.py"))
    if not paths:
        raise pytest.Collector.CollectError(
            f"no cases under {folder}: it must hold operator folders with a cases.py each"
        )
    for path in paths:
        spec = importlib.util.spec_from_file_location(f"cases_{path.parent.name}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for i, case in enumerate(module.CASES):
            for key in ("op", "inputs", "rtol", "atol"):
                if key not in case:
                    raise pytest.Collector.CollectError(
                        f"{path}: CASES[{i}] ({case.get('op', 'no op')}): {key} is missing"
                    )
        yield path.parent.name, module


@contextlib.contextmanager
def told(case):
    """What fails within tells the case, as where a test has many."""
    try:
        yield
    except Exception as e:
        raise AssertionError(f"{case}") from e


def make_input(spec, seed):
    """The array that a case's input describes (aot_ops/swiglu/cases.py gives the forms)."""
    rng = np.random.default_rng(seed)
    dtype = to_dtype(spec[0])
    if isinstance(spec[1], list):
        return np.array(spec[1]).astype(dtype)
    if not isinstance(spec[1], tuple):
        return np.array(spec[1]).astype(dtype)
    shape = spec[1]
    if len(spec) > 2 and spec[2] != "special":
        low, high = spec[2]
        a = rng.uniform(low, high, shape) if dtype.kind != "i" else rng.integers(low, high, shape)
    elif dtype.kind in "iu":
        a = rng.integers(0, 100, shape)
    else:
        a = np.asarray(rng.standard_normal(shape))
        if len(spec) > 2:
            flat = a.reshape(-1)
            flat[: min(7, a.size)] = [np.inf, -np.inf, np.nan, 0.0, -0.0, 80.0, -80.0][: min(7, a.size)]
    return np.asarray(np.asarray(a) > 0 if dtype == np.bool_ else a, dtype)


@pytest.fixture(autouse=True)
def _eager():
    opgraft.set_context(mode=opgraft.PYNATIVE_MODE)
    yield
    opgraft.set_context(mode=opgraft.PYNATIVE_MODE)


@pytest.fixture
def planned(_eager):
    opgraft.set_context(mode=opgraft.GRAPH_MODE)


@pytest.fixture
def python(capsys):
    """`opgraft generate`: (exit code, stdout, stderr)."""

    def run(*args):
        capsys.readouterr()
        code = cli.main(["generate", *map(str, args)])
        return code, *capsys.readouterr()

    return run
