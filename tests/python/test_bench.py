"""The benchmark: what it counts, what it voids, and that who is not in turn is stopped."""

import dataclasses
import json
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest
from opgraft import _core

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import gate  # noqa: E402
import operators  # noqa: E402
import report  # noqa: E402
from rows import Row, rows  # noqa: E402


def small(**changes):
    row = Row(
        "Add 8", "Add", lambda rng: [rng.standard_normal(8, np.float32) for _ in range(2)], np.add, rtol=2.0**-24,
        atol=0.0, flops=8, target=1.0, twin=2.0, mindspore_target=3.0, numpy=np.add,
    )  # fmt: skip
    return dataclasses.replace(row, **changes)


def test_every_row_names_operators_that_exist_and_its_arrays_are_the_same_each_time():
    known = {op.name for op in _core.list_ops()}
    for row in rows():
        if row.op:
            assert row.op in known, row.name
        else:
            assert row.opgraft or row.cell, row.name
    row = small()
    for a, b in zip(row.arrays()[0], row.arrays()[0]):
        np.testing.assert_array_equal(a, b)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    out = tmp_path_factory.mktemp("bench") / "out.json"
    command = [sys.executable, str(ROOT / "bench" / "operators.py"), "--rows", "SwiGLU 1x11008", "--rounds", "1",
               "--peers", "opgraft", "twin", "numpy", "--json", str(out)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text()), done.stdout


def test_a_run_gives_figures_ratios_and_rates(result):
    figures, text = result
    row = figures["rows"]["SwiGLU 1x11008"]
    for peer in ("opgraft", "twin", "numpy"):
        assert 0 < row["figures"][peer]["min"] <= row["figures"][peer]["median"]
    ours = row["figures"]["opgraft"]["min"]
    assert row["best"] == "numpy"  # the twin is no peer
    assert row["ratios"]["best peer"] == pytest.approx(ours / row["figures"]["numpy"]["min"])
    assert row["GB/s"] == pytest.approx(3 * 4 * 11008 / ours / 1e9)
    assert figures["ratios"]["SwiGLU 1x11008 / twin"] == pytest.approx(ours / row["figures"]["twin"]["min"])
    assert figures["machine"]["copy_bandwidth"] > 1e9 and figures["machine"]["gemm_peak"] > 1e9
    assert "| SwiGLU 1x11008 " in text


def test_a_peer_that_is_not_in_its_turn_is_stopped(tmp_path):
    peer = operators.Peer("numpy", sys.executable, 1, "best", subprocess.DEVNULL)

    def state():
        return pathlib.Path(f"/proc/{peer.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]

    try:
        assert "version" in peer.ask(do="version")
        end = time.monotonic() + 10
        while state() != "T" and time.monotonic() < end:  # the signal is on its way
            time.sleep(0.01)
        assert state() == "T"
        assert peer.ask(do="version")["version"] == np.__version__
        peer.process.kill()
        peer.process.wait()
        assert peer.ask(do="version") == {"missing": "the process ended with -9"}
    finally:
        peer.close()


def test_a_wrong_result_is_void(tmp_path):
    """The worker is told an expected result that is off by two ulp, one that is NaN, and one of another shape."""
    name = "SwiGLU 1x11008"
    row = next(r for r in rows() if r.name == name)
    (want,) = row.expected()
    for expected, said in [
        (want * (1 + 4 * row.rtol), "differs in"),
        (np.where(np.arange(want.size).reshape(want.shape) == 7, np.nan, want), "differs in 1 of"),
        (want[:, 1:], "has shape"),
    ]:
        file = tmp_path / "expected.npz"
        np.savez(file, expected)
        peer = operators.Peer("numpy", sys.executable, 1, "best", subprocess.DEVNULL)
        try:
            assert said in peer.ask(do="build", row=name, expected=str(file))["wrong"]
            assert "missing" in peer.ask(do="time", row=name, seconds=0.01)
        finally:
            peer.close()
    summary = report.summary(row, {"opgraft": {"min": 1.0, "median": 1.0}, "numpy": {"wrong": "differs"}})
    assert summary["best"] is None and "best peer" not in summary["ratios"]


def test_verdicts_compare_with_the_best_peer_the_twin_and_mindspore():
    times = {"opgraft": 2.0, "twin": 3.0, "numpy": 4.0, "torch": 1.0, "mindspore graph": 9.0, "mindspore pynative": 7.0}
    got = report.summary(small(), {k: {"min": v, "median": v} for k, v in times.items()})
    assert got["best"] == "torch"
    assert got["targets"]["best peer"] == {"at_most": 1.0, "got": 2.0, "reached": False}
    assert got["targets"]["twin"] == {"at_most": 1 / 2, "got": 2 / 3, "reached": False}
    assert got["targets"]["mindspore"] == {"at_most": 1 / 3, "got": 2 / 7, "reached": True}


@pytest.mark.parametrize("factor,code", [(1.0, 0), (1.09, 0), (1.11, 1), (0.5, 0)])
def test_the_gate_fails_on_a_ratio_that_grew_by_more_than_a_tenth(tmp_path, capsys, factor, code):
    old = {"ratios": {"a / numpy": 0.5, "b / numpy": 0.8}}
    new = {"ratios": {"a / numpy": 0.5 * factor, "b / numpy": 0.8, "c / numpy": 1.0}}
    assert gate.compare(old, new) == code
    assert ("REGRESSION" in capsys.readouterr().out) == bool(code)


def test_the_gate_refuses_files_that_share_nothing(capsys):
    assert gate.compare({"ratios": {"a": 1.0}}, {"ratios": {"b": 1.0}}) == 1
    assert "share no ratio" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options,said", [(["--rows", "nothing like it"], "no such row"), (["--peers", "x"], "--peers")]
)
def test_wrong_arguments_are_named(options, said):
    command = [sys.executable, str(ROOT / "bench" / "operators.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and said in done.stderr
