"""bench/llama.py: what it voids, its targets and tables, options; where the model is there, a run."""

import json
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench"))  # behind examples/, which has a `llama`, too
from decoding import VARIANTS, parts, prepare, table  # noqa: E402
from process import Process  # noqa: E402
from rows.llama import NAME, ROWS  # noqa: E402

PLAIN, F32, BF16, STORED, SDPA, EAGER, CPP = VARIANTS
ORACLE = ROOT / "tests" / "python" / "llama_oracle.npz"


def checked(agree, logits=1e-5, of=100):
    return {"agree": agree, "of": of, "logits": logits, "missed": []}


def test_in_float32_one_other_token_is_wrong():
    assert table.wrong(F32, {F32: checked(100)}) is None
    assert table.wrong(F32, {F32: checked(99)}) == "1 of 100 tokens are not the float32 oracle's"
    assert "logits are 0.002 off" in table.wrong(SDPA, {SDPA: checked(100, 2e-3)})
    assert "logits are inf off" in table.wrong(F32, {F32: checked(100, float("inf"))})


def test_rounded_weights_are_compared_with_llama_cpp():
    checks = {STORED: checked(91), CPP: checked(95)}
    assert table.wrong(STORED, checks) is None  # 9 and 5: 4 apart, of a deviation of 3.7
    assert table.wrong(STORED, checks | {STORED: checked(76)}).endswith(f"more than chance explains beside {CPP}'s 5")
    assert table.wrong(BF16, {BF16: checked(60)}) is None, "alone, it need only know the text"
    assert "more than half of all" in table.wrong(CPP, {CPP: checked(49)})


