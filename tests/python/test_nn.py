"""Cells: what each computes, against NumPy, how they hold together, and loading their parameters."""

import copy
import math

import ml_dtypes
import numpy as np
import opgraft
import pytest
from compare import SILU, SLOPE, TANH, close, linear
from opgraft import Parameter, Tensor, nn, ops, rewrite

MODES = pytest.mark.parametrize("mode", [opgraft.PYNATIVE_MODE, opgraft.GRAPH_MODE])


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@MODES
def test_what_cells_compute(mode):
    opgraft.set_context(mode=mode)
    x = normal(3, 8)
    dense, norm, table = nn.Dense(8, 4), nn.LayerNorm(8, epsilon=1e-5), nn.Embedding(10, 4)
    dense.bias.set_data(normal(4))
    norm.gamma.set_data(normal(8))
    norm.beta.set_data(normal(8, seed=1))
    w, b = dense.weight.asnumpy(), dense.bias.asnumpy()
    erf = np.vectorize(math.erf)
    d = x.astype(np.float64)
    deviation = np.sqrt(d.var(-1, keepdims=True) + 1e-5)
    gamma, beta = (p.asnumpy().astype(np.float64) for p in (norm.gamma, norm.beta))
    # Two sums of 8 and four roundings of what they are divided by; the sizes before the mean is taken away.
    size = (np.abs(d).max(-1, keepdims=True) / deviation) ** 2 * np.abs(gamma) + np.abs(beta)
    product, terms = linear(x, w, b)
    for cell, want, roundings, scale in [
        (dense, product, 8 + 1, terms),
        (norm, (d - d.mean(-1, keepdims=True)) / deviation * gamma + beta, 2 * 8 + 4, size),
        # 1 + erf and 1 + tanh cancel: 8 roundings as in aot_ops/elementwise/cases.py, of x.
        (nn.GELU(False), d * 0.5 * (1 + erf(d / math.sqrt(2))), 8, np.abs(d)),
        (nn.GELU(), 0.5 * d * (1 + np.tanh(math.sqrt(2 / math.pi) * (d + 0.044715 * d**3))), 8, np.abs(d)),
        (nn.SiLU(), d / (1 + np.exp(-d)), SILU, 0.0),
        (nn.ReLU(), np.maximum(x, 0), 0, 0.0),
    ]:
        close(cell(x).asnumpy(), want, roundings, scale)
    np.testing.assert_array_equal(table(np.array([[3, 0]])).asnumpy(), table.embedding_table.asnumpy()[[[3, 0]]])
    three = normal(2, 3, 8)
    product, terms = linear(three, w, b)
    close(dense(three).asnumpy(), product, 8 + 1, terms)
    assert nn.Dense(8, 4, has_bias=False, activation="relu")(x).asnumpy().min() >= 0


@MODES
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int64])
def test_dropout_is_the_identity(mode, dtype):
    opgraft.set_context(mode=mode)
    x = normal(3, 4).astype(dtype)
    for cell in (nn.Dropout(), nn.Dropout(keep_prob=0.1), nn.Dropout(p=0.9)):
        got = cell(x)
        assert got.dtype == dtype
        np.testing.assert_array_equal(got.asnumpy(), x)
    eager = Tensor(x)
    opgraft.set_context(mode=opgraft.PYNATIVE_MODE)
    assert nn.Dropout()(eager).asnumpy().ctypes.data == x.ctypes.data


