"""Every operator's case table through MindSpore's entry, InferShape and InferType, against the native descriptor."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import make_input, tables, told
from opgraft import _core
from opgraft.dtype import name, type_id

EACH = 50  # cases to a test, for a test by itself costs more than a case


def groups():
    """(operator, number of the group, some of its cases)."""
    by_op = {}
    for _, module in tables():
        for case in module.CASES:
            by_op.setdefault(case["op"], []).append(case)
    return [(op, i // EACH, cases[i : i + EACH]) for op, cases in by_op.items() for i in range(0, len(cases), EACH)]


GROUPS = groups()


def _face(op, attrs, outputs):
    """The op behind MindSpore's entry of the same function, and what its nodes carry."""
    attrs = {**attrs, "opgraft_outputs": outputs}
    return _core.load_function(op.path, op.name, {k: v for k, v in attrs.items() if k != "opgraft_outputs"}), attrs


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """MindSpore's entry has no pool: a kernel may round differently where its chunks end elsewhere."""
    _core.set_threads(1)
    yield
    _core.set_threads(0)


def same(got, want):
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype and g.shape == w.shape
        assert g.tobytes() == w.tobytes()


def run(op, inputs, attrs):
    return _core.run_op(op, [a.copy() for a in inputs], attrs)  # it may update an input in place


def _complete(op, attrs):
    """The attributes in the kinds op.yaml declares: a Python int given for a float is no float to MindSpore."""
    kinds = op.manifest["attrs"]
    return {
        k: float(v) if isinstance(kinds.get(k), float) else list(v) if isinstance(v, tuple) else v
        for k, v in attrs.items()
    }


@pytest.mark.parametrize("cases", [c for _, _, c in GROUPS], ids=[f"{op}-{i}" for op, i, _ in GROUPS])
def test_face_gives_what_the_descriptor_gives(cases):
    for case in cases:
        with told(case):
            compare(case)


def compare(case):
    op = _core.resolve(case["op"])
    attrs = _complete(op, case.get("attrs", {}))
    inputs = [make_input(s, k) for k, s in enumerate(case["inputs"])]
    want = run(op, inputs, attrs)
    manifest = op.manifest["inputs"]
    face_attrs = dict(attrs)
    if any(i["optional"] or i["variadic"] for i in manifest):
        face_attrs["n_inputs"] = len(inputs)
    declared = {
        "out_shape": ";".join(",".join(map(str, w.shape)) for w in want),
        "out_dtype": ";".join(name(w.dtype) for w in want),
    }
    face, bound = _face(op, face_attrs, len(want))
    same(run(face, inputs, bound | declared), want)  # the entry alone
    if op.name in ("Split", "SplitWithSize") and len(want) == 1:
        return  # InferShape gives a list of shapes, which MindSpore expects of several outputs only
    first = next((k for k, i in enumerate(manifest) if i["value"]), 0)
    if first:  # InferShape is not told the shape that the result is to have: an attribute tells
        told = [k for k, i in enumerate(manifest) if i["value"] and k < len(inputs)]
        values = {manifest[k]["name"]: [int(v) for v in np.ravel(inputs[k])] for k in told}
        inputs = [a for k, a in enumerate(inputs) if k not in told]
        face, bound = _face(op, face_attrs | values, 1)
    inferred = _core.infer_op(face, inputs, bound)
    assert [(tuple(s), name(d)) for s, d in inferred] == [(w.shape, name(w.dtype)) for w in want]
    same(run(face, inputs, bound), want)


def test_every_registered_operator_is_met():
    assert {o.name for o in _core.list_ops()} - {"Thrower"} <= {op for op, _, _ in GROUPS}


def test_integer_inputs_do_not_hide_the_result():
    gather = _core.resolve("Gather")
    face, attrs = _face(gather, {"axis": 0, "batch_dims": 0}, 1)
    shape, dtype = _core.infer_op(face, [np.ones((5, 3), np.float16), np.zeros((2, 2), np.int32)], attrs)[0]
    assert (shape, name(dtype)) == ([2, 2, 3], "float16")
    with pytest.raises(RuntimeError, match=r"Gather: indices.dtype must be .*, got float32"):
        _core.infer_op(face, [np.ones((5, 3), np.float16), np.zeros((2, 2), np.float32)], attrs)
    assert type_id("float16") == 42


# A process without opgraft calls the entry as MindSpore does, prints how many threads came, and what a fork gives.
ALONE = """
import ctypes, os, sys
import numpy as np

entry = ctypes.CDLL(sys.argv[1]).SwiGLU
x, gate = np.random.default_rng(0).standard_normal((2, 1000, 1000)).astype(np.float32)

def run():
    y = np.zeros_like(x)
    dims = (ctypes.c_int64 * 2)(*x.shape)
    status = entry(3, (ctypes.c_void_p * 3)(*(a.ctypes.data for a in (x, gate, y))), (ctypes.c_int * 3)(2, 2, 2),
                   (ctypes.POINTER(ctypes.c_int64) * 3)(dims, dims, dims), (ctypes.c_char_p * 3)(*[b"float32"] * 3),
                   None, None)
    assert status == 0
    return np.abs(y - x * gate / (1 + np.exp(-gate.astype(np.float64)))).max() < 1e-5

before = len(os.listdir("/proc/self/task"))
right = run()
came = len(os.listdir("/proc/self/task")) - before
child = os.fork()
if child == 0:
    os._exit(0 if run() else 1)
print(right, came, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("pool,threads", [(True, 2), (False, 0)], ids=["pool beside the file", "no pool"])
def test_the_entry_finds_the_pool_beside_its_file(tmp_path, pool, threads):
    source = Path(_core.resolve("SwiGLU").path)
    shutil.copy(source, tmp_path)
    if pool:
        shutil.copy(source.parent / "libopgraft_threads.so", tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", ALONE, tmp_path / source.name],
        env=os.environ | {"OPGRAFT_NUM_THREADS": "3", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == f"True {threads} 0\n", done.stdout + done.stderr


def test_what_a_function_may_only_read_need_not_be_writable():
    """Of a function that MindSpore marks as one that updates something nobody says what: its inputs are not refused."""
    add = _core.resolve("Add")
    face, attrs = _face(add, {"side_effect_mem": True}, 1)
    x, y = np.arange(8, dtype=np.float32)[::2], np.ones(4, np.float32)
    y.flags.writeable = False
    told = {"out_shape": "4", "out_dtype": "float32"}
    np.testing.assert_array_equal(_core.run_op(face, [x, y], attrs | told)[0], [1, 3, 5, 7])
