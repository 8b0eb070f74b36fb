"""The benchmark: what it counts, what it voids, that who is not in turn is stopped; its table, picture and options."""

import dataclasses
import json
import math
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest
from opgraft import _core

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import environments  # noqa: E402
import operators  # noqa: E402
import report  # noqa: E402
from peers import PEERS  # noqa: E402
from rows import Row, load, rows, save  # noqa: E402

NAME = "SwiGLU 1x11008"
PYTHONS = environments.find(PEERS)


def small(**changes):
    row = Row(
        "Add 8", "Add", lambda rng: [rng.standard_normal(8, np.float32) for _ in range(2)], np.add, rtol=2.0**-24,
        atol=0.0, flops=8, target=1.0, twin=2.0, mindspore_target=3.0, numpy=np.add,
    )  # fmt: skip
    return dataclasses.replace(row, **changes)


def table_row(name):
    return next(r for r in rows() if r.name == name)


@pytest.fixture
def start():
    """Starts peers; ends them after the test."""
    running = []

    def start(name, threads=1):
        running.append(operators.Peer(name, PYTHONS[name], threads, "best", subprocess.DEVNULL))
        return running[-1]

    yield start
    for peer in running:
        peer.close()


def data(row, file, want=None):
    """The arrays of the row, in the file that the controller hands to peers."""
    inputs, weights = row.arrays()
    save(file, inputs, weights, row.expected(inputs, weights) if want is None else want)
    return {"row": row.name, "data": str(file), "patience": 1.0}


def bench(*options, **more):
    command = [sys.executable, str(ROOT / "bench" / "operators.py"), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, **more)


# --- rows ---


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


def test_the_rows_that_mission_md_compares_with_the_twin_have_a_twin():
    for row in rows():
        if row.twin:
            assert row.op and "twin" not in row.missing, row.name
    assert {"MatMul 2048", "Conv2D 7x7 s2 1x3x224x224"} <= {r.name for r in rows() if r.twin}


def test_arrays_come_to_a_peer_as_they_are(tmp_path):
    import ml_dtypes

    groups = ([np.arange(3, dtype=np.int8), np.float32([[1, np.nan]])], [np.zeros((0, 2), np.float16)] * 11,
              [np.arange(4).astype(ml_dtypes.bfloat16), np.asarray(2.0)])  # fmt: skip
    save(tmp_path / "a.npz", *groups)
    for made, stored in zip(groups, load(tmp_path / "a.npz")):
        assert [(a.dtype, a.shape, a.tobytes()) for a in made] == [(a.dtype, a.shape, a.tobytes()) for a in stored]


# --- what a run gives ---


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    out = tmp_path_factory.mktemp("bench")
    done = bench("--rows", NAME, "--rounds", "1", "--peers", "opgraft", "twin", "numpy", "--json", str(out / "a.json"),
                 "--markdown", str(out / "a.md"))  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads((out / "a.json").read_text()), done, (out / "a.md").read_text()


def test_a_run_gives_figures_ratios_and_rates(result):
    figures, done, markdown = result
    row = figures["rows"][NAME]
    for peer in ("opgraft", "twin", "numpy"):
        assert 0 < row["figures"][peer]["min"] <= row["figures"][peer]["median"]
    ours = row["figures"]["opgraft"]["min"]
    assert row["best"] == "numpy"  # the twin is no peer
    assert row["ratios"]["best peer"] == pytest.approx(ours / row["figures"]["numpy"]["min"])
    assert row["GB/s"] == pytest.approx(3 * 4 * 11008 / ours / 1e9)
    assert {n for n in figures["ratios"] if "bf16" not in n} == {f"{NAME} / twin", f"{NAME} / numpy"}
    assert figures["ratios"][f"{NAME} / twin"] == pytest.approx(ours / row["figures"]["twin"]["min"])
    assert figures["machine"]["copy_bandwidth"] > 1e9 and figures["machine"]["gemm_peak"] > 1e9
    assert f"| {NAME} " in done.stdout and done.stdout == markdown
    assert "[1/2, " in done.stderr  # the progress


