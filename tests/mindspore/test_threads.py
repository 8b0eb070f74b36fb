"""The pool's threads beside MindSpore's: no more than it gives its own operators, and than there are cores."""

import json
import os
import subprocess
import sys

import opgraft.build
import pytest
from helpers import HERE


@pytest.fixture(scope="module")
def at_work(tmp_path_factory):
    return opgraft.build.build(HERE / "at_work", tmp_path_factory.mktemp("at_work"))


def run(so, folder, threads, actors, **env):
    done = subprocess.run([sys.executable, str(HERE / "threads.py"), str(so), str(threads), str(actors)],
                          cwd=folder, env={k: v for k, v in os.environ.items() if k != "OPGRAFT_NUM_THREADS"} | env,
                          capture_output=True, text=True, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def cores():
    return len(os.sched_getaffinity(0))


def test_operators_run_on_as_many_threads_as_mindspore_s(at_work, tmp_path):
    found = run(at_work, tmp_path, threads=1, actors=1)
    assert found["workers"] == found["chunks"] == 0 and found["together"] == 1
    found = run(at_work, tmp_path, threads=30, actors=1)
    assert found["workers"] == min(30, cores()) - 1
    assert cores() == 1 or found["ran"] > 0


def test_the_user_s_number_counts_more(at_work, tmp_path):
    found = run(at_work, tmp_path, threads=1, actors=1, OPGRAFT_NUM_THREADS="2")
    assert found["workers"] == 1


@pytest.mark.skipif(cores() < 2, reason="one core")
def test_two_customs_at_once_share_the_threads(at_work, tmp_path):
    """MindSpore 2.10 runs a graph's nodes one after another unless it is told to do without its queue of launches; then
    each runs on an actor. A worker that one of them has leaves it when the other comes, at whose coming it may just
    have begun: one in 50."""
    assert run(at_work, tmp_path, threads=2, actors=2)["together"] == 1
    found = run(at_work, tmp_path, threads=2, actors=2, MS_DEV_RUNTIME_CONF="pipeline:False")
    assert found["workers"] == 1 and found["together"] == 2
    assert found["beside"] <= found["chunks"] / 50
