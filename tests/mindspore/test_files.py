"""Files that opgraft writes for MindSpore: what a grafted node holds, where its .so is looked for, weights outside."""

import os
import pathlib
import shutil
import subprocess
import sys
import time

import mindspore as ms
import numpy as np
import opgraft
import pytest
from helpers import close, optimize
from mindspore import Parameter, Tensor
from mindspore.train import mind_ir_pb2
from models import MODELS, normal
from opgraft import _core, nn, rewrite

OPS = pathlib.Path(_core.resolve("Dense").path).parent


@pytest.fixture(autouse=True)
def _graph_mode():
    ms.set_context(mode=ms.GRAPH_MODE)


def exported(name, folder):
    """The model's file, its inputs, and MindSpore's result."""
    make, inputs, placeholders, sizes = MODELS[name]
    net, given = make(), [Tensor(a) for a in inputs(*sizes[0])]
    ms.export(net, *(placeholders or given), file_name=str(folder / "net"), file_format="MINDIR")
    return folder / "net.mindir", inputs(*sizes[0]), net(*given).asnumpy()


def read(file):
    model = mind_ir_pb2.ModelProto()
    model.ParseFromString(file.read_bytes())
    return model


def in_new_process(script, *args, **env):
    """What a script prints; its messages too."""
    command = [sys.executable, "-W", "ignore", "-c", script, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "GLOG_v": "3", **env})
    return done.returncode, done.stdout + done.stderr


RUN_IN_MINDSPORE = """
import sys, numpy as np, mindspore as ms
ms.set_device("CPU")
ms.set_context(mode=ms.GRAPH_MODE)
net = ms.nn.GraphCell(ms.load(sys.argv[1]))
np.save(sys.argv[3], net(ms.Tensor(np.load(sys.argv[2]))).asnumpy())
"""
RUN_IN_OPGRAFT = """
import sys, numpy as np, opgraft
graph = opgraft.load(sys.argv[1])
np.save(sys.argv[3], opgraft.nn.GraphCell(graph)(opgraft.Tensor(np.load(sys.argv[2]))).asnumpy())
print("ops:", *sorted({n["op"] for n in graph.nodes}))
"""


@pytest.mark.parametrize("name", ["mlp", "bert layer, open batch and sequence"])
def test_a_grafted_node_as_it_stands_in_the_file(name, tmp_path):
    file, _, _ = exported(name, tmp_path)
    optimize(file, "-o", tmp_path / "out.mindir")
    grafted = [p for p in read(tmp_path / "out.mindir").primitives if p.op_type == "Custom"]
    assert grafted
    kinds = mind_ir_pb2.AttributeProto
    for p in grafted:
        attributes = {a.name: a for a in p.attribute}
        for inference in ("cpp_infer_shape", "cpp_infer_type"):
            assert (attributes[inference].type, attributes[inference].i) == (kinds.BOOL, 1)
        path, _, function = attributes["func_name"].s.decode().rpartition(":")
        assert pathlib.Path(path).is_absolute() and path == _core.resolve(function).path
        assert not any(a.type == kinds.GRAPH or a.HasField("g") or a.graphs for a in p.attribute)
        # A whole model of its own, in bytes.
        assert attributes["opgraft_fallback"].type == kinds.STRING
        inner = mind_ir_pb2.ModelProto()
        inner.ParseFromString(attributes["opgraft_fallback"].s)
        made_of = {q.op_type for q in inner.primitives}
        assert made_of and "Custom" not in made_of and len(inner.graph.output) >= 1


def test_without_the_operator_the_subgraph_runs(tmp_path):
    file, (x,), want = exported("mlp", tmp_path)
    optimize(file, "-o", tmp_path / "out.mindir")
    np.save(tmp_path / "x.npy", x)
    code, said = in_new_process(RUN_IN_OPGRAFT, tmp_path / "out.mindir", tmp_path / "x.npy", tmp_path / "y.npy")
    assert code == 0 and "ops: Dense" in said
    # A package whose folder of operators lacks Dense; the path in the file leads where nothing may be loaded from.
    package = tmp_path / "package"
    shutil.copytree(pathlib.Path(opgraft.__file__).parents[1], package / "python")
    library = subprocess.run(["ldd", _core.__file__], capture_output=True, text=True, check=True).stdout
    origin = pathlib.Path(next(line.split()[2] for line in library.splitlines() if "libopgraft.so" in line))
    shutil.copytree(OPS, package / "ops", ignore=shutil.ignore_patterns("dense.so"))
    shutil.copy(origin, package / origin.name)
    code, said = in_new_process(
        RUN_IN_OPGRAFT, tmp_path / "out.mindir", tmp_path / "x.npy", tmp_path / "z.npy",
        PYTHONPATH=str(package / "python"), LD_LIBRARY_PATH=str(package))  # fmt: skip
    assert code == 0, said
    assert "its original subgraph runs instead" in said and "Dense" not in said.split("ops:")[1].splitlines()[0]
    for y in ("y.npy", "z.npy"):
        close(np.load(tmp_path / y), want)