def row(step, first, peak=0, **more):
    decode = {p: [[2 * step, step], [step, step]] for p in table.POSITIONS}
    return {"decode": decode, "prefill": [2 * first, first],
            "kv": {p: {"bytes": peak // 2, "peak": peak} for p in table.POSITIONS}, "peak": 2**20,
            "check": checked(100), "version": "1"} | more  # fmt: skip


def result(**changes):
    rows = {PLAIN: row(0.02, 0.1, 2000, sequences={"count": 10}), F32: row(0.01, 0.05, 1000, sequences={"count": 17}),
            STORED: row(0.003, 0.05), SDPA: row(0.04, 0.2), EAGER: row(0.025, 0.3), CPP: row(0.004, 0.04)}  # fmt: skip
    machine = {"cpu": "CPU", "simd": "AVX2", "copy_bandwidth": 1e9, "read_bandwidth": 2e9, "gemm_peak": 1e9}
    found = {"machine": machine, "threads": 2, "rounds": 2, "prompt": 128, "bound": 1 << 27, "kept": 101,
             "rows": rows, "weights": dict.fromkeys(VARIANTS, 10**7)}  # fmt: skip
    found |= changes
    return found | {"targets": table.targets(found)}


def test_targets_are_ratios_to_the_faster_peer():
    found = {t["what"]: t for t in result()["targets"]}
    decode = found["grafted f32 decode tokens/s at 256, of transformers'"]
    assert decode["got"] == pytest.approx(2.5) and decode["reached"]  # of the eager one, which is faster here
    assert not found["grafted f32 decode tokens/s at 256, of transformers' (3 times)"]["reached"]
    assert found["grafted f32 first token, of transformers'"]["got"] == pytest.approx(0.25)
    assert found["grafted Q4_1 decode tokens/s at 16, of llama.cpp's"]["got"] == pytest.approx(4 / 3)
    assert found["peak KV bytes at 1024, grafted f32 of concatenated caches"]["got"] == pytest.approx(0.5)
    prefill = found[f"{F32} prefill tokens/s, of the faster peer's"]
    assert prefill["got"] == pytest.approx(0.8) and not prefill["reached"]
    texts = found["texts at once under the bound, grafted f32 of concatenated caches"]
    assert texts["got"] == pytest.approx(1.7) and not texts["reached"]
    assert len(found) == 6 * len(table.POSITIONS) + 5


def test_what_has_no_figures_has_no_target():
    rows = {F32: row(0.01, 0.05), SDPA: {"missing": "ended"}, PLAIN: {"decode": {16: []}, "prefill": []}}
    assert result(rows=rows)["targets"] == []
    assert result(rows={})["targets"] == []


def cells(text, name):
    line = next(line for line in text.splitlines() if line.startswith(f"| {name} "))
    return [c.strip() for c in line.strip("|").split("|")]


def test_the_table():
    found = result()
    found["rows"][BF16] = {"wrong": "49 of 64 tokens"}
    text = table.whole(found)
    # 10 MB in 3 ms is more than the threads that only read have reached: it is the wall.
    assert cells(text, F32)[:8] == [F32, "50 ms", "2560", "100.0", "100.0", "100.0", "10 ms", "1"]
    assert cells(text, F32)[-2] == "30 %" and cells(text, STORED)[-2] == "100 %"
    assert cells(text, BF16)[1] == "wrong" and f"- {BF16}: 49 of 64 tokens" in text
    assert "| **short**" in text and "reads 3.3 GB/s" in text


def test_every_operator_of_a_layer_belongs_to_a_part():
    plain = {"1/input_layernorm/Rsqrt": "RMSNorm", "1/self_attn/q_proj/MatMul": "products", "MatMul": "products",
             "1/self_attn/StridedSlice_3": "RoPE", "1/self_attn/Concat_1": "RoPE", "1/self_attn/Mul_3": "RoPE",
             "1/self_attn/Add_1": "RoPE", "1/self_attn/Concat_2": "caches", "1/self_attn/BroadcastTo": "attention",
             "1/self_attn/Mul_4": "attention", "1/self_attn/Add_2": "attention", "1/self_attn/Softmax": "attention",
             "1/self_attn/Transpose_3": "layout", "1/mlp/SiLU": "SwiGLU", "1/mlp/Mul": "SwiGLU", "1/Add_1": "RMSNorm",
             "norm/Mul_1": "RMSNorm", "Greater": "other", "1/self_attn/BlockQuantQKV": "products",
             "SwiGLU:1/mlp/BlockQuantSwiGLU": "products"}  # fmt: skip
    for node, part in plain.items():
        assert parts.part(node, node.rpartition("/")[2].partition("_")[0]) == part, node
    for node, op, part in [("FusedAddRmsNorm:FusedRmsNorm:3/input_layernorm/Mul_1", "FusedAddRmsNorm", "RMSNorm"),
                           ("RotaryPositionEmbedding:3/self_attn/Add_1", "RotaryPositionEmbedding", "RoPE"),
                           ("SwiGLU:3/mlp/Mul", "SwiGLU", "SwiGLU"),
                           ("DenseSwiGLU:SwiGLU:3/mlp/Mul", "DenseSwiGLU", "products"),
                           ("3/self_attn/CachedAttention", "CachedAttention", "attention")]:  # fmt: skip
        assert parts.part(node, op) == part


def test_shares_are_of_each_programs_own_time():
    one = {"total_us": 4, "parts": {"products": 3.0, "RoPE": 1.0}, "ops": {"MatMul": 3.0, "Mul": 1.0}}
    other = {"total_us": 2, "parts": {"products": 2.0}, "ops": {"MatMul": 2.0}}
    by_part, by_operator = table.shares({"a": one, "b": other}, "a step")
    assert cells(by_part, "RoPE")[1:] == ["25.0 %", "-"] and cells(by_operator, "MatMul")[1:] == ["75.0 %", "100.0 %"]
    assert cells(by_part, "all, µs")[1:] == ["4", "2"] and table.shares({}, "a step") == []


def test_the_shapes_of_llama_2_7b_are_measured_by_name_alone():
    import operators

    assert all(r.extra for r in ROWS) and not any(r.name.startswith(NAME) for r in operators.choose(None, False))
    assert not any(r.extra for r in operators.choose(["SwiGLU 1x11008"], False))
    assert len(operators.choose([f"{NAME} "], False)) == len(ROWS) == 16


def bench(*options):
    return subprocess.run([sys.executable, str(ROOT / "bench" / "llama.py"), *options], capture_output=True, text=True,
                          timeout=240)  # fmt: skip


@pytest.mark.parametrize("options,said", [
    (["--rows", "nothing"], "--rows nothing: no such program"),
    (["--rounds", "0"], "must be at least 1"),
    (["--prompts", "21"], "--prompts at most 20"),
    (["--json", "nowhere/a.json"], "there is no folder nowhere"),
])  # fmt: skip
def test_options_that_cannot_be(options, said):
    done = bench(*options)
    assert done.returncode == 2 and said in done.stderr


def test_the_list_names_the_programs():
    assert bench("--list", "--rows", "*Q4_1").stdout.split("\n")[:-1] == [STORED, CPP]


model = pytest.mark.skipif(not prepare.gguf(), reason="./build.sh test --all fetches the model")


@model
def test_a_run_gives_figures(tmp_path):
    done = bench("--quick", "--rounds", "1", "--rows", STORED, "--json", str(tmp_path / "a.json"), "--markdown",
                 str(tmp_path / "a.md"))  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "a.json").read_text())
    got = found["rows"][STORED]
    assert 0.9 * got["check"]["of"] < got["check"]["agree"] <= got["check"]["of"] == 64
    assert set(got["decode"]) == {"16", "256", "1024"} and all(s > 0 for t in got["decode"].values() for s in t[0])
    # Keys and values of 1033 tokens in float32, of 30 layers with 3 heads of 64, in whole pages.
    least = 1033 * 2 * 30 * 3 * 64 * 4
    assert least <= got["kv"]["1024"]["bytes"] == got["kv"]["1024"]["peak"] <= least + 180 * 4096
    assert got["sequences"]["bytes"] <= 128 << 20 and got["sequences"]["count"] > 20
    assert got["shares"]["decode"]["parts"]["products"] > 0
    assert (tmp_path / "a.md").read_text() == done.stdout and "[1/4, 0 s]" in done.stderr


@model
def test_another_text_is_wrong(tmp_path):
    """The worker is given an oracle whose text is not the model's."""
    changed = dict(np.load(ORACLE))
    changed["greedy"] = changed["greedy"][:, ::-1]
    np.savez(tmp_path / "other.npz", **changed)
    files = prepare.files(prepare.gguf(), ROOT / "build" / "bench" / "llama", {"stored"}, {})
    worker = Process([sys.executable, ROOT / "bench" / "decoding" / "worker.py", STORED], 1, subprocess.DEVNULL)
    try:
        assert "seconds" in worker.ask(do="load", files=files)
        got = worker.ask(do="check", oracle=str(tmp_path / "other.npz"), prompts=1)
        assert "more than half" in table.wrong(STORED, {STORED: got})
        assert worker.ask(do="fill", ids=[10**6], positions=[1])["missing"]
    finally:
        worker.close()


@model
def test_an_interrupt_keeps_what_was_measured(tmp_path):
    command = [sys.executable, str(ROOT / "bench" / "llama.py"), "--rows", STORED, "--rounds", "500", "--parts",
               "decode", "--prompts", "1", "--json", str(tmp_path / "a.json")]  # fmt: skip
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in running.stderr:
        if line.startswith("[4/"):
            break
    time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=120)
    assert running.returncode == 130 and "interrupted" in said and "Traceback" not in said
    got = json.loads((tmp_path / "a.json").read_text())["rows"][STORED]
    assert got["prefill"]
