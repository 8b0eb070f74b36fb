"""The rows: one .so, the same lines in MindSpore and in opgraft."""

import os
import pathlib
import shutil
import threading

import conformance
import mindspore as ms
import numpy as np
import opgraft
import pytest
from helpers import BUILDS, HERE
from hosts import WAYS, Files, Host, from_mindspore_s_file, in_mindspore, in_opgraft, same
from rows import FAILURES, ROWS, first, x

AS_MINDSPORE_NEEDS = [build for build in BUILDS if build.startswith("old")]


@pytest.fixture(scope="module")
def files():
    made = {build: Files(build) for build in BUILDS}
    yield made
    for one in made.values():
        shutil.rmtree(one.folder)


_wanted = {}


def wanted(name, files):
    """What MindSpore gives, in both modes the same."""
    if name not in _wanted:
        pynative, graph = (in_mindspore(ROWS[name], files["old std::string"], mode)
                           for mode in (ms.PYNATIVE_MODE, ms.GRAPH_MODE))  # fmt: skip
        for p, g in zip(pynative, graph, strict=True):
            same(p, g)
        _wanted[name] = pynative
    return _wanted[name]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ROWS)
def test_a_row(name, way, files):
    want = wanted(name, files)
    for build in BUILDS:
        got = in_opgraft(ROWS[name], files[build], way)
        for g, w in zip(got, want, strict=True):
            same(g, w, structure=way != "file")  # a model file has a list of outputs


@pytest.mark.parametrize("name", ROWS)
def test_the_model_that_mindspore_exports(name, files):
    if name == "inference_by_the_file_with_open_rank":  # opgraft's graphs have ranks
        with pytest.raises(ValueError, match="Custom.*an input of unknown rank"):
            from_mindspore_s_file(ROWS[name], files["old std::string"])
        return
    for g, w in zip(from_mindspore_s_file(ROWS[name], files["old std::string"]), wanted(name, files), strict=True):
        same(g, w, structure=False)


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure(name, files):
    row, theirs, ours = FAILURES[name]
    so = files["old std::string"]
    for mode in (ms.PYNATIVE_MODE, ms.GRAPH_MODE):
        with pytest.raises(RuntimeError, match=theirs.replace("{so}", so.kernels)):
            in_mindspore(row, so, mode)
    for build in BUILDS:
        for way in WAYS:
            with pytest.raises((RuntimeError, FileNotFoundError), match=ours.replace("{so}", files[build].kernels)):
                in_opgraft(row, files[build], way)


@pytest.mark.parametrize("build", BUILDS)
def test_many_threads(build, files):
    """At once in opgraft; in MindSpore 2.10, which then gives one thread another's tensors, one after another."""

    def work(host, so, k, results):
        copy = host.custom(f"{so.kernels}:Copy", first, first)
        results[k] = [copy(host.tensor(x + k)).asnumpy() for _ in range(50)]

    theirs, ours = {}, {}
    for package, so, results, together in [
        (ms, files["old std::string"], theirs, False), (opgraft, files[build], ours, True),
    ]:  # fmt: skip
        package.set_context(mode=package.PYNATIVE_MODE)
        threads = [threading.Thread(target=work, args=(Host(package), so, k, results)) for k in range(4)]
        for t in threads:
            t.start()
            together or t.join()
        [t.join() for t in threads]
    for k in range(4):
        assert len(theirs[k]) == len(ours[k]) == 50
        for got, want in zip(ours[k], theirs[k]):
            same(got, want)


@pytest.mark.parametrize("build", AS_MINDSPORE_NEEDS)
def test_a_moved_file(build, files, tmp_path):
    """A model names its .so: MindSpore by the path alone, opgraft also in the folders that may be loaded from."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir(), new.mkdir()
    so = old / "kernels.so"
    so.write_bytes(pathlib.Path(files[build].kernels).read_bytes())
    ms.set_context(mode=ms.GRAPH_MODE)
    host = Host(ms)
    copy = host.custom(f"{so}:Copy", reg_info=host.reg("Moved", 1, 1))
    ms.export(host.net(copy), ms.Tensor(x), file_name=str(tmp_path / "net"), file_format="MINDIR")
    os.rename(so, new / "kernels.so")
    with pytest.raises(RuntimeError):
        ms.nn.GraphCell(ms.load(str(tmp_path / "net.mindir")))(ms.Tensor(x)).asnumpy()
    opgraft.set_whitelist([str(new)])
    try:
        cell = opgraft.nn.GraphCell(opgraft.load(tmp_path / "net.mindir"))
        np.testing.assert_array_equal(cell(opgraft.Tensor(x)).asnumpy(), x)
    finally:
        opgraft.set_whitelist([])


def test_the_table_is_as_written(files):
    text = (HERE.parents[1] / "docs" / "conformance.md").read_text()
    listed = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]
    assert [n for n in listed if n != "row" and not n.startswith("-")] == [
        name.replace("_", " ") for name in [*ROWS, *FAILURES]
    ]
    assert "DIFFERS" not in text
    assert text == conformance.document(files)