def test_cell_list():
    cells = nn.CellList([nn.Dense(4, 4), nn.ReLU()])
    cells.append(nn.Dense(4, 2)).extend([nn.SiLU()])
    assert len(cells) == 4 and isinstance(cells[1], nn.ReLU) and cells[-1] is cells[3]
    assert [type(c) for c in cells[1:3]] == [nn.ReLU, nn.Dense] and isinstance(cells[1:3], nn.CellList)
    x, some = normal(2, 4), nn.SequentialCell(*cells)[1:3]
    np.testing.assert_array_equal(some(x).asnumpy(), cells[2](np.maximum(x, 0)).asnumpy())
    cells[1] = nn.GELU()
    assert [type(c).__name__ for c in cells] == ["Dense", "GELU", "Dense", "SiLU"]
    assert list(cells.parameters_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    with pytest.raises(IndexError):
        cells[7]
    with pytest.raises(NotImplementedError, match="CellList: construct must be defined"):
        cells(normal(2, 4))


@MODES
def test_a_replaced_cell_keeps_its_place(mode):
    opgraft.set_context(mode=mode)
    net, x = nn.SequentialCell(nn.ReLU(), nn.Dense(4, 4), nn.ReLU()), normal(2, 4)
    net(x)
    net[0] = nn.Dropout()
    dense = net[1]
    product, terms = linear(x, dense.weight.asnumpy())
    close(net(x).asnumpy(), np.maximum(product, 0), 4 + 1, terms)
    dense.weight = Parameter(np.eye(4, dtype=np.float32))
    np.testing.assert_array_equal(net(x).asnumpy(), np.maximum(x, 0))
    assert list(net.parameters_dict()) == ["1.weight", "1.bias"]


@MODES
def test_a_loaded_graph_inside_a_cell(mode, tmp_path):
    inner = nn.SequentialCell(nn.Dense(4, 8), nn.SiLU())
    file = opgraft.export(inner, Tensor(shape=[None, 4], dtype=opgraft.float32), file_name=tmp_path / "inner")

    class Outer(nn.Cell):
        def __init__(self):
            super().__init__()
            self.inner = nn.GraphCell(opgraft.load(file))

        def construct(self, x):
            return self.inner(ops.tanh(x)) + 1

    opgraft.set_context(mode=mode)
    net = Outer()
    for n in (2, 3, 5):
        x = normal(n, 4)
        product, terms = linear(np.tanh(x, dtype=np.float64), inner[0].weight.asnumpy())
        want = product / (1 + np.exp(-product)) + 1
        close(net(x).asnumpy(), want, SLOPE * (TANH + 4 + 1) + SILU + 1, np.maximum(terms, 1))
    if mode == opgraft.GRAPH_MODE:
        with pytest.raises(TypeError, match="dtype must be float32, got float16"):
            net(normal(2, 4).astype(np.float16))


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_parameters_in_files(tmp_path, suffix):
    if suffix == ".safetensors":
        pytest.importorskip("safetensors")

    class Net(nn.Cell):
        def __init__(self, seed):
            super().__init__()
            self.dense = nn.Dense(3, 2)
            self.dense.weight.set_data(normal(2, 3, seed=seed))
            self.scale = Parameter(np.full(4, seed + 1.5, ml_dtypes.bfloat16))
            self.half = Parameter(normal(2, seed=seed).astype(np.float16))
            self.count = Parameter(np.array(seed, np.int64))

        def construct(self, x):
            return self.dense(x)

    file = tmp_path / f"net{suffix}"
    net, other = Net(1), Net(2)
    net.save_parameters(file)
    assert other.load_parameters(file) == []
    for name, p in net.parameters_dict().items():
        q = other.parameters_dict()[name]
        assert q.dtype == p.dtype and q.shape == p.shape
        np.testing.assert_array_equal(q.asnumpy(), p.asnumpy())
    np.testing.assert_array_equal(other(normal(2, 3)).asnumpy(), net(normal(2, 3)).asnumpy())
    found = opgraft.load_checkpoint(file)
    assert found.keys() == net.parameters_dict().keys() and found["scale"].dtype == opgraft.bfloat16
    missing, unused = opgraft.load_param_into_net(nn.Dense(3, 2), found)
    assert missing == ["weight", "bias"] and set(unused) == set(found)
    renamed = nn.Dense(3, 2)
    assert set(renamed.load_parameters(file, rename=lambda n: f"dense.{n}")) == {"scale", "half", "count"}
    np.testing.assert_array_equal(renamed.weight.asnumpy(), net.dense.weight.asnumpy())
    with pytest.raises(ValueError, match="load_parameters: extra is not in the source"):
        wider = Net(3)
        wider.extra = Parameter(np.ones(1, np.float32))
        wider.load_parameters(file)
    with pytest.raises(ValueError, match=r"Parameter weight: shape must be \(2, 4\), got \(2, 3\)"):
        nn.Dense(4, 2).load_parameters(file, rename=lambda n: f"dense.{n}")


def test_files_that_are_no_parameters(tmp_path):
    with pytest.raises(FileNotFoundError, match="none.npz: no such file"):
        opgraft.load_checkpoint(tmp_path / "none.npz")
    (tmp_path / "a.bin").write_bytes(b"x")
    with pytest.raises(ValueError, match="must end in .ckpt, .safetensors or .npz"):
        opgraft.load_checkpoint(tmp_path / "a.bin")
    with pytest.raises(ValueError, match="must end in .ckpt, .safetensors or .npz"):
        opgraft.save_checkpoint(nn.Dense(2, 2), tmp_path / "a.bin")
    for name in ("bad.npz", "bad.safetensors"):
        (tmp_path / name).write_bytes(b"nothing of the kind")
        with pytest.raises(ValueError, match=name):
            opgraft.load_checkpoint(tmp_path / name)


def test_a_deep_copy_has_its_own_parameters_and_stays_substituted():
    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    net = nn.SequentialCell(nn.Dense(4, 8), nn.GELU(), nn.CellList([nn.Dense(8, 2)])[0])
    x = Tensor(np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32))
    before = net(x).asnumpy()
    # Of both sides: 4 + 1 roundings before GELU, 8 in it and 8 + 1 behind; scale: the sums of magnitudes.
    terms = linear(x.asnumpy(), net[0].weight.asnumpy())[1]
    roundings, scale = 2 * (SLOPE * 5 + 8 + 9), terms @ np.abs(net[2].weight.asnumpy()).T
    plain = copy.deepcopy(net)
    assert rewrite.substitute(net, prove=[[x]]).swapped
    grafted = copy.deepcopy(net)
    assert len(grafted._grafted) == 1 and not plain._grafted
    for other in (plain, grafted):
        close(other(x).asnumpy(), before, roundings, scale)
        assert list(other.parameters_dict()) == list(net.parameters_dict())
        assert other[0].weight is not net[0].weight
    plain[0].weight.set_data(np.zeros((8, 4), np.float32))  # changes, and outdates, the copy alone
    assert net._grafted and not np.allclose(plain(x).asnumpy(), before)
    close(net(x).asnumpy(), before, roundings, scale)