def figures(**times):
    return {k.replace("_", " "): {"min": v, "median": v, "batches": 3} for k, v in times.items()}


def test_verdicts_compare_with_the_best_peer_the_twin_and_mindspore():
    times = figures(opgraft=2.0, twin=3.0, numpy=4.0, torch=1.0, mindspore_graph=9.0, mindspore_pynative=7.0)
    got = report.summary(small(), times, 96)
    assert got["best"] == "torch"
    assert got["targets"]["best peer"] == {"at_most": 1.0, "got": 2.0, "reached": False}
    assert got["targets"]["twin"] == {"at_most": 1 / 2, "got": 2 / 3, "reached": False}
    assert got["targets"]["mindspore"] == {"at_most": 1 / 3, "got": 2 / 7, "reached": True}


def test_the_short_table_has_every_column_and_marks_what_falls_short():
    """mission.md's ratios, the best peer, rates; and rows against rows of the same run."""
    first, second = small(flops=0), small(name="Add 16", against="Add 8", target_against=0.5, twin=None)
    times = figures(opgraft=2e-6, twin=3e-6, torch=1e-6, mindspore_graph=9e-6, mindspore_pynative=7e-6)
    found = {first.name: report.summary(first, times, 96),
             second.name: report.summary(second, figures(opgraft=1.2e-6, torch=2.4e-6, against=2e-6), 96)}  # fmt: skip
    machine = {"cpu": "CPU", "simd": "AVX2", "copy_bandwidth": 1e9, "gemm_peak": 1e9}
    text = report.short({"machine": machine, "threads": 2, "rounds": 3, "peers": {"torch": "2"}, "rows": found})
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    assert cells[0] == ["row", "opgraft", "best peer", "ratio", "at most", "MindSpore / opgraft (at least)",
                        "twin / opgraft (at least)", "GFLOP/s", "GB/s"]  # fmt: skip
    assert cells[2] == ["Add 8", "2 µs", "1 µs torch", "**2.00**", "1.00", "3.5 (3)", "**1.5** (2)", "-", "0.048"]
    assert cells[3] == ["Add 16", "1.2 µs", "2.4 µs torch", "0.50", "1.00", "-", "-", "0.00667", "0.08"]
    assert text.endswith("Rows against rows of ours:\n\n- Add 16: **0.60** of 'Add 8', at most 0.5")


def test_the_wide_table_says_what_has_no_figure_and_what_ran_once():
    times = figures(opgraft=2.0) | {"twin": {"min": 3.0, "median": 3.0, "batches": 1}, "numpy": {"missing": "no form"},
                                    "torch": {"wrong": "differs"}}  # fmt: skip
    text = report.wide({"peers": dict.fromkeys(times), "rows": {"Add 8": report.summary(small(), times, 96)}})
    assert "3 s (one call)" in text and "2 s (2 s)" in text and "| wrong |" in text
    assert text.endswith("No figure:\n\n- numpy: no form: Add 8\n- torch: differs: Add 8")


# --- what counts as a figure ---


def test_a_wrong_result_is_void(tmp_path, start):
    """The worker is told an expected result that is off by two ulp, one that is NaN, and one of another shape."""
    row = table_row(NAME)
    (want,) = row.expected(*row.arrays())
    peer = start("numpy")
    for expected, said in [
        (want * (1 + 4 * row.rtol), "differs in"),
        (np.where(np.arange(want.size).reshape(want.shape) == 7, np.nan, want), "differs in 1 of"),
        (want[:, 1:], "has shape"),
    ]:
        assert said in peer.ask(do="build", **data(row, tmp_path / "a.npz", [expected]))["wrong"]
        assert "missing" in peer.ask(do="time", row=row.name, seconds=0.01)
    summary = report.summary(row, figures(opgraft=1.0) | {"numpy": {"wrong": "differs"}}, 8)
    assert summary["best"] is None and "best peer" not in summary["ratios"]


