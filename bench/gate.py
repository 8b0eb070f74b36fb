"""The performance gate.

gate.py --small     rows of bench/rows beside their scalar twins and NumPy, one thread each, by the benchmark's own
                    controller; fails where all ratios of a row are above their bounds in bench/gate.json in three
                    measurements (a slower operator moves all of them, a peer that had a bad moment its own)
gate.py OLD NEW     compares two result files of `./build.sh bench`, of one machine, by the ratios (our time / a peer's,
                    smaller is better) within each; fails where a row's grew by more than 10 %, or where a row of OLD
                    is not in NEW (with --common it may be missing: one of the files has fewer rows on purpose)

Exit code: 0 passed, 1 slower, 2 a file that cannot be compared.
"""

import argparse
import contextlib
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of this process; the peers are told theirs
LIMIT = 1.10
BOUNDS = pathlib.Path(__file__).with_name("gate.json")
# What --write allows beyond the ratio that it measured: machines of one instruction set and vendor differ by less.
MARGIN = 1.6
VENDOR = "AuthenticAMD"  # whose bounds all others have that have none of their own
ATTEMPTS = 3
SMALL = [
    "VectorAdd 1M", "SwiGLU 1x11008", "SwiGLU 128x11008", "GeLU tanh 512x3072", "GeLU tanh backward 1x4096",
    "RMSNorm 1x4096", "LayerNorm 1x512x1024", "LayerNorm backward 512x1024", "Softmax 12x128x128",
    "RoPE half decode 32x128", "Sepia 4x3x224x224", "Attention decode 32/8 heads, 1024 cached", "MatMul 512",
    "MatMul int8 512", "Conv+BN+ReLU 3x3 1x64x56x56", "Depthwise+BN+ReLU6 3x3 1x96x56x56",
    "MaxPool 3x3 s2 1x64x112x112", "Transpose 0213 8x128x12x32", "Quantise 512x4096 to int8, per tensor",
]  # fmt: skip


class Unusable(Exception):
    pass


def read(file):
    """A result file's JSON object, its "ratios" checked."""
    try:
        result = json.loads(pathlib.Path(file).read_text())
    except (OSError, ValueError) as e:
        raise Unusable(f"{file}: {e}") from None
    ratios = result.get("ratios") if isinstance(result, dict) else None
    if not isinstance(ratios, dict):
        raise Unusable(f'{file}: must be an object with "ratios"')
    for name, ratio in ratios.items():
        if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 < ratio < math.inf:
            raise Unusable(f"{file}: the ratio of {name!r} must be a positive number, got {ratio!r}")
    rows = result.setdefault("rows", {})
    if not isinstance(rows, dict) or not all(isinstance(r, dict) and isinstance(r.get("figures"), dict)
                                             for r in rows.values()):  # fmt: skip
        raise Unusable(f'{file}: "rows" must be an object of objects with "figures"')
    return result


def compare(old, new, common=False):
    """A row is slower where its ratios to the peers that both files have grew by more than LIMIT in the median: a peer
    that had a bad moment moves one ratio, we move all. A row without a figure of ours in `new` alone is slower, too;
    so is one that is not there, unless `common`."""
    shared, rows = old["ratios"].keys() & new["ratios"].keys(), {}
    for name in old["ratios"]:  # in the file's order
        if name in shared:
            row, _, peer = name.rpartition(" / ")
            rows.setdefault(row, {})[peer] = new["ratios"][name] / old["ratios"][name]
    if not rows:
        raise Unusable("the two files share no ratio")
    worse = 0
    for row, grown in rows.items():
        factor = statistics.median(grown.values())
        worse += factor > LIMIT
        print(f"{row:46} x{factor:.2f}{'  REGRESSION' if factor > LIMIT else ''}"
              f"  ({', '.join(f'{p} {g:.2f}' for p, g in grown.items())})")  # fmt: skip
    for row in void(new) - void(old):
        worse += 1
        print(f"{row:46} VOID: {new['rows'][row]['figures']['opgraft']}")
    for ours, theirs, where in ((old, new, "OLD"), (new, old, "NEW")):
        only = {n.rpartition(" / ")[0] for n in ours["ratios"]} - rows.keys() - void(theirs)
        if only:
            print(f"only in {where}: {', '.join(sorted(only))}")
            worse += where == "OLD" and not common
    return 1 if worse else 0