def test_a_deep_copy_holds_operators_and_loaded_models(tmp_path):
    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.gate = ops.Custom.from_op("SwiGLU")
            self.loaded = nn.GraphCell(opgraft.load(opgraft.export(nn.SiLU(), x, file_name=tmp_path / "silu")))

        def construct(self, x):
            return self.loaded(self.gate(x, x))

    x = Tensor(normal(2, 4))
    net = Net()
    before, twin = net(x).asnumpy(), copy.deepcopy(net)
    assert twin.gate is net.gate and copy.copy(net.gate) is net.gate and twin.loaded.graph is not net.loaded.graph
    rewrite.substitute(twin.loaded, lambda x: ops.silu(x), lambda x: ops.silu(x) * 2.0)
    np.testing.assert_array_equal(net(x).asnumpy(), before)
    np.testing.assert_array_equal(twin(x).asnumpy(), before * 2)
    assert twin.loaded.session() is twin.loaded.session() is not net.loaded.session()


def test_session_of_a_cell_tells_its_memory():
    net, x = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 8)), Tensor(np.zeros((4, 8), np.float32))
    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    session = net.session(x)
    net(x)
    assert session is net.session(x)
    assert 0 < session.arena_bytes <= session.intermediate_bytes


def test_set_inputs_declares_open_dimensions(tmp_path):
    class Scale(nn.Cell):
        traced = 0

        def construct(self, x, y):
            Scale.traced += 1
            return x * y

    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    net, rows = Scale(), opgraft.dim("rows")
    declared = [Tensor(shape=[rows, n], dtype=opgraft.float32) for n in (None, 1)]
    net.set_inputs(*declared)
    assert net.get_inputs() == tuple(declared)
    for shape in [(2, 3), (5, 1), (1, 7)]:
        x, y = normal(*shape), normal(shape[0], 1, seed=1)
        np.testing.assert_array_equal(net(x, y).asnumpy(), x * y)
    assert Scale.traced == 1
    with pytest.raises(ValueError, match=r"input y.shape must be \(rows, 1\), got \(3, 1\)"):
        net(normal(2, 3), normal(3, 1))
    with pytest.raises(ValueError, match="Scale: takes the 2 inputs that set_inputs declared, by position, got 1"):
        net(normal(2, 3))
    twin = copy.deepcopy(net)
    loaded = opgraft.load(opgraft.export(twin, file_name=tmp_path / "scale"))
    assert "x: float32(rows, x.1), %1 y: float32(rows, 1)" in loaded.dump()
    net.set_inputs()
    assert net.get_inputs() is None and net(normal(2, 3), normal(4, 1, 1)).shape == (4, 2, 3)
