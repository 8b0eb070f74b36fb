"""Run by `build.sh test --all` where `build.sh demo` has run: demo_check.py

build/demo.json says what it should, and a second `./build.sh demo` reinstalls and rebuilds nothing and starts the
example within 5 s.
"""

import json
import os
import subprocess
import time

result = json.load(open("build/demo.json"))
# ../shared/real-inputs.md's figures, from the sentence-transformers model of the same weights.
assert set(result["cosines"]) == {"plain", "grafted", "file"}, result["cosines"]
for run, got in result["cosines"].items():
    assert got == [0.7553, -0.1050], f"cosines of the {run} run: {got}"
assert set(result["latency_ms"]) == {"1x32", "8x128"}, result["latency_ms"]
for size, times in result["latency_ms"].items():
    assert set(times) == {"plain", "grafted"} and min(times.values()) > 0, (size, times)
swapped = {s["op"].split("@")[0] for s in result["swaps"]}
wanted = {"FusedLayerNorm", "AddLayerNorm", "Dense", "ScaledDotProductAttention"}
assert wanted <= swapped, f"swapped: {swapped}"
for s in result["swaps"]:
    assert 0 <= s["max_abs"] < 1e-3 and s["ms_before"] > 0 and s["ms_after"] > 0, s
assert result["arena_bytes"] > 0

begin = time.perf_counter()
process = subprocess.Popen(["./build.sh", "demo"], stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL,
                           env=os.environ | {"PYTHONUNBUFFERED": "1"})  # fmt: skip
lines, started = [], None
for line in process.stdout:
    lines.append(line)
    if started is None and line.startswith("matched "):  # the example's first line, after its proof
        started = time.perf_counter() - begin
text = "".join(lines)
assert process.wait() == 0, text
assert "installing" not in text and "fetching" not in text and "Building" not in text, text
assert "no work to do" in text, text
assert started is not None and started < 5, f"the second run took {started:.1f} s to start"
print(f"the second run starts within {started:.1f} s")
