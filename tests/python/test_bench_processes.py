"""The benchmark's processes: who is not in turn is stopped, who hangs is ended, and what ends a run loses no row."""

import json
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import operators  # noqa: E402
import process  # noqa: E402

NAME = "SwiGLU 1x11008"


def state(peer):
    return pathlib.Path(f"/proc/{peer.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_a_peer_that_is_not_in_its_turn_is_stopped():
    peer = operators.Peer("numpy", sys.executable, 1, "best", subprocess.DEVNULL)
    assert "version" in peer.ask(do="version")
    end = time.monotonic() + 10
    while state(peer) != "T" and time.monotonic() < end:  # the signal is on its way
        time.sleep(0.01)
    assert state(peer) == "T"
    assert peer.ask(do="version")["version"] == np.__version__
    peer.process.kill()
    peer.process.wait()
    assert peer.ask(do="version") == {"missing": "the process ended with -9"}


def bench_up_to(row, out):
    """A benchmark that writes into `out` and has begun with row number `row`."""
    command = [sys.executable, str(ROOT / "bench" / "operators.py"), "--peers", "opgraft", "numpy", "--rounds", "2",
               "--json", str(out / "a.json"), "--markdown", str(out / "a.md"), "--rows", NAME, "RMSNorm", "RoPE",
               "Softmax"]  # fmt: skip
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in running.stderr:
        if line.startswith(f"[{row}/"):
            return running
    raise AssertionError(f"it ended with {running.wait()}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_the_rows_measured_so_far(tmp_path, number):
    running = bench_up_to(2, tmp_path)
    running.send_signal(number)
    text, said = running.communicate(timeout=60)
    assert running.returncode == 130 and "interrupted" in said
    kept = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert kept and len(kept) < 10 and all(f"| {name} " in text for name in kept)


def test_a_killed_benchmark_keeps_the_rows_it_had(tmp_path):
    running = bench_up_to(3, tmp_path)
    running.kill()
    running.communicate()
    kept = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert "min" in kept[NAME]["figures"]["numpy"] and f"| {NAME} " in (tmp_path / "a.md").read_text()


@pytest.mark.parametrize("code", ["print('{\"secon', flush=True); sys.stdin.read()", "time.sleep(60)"],
                         ids=["cut off", "none"])  # fmt: skip
def test_a_peer_whose_answer_does_not_come_is_ended_and_its_figure_is_missing(code, monkeypatch):
    monkeypatch.setattr(process, "PATIENCE", 3)
    code = f"import sys, time; sys.stdin.readline(); {code}"
    peer = process.Process([sys.executable, "-c", code], 1, subprocess.DEVNULL)
    assert peer.ask(do="version") == {"missing": "the process ended with -9"}
    peer.close()


def test_an_interrupt_while_the_clock_of_an_answer_starts_ends_the_program():
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'bench')!r}); import process, subprocess, threading\n"
        "start = threading.Timer.start\n"
        "def interrupted(self):\n"
        "    start(self)\n"
        "    raise KeyboardInterrupt\n"
        "threading.Timer.start = interrupted\n"
        "threading.Timer.cancel = lambda self: None\n"
        "peer = process.Process([sys.executable, '-c', 'input()'], 1, subprocess.DEVNULL)\n"
        "try:\n"
        "    peer.ask(do='version')\n"
        "except KeyboardInterrupt:\n"
        "    peer.close()\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_a_killed_benchmark_leaves_no_stopped_peers():
    code = (
        f"import os, signal, sys; sys.path.insert(0, {str(ROOT / 'bench')!r}); import operators, subprocess\n"
        "peer = operators.Peer('numpy', sys.executable, 1, 'best', subprocess.DEVNULL)\n"
        "peer.ask(do='version'); print(peer.process.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    pid, end = int(done.stdout), time.monotonic() + 10

    def alive():
        try:
            stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
        except FileNotFoundError:
            return False
        return stat.rsplit(")", 1)[1].split()[0] != "Z"

    while alive() and time.monotonic() < end:
        time.sleep(0.01)
    assert not alive()
