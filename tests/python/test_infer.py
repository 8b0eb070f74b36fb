"""The two programs that run a model on .npy files, opgraft_infer in C++ and `opgraft infer`: one set of options."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import opgraft
import pytest
from compare import SILU, close
from opgraft import Tensor, nn, ops

PROGRAMS = {
    "opgraft_infer": [str(pathlib.Path(opgraft.__file__).parents[2] / "opgraft_infer")],
    "opgraft infer": [sys.executable, "-m", "opgraft.cli", "infer"],
}


class Net(nn.Cell):
    def construct(self, x, gate):
        return {"y": ops.silu(gate) * x, "../half": ops.cast(x, opgraft.float16), "rows": x[0]}


@pytest.fixture
def given(tmp_path):
    row = Tensor(shape=[opgraft.dim("rows"), 6], dtype=opgraft.float32)
    opgraft.export(Net(), row, row, file_name=tmp_path / "net.mindir")
    x, gate = np.random.default_rng(0).standard_normal((2, 4, 6)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "g.npy", gate)
    return tmp_path, x, gate


def run(program, folder, *options, inputs=("x=x.npy", "gate=g.npy")):
    command = [*PROGRAMS[program], "--model", "net.mindir", "--output", "out", *options]
    for i in inputs:
        command += ["--input", i]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ":".join(sys.path)}
    )


@pytest.mark.parametrize("program", PROGRAMS)
def test_outputs_report_and_profile(given, program):
    folder, x, gate = given
    r = run(
        program,
        folder,
        "--json",
        "--profile",
        "p.json",
        "--repeat",
        "3",
        "--threads",
        "1",
        inputs=["x=x.npy", "1=g.npy"],
    )
    assert r.returncode == 0, r.stderr
    report = json.loads(r.stdout)
    assert report["runs"] == 3 and 0 < report["ms_min"] <= report["ms_median"] and report["arena_bytes"] >= 0
    found = [(o["name"], o["dtype"], o["shape"], o["file"]) for o in report["outputs"]]
    assert found == [
        ("y", "float32", [4, 6], "out/y.npy"),
        ("../half", "float16", [4, 6], "out/_.._half.npy"),
        ("rows", "float32", [6], "out/rows.npy"),
    ]
    d = gate.astype(np.float64)
    close(np.load(folder / "out/y.npy"), x * d / (1 + np.exp(-d)), SILU + 1)
    np.testing.assert_array_equal(np.load(folder / "out/_.._half.npy"), x.astype(np.float16))
    np.testing.assert_array_equal(np.load(folder / "out/rows.npy"), x[0])
    assert not (folder / "half.npy").exists()

    profile = json.loads((folder / "p.json").read_text())
    assert profile["runs"] == 3
    assert {n["op"]: n["node"] for n in profile["nodes"]} == {n: n for n in ("SiLU", "Mul", "Cast", "StridedSlice")}
    assert sum(o["share"] for o in profile["ops"]) == pytest.approx(1)
    assert sum(n["us"] for n in profile["nodes"]) == pytest.approx(profile["total_us"])
    assert profile["intermediate_bytes"] >= profile["arena_bytes"] >= 0


@pytest.mark.parametrize("program", PROGRAMS)
def test_small_latencies_are_told_in_microseconds(given, program):
    r = run(program, given[0], "--repeat", "50")
    assert r.returncode == 0, r.stderr
    *table, last = r.stdout.splitlines()
    assert [line.split()[0] for line in table] == ["output", "y", "../half", "rows"]
    assert "latency over 50 runs: min " in last and " 0.000 " not in last and " us" in last


def test_targets_are_checked_before_any_work(given):
    r = run("opgraft infer", given[0], "--profile", "none/p.json")
    assert r.returncode == 1 and "--profile none/p.json: no such directory: none" in r.stderr
    assert not (given[0] / "out").exists()
    r = run("opgraft infer", given[0], "--output", "x.npy")
    assert r.returncode == 1 and "--output x.npy: must be a directory, got a file" in r.stderr


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(
    ("inputs", "options", "code", "message"),
    [
        (["x=x.npy"], [], 2, "input 'gate' is missing: --input gate=FILE"),
        (["x=x.npy", "x=x.npy", "gate=g.npy"], [], 2, "input 'x' is given twice"),
        (["x=x.npy", "z=g.npy"], [], 2, "the model has no input 'z'; its inputs are: x, gate"),
        (["x.npy"], [], 2, "--input takes NAME=FILE, got 'x.npy'"),
        (["x=x.npy", "gate=g.npy"], ["--repeat", "0"], 2, "takes a positive number, got '0'"),
        (["x=x.npy", "gate=none.npy"], [], 1, "none.npy"),
        (["x=x.npy", "gate=wide.npy"], [], 1, "shape must be (rows, 6), got (4, 7)"),
    ],
)  # fmt: skip
def test_wrong_use(given, program, inputs, options, code, message):
    np.save(given[0] / "wide.npy", np.zeros((4, 7), np.float32))
    r = run(program, given[0], *options, inputs=inputs)
    assert (r.returncode, message in r.stderr) == (code, True), r.stderr
    assert not (given[0] / "out").exists()
