"""Operators made for MindSpore in model files: which library a model finds, and which it may load."""

import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import opgraft
import pytest
from foreign import Net, cache, so, x  # noqa: F401
from opgraft import Tensor, ops
from opgraft.compile import compile_source

LOAD = "import sys, numpy as np, opgraft; from opgraft import nn, Tensor\n{before}\ntry:\n  g = nn.GraphCell(opgraft.load(sys.argv[1]))\nexcept Exception as e:\n  print(type(e).__name__, e); sys.exit()\nprint(g(Tensor(np.ones((2, 3), np.float32))).asnumpy()[0, 0])"  # noqa: E501


def in_new_process(file, before="", **env):
    run = subprocess.run(
        [sys.executable, "-c", LOAD.format(before=before), str(file)],
        env={**os.environ, **env}, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_a_model_loads_only_from_where_it_was_allowed(tmp_path):
    ops_dir, other = tmp_path / "ops", tmp_path / "other"
    ops_dir.mkdir(), other.mkdir()
    path = shutil.copy(so("scale"), ops_dir / "scale.so")
    net = Net(ops.Custom(f"{path}:Scale", factor=2.5))
    file = opgraft.export(net, Tensor(x), file_name=tmp_path / "net")
    refused = in_new_process(file)
    assert "its folder is on no white list" in refused and "set_whitelist" in refused and str(ops_dir) in refused
    assert "white list" in in_new_process(file, MS_CUSTOM_AOT_WHITE_LIST=str(other))
    assert in_new_process(file, MS_CUSTOM_AOT_WHITE_LIST=str(ops_dir)) == "6.0"
    assert in_new_process(file, f"opgraft.set_whitelist([{str(ops_dir)!r}])") == "6.0"
    assert in_new_process(file, f"opgraft.ops.Custom({str(path) + ':Scale'!r})") == "6.0"
    # A link in an allowed folder does not lead out of it.
    (other / "scale.so").symlink_to(path)
    linked = Net(ops.Custom(f"{other / 'scale.so'}:Scale", factor=2.5))
    link_file = opgraft.export(linked, Tensor(x), file_name=tmp_path / "link")
    assert "white list" in in_new_process(link_file, MS_CUSTOM_AOT_WHITE_LIST=str(other))
    # A file that moved is found in an allowed folder; one that is gone is named.
    moved = shutil.move(path, tmp_path / "moved.so")
    shutil.copy(moved, other / "copy.so")
    (other / "scale.so").unlink()
    assert "neither there nor" in in_new_process(file, MS_CUSTOM_AOT_WHITE_LIST=str(other))
    shutil.move(other / "copy.so", other / "scale.so")
    assert in_new_process(file, MS_CUSTOM_AOT_WHITE_LIST=str(other)) == "6.0"


FORTY_TWO = """extern "C" int Scale(int, void **params, int *, long **, const char **, void *, void *) {
  *static_cast<float *>(params[1]) = 42;
  return 0;
}"""


def test_a_library_beside_the_model_goes_before_the_path_in_it(tmp_path):
    ops_dir, models = tmp_path / "ops", tmp_path / "models"
    ops_dir.mkdir(), models.mkdir()
    path, beside = pathlib.Path(shutil.copy(so("scale"), ops_dir / "scale.so")), models / "scale.so"
    net = Net(ops.Custom(f"{path}:Scale", out_shape=lambda a: a, out_dtype=lambda a: a, factor=2.5))
    file = opgraft.export(net, Tensor(x), file_name=models / "net")
    (tmp_path / "other.cc").write_text(FORTY_TWO)
    shutil.copy(compile_source(tmp_path / "other.cc"), beside)
    assert in_new_process(file, MS_CUSTOM_AOT_WHITE_LIST=str(tmp_path)) == "43.0"
    # It must be allowed like any other: else the path counts, and without one it is refused.
    assert in_new_process(file, MS_CUSTOM_AOT_WHITE_LIST=str(ops_dir)) == "6.0"
    path.unlink()
    for allowed in ({}, {"MS_CUSTOM_AOT_WHITE_LIST": str(ops_dir)}):
        refused = in_new_process(file, **allowed)
        assert refused.startswith("ValueError") and "its folder is on no white list" in refused
        assert str(beside) in refused
    # Moved beside the model, which itself is named by a relative path or from elsewhere.
    shutil.copy(so("scale"), beside)
    for name in (file, os.path.relpath(file)):
        assert in_new_process(name, MS_CUSTOM_AOT_WHITE_LIST=str(models)) == "6.0"
    # A link beside it leads nowhere else.
    (tmp_path / "elsewhere").mkdir()
    beside.rename(tmp_path / "elsewhere" / "scale.so")
    beside.symlink_to(tmp_path / "elsewhere" / "scale.so")
    assert "its folder is on no white list" in in_new_process(file, MS_CUSTOM_AOT_WHITE_LIST=str(models))


def test_a_path_in_a_variable(tmp_path):
    """As MindSpore reads `path_from_env`; what the variable says is trusted no more than a path."""
    path = shutil.copy(so("scale"), tmp_path / "scale.so")
    net = Net(ops.Custom(f"{path}:Scale", factor=2.5))
    graph = opgraft.load(opgraft.export(net, Tensor(x), file_name=tmp_path / "net"))
    (tmp_path / "model").mkdir()
    file = tmp_path / "model" / "net.mindir"
    opgraft._core.write_mindir(graph, str(file), path_from_env=True)
    assert b"OPGRAFT_SCALE_SO:Scale" in file.read_bytes() and str(path).encode() not in file.read_bytes()
    assert "neither there nor" in in_new_process(file)
    assert "its folder is on no white list" in in_new_process(file, OPGRAFT_SCALE_SO=path)
    assert in_new_process(file, OPGRAFT_SCALE_SO=path, MS_CUSTOM_AOT_WHITE_LIST=str(tmp_path)) == "6.0"


def test_a_model_cannot_name_a_function_that_is_no_operator(tmp_path):
    shutil.copy(so("scale"), tmp_path / "scale.so")
    net = Net(ops.Custom(f"{tmp_path / 'scale.so'}:Scale", factor=2.5))
    file = pathlib.Path(opgraft.export(net, Tensor(x), file_name=tmp_path / "net"))
    data = file.read_bytes()
    assert data.count(b"scale.so:Scale") == 1
    file.write_bytes(data.replace(b"scale.so:Scale", b"scale.so:_init"))
    told = in_new_process(file, MS_CUSTOM_AOT_WHITE_LIST=str(tmp_path))
    assert "has no operator '_init', it has InitsOfScale, Rows, Scale" in told


def test_a_written_file_has_the_fields_that_mindspore_asks_for(tmp_path):
    data = pathlib.Path(opgraft.export(Net(lambda a: a), Tensor(x), file_name=tmp_path / "n")).read_bytes()

    def number(at):
        value = shift = 0
        while True:
            value |= (data[at] & 127) << shift
            shift, at = shift + 7, at + 1
            if data[at - 1] < 128:
                return value, at

    fields, at = {}, 0
    while at < len(data):
        key, at = number(at)
        size, at = number(at)
        if key & 7 == 2:
            fields[key >> 3], at = data[at : at + size], at + size
        else:
            fields[key >> 3] = size
    assert fields[1] == b"1.1" and fields[5] == b"2.10.0" and fields[10] == 1 and fields[13] == 3


def test_a_file_that_was_replaced_is_loaded_anew(tmp_path):
    path = tmp_path / "op.so"
    shutil.copy(so("add"), path)
    first = ops.Custom(f"{path}:CustomAdd", out_shape=lambda *a: a[0], out_dtype=lambda *a: a[0])
    shutil.copy(so("scale"), tmp_path / "new.so")
    os.replace(tmp_path / "new.so", path)
    second = ops.Custom(f"{path}:Scale", factor=3.0)
    np.testing.assert_array_equal(first(x, x), 2 * x)
    np.testing.assert_array_equal(second(x), 3 * x)
    with open(path, "ab") as f:
        f.write(b" ")
    with pytest.raises(RuntimeError, match="changed in place while it is loaded"):
        ops.Custom(f"{path}:Scale")
