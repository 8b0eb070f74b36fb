"""The operators beside their peers, in one table: opgraft, its scalar twin, NumPy, torch eager and compiled, ONNX
Runtime, OpenVINO and MindSpore.

Every peer is a process of its own in an environment of its own, with the same number of threads and the same inputs.
A result that is wrong voids the figure. The peers take turns, several rounds a row, so that noise hits all alike; one
that is not in its turn is stopped, lest its spinning threads disturb the others. The minimum and the median are kept
of each, and the ratio of opgraft's minimum to the best peer's.
"""

import argparse
import fnmatch
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import environments  # noqa: E402
import machine  # noqa: E402
import report  # noqa: E402
from peers import PEERS  # noqa: E402
from rows import rows  # noqa: E402

SECONDS = 0.04  # of a turn
SLOW = 2.0
# What holds the programs to AVX2 on a wider machine; ONNX Runtime and OpenVINO know no such thing.
SIMD = {
    "best": {},
    "AVX2": {
        "OPGRAFT_SIMD": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
        "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR",
    },
}


class Peer:
    """A worker process; it runs only while it is asked something."""

    def __init__(self, name, python, threads, simd, log):
        self.name = name
        variables = {k: str(threads) for k in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
        variables |= {"OPGRAFT_NUM_THREADS": str(threads), "GLOG_v": "4", "PYTHONDONTWRITEBYTECODE": "1",
                      "PYTHONPATH": str(ROOT / "build" / "python")}  # fmt: skip
        variables |= {"TORCHINDUCTOR_CACHE_DIR": str(ROOT / "build" / "bench" / "inductor")} | SIMD[simd]
        command = [str(python), str(ROOT / "bench" / "worker.py"), name, "--threads", str(threads)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            env=os.environ | variables, start_new_session=True,
        )  # fmt: skip

    def ask(self, **task):
        if self.process.poll() is not None:
            return {"missing": f"the process ended with {self.process.returncode}"}
        os.killpg(self.process.pid, signal.SIGCONT)
        try:
            self.process.stdin.write(json.dumps(task) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            return {"missing": f"the process ended with {self.process.wait()}"}
        os.killpg(self.process.pid, signal.SIGSTOP)
        return json.loads(line)

    def close(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGCONT)
            self.process.kill()
        self.process.wait()


def measure_row(row, peers, folder, rounds, seconds):
    """{peer: {"min", "median"} or {"missing"} or {"wrong"}}"""
    expected = pathlib.Path(folder) / "expected.npz"
    np.savez(expected, *row.expected())
    figures, turns = {}, {}
    for peer in peers:
        answer = peer.ask(do="build", row=row.name, expected=str(expected))
        figures[peer.name] = {k: answer[k] for k in ("missing", "wrong") if k in answer}
        # A slow one, as a scalar loop over a large product, gets fewer turns: about SLOW seconds in all.
        turns[peer] = min(rounds, max(1, int(SLOW / max(answer.get("once", 0.0), 1e-9))))
    samples = {p: [] for p in peers if not figures[p.name]}
    for k in range(rounds):
        for peer, taken in samples.items():
            if k >= turns[peer]:
                continue
            answer = peer.ask(do="time", row=row.name, seconds=seconds)
            if "missing" in answer:
                figures[peer.name] = answer
            taken += answer.get("seconds", [])
    for peer, taken in samples.items():
        if not figures[peer.name]:
            figures[peer.name] = {"min": min(taken), "median": statistics.median(taken), "batches": len(taken)}
    for peer in peers:
        peer.ask(do="drop", row=row.name)
    return figures


def choose(patterns, quick):
    table = rows()
    if patterns:
        chosen = [r for r in table if any(fnmatch.fnmatch(r.name.lower(), f"*{p.lower()}*") for p in patterns)]
        if not chosen:
            raise SystemExit(f"operators.py: --rows {' '.join(patterns)}: no such row; see --list")
        return chosen
    return [r for r in table if r.quick or not quick]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the rows that stand for the others, fewer rounds")
    parser.add_argument(
        "--rows", nargs="+", metavar="NAME", help="rows whose name contains this (* and ? as in a shell)"
    )
    parser.add_argument("--peers", nargs="+", choices=PEERS, metavar="PEER", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1), help="of each peer (default 2)")
    parser.add_argument(
        "--simd", choices=SIMD, default="best", help="hold all but ONNX Runtime and OpenVINO, which cannot be, to AVX2"
    )
    parser.add_argument("--rounds", type=int, help="turns of every peer in a row (default 10, --quick 4)")
    parser.add_argument("--install", action="store_true", help="install the peers that are missing")
    parser.add_argument("--list", action="store_true", help="name the rows and stop")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures")
    parser.add_argument("--markdown", type=pathlib.Path, help="write the table")
    parser.add_argument("--plot", type=pathlib.Path, help="write the picture: FILE.svg or FILE.png")
    args = parser.parse_args()
    chosen = choose(args.rows, args.quick)
    if args.list:
        print("\n".join(r.name for r in chosen))
        return 0
    pythons = environments.find(args.peers or PEERS, args.install)
    rounds = args.rounds or (4 if args.quick else 10)
    os.environ |= SIMD[args.simd]
    result = {"machine": machine.describe(args.threads), "threads": args.threads, "rounds": rounds, "peers": {},
              "rows": {}, "ratios": {}}  # fmt: skip
    begin = time.time()
    with tempfile.TemporaryDirectory() as folder, open(os.environ.get("OPGRAFT_BENCH_LOG", os.devnull), "w") as log:
        peers = [Peer(name, python, args.threads, args.simd, log) for name, python in pythons.items() if python]
        try:
            for peer in peers:
                answer = peer.ask(do="version")
                result["peers"][peer.name] = answer.get("version", answer.get("missing"))
            for k, row in enumerate(chosen):
                print(f"[{k + 1}/{len(chosen)}, {time.time() - begin:.0f} s] {row.name}", file=sys.stderr, flush=True)
                figures = measure_row(row, peers, folder, rounds, SECONDS / (2 if args.quick else 1))
                result["rows"][row.name] = report.summary(row, figures)
        except KeyboardInterrupt:
            print("interrupted: the table has the rows up to here", file=sys.stderr)
        finally:
            for peer in peers:
                peer.close()
    report.compare_rows(chosen, result["rows"])
    for name, row in result["rows"].items():
        for what in ("best peer", "numpy", "twin"):
            if (ratio := row["ratios"].get(what)) is not None:
                result["ratios"][f"{name} / {what}"] = ratio
    text = report.markdown(result)
    print(text)
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    if args.markdown:
        args.markdown.write_text(text + "\n")
    if args.plot:
        environments.plot(result, args.plot, args.install)
    wrong = [n for n, r in result["rows"].items() if "min" not in r["figures"].get("opgraft", {"min": 0})]
    if wrong:
        print(f"operators.py: opgraft has no figure for {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
