"""The performance gate. `gate.py OLD NEW` compares {"name": seconds} files; `gate.py --small` measures in one run."""

import argparse
import json
import statistics
import sys
import time

LIMIT = 1.10  # slower than this is a regression


def interleaved(first, second, rounds=30, repeat=20):
    """Medians of seconds per call of two functions, run in turn."""
    times = ([], [])
    for _ in range(rounds):
        for f, out in zip((first, second), times, strict=True):
            start = time.perf_counter()
            for _ in range(repeat):
                f()
            out.append((time.perf_counter() - start) / repeat)
    return tuple(map(statistics.median, times))


def compare(old, new):
    shared = sorted(old.keys() & new.keys())
    if not shared:
        print("gate: the two files share no name", file=sys.stderr)
        return 1
    worse = [n for n in shared if new[n] > LIMIT * old[n]]
    for n in shared:
        print(f"{n:32} {old[n]:.3e} -> {new[n]:.3e} s  x{new[n] / old[n]:.2f}{'  REGRESSION' if n in worse else ''}")
    return 1 if worse else 0


def small(out):
    import numpy as np
    from opgraft import Tensor, ops

    x, gate = np.random.default_rng(0).standard_normal((2, 256, 1024)).astype(np.float32)
    tx, tg, swiglu = Tensor(x), Tensor(gate), ops.Custom.from_op("SwiGLU")
    ours, theirs = interleaved(lambda: swiglu(tx, tg), lambda: x * gate / (1 + np.exp(-gate)))
    print(f"SwiGLU 256x1024: {ours:.3e} s, NumPy {theirs:.3e} s")
    if out:
        with open(out, "w") as f:
            json.dump({"swiglu": ours, "swiglu_numpy": theirs}, f)
    return 1 if ours > LIMIT * theirs else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out")
    a = parser.parse_args()
    if a.small:
        sys.exit(small(a.out))
    if len(a.files) != 2:
        parser.error("give OLD and NEW, or --small")
    sys.exit(compare(*(json.load(open(f)) for f in a.files)))
