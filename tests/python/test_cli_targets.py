"""The command writes over nothing that it reads or has written, and says so before any work."""

import os

import numpy as np
import opgraft
import pytest
from opgraft import Tensor, context, nn
from test_cli import run


@pytest.fixture
def folder(tmp_path):
    x = np.ones((2, 4), np.float32)
    opgraft.export(nn.Dense(4, 2), Tensor(x), file_name=tmp_path / "m")
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "proof.npz", x=x)
    (tmp_path / "link.mindir").symlink_to(tmp_path / "m.mindir")
    os.link(tmp_path / "m.mindir", tmp_path / "hard.mindir")
    return tmp_path


def contents(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


OPTIMIZE, INFER = (["optimize", "m.mindir"], ["infer", "--model", "m.mindir", "--input", "x=x.npy", "--output", "out"])


@pytest.mark.parametrize("command,text", [
    ([*OPTIMIZE, "-o", "./m.mindir"], "-o ./m.mindir: must be another file than the model"),
    ([*OPTIMIZE, "-o", "hard.mindir"], "-o hard.mindir: must be another file than the model"),
    ([*OPTIMIZE, "-o", "m_variables/data_0"], "-o m_variables/data_0: must be another file than the model's weights"),
    ([*OPTIMIZE, "-o", "m.bin"], "-o m.bin: must have another name than the model, whose weights it would replace"),
    ([*OPTIMIZE, "-o", "proof.npz", "--prove", "proof.npz"], "must be another file than the inputs of --prove"),
    ([*OPTIMIZE, "-o", "o", "--report", "./o"], "--report ./o: must be another file than the model to write"),
    ([*OPTIMIZE, "-o", "o", "--report", "link.mindir"], "--report link.mindir: must be another file than the model"),
    ([*OPTIMIZE, "-o", "o", "--report", "x/../m_variables/data_0"], "must be another file than the model's weights"),
    ([*INFER, "--profile", "m.mindir"], "--profile m.mindir: must be another file than the model"),
    ([*INFER, "--profile", "m_variables/data_0"], "must be another file than the model's weights"),
    ([*INFER, "--profile", "x.npy"], "--profile x.npy: must be another file than --input x=x.npy"),
    ([*INFER, "--profile", "out/output.npy"], "--profile out/output.npy: must be another file than an output"),
])  # fmt: skip
def test_a_file_in_use_is_not_written(folder, monkeypatch, command, text):
    monkeypatch.chdir(folder)
    (folder / "x").mkdir()
    before = contents(folder)
    done = run(*command, rc=1)
    assert done.stderr.startswith("opgraft: ") and text in done.stderr and done.stdout == ""
    assert contents(folder) == before and not (folder / "out").exists()


def test_files_of_their_own_are_written(folder, monkeypatch):
    monkeypatch.chdir(folder)
    before = contents(folder)
    run(*OPTIMIZE, "-o", "m2.mindir", "--report", "m.json", "--prove", "proof.npz")
    run(*INFER, "--profile", "out/profile.json", "--threads", context.MOST_THREADS)
    after = contents(folder)
    assert {p: after[p] for p in before} == before and len(after) > len(before)


@pytest.mark.parametrize("number", ["0", "257", "99999999999", "9" * 5000])
def test_a_number_of_threads_is_bounded(number):
    done = run(*INFER, "--threads", number, rc=2)
    assert f"argument --threads: takes a number from 1 to 256, got '{number}'" in done.stderr


@pytest.mark.parametrize("number", [-1, 257, 10**12])
def test_the_number_of_threads_of_the_context_is_bounded(number):
    with pytest.raises(ValueError, match=f"must be an int of at least 0 and at most 256, got {number}"):
        opgraft.set_context(runtime_num_threads=number)


def test_the_bound_is_the_pools():
    before = opgraft._core.set_threads(2**31 - 1)
    opgraft.set_context(runtime_num_threads=0)
    assert before == context.MOST_THREADS