class Scripted:
    """Answers like a peer one call of which takes `once`."""

    def __init__(self, name, once, order=None):
        self.name, self.once, self.turns, self.rows = name, once, 0, []
        self.order = [] if order is None else order

    def ask(self, do, **task):
        if do == "build":
            return {"once": self.once}
        if do == "time":
            self.turns += 1
            self.rows.append(task["row"])
            self.order.append(self.name)
            time.sleep(0.01)
            return {"seconds": [self.once / 2], "threads": 1}
        return {}


def test_a_slow_peer_takes_fewer_turns_and_a_row_has_a_budget(tmp_path):
    effort = operators.Effort(rounds=10, turn=0.01, peer=1.0, row=60.0, patience=1.0)
    peers = [Scripted("opgraft", 1e-3), Scripted("numpy", 0.3), Scripted("twin", 5.0)]
    got, traffic = operators.measure_row(small(), peers, tmp_path, effort)
    assert [p.turns for p in peers] == [10, 3, 0]
    assert got["opgraft"]["min"] == 0.5e-3 and got["opgraft"]["turns"] == 10
    assert got["twin"] == {"min": 5.0, "median": 5.0, "batches": 1}  # the call that was made
    assert traffic == 3 * 8 * 4
    peers = [Scripted("opgraft", 1e-3), Scripted("numpy", 1e-3)]
    operators.measure_row(small(), peers, tmp_path, dataclasses.replace(effort, row=0.0))
    assert [p.turns for p in peers] == [1, 1]  # every peer has its turn


def test_peers_are_timed_in_turns(tmp_path):
    """Not one after the other: what the machine does meanwhile hits all alike."""
    effort = operators.Effort(rounds=3, turn=0.01, peer=1.0, row=60.0, patience=1.0)
    order, names = [], ["opgraft", "numpy", "torch"]
    operators.measure_row(small(), [Scripted(name, 1e-3, order) for name in names], tmp_path, effort)
    assert order == 3 * names


def test_rows_have_fewer_rounds_where_all_would_take_too_long():
    effort = operators.Effort(rounds=8, turn=0.025, peer=0.8, row=6.0, patience=2.0, whole=100.0)
    rounds = lambda *pace: effort.paced(*pace).rounds  # noqa: E731
    assert rounds(0, 10, 0.0) == 8  # nothing is known
    assert rounds(10, 10, 50.0) == 8 and rounds(10, 10, 20.0) == 8
    assert rounds(10, 10, 60.0) == 5  # 40 s for what would take 60
    assert rounds(10, 10, 90.0) == 3 and rounds(10, 10, 200.0) == 3
    assert dataclasses.replace(effort, whole=math.inf).paced(10, 10, 1e6).rounds == 8


def test_a_row_that_is_compared_with_another_takes_turns_with_it(tmp_path):
    effort = operators.Effort(rounds=4, turn=0.01, peer=1.0, row=60.0, patience=1.0)
    peers = [Scripted("opgraft", 1e-3), Scripted("numpy", 4e-3)]
    row = small(name="Add 16", against="Add 8", target_against=0.5)
    got, _ = operators.measure_row(row, peers, tmp_path, effort, small())
    assert peers[0].rows == ["Add 16", "Add 8"] * 4 and peers[1].rows == ["Add 16"] * 4
    assert got["against"]["min"] == 0.5e-3
    found = report.summary(row, got, 96)
    assert found["best"] == "numpy" and found["ratios"]["Add 8"] == 1.0
    assert found["targets"]["Add 8"] == {"at_most": 0.5, "got": 1.0, "reached": False}


@pytest.mark.alone
@pytest.mark.parametrize("name", PEERS)
def test_a_peer_has_the_threads_that_were_asked_for(name, tmp_path, start):
    """By the processor time of each of its threads during a product that is worth two."""
    if PYTHONS[name] is None:
        pytest.skip(f"{name} is not installed: ./build.sh bench installs it")
    row = table_row("MatMul 512")
    for count in (1, 2):
        peer = start(name, count)
        assert "once" in peer.ask(do="build", **data(row, tmp_path / "a.npz"))
        wanted, worked = 1 if name == "twin" else count, []
        # Others on the machine take a core at times, and ours then does without it.
        while len(worked) < 3 or (max(worked) < wanted and len(worked) < 100):
            worked.append(peer.ask(do="time", row=row.name, seconds=0.2)["threads"])
        if name.startswith("mindspore"):
            # Its caller, an actor and a kernel's thread take turns, whatever number it is given.
            assert max(worked) <= 3, worked
        else:
            assert max(worked) == wanted, worked


