"""One peer: builds, checks and times rows as the lines on standard input say (bench/operators.py writes them).

Each line is a JSON object, and is answered by one:
  {"do": "version"} -> {"version": V}
  {"do": "build", "row": NAME, "data": FILE.npz, "patience": S} -> {"once": seconds of a call}, {"missing": why} or
      {"wrong": how}; the call is the second, but the first where that is WARM and took longer than "patience"
  {"do": "time", "row": NAME, "seconds": S} -> {"seconds": [of one call, ...], "threads": that worked}
  {"do": "drop", "row": NAME} -> {}
"""

import argparse
import gc
import importlib
import pathlib
import time

import serving

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("peer")
parser.add_argument("--threads", type=int, default=2)
args = parser.parse_args()
answers = serving.begin()

import numpy as np  # noqa: E402
from peers import PEERS, Missing  # noqa: E402
from rows import load, rows  # noqa: E402

peer = importlib.import_module(f"peers.{PEERS[args.peer][2]}")
table, built = {r.name: r for r in rows()}, {}


def difference(row, got, want, whole=True):
    """None where all outputs agree with the expected ones, or with the first rows of them, else in words by how much
    they do not."""
    if len(got) < len(want):
        return f"{len(got)} outputs, expected {len(want)}"
    for k, (g, w) in enumerate(zip(got, want)):
        g = np.asarray(g).astype(np.float64)
        w = w if whole else w[: g.shape[0]]
        if g.shape != w.shape:
            return f"output {k} has shape {g.shape}, expected {w.shape}"
        with np.errstate(all="ignore"):
            # NaN is never within the bound.
            bad = ~((np.abs(g - w) <= row.atol + row.rtol * np.abs(w)) | (g == w))
        if bad.any():
            at = np.unravel_index(np.argmax(np.where(bad, np.abs(g - w), -1)), w.shape)
            return (f"output {k} differs in {bad.sum()} of {bad.size} elements, worst {g[at]:.9g} for {w[at]:.9g} "
                    f"(rtol {row.rtol:.2g}, atol {row.atol:.2g})")  # fmt: skip
    return None


def timed(run):
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def build(row, file, patience):
    inputs, weights, want = load(file)
    run, fetch = peer.build(row, inputs, weights, args.threads)
    first = timed(run)
    if (wrong := difference(row, fetch(), want, share(run) == 1)) is not None:
        return {"wrong": wrong}
    built[row.name] = run, fetch  # fetch holds what the run borrows
    once = first if first > patience and getattr(peer, "WARM", False) else timed(run)
    return {"once": once, "whole": once / share(run)}


def share(run):
    """How much of the row a call computes."""
    return getattr(run, "share", 1)


def measure(run, seconds):
    """Seconds of a call that computes the whole row: the means of batches of about a millisecond, over `seconds`,
    after a batch that is not counted. What takes longer than `seconds` is called once."""
    once = timed(run)
    if once > seconds:
        return [once / share(run)]
    batch = max(1, min(10_000, int(1e-3 / max(once, 1e-7))))
    found, end = [], time.perf_counter() + seconds
    for _ in range(batch if batch > 1 else 0):
        run()
    while not found or time.perf_counter() < end:
        begin = time.perf_counter()
        for _ in range(batch):
            run()
        found.append((time.perf_counter() - begin) / batch / share(run))
    return found


def used():
    """{thread: nanoseconds that it has run}, of this process."""
    found = {}
    for task in pathlib.Path("/proc/self/task").iterdir():
        try:
            found[task.name] = int((task / "schedstat").read_text().split()[0])
        except OSError:  # it ended
            pass
    return found


def turn(run, seconds):
    """The seconds of a call, and how many threads worked for it: a tenth of the busiest one's time or more."""
    before = used()
    found = measure(run, seconds)
    took = [ns - before.get(thread, 0) for thread, ns in used().items()]
    return {"seconds": found, "threads": sum(ns >= max(took) / 10 for ns in took)}


def collect():
    """Frees what the row left behind. What outlives it is the framework's: it is not looked through again."""
    gc.collect()
    gc.freeze()


def handle(task):
    row = table.get(task.get("row"))
    if task["do"] == "version":
        return {"version": peer.VERSION()}
    if task["do"] == "build":
        return build(row, task["data"], task["patience"])
    if task["do"] == "time":
        return turn(built[row.name][0], task["seconds"])
    built.pop(row.name, None)
    collect()
    return {}


collect()
serving.serve(answers, handle, Missing)
