"""Two threads against one, over all sizes: no kernel may be slower on two, also while another process takes a core.

Each operator runs at sizes from a few elements to far beyond the caches, one and two threads in turn in one process;
with --rows it is the rows of bench/rows, with --cases those of the operators' case tables that are slow enough to be
shared and have anything to share. A figure is the time of two threads over that of one: 0.5 is a full gain, 1 none.
With --neighbour a process that never sleeps takes a core meanwhile: there 1 is what is left, and a pool that waits for
its share of the lost core shows more. Beside what is slower stands what two threads are of one on GeLU at that time:
two virtual cores may be one real one for a while. With a neighbour all three threads have two cores, however many the
machine has.
Exits with 1 where a figure is above --limit in a first and in a second measurement, and in a third when all others are
through.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import numpy as np
import timing
from opgraft import _core

LIMIT = 1.10
LEARNING = 20e-3  # seconds
SHARED = 2e-6  # seconds: a shorter call is never shared between threads, and is mostly Python
FEW = 64  # elements of all tensors: there is nothing to share, however long the call takes
SIZES = [2**k for k in range(8, 24, 1)]  # elements of the first input


def normal(*shape):
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def rows_of(width):
    return lambda n: (max(1, n // width), min(n, width))


def square(n):
    side = max(4, int(round(n**0.5)))
    return side, side


def image(n):
    side = max(4, int((n / 32) ** 0.5))
    return 1, 32, side, side


# (operator, attributes, the shape of n elements, further inputs for that shape)
SWEEP = [
    ("Add", {}, lambda n: (n,), lambda s: [normal(*s)]),
    ("FusedGeLU", {"approximate": "tanh"}, lambda n: (n,), lambda s: []),
    ("SwiGLU", {}, lambda n: (n,), lambda s: [normal(*s)]),
    ("Softmax", {}, rows_of(128), lambda s: []),
    ("FusedLayerNorm", {}, rows_of(1024), lambda s: [normal(s[1]), normal(s[1])]),
    ("ReduceSum", {"axis": [0]}, rows_of(512), lambda s: []),
    ("Transpose", {"perm": [1, 0]}, square, lambda s: []),
    ("MatMul", {}, square, lambda s: [normal(*s)]),
    ("Dense", {}, rows_of(512), lambda s: [normal(512, s[1]), normal(512)]),
    ("Conv2D", {"out_channel": 32, "kernel_size": [3, 3], "pad_mode": "same"}, image, lambda s: [normal(32, 32, 3, 3)]),
    ("MaxPool", {"kernel_size": [3, 3], "strides": [1, 1], "pad_mode": "SAME"}, image, lambda s: []),
    ("ScaledDotProductAttention", {}, lambda n: (1, 8, max(1, n // 512), 64), lambda s: [normal(*s), normal(*s)]),
]
MOST = {"MatMul": 2**21, "ScaledDotProductAttention": 2**20, "Dense": 2**21, "Conv2D": 2**21}  # what is quadratic


@contextlib.contextmanager
def neighbour(wanted):
    """A process that takes a whole core while the block runs: one of the two that this process has from now on."""
    if wanted:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])  # the process that it starts has no others
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if wanted else None
    try:
        time.sleep(0.2 if wanted else 0)
        yield
    finally:
        if process:
            process.kill()
            process.wait()


def measure(call, rounds, seconds):
    """Seconds of a call with one and with two threads: medians of turns. The pool is first given some calls in which it
    finds out whether sharing this loop is worth its cost here; that may take 100 us a call where a thread wakes slowly.
    """
    _core.set_threads(2)
    end = time.perf_counter() + LEARNING
    while time.perf_counter() < end:
        call()
    found = timing.interleaved({1: call, 2: call}, rounds, seconds, before=_core.set_threads)
    return statistics.median(found[1]), statistics.median(found[2])


def caller(op, inputs, attrs, least=0):
    """A call of the operator into outputs made before; None where all tensors have fewer than `least` elements."""
    outputs = [np.empty_like(a) for a in _core.run_op(op, inputs, attrs)]
    if sum(a.size for a in [*inputs, *outputs]) < least:
        return None
    return lambda: _core.run_into(op, inputs, outputs, attrs)


def at_sizes(names, sizes):
    for name, attrs, shape_of, others in SWEEP:
        for size in sizes if name in names else ():
            if size <= MOST.get(name, size):
                shape = shape_of(size)
                yield (
                    name,
                    f"2^{size.bit_length() - 1}",
                    caller(_core.resolve(name), [normal(*shape), *others(shape)], attrs),
                )


def of_rows(patterns):
    from operators import choose
    from peers import opgraft_peer

    for row in choose(patterns, False):
        yield "", row.name, opgraft_peer.build(row, *row.arrays(), 2)[0]


def of_cases():
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "python"))
    from conftest import make_input, tables

    for folder, module in tables():
        for k, case in enumerate(module.CASES):
            inputs = [make_input(s, i) for i, s in enumerate(case["inputs"])]
            call = caller(_core.resolve(case["op"]), inputs, case.get("attrs", {}), FEW)
            if call and timing.once(call) > SHARED:
                yield "", f"{case['op']}, case {k} of {folder}", call


def sweep(calls, rounds, seconds, limit):
    """(operator, what, the call, seconds with one thread, with two, what two threads are of one on GeLU) of each call;
    the last where it is slower."""
    gelu = caller(_core.resolve("FusedGeLU"), [normal(2**20)], {})
    for name, what, call in calls:
        one, two = measure(call, rounds, seconds)
        if two > limit * one:  # noise, or a pool that tries whether sharing pays? once more, longer
            one, two = measure(call, 2 * rounds, 10 * seconds)
        alone, both = measure(gelu, rounds, seconds) if two > limit * one else (1, 0)
        yield name, what, call, one, two, both / alone


def again(slower, rounds, seconds, limit):
    """Of (name, what was found, its call): {name: that with what it is now} of what is slower still and of what was so
    for a while."""
    still, passed = {}, {}
    for name, what, call in slower:
        one, two = measure(call, 2 * rounds, 10 * seconds)
        (still if two > limit * one else passed)[name] = f"{what}; at the end {two / one:.2f}"
    return still, passed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [s[0] for s in SWEEP]
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--ops", nargs="+", choices=known, metavar="OP", default=known, help=f"of {', '.join(known)}")
    what.add_argument("--rows", nargs="*", metavar="NAME", help="rows of bench/rows whose name contains this, or all")
    what.add_argument("--cases", action="store_true", help="the case tables (needs requirements-dev.txt)")
    parser.add_argument("--neighbour", action="store_true", help="while another process takes a core")
    parser.add_argument("--quick", action="store_true", help="every third size, fewer rounds")
    parser.add_argument("--limit", type=float, default=LIMIT, help="most time of two threads over one (default 1.10)")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures")
    args = parser.parse_args()
    sizes = SIZES[::3] if args.quick else SIZES
    print("time of two threads / one" + (", a neighbour on one core" if args.neighbour else ""))
    table = args.rows is None and not args.cases
    if table:
        calls = at_sizes(args.ops, sizes)
        print(f"{'operator':26}" + "".join(f"{'2^' + str(n.bit_length() - 1):>7}" for n in sizes), end="")
    else:
        calls = of_cases() if args.cases else of_rows(args.rows)
    figures, slower, last = {}, [], None
    # A neighbour's turns last milliseconds: longer samples see their mean.
    rounds, seconds = (3 if args.quick else 7), (1e-2 if args.neighbour else 2e-3)
    with neighbour(args.neighbour):
        for name, size, call, one, two, machine in sweep(calls, rounds, seconds, args.limit):
            mark = "*" if two > args.limit * one else " "
            if not table:
                print(f"{two / one:6.2f}{mark} {size}", end="\n", flush=True)
            else:
                print(f"{'' if name == last else f'{chr(10)}{name:26}'}{two / one:6.2f}{mark}", end="", flush=True)
            last = name
            full = f"{name} {size}".strip()
            figures[full] = {"one": one, "two": two}
            if mark == "*":
                times = f"{one * 1e6:.1f} -> {two * 1e6:.1f} us; GeLU {machine:.2f}"
                slower.append((full, f"{full}: {two / one:.2f} ({times})", call))
        slower, passed = again(slower, rounds, seconds, args.limit)
    print()
    _core.set_threads(0)
    if args.json:
        found = {"limit": args.limit, "slower": [*slower], "slower_for_a_while": [*passed], "seconds": figures}
        args.json.write_text(json.dumps(found, indent=2) + "\n")
    for title, found in (("for a while, not when all others were through", passed), ("each time", slower)):
        if found:
            what = "\n  ".join(found.values())
            print(f"\nslower on two threads than {args.limit:g} times one (*), {title}:\n  {what}")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