def void(result):
    """Rows that were measured, but in which opgraft has no time."""
    return {n for n, r in result["rows"].items() if "min" not in r["figures"].get("opgraft", {"min": 0})}


@contextlib.contextmanager
def peers(names):
    import operators

    # NumPy has no more than what OPGRAFT_SIMD leaves to us.
    simd, log = os.environ.get("OPGRAFT_SIMD"), subprocess.DEVNULL
    simd = simd if simd in operators.SIMD else "best"
    started = [operators.Peer(name, sys.executable, 1, simd, log) for name in names]
    try:
        yield started
    finally:
        for peer in started:
            peer.close()


def ratios_of(row, running, folder):
    """{"row / peer": ratio}; raises where a figure is void."""
    import operators

    effort = operators.Effort(rounds=6, turn=0.015, peer=0.3, row=2.0, patience=0.3)
    figures, _ = operators.measure_row(row, running, folder, effort)
    for peer, f in figures.items():
        if "wrong" in f or (peer == "opgraft" and "missing" in f):
            raise Unusable(f"{row.name}, {peer}: {f}")
    return {f"{row.name} / {p}": figures["opgraft"]["min"] / f["min"] for p, f in figures.items()
            if p != "opgraft" and "min" in f}  # fmt: skip


def small(names, out=None, write=False):
    import machine
    from rows import rows

    simd = machine.simd()
    stored = json.loads(BOUNDS.read_text()) if BOUNDS.exists() else {}
    own = simd if machine.vendor() == VENDOR else f"{simd} {machine.vendor()}"
    bounds = stored.get(simd, {}) | stored.get(own, {})
    if (kin := f"{simd} {machine.vendor()} {machine.family()}") in stored:  # a family that differs from its vendor's
        own, bounds = kin, bounds | stored[kin]
    table = {r.name: r for r in rows()}
    found, slow = {}, []
    print(f"{own}, one thread; time / the peer's (at most)")
    with tempfile.TemporaryDirectory() as folder, peers(["opgraft", "twin", "numpy"]) as running:
        for name in names:
            best = {}
            for _ in range(ATTEMPTS):
                got = ratios_of(table[name], running, folder)
                best = {k: min(v, best.get(k, v)) for k, v in got.items()}
                missing = best.keys() - bounds.keys()
                if missing and not write:
                    raise Unusable(f"{BOUNDS.name} has no bound for {', '.join(sorted(missing))} with {simd}")
                above = not write and all(v > bounds[k] for k, v in best.items())
                if not above and not write:
                    break
            found |= best
            slow += [name] if above else []
            text = ", ".join(f"{k.rpartition(' / ')[2]} {v:.3g} ({bounds.get(k, 0):.3g})" for k, v in best.items())
            print(f"{name:46} {text}{'  TOO SLOW' if above else ''}", flush=True)
    if out:
        pathlib.Path(out).write_text(json.dumps({"ratios": found}, indent=2) + "\n")
    if write:
        stored[own] = stored.get(own, {}) | {k: float(f"{MARGIN * v:.2g}") for k, v in found.items()}
        BOUNDS.write_text(json.dumps(stored, indent=2, sort_keys=True) + "\n")
        return 0
    return 1 if slow else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--common", action="store_true", help="OLD NEW: compare only the rows that both have")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--rows", nargs="+", choices=SMALL, metavar="ROW", default=SMALL, help="some rows of --small")
    parser.add_argument("--write", action="store_true", help=f"--small: bounds become {MARGIN} times what is measured")
    parser.add_argument("--out", help="--small: write the ratios as JSON")
    args = parser.parse_args()
    if bool(args.small) == bool(args.files) or (args.files and len(args.files) != 2):
        parser.error("give OLD and NEW, or --small")
    try:
        return small(args.rows, args.out, args.write) if args.small else compare(*map(read, args.files), args.common)
    except Unusable as e:
        print(f"gate.py: {e}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
