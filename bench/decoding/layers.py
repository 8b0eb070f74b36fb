"""The layer of LLaMA-2-7B's shapes and its parts (bench/rows/llama.py): plain, grafted, torch eager."""

from dataclasses import replace

import environments
import operators
import opgraft
import report
from opgraft import _core
from peers import AGAINST
from rows.llama import NAME, ROWS

from . import parts

PEERS = ["opgraft", "torch"]
# A layer reads 0.8 GB: turns of a few calls, and enough of them to meet quiet moments.
EFFORT = replace(operators.FULL, turn=0.1, peer=4.0, row=12.0)


def measure(threads, simd, install, log):
    """({"rows", "shares", ...}, False where it was interrupted)"""
    result = {"threads": threads, "rounds": EFFORT.rounds, "peers": {}, "rows": {}, "ratios": {}}
    pythons = environments.find(PEERS, install)
    peers = [operators.Peer(n, p, threads, simd, log) for n, p in pythons.items() if p]
    finished = operators.measure([r for r in ROWS if r.against], peers, EFFORT, result)
    if finished:
        _core.set_threads(threads)
        try:
            result["shares"] = {r.name: profile(r) for r in ROWS if "layer" in r.name}
        except KeyboardInterrupt:
            finished = False
    return result, finished


def profile(row, runs=5):
    """The operators' time in one call."""
    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    inputs, _ = row.arrays()
    session = row.cell(opgraft).session(*(opgraft.Tensor(a) for a in inputs))
    return parts.profile(session, inputs, runs)


def tables(result):
    """Markdown, of what `measure` found."""
    lines = []
    for name, row in result["rows"].items():
        figures = [row["figures"].get(p, {}) for p in (AGAINST, "opgraft", "torch")]
        times = [f.get("min") for f in figures]
        words = [report.duration(t) if t else "wrong" if "wrong" in f else "-" for t, f in zip(times, figures)]
        saved = [f"{100 * (times[1] / t - 1):+.1f} %" if times[1] and t else "-" for t in (times[0], times[2])]
        lines.append([name.removeprefix(f"{NAME} "), *words, *saved])
    header = [NAME, "plain", "grafted", "torch eager", "time against plain", "time against torch"]
    found = [report.table(header, lines)] if lines else []
    notes = [f"- {n}: {p}: {f.get('wrong') or f.get('missing')}" for n, r in result["rows"].items()
             for p, f in r["figures"].items() if "wrong" in f or "missing" in f]  # fmt: skip
    return found + (["No figure:\n\n" + "\n".join(notes)] if notes else [])