@pytest.mark.parametrize("simd,missing", [("best", ()), ("AVX2", ("X86_V4",)), ("SSE4", ("X86_V4", "X86_V3"))])
def test_simd_holds_numpy_too(simd, missing):
    """NumPy ignores names that it does not know."""
    code = "from numpy._core._multiarray_umath import __cpu_features__ as f; print(*(k for k in f if f[k]))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True,
                          env=os.environ | operators.SIMD[simd])  # fmt: skip
    assert not set(missing) & set(done.stdout.split()), done.stdout
    if not done.returncode:  # a machine that has less warns
        assert "X86_V2" in done.stdout.split()


# --- options and environments ---


@pytest.mark.parametrize(
    "options,said",
    [
        (["--rows", "nothing like it"], "no such row; see --list"),
        (["--peers", "x"], "--peers: invalid choice: 'x'"),
        (["--plot", "a.pdf"], "--plot: must end in .svg or .png, got a.pdf"),
        (["--json", "/nowhere/a.json"], "there is no folder /nowhere"),
        (["--threads", "0"], "must be at least 1"),
    ],
)
def test_wrong_arguments_are_named(options, said):
    done = bench(*options)
    assert done.returncode != 0 and said in done.stderr and "Traceback" not in done.stderr


def test_help_and_list():
    assert "--quick" in bench("--help").stdout
    assert bench("--list", "--rows", "swiglu 1x*").stdout.splitlines() == [NAME, NAME + " bf16"]


def test_a_peer_that_is_not_there_is_named_and_its_column_stays_empty(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(environments, "ROOT", tmp_path)
    found = environments.find(["numpy", "torch"])
    assert found == {"numpy": pathlib.Path(sys.executable), "torch": None}
    assert "torch is not installed (--install does): its column stays empty" in capsys.readouterr().err
    environments.plot({}, tmp_path / "a.svg")
    assert "is not drawn: matplotlib is not installed" in capsys.readouterr().err


def test_without_a_network_an_installation_fails_by_name(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(environments, "ROOT", tmp_path)
    for name, value in {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0", "PIP_NO_CACHE_DIR": "1",
                        "PIP_CONFIG_FILE": os.devnull}.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    assert environments.find(["torch"], install=True) == {"torch": None}
    said = capfd.readouterr().err
    assert "installing torch into .venv-torch" in said and "torch.txt could not be installed" in said
    assert not (tmp_path / ".venv-torch" / ".requirements.sha256").exists()  # the next run tries again


@pytest.mark.parametrize("suffix,begin", [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_the_picture_is_drawn(result, tmp_path, suffix, begin):
    if environments._python(".venv-plot", "plot.txt", False) is None:
        pytest.skip("matplotlib is not installed: ./build.sh bench installs it")
    file = tmp_path / f"a.{suffix}"
    environments.plot(result[0], file)
    assert file.read_bytes().startswith(begin)
    if suffix == "svg":
        assert file.stat().st_size > 10_000


def test_the_twin_of_a_large_product_computes_some_rows():
    from peers import twin_peer

    row = Row(
        "MatMul small", "MatMul", lambda rng: [rng.standard_normal((8, 5), np.float32)], np.matmul,
        weights=lambda rng: [rng.standard_normal((5, 3), np.float32)], rtol=2.0**-23, atol=0.0, twin_rows=2,
    )  # fmt: skip
    given = row.arrays()
    run, fetch = twin_peer.build(row, *given, 1)
    run()
    assert run.share == 2 / 8
    (got,), (want,) = fetch(), row.expected(*given)
    assert got.shape == (2, 3)
    # The twin sums in double and rounds once.
    assert (abs(got - want[:2]) <= 2.0**-24 * abs(want[:2])).all()
