"""The command, as a person runs it: what it prints, writes and refuses, and its exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import opgraft
import pytest
from opgraft import Tensor, nn, ops
from opgraft.trace import trace

ROOT = Path(__file__).resolve().parents[2]


def run(*args, rc=0):
    done = subprocess.run([sys.executable, "-m", "opgraft.cli", *map(str, args)], capture_output=True, text=True)
    assert done.returncode == rc, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def library(name):
    return next(o.path for o in opgraft._core.list_ops() if o.name == name)


# ls, doctor, build, version


def test_ls():
    lines = run("ls").stdout.splitlines()
    assert lines[0].split() == ["name", "version", "score", "path"]
    at = lines[0].index("path")
    assert all(Path(line[at:]).is_file() for line in lines[1:])
    found = json.loads(run("ls", "--json").stdout)
    assert [o["name"] for o in found] == [line.split()[0] for line in lines[1:]]
    swiglu = next(o for o in found if o["name"] == "SwiGLU")
    assert swiglu.keys() == {"name", "version", "score", "path", "replaces"}
    assert "Mul(SiLU(gate), x)" in swiglu["replaces"]


def test_a_reader_that_stops_early_is_no_error():
    command = f"{sys.executable} -m opgraft ls | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stdout.startswith("name") and done.stderr == ""


CHECKS = [
    "file",
    "whitelist",
    "elf",
    "digest",
    "abi",
    "manifest",
    "symbols",
    "descriptor",
    "dependencies",
    "dlopen",
    "score",
    "replaces",
]


def test_doctor_shows_every_check():
    lines = run("doctor", library("SwiGLU")).stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [["ok", f"{c}:"] for c in CHECKS]
    found = json.loads(run("doctor", "--json", library("SwiGLU")).stdout)
    assert found["accepted"] and [c["check"] for c in found["checks"]] == CHECKS


@pytest.mark.parametrize("name,content,check", [
    ("missing.so", None, "file"), ("text.so", b"not an ELF file", "elf"), ("cut.so", 3000, "elf"),
])  # fmt: skip
def test_doctor_stops_at_the_cause(tmp_path, name, content, check):
    file = tmp_path / name
    if content is not None:
        file.write_bytes(Path(library("SwiGLU")).read_bytes()[:content] if isinstance(content, int) else content)
    last = run("doctor", file, rc=1).stdout.splitlines()[-1]
    assert last.startswith(f"FAIL {check}: ") and len(last) > len(f"FAIL {check}: ")
    assert not json.loads(run("doctor", "--json", file, rc=1).stdout)["accepted"]


@pytest.mark.parametrize("name,inputs,what", [
    ("Other", 1, "OPGRAFT_OP(Other, ...): the name must be that of an operator in op.yaml"),
    ("Same", 2, "OPGRAFT_OP(Same, ...): .inputs must be the number of inputs in op.yaml, or -1"),
])  # fmt: skip
def test_build_compares_the_source_with_op_yaml(tmp_path, name, inputs, what):
    (tmp_path / "op.yaml").write_text(
        "name: Same\nversion: 1.0.0\ninputs: [{name: x, dtype: T}]\noutputs: [{name: y, dtype: T}]\n"
        "dtypes: {T: [float32]}\n"
    )
    (tmp_path / "same.cc").write_text(
        '#include "opgraft/op.h"\nusing namespace opgraft;\nstatic void f(InferContext &) {}\n'
        f"static void k(Context &) {{}}\nOPGRAFT_OP({name}, .inputs = {inputs}, .infer = f, .kernel = k)\n"
    )
    done = run("build", tmp_path, rc=1)
    errors = [line for line in (done.stdout + done.stderr).splitlines() if "error: " in line]
    assert what in errors[0]


@pytest.mark.parametrize("command", ["ls", "doctor", "optimize", "infer", "build", "version", None])
def test_help(command):
    text = run(*([command] if command else []), "--help").stdout
    assert text.startswith("usage: opgraft")
    if command == "build":
        assert "op.yaml" in text
    if command == "optimize":
        assert all(f"O{i}  " in text for i in range(4))


def test_wrong_usage():
    run(rc=2)
    run("nonsense", rc=2)
    assert "invalid choice: 'O4'" in run("optimize", "m", "-o", "n", "--fusion-level", "O4", rc=2).stderr
    assert run("version").stdout.strip() == opgraft.__version__
    assert "build: dir must hold an op.yaml, got /" in run("build", "/", rc=1).stderr


# optimize


class Model(nn.Cell):
    """Something for every level: the same nodes twice, a normalisation, an activation, a dense layer, attention."""

    def __init__(self, width=16):
        super().__init__()
        self.dense = nn.Dense(width, width)
        self.gamma = opgraft.Parameter(np.linspace(0.5, 1.5, width, dtype=np.float32))
        self.beta = opgraft.Parameter(np.ones(width, np.float32))

    def construct(self, x, mask):
        d, again = (x - ops.mean(x, -1, True) for _ in range(2))
        x = again * ops.rsqrt(ops.mean(d * d, -1, True) + 1e-6) * self.gamma + self.beta
        x = self.dense(x)
        x = x * ops.sigmoid(x) * x
        q = x.reshape(x.shape[0], -1, 2, 8).transpose(0, 2, 1, 3)
        scores = ops.bmm(q, q, transpose_b=True) * 0.25 + mask
        return ops.bmm(ops.softmax(scores), q)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    batch = opgraft.dim("batch")
    net = Model()
    net.parameters_dict()  # gives them names
    # Not opgraft.export: what it writes is folded and merged already.
    graph, _ = trace(net.construct, [(opgraft.float32, [batch, None, 16]), (opgraft.float32, [batch, 1, 1, None])])
    opgraft._core.write_mindir(graph, str(folder / "model.mindir"))
    return folder / "model.mindir"


def inputs(batch=2, length=6):
    rng = np.random.default_rng(0)
    return {
        "x": rng.standard_normal((batch, length, 16)).astype(np.float32),
        "mask": rng.choice([0.0, -1e4], (batch, 1, 1, length)).astype(np.float32),
    }


@pytest.fixture
def proof(tmp_path):
    np.savez(tmp_path / "inputs.npz", **inputs())
    return tmp_path / "inputs.npz"


def optimize(model, tmp_path, *args):
    report = tmp_path / "report.json"
    done = run("optimize", model, "-o", tmp_path / "out.mindir", "--report", report, *args)
    body = json.loads(report.read_text())
    assert body.keys() == {"swapped", "left"}
    assert all(s.keys() == {"op", "node", "max_abs", "ms_before", "ms_after"} for s in body["swapped"])
    assert all(x.keys() == {"node", "why"} for x in body["left"])
    return done, body, opgraft.load(tmp_path / "out.mindir")


def ops_of(graph):
    return sorted(n["op"] for n in graph.nodes)


LEVELS = {"O0": set(), "O1": set(), "O2": {"FusedLayerNorm", "SwiGLU", "ScaledMaskedSoftmax"},
          "O3": {"FusedLayerNorm", "DenseSwiGLU", "ScaledDotProductAttention"}}  # fmt: skip


@pytest.mark.parametrize("level", LEVELS)
def test_what_a_level_swaps(model, tmp_path, proof, level):
    _, body, graph = optimize(model, tmp_path, "--fusion-level", level, "--prove", proof)
    assert {s["op"].split("@")[0] for s in body["swapped"]} == LEVELS[level]
    assert {n["op"] for n in graph.nodes if n["grafted"]} == LEVELS[level]
    plain = opgraft.load(model)
    assert ops_of(graph).count("Sub") == {"O0": 2, "O1": 1}.get(level, 0)  # the same twice, merged from O1 on
    if level == "O0":
        assert ops_of(graph) == ops_of(plain)
    for s in body["swapped"]:
        assert 0 <= s["max_abs"] < 1e-4 and s["ms_before"] > 0 and s["ms_after"] > 0
    for size in [(2, 6), (3, 9)]:
        given = [Tensor(a) for a in inputs(*size).values()]
        got, want = nn.GraphCell(graph)(*given), nn.GraphCell(plain)(*given)
        # The tolerance of a proof, which docs/engine.md derives; here at sizes that the proof did not have.
        agrees, _, _, why = opgraft._core.compare(got.asnumpy(), want.asnumpy())
        assert agrees, why


def test_levels_are_documented():
    table = (ROOT / "docs" / "engine.md").read_text()
    for level, text in opgraft.rewrite.LEVELS.items():
        row = next(line for line in table.splitlines() if line.startswith(f"| {level} |"))
        assert text in row
    assert opgraft.rewrite.rules_of_level("O1") == []
    with pytest.raises(ValueError, match="fusion level must be one of O0, O1, O2, O3, got 'O5'"):
        opgraft.rewrite.rules_of_level("O5")


def test_without_a_proof_and_the_other_spelling(model, tmp_path):
    done, body, _ = optimize(model, tmp_path, "--fusion_level", "O2")
    assert {s["op"].split("@")[0] for s in body["swapped"]} == LEVELS["O2"]
    assert all(s["max_abs"] is None and s["ms_before"] is None for s in body["swapped"])
    header, *rows = done.stdout.splitlines()[1:]
    assert header.split() == ["op", "node", "max", "abs", "mean", "abs", "ms", "before", "ms", "after"]
    assert len(rows) >= 2 and len({len(r) for r in [header, *rows]}) == 1


@pytest.mark.parametrize("option", ["--custom-path", "--custom_path"])
def test_how_mindspore_finds_the_operators(tmp_path, option):
    x = np.ones((2, 4), np.float32)
    opgraft.export(nn.Dense(4, 2), Tensor(x), file_name=tmp_path / "m")
    out = tmp_path / "out.mindir"
    path = library("Dense")
    for how, text, said in [("absolute", f"{path}:Dense", ""), ("env", "OPGRAFT_DENSE_SO:Dense", path)]:
        done = run("optimize", tmp_path / "m.mindir", "-o", out, option, how)
        data = out.read_bytes()
        assert text.encode() in data and (b"path_from_env" in data) == (how == "env")
        assert ("MindSpore finds OPGRAFT_DENSE_SO: export it as" in done.stderr) == (how == "env")
        assert said in done.stderr
        (node,) = opgraft.load(out).nodes
        assert node["grafted"] and node["library"] == path
    assert "--custom-path" in run("optimize", "--help").stdout
    assert "invalid choice: 'where'" in run("optimize", "m", "-o", out, option, "where", rc=2).stderr


def test_a_variable_stands_for_no_open_dimensions(model, tmp_path):
    done = run("optimize", model, "-o", tmp_path / "o.mindir", "--custom-path", "env", rc=1)
    assert "has open ones: write absolute paths" in done.stderr and not (tmp_path / "o.mindir").exists()


def test_json_and_progress(model, tmp_path, proof):
    done = run("optimize", model, "-o", tmp_path / "o.mindir", "--prove", proof, "--json")
    assert {s["op"].split("@")[0] for s in json.loads(done.stdout)["swapped"]} == LEVELS["O3"]
    assert "nodes, level O3" in done.stderr and "proving " in done.stderr


def test_operators_of_another_directory(model, tmp_path):
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "copy.so").write_bytes(Path(library("SwiGLU")).read_bytes())
    (tmp_path / "ops" / "text.so").write_bytes(b"not a library")
    for command in (["ls"], ["optimize", model, "-o", tmp_path / "o.mindir"]):
        error = run(*command, "--ops", tmp_path / "ops").stderr
        assert "opgraft: refused " in error and "copy.so" in error and "text.so: not a shared object" in error


def test_two_sizes_of_every_open_dimension(tmp_path):
    class Mean(nn.Cell):
        def construct(self, x):
            return ops.mean(x * 1.0, 0)

    file = opgraft.export(Mean(), Tensor(shape=[None, 3], dtype=opgraft.float32), file_name=tmp_path / "mean")
    graph = opgraft.load(file)
    x = np.ones((6, 3), np.float32) + np.arange(6, dtype=np.float32)[:, None]
    # Right for six rows alone: the second size, which nobody gave, shows it.
    report = opgraft.rewrite.substitute(graph, lambda x: ops.mean(x, 0), lambda x: ops.sum(x, 0) * (1 / 6), prove=(x,))
    assert not report.swapped and "the results differ" in report.left[0]["why"]


def test_sizes_that_the_model_does_not_take(tmp_path):
    class Even(nn.Cell):
        def construct(self, x):
            return (ops.silu(x) * x).reshape(-1, 4)

    file = opgraft.export(Even(), Tensor(shape=[None, 2], dtype=opgraft.float32), file_name=tmp_path / "even")
    for n in (6, 4):
        np.savez(tmp_path / f"{n}.npz", x=np.ones((n, 2), np.float32))
    out = tmp_path / "out.mindir"
    error = run("optimize", file, "-o", out, "--prove", tmp_path / "6.npz", rc=1).stderr
    assert "a proof needs inputs of two sizes" in error and "float32(3, 2)" in error and not out.exists()
    run("optimize", file, "-o", out, "--prove", tmp_path / "6.npz", "--prove", tmp_path / "4.npz")


def test_bfloat16_inputs(tmp_path):
    class Gated(nn.Cell):
        def construct(self, x, gate):
            return ops.silu(gate) * x

    spec = Tensor(shape=[None, 8], dtype=opgraft.bfloat16)
    file = opgraft.export(Gated(), spec, spec, file_name=tmp_path / "gated")
    x = np.random.default_rng(0).standard_normal((4, 8)).astype(ml_dtypes.bfloat16)
    np.savez(tmp_path / "in.npz", x=x, gate=x)
    _, body, _ = optimize(file, tmp_path, "--prove", tmp_path / "in.npz")
    assert [s["op"].split("@")[0] for s in body["swapped"]] == ["SwiGLU"]


def broken_proofs():
    good = inputs()
    yield "missing.npz", None, "no such file"
    yield "text.npz", b"hello", "is not a NumPy file"
    yield "cut.npz", 200, "is no readable NumPy file"
    yield "empty.npz", b"", "is not a NumPy file"
    yield "name.npz", {"x": good["x"], "maks": good["mask"]}, "must hold arrays x, mask, got x, maks"
    yield "one.npz", {"x": good["x"]}, "must hold arrays x, mask, got x"
    yield "dtype.npz", good | {"x": good["x"].astype(np.float64)}, "x: dtype must be float32, got float64"
    yield "rank.npz", good | {"x": good["x"][0]}, r"x: shape must be (batch, x.1, 16), got (6, 16)"
    yield "shape.npz", good | {"x": good["x"][..., :8]}, "16), got (2, 6, 8)"
    yield "pickle.npz", good | {"x": np.array([None])}, "is no readable NumPy file: holds Python objects"


@pytest.mark.parametrize("name,content,match", list(broken_proofs()), ids=[b[0] for b in broken_proofs()])
def test_a_proof_that_cannot_be_read(model, tmp_path, name, content, match):
    file = tmp_path / name
    if isinstance(content, dict):
        np.savez(file, **content)
    elif isinstance(content, int):
        np.savez(file, **inputs())
        file.write_bytes(file.read_bytes()[:content])
    elif content is not None:
        file.write_bytes(content)
    error = run("optimize", model, "-o", tmp_path / "out.mindir", "--prove", file, rc=1).stderr
    assert error.startswith(f"opgraft: --prove {file}: ") and match in error
    assert not (tmp_path / "out.mindir").exists()


def test_optimize_refuses(model, tmp_path):
    def error(*args, rc=1):
        return run("optimize", *args, rc=rc).stderr

    assert "missing.mindir: no such file" in error("missing.mindir", "-o", tmp_path / "o.mindir")
    assert "must be another file than the model" in error(model, "-o", model)
    assert "no such directory" in error(model, "-o", tmp_path / "none" / "o.mindir")
    assert "no such directory" in error(model, "-o", tmp_path / "o.mindir", "--ops", tmp_path / "none")
    report = tmp_path / "none" / "r.json"
    assert f"--report {report}: no such directory: " in error(model, "-o", tmp_path / "o.mindir", "--report", report)
    assert f"-o {tmp_path}: must be a file, got a directory" in error(model, "-o", tmp_path)
    assert not (tmp_path / "o.mindir").exists()
    assert "--only-faster needs --prove" in error(model, "-o", tmp_path / "o.mindir", "--only-faster", rc=2)
    (tmp_path / "text.mindir").write_text("nothing")
    assert "text.mindir" in error(tmp_path / "text.mindir", "-o", tmp_path / "o.mindir")


# infer


def test_infer(model, tmp_path):
    given = inputs()
    for name, a in given.items():
        np.save(tmp_path / f"{name}.npy", a)
    x, mask = (f"{n}={tmp_path}/{n}.npy" for n in given)
    profile = tmp_path / "profile.json"
    args = ["infer", "--model", model, "--input", x, "--output", tmp_path / "out", "--repeat", 3, "--threads", 1]
    found = json.loads(run(*args, "--input", mask, "--json", "--profile", profile).stdout)
    assert found["runs"] == 3 and 0 < found["ms_min"] <= found["ms_median"]
    (output,) = found["outputs"]
    want = nn.GraphCell(opgraft.load(model))(*map(Tensor, given.values())).asnumpy()
    np.testing.assert_array_equal(np.load(output["file"]), want)
    assert output["shape"] == list(want.shape) and output["dtype"] == "float32"
    assert json.loads(profile.read_text())["runs"] == 3
    by_position = run(*args, "--input", f"1={tmp_path}/mask.npy").stdout
    assert by_position.splitlines()[0].split() == ["output", "dtype", "shape", "file"]
    assert "latency over 3 runs: min " in by_position and "arena " in by_position
    for more, rc, match in [
        ([], 2, "input 'mask' is missing: --input mask=FILE"),
        (["--input", "mask"], 2, "takes NAME=FILE, got 'mask'"),
        (["--input", f"mosk={tmp_path}/mask.npy"], 2, "the model has no input 'mosk'; its inputs are: x, mask"),
        (["--input", x, "--input", mask], 2, "input 'x' is given twice"),
        (["--input", f"mask={tmp_path}/none.npy"], 1, "none.npy: no such file"),
        (["--input", mask.replace("mask.npy", "x.npy")], 1, "--input mask: shape must be ("),
        (["--input", mask, "--repeat", "0"], 2, "takes a positive number, got '0'"),
    ]:
        assert match in run(*args, *more, rc=rc).stderr