def test_a_library_that_moved_is_found_by_a_variable(tmp_path):
    """MindSpore runs the same file before the move, after it with the variable, and not after it without."""
    file, (x,), want = exported("mlp", tmp_path)
    (tmp_path / "ops").mkdir()
    for so in ("dense.so", "libopgraft_threads.so"):
        shutil.copy(OPS / so, tmp_path / "ops" / so)
    said = optimize(file, "-o", tmp_path / "out.mindir", "--custom-path", "env")
    assert f"MindSpore finds OPGRAFT_DENSE_SO: export it as {OPS / 'dense.so'}" in said
    (node, *_) = [p for p in read(tmp_path / "out.mindir").primitives if p.op_type == "Custom"]
    attributes = {a.name: a for a in node.attribute}
    assert attributes["func_name"].s == b"OPGRAFT_DENSE_SO:Dense" and attributes["path_from_env"].i == 1
    np.save(tmp_path / "x.npy", x)
    given = (RUN_IN_MINDSPORE, tmp_path / "out.mindir", tmp_path / "x.npy", tmp_path / "y.npy")
    before = str(tmp_path / "ops" / "dense.so")
    assert in_new_process(*given, OPGRAFT_DENSE_SO=before)[0] == 0
    (tmp_path / "ops").rename(tmp_path / "moved")
    assert in_new_process(*given, OPGRAFT_DENSE_SO=before)[0] != 0
    (tmp_path / "y.npy").unlink()
    assert in_new_process(*given, OPGRAFT_DENSE_SO=str(tmp_path / "moved" / "dense.so"))[0] == 0
    close(np.load(tmp_path / "y.npy"), want)
    graph = opgraft.load(tmp_path / "out.mindir")  # by name and version, without the variable
    assert "Dense" in {n["op"] for n in graph.nodes}
    close(nn.GraphCell(graph)(opgraft.Tensor(x)).asnumpy(), want)


def test_a_variable_and_open_dimensions(tmp_path):
    file, _, _ = exported("mlp, open batch", tmp_path)
    said = optimize(file, "-o", tmp_path / "out.mindir", "--custom-path", "env", rc=1)
    assert "input 'x' has open ones: write absolute paths" in said and not (tmp_path / "out.mindir").exists()


def memory():
    """Bytes of this process in memory."""
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


class Wide(ms.nn.Cell):
    """1.07 GiB of weights, of which 256 rows are not zero; zeros are mapped pages of no memory."""

    def __init__(self, width=16384, rows=256):
        super().__init__()
        weight = np.zeros((width, width), np.float32)
        weight[:: width // rows] = normal(rows, width) / width**0.5
        self.table = Parameter(Tensor.from_numpy(weight), name="table")
        self.dense = ms.nn.Dense(width, 1024, activation="relu")
        self.dense.weight.set_data(Tensor(normal(1024, width, seed=1) / width**0.5))
        self.matmul = ms.ops.MatMul(transpose_b=True)

    def construct(self, x):
        return self.dense(self.matmul(x, self.table))


@pytest.mark.skipif(not os.environ.get("OPGRAFT_SLOW"), reason="1 GiB of weights: ./build.sh test --all")
def test_more_than_a_gibibyte(tmp_path):
    try:
        net, x = Wide(), normal(2, 16384)
        ms.export(net, Tensor(x), file_name=str(tmp_path / "net"), file_format="MINDIR")
        want = net(Tensor(x)).asnumpy()
        del net
        file = tmp_path / "net_graph.mindir"
        (data,) = (tmp_path / "net_variables").iterdir()
        assert data.stat().st_size > 2**30
        resident, begin = memory(), time.perf_counter()
        graph = opgraft.load(file)
        opened = time.perf_counter() - begin
        assert opened < 0.2 and memory() - resident < 2**26, opened  # mapped, not read
        close(nn.GraphCell(graph)(opgraft.Tensor(x)).asnumpy(), want)
        del graph
        optimize(file, "-o", tmp_path / "grafted.mindir")
        for old in (data, file):
            old.unlink()
        graph = opgraft.load(tmp_path / "grafted.mindir")
        assert any(n["grafted"] for n in graph.nodes)
        close(nn.GraphCell(graph)(opgraft.Tensor(x)).asnumpy(), want)
        del graph
        back = ms.nn.GraphCell(ms.load(str(tmp_path / "grafted.mindir")))
        close(back(Tensor(x)).asnumpy(), want)
    finally:
        shutil.rmtree(tmp_path)


def test_a_swap_is_found_where_products_are_functional(tmp_path):
    """MatMulExt, which MindSpore writes for `@`, becomes the MatMul that Dense is made of."""

    class Net(ms.nn.Cell):
        def __init__(self):
            super().__init__()
            self.weight, self.bias = (Parameter(Tensor(normal(*s)), name=n) for s, n in (((8, 6), "w"), ((6,), "b")))

        def construct(self, x):
            return ms.ops.relu(x @ self.weight + self.bias)

    x = normal(3, 8)
    ms.export(Net(), Tensor(x), file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    report = rewrite.substitute(graph, prove=(x,))
    assert [s["op"].split("@")[0] for s in report.swapped] == ["Dense"], str(report)
    _core.write_mindir(graph, str(tmp_path / "grafted.mindir"))
    back = ms.nn.GraphCell(ms.load(str(tmp_path / "grafted.mindir")))
    close(back(Tensor(x)).asnumpy(), Net()(Tensor(x)).asnumpy())
