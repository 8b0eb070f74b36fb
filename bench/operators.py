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
import math
import os
import pathlib
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, replace

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import environments  # noqa: E402
import machine  # noqa: E402
import report  # noqa: E402
from peers import AGAINST, PEERS  # noqa: E402
from process import Process  # noqa: E402
from rows import rows, save  # noqa: E402


@dataclass(frozen=True)
class Effort:
    rounds: int  # turns of each peer in a row
    turn: float  # seconds of a turn
    peer: float  # seconds a peer may take for its turns of a row, but one call is always made
    row: float  # seconds for all turns of a row: then no further round begins
    patience: float  # where a first call is like any other and takes longer than this, it is the figure
    whole: float = math.inf  # seconds for all rows: where they would take longer the rounds become fewer, to three

    def paced(self, done, left, spent):
        """The effort of the next row, after `done` rows that took `spent` seconds, with `left` to come."""
        if not done or spent / done * left <= self.whole - spent:
            return self
        affordable = max(self.whole - spent, 0.0) / (spent / done * left)
        return replace(self, rounds=min(self.rounds, max(3, int(self.rounds * affordable))))


FULL, QUICK = Effort(8, 0.025, 0.8, 6.0, 2.0, 510.0), Effort(4, 0.015, 0.3, 3.0, 0.5)
INTERRUPTED = 130  # as a shell says of a program that SIGINT ended
# What holds the programs to less than the machine has; ONNX Runtime knows no such thing. NumPy's names are
# those of the pinned version.
SIMD = {
    "best": {},
    "AVX3": {"OPGRAFT_SIMD": "AVX3", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"},  # no AMX
    "AVX2": {
        "OPGRAFT_SIMD": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",  # OpenVINO and torch
        "OPENBLAS_CORETYPE": "Haswell",
        "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
    },
    "SSE4": {
        "OPGRAFT_SIMD": "SSE4",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "OPENBLAS_CORETYPE": "Nehalem",
        "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR",
    },
}


class Peer(Process):
    def __init__(self, name, python, threads, simd, log):
        self.name = name
        inductor = {"TORCHINDUCTOR_CACHE_DIR": str(ROOT / "build" / "bench" / "inductor")}
        super().__init__([python, ROOT / "bench" / "worker.py", name, "--threads", threads], threads, log,
                         inductor | SIMD[simd])  # fmt: skip


def store(row, file):
    """Writes what a row's peers are given; -> the least bytes a call moves."""
    inputs, weights = row.arrays()
    data = inputs, weights, row.expected(inputs, weights)
    save(file, *data)
    return report.traffic(row, *data)


def measure_row(row, peers, folder, effort, other=None):
    """({peer: {"min", "median"} or {"missing"} or {"wrong"}}, the least bytes a call moves); AGAINST: opgraft's figures
    in the row `other`, which takes turns with the peers."""
    data = [pathlib.Path(folder) / f"{name}.npz" for name in ("data", "other")]
    traffic = store(row, data[0])
    entrants = {peer.name: (peer, row, data[0]) for peer in peers}
    if other and "opgraft" in entrants:
        store(other, data[1])
        entrants[AGAINST] = entrants["opgraft"][0], other, data[1]
    figures, samples, turns = {}, {}, {}
    for name, (peer, built, file) in entrants.items():
        answer = peer.ask(do="build", row=built.name, data=str(file), patience=effort.patience)
        figures[name] = {k: answer[k] for k in ("missing", "wrong") if k in answer}
        if once := answer.get("once"):
            # A slow one, as a scalar loop over a large product, takes fewer turns; or none but the call it has made.
            turns[name] = min(effort.rounds, int(effort.peer / once))
            samples[name] = [] if turns[name] else [answer.get("whole", once)]
    end = time.monotonic() + effort.row
    for k in range(effort.rounds):
        if k and time.monotonic() > end:
            break
        for name, taken in samples.items():
            if k >= turns[name]:
                continue
            peer, built, _ = entrants[name]
            answer = peer.ask(do="time", row=built.name, seconds=effort.turn)
            if "missing" in answer:
                figures[name], turns[name] = answer, 0
                continue
            taken += answer["seconds"]
            figures[name] = {"turns": k + 1, "threads": answer["threads"]}
    for name, taken in samples.items():
        if "missing" not in figures[name]:
            figures[name] |= {"min": min(taken), "median": statistics.median(taken), "batches": len(taken)}
    for peer, built, _ in entrants.values():
        peer.ask(do="drop", row=built.name)
    return figures, traffic


def interrupt(*_):
    for s in (signal.SIGINT, signal.SIGTERM):  # the next one ends the program
        signal.signal(s, signal.SIG_DFL)
    raise KeyboardInterrupt


def write(result, json_file, markdown_file, finished):
    """Writes the result's files, each as a whole or not at all; /dev/stdout and the like when it is finished."""
    for file, text in ((json_file, json.dumps(result, indent=2)), (markdown_file, report.text(result))):
        if file and file.exists() and not file.is_file():
            if finished:
                file.write_text(text + "\n")
        elif file:
            part = file.with_name(file.name + ".part")
            part.write_text(text + "\n")
            part.replace(file)


def measure(chosen, peers, effort, result, keep=lambda: None):
    """Fills in result's peers, rows and ratios, and calls keep() after each row; False where it was interrupted (the
    rows up to there are kept). Ends the peers."""
    for s in (signal.SIGINT, signal.SIGTERM):
        signal.signal(s, interrupt)
    begin, table = time.monotonic(), {r.name: r for r in rows()}
    try:
        with tempfile.TemporaryDirectory() as folder:
            for peer in peers:
                answer = peer.ask(do="version")
                result["peers"][peer.name] = answer.get("version", answer.get("missing"))
            for k, row in enumerate(chosen):
                spent = time.monotonic() - begin
                left = f", about {spent / k * (len(chosen) - k):.0f} s left" if k else ""
                print(f"[{k + 1}/{len(chosen)}, {spent:.0f} s{left}] {row.name}", file=sys.stderr, flush=True)
                paced = effort.paced(k, len(chosen) - k, spent)
                figures, traffic = measure_row(row, peers, folder, paced, table.get(row.against))
                result["rows"][row.name] = summary = report.summary(row, figures, traffic)
                result["ratios"] |= {f"{row.name} / {p}": ratio for p, ratio in summary["by peer"].items()}
                keep()
        return True
    except KeyboardInterrupt:
        print("interrupted: the table has the rows up to here", file=sys.stderr)
        return False
    finally:
        for peer in peers:
            peer.close()


def choose(patterns, quick):
    table = rows()
    if patterns:
        asked = [p.lower() for p in patterns]
        chosen = [r for r in table
                  if any(fnmatch.fnmatch(r.name.lower(), f"{p}*" if r.extra else f"*{p}*") for p in asked)]  # fmt: skip
        if not chosen:
            raise SystemExit(f"operators.py: --rows {' '.join(patterns)}: no such row; see --list")
        return chosen
    return [r for r in table if not r.extra and (r.quick or not quick)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the rows that stand for the others, fewer rounds")
    parser.add_argument(
        "--rows", nargs="+", metavar="NAME", help="rows whose name contains this (* and ? as in a shell)"
    )
    parser.add_argument("--peers", nargs="+", choices=PEERS, metavar="PEER", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1), help="of each peer (default 2)")
    parser.add_argument("--simd", choices=SIMD, default="best", help="hold all but ONNX Runtime, which cannot be")
    parser.add_argument(
        "--rounds",
        type=int,
        help=f"turns of every peer in a row (default {FULL.rounds}, fewer where all rows would take more than "
        f"{FULL.whole:.0f} s; --quick {QUICK.rounds})",
    )
    parser.add_argument("--install", action="store_true", help="install the peers that are missing")
    parser.add_argument("--list", action="store_true", help="name the rows and stop")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures")
    parser.add_argument("--markdown", type=pathlib.Path, help="write the table")
    parser.add_argument("--plot", type=pathlib.Path, help="write the picture: FILE.svg or FILE.png")
    args = parser.parse_args()
    for file in filter(None, (args.json, args.markdown, args.plot)):  # now, not after minutes
        if not file.parent.is_dir():
            parser.error(f"{file}: there is no folder {file.parent}")
    if args.plot and args.plot.suffix not in (".svg", ".png"):
        parser.error(f"--plot: must end in .svg or .png, got {args.plot}")
    if args.threads < 1 or (args.rounds or 1) < 1:
        parser.error("--threads and --rounds: must be at least 1")
    chosen = choose(args.rows, args.quick)
    if args.list:
        print("\n".join(r.name for r in chosen))
        return 0
    pythons = environments.find(args.peers or PEERS, args.install)
    effort = QUICK if args.quick else FULL
    if args.rounds:
        effort = replace(effort, rounds=args.rounds, whole=math.inf)
    os.environ |= SIMD[args.simd]
    result = {"machine": machine.describe(args.threads), "threads": args.threads, "rounds": effort.rounds, "peers": {},
              "rows": {}, "ratios": {}}  # fmt: skip
    with open(os.environ.get("OPGRAFT_BENCH_LOG", os.devnull), "w") as log:
        peers = [Peer(name, python, args.threads, args.simd, log) for name, python in pythons.items() if python]
        # What is measured survives whatever comes later.
        finished = measure(chosen, peers, effort, result, lambda: write(result, args.json, args.markdown, False))
    if finished:
        result["machine"] = machine.describe(args.threads, result["machine"])
    write(result, args.json, args.markdown, True)
    print(report.text(result))
    if args.plot and result["rows"]:
        environments.plot(result, args.plot, args.install)
    void = [n for n, r in result["rows"].items() if "min" not in r["figures"].get("opgraft", {"min": 0})]
    if void:
        print(f"operators.py: opgraft has no figure for {', '.join(void)}", file=sys.stderr)
    return INTERRUPTED if not finished else 1 if void else 0


if __name__ == "__main__":
    sys.exit(main())
