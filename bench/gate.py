"""The performance gate.

gate.py --small     kernels against their scalar twins and NumPy, in turn, one thread; fails below the floors
gate.py OLD NEW     compares the "ratios" of two result files of `./build.sh bench`, of one machine; fails where a
                    ratio (our time / the peer's, smaller is better) grew by more than 10 %
"""

import argparse
import json
import os
import statistics
import sys
import time

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # read when NumPy is imported
LIMIT = 1.10
# A kernel is at least this many times as fast as its scalar twin: SSE4 has four lanes of float32, and what streams
# from memory gains less.
TWIN_FLOOR = 1.5


def interleaved(*functions, rounds=30, seconds=2e-3):
    """Median seconds per call of each function; they run in turn, a turn about `seconds` long."""
    calls = []
    for f in functions:
        f()
        start = time.perf_counter()
        f()
        calls.append(max(1, int(seconds / max(time.perf_counter() - start, 1e-9))))
    times = [[] for _ in functions]
    for _ in range(rounds):
        for f, n, out in zip(functions, calls, times):
            start = time.perf_counter()
            for _ in range(n):
                f()
            out.append((time.perf_counter() - start) / n)
    return [statistics.median(t) for t in times]


def compare(old, new):
    old, new = old["ratios"], new["ratios"]
    shared = sorted(old.keys() & new.keys())
    if not shared:
        print("gate: the two files share no ratio", file=sys.stderr)
        return 1
    worse = [n for n in shared if new[n] > LIMIT * old[n]]
    for n in shared:
        print(f"{n:40} {old[n]:8.3f} -> {new[n]:8.3f}  x{new[n] / old[n]:.2f}{'  REGRESSION' if n in worse else ''}")
    return 1 if worse else 0


def kernels():
    """(name, op, attributes, inputs, the formula in NumPy, tolerance): tensors of MiniLM's, LLaMA's, ResNet's and
    MobileNet's sizes."""
    import numpy as np

    rng = np.random.default_rng(0)

    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    def layer_norm(x, gamma, beta):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + np.float32(1e-5)) * gamma + beta

    def softmax(x):
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    def gelu_tanh(x):
        return np.float32(0.5) * x * (1 + np.tanh(np.float32(0.7978845608) * (x + np.float32(0.044715) * x * x * x)))

    def windows(x):  # 3 x 3 with a padding of 1: (n, c, h, w, 3, 3)
        x = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        return np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))

    def conv(x, weight):  # columns, and a product of matrices
        (n, _, h, w), o = x.shape, len(weight)
        columns = windows(x).transpose(0, 2, 3, 1, 4, 5).reshape(n * h * w, -1)
        return np.ascontiguousarray((columns @ weight.reshape(o, -1).T).reshape(n, h, w, o).transpose(0, 3, 1, 2))

    def depthwise(x, weight):
        return np.einsum("nchwij,cij->nchw", windows(x), weight[:, 0])

    same = {"kernel_size": [3, 3], "pad_mode": "same"}
    pool = {"kernel_size": [3, 3], "strides": [1, 1], "pad_mode": "SAME"}
    return [
        ("Conv2D 64x14x14 3x3", "Conv2D", same | {"out_channel": 32},
         [normal(1, 64, 14, 14), normal(32, 64, 3, 3)], conv, 1e-3),
        ("Conv2D depthwise 96x28", "Conv2D", same | {"out_channel": 96, "group": 96},
         [normal(1, 96, 28, 28), normal(96, 1, 3, 3)], depthwise, 1e-4),
        ("MaxPool 16x28x28 3x3", "MaxPool", pool, [np.abs(normal(1, 16, 28, 28))], lambda x: windows(x).max((4, 5)), 0),
        ("SwiGLU 128x2048", "SwiGLU", {}, normal(2, 128, 2048), lambda x, g: x * g / (1 + np.exp(-g)), 1e-5),
        ("Softmax 384x128", "Softmax", {}, [normal(384, 128)], softmax, 1e-6),
        ("FusedLayerNorm 256x384", "FusedLayerNorm", {"epsilon": 1e-5}, [normal(256, 384), normal(384), normal(384)],
         layer_norm, 1e-4),
        ("FusedGeLU tanh 256x1536", "FusedGeLU", {"approximate": "tanh"}, [normal(256, 1536)], gelu_tanh, 1e-5),
        ("MatMul 64x384x384", "MatMul", {}, [normal(64, 384), normal(384, 384)], lambda a, b: a @ b, 1e-3),
    ]  # fmt: skip


def small(out):
    import numpy as np
    from opgraft import _core

    _core.set_threads(1)
    ratios, failed = {}, []
    print(f"{'kernel':24} {'kernel us':>10} {'twin us':>10} {'NumPy us':>10} {'twin/kernel':>12} {'NumPy/kernel':>13}")
    for name, spec, attrs, inputs, formula, tolerance in kernels():
        op, inputs = _core.resolve(spec), list(inputs)
        want = formula(*inputs)
        got, twin = np.empty_like(want), np.empty_like(want)

        def ours():
            _core.run_into(op, inputs, [got], attrs)  # noqa: B023 - called in this round only

        def scalar():
            _core.run_reference_into(op, inputs, [twin], attrs)  # noqa: B023

        ours(), scalar()
        for y in (got, twin):
            np.testing.assert_allclose(y, want, rtol=tolerance, atol=tolerance, err_msg=name)
        k, s, n = interleaved(ours, scalar, lambda: formula(*inputs))  # noqa: B023
        ratios[f"{name} / twin"], ratios[f"{name} / NumPy"] = k / s, k / n
        slow = s / k < TWIN_FLOOR or (spec != "MatMul" and k > LIMIT * n)  # NumPy's MatMul is OpenBLAS: only shown
        if slow:
            failed.append(name)
        print(f"{name:24} {k * 1e6:10.1f} {s * 1e6:10.1f} {n * 1e6:10.1f} {s / k:12.2f} {n / k:13.2f}"
              f"{'  TOO SLOW' if slow else ''}")  # fmt: skip
    if out:
        with open(out, "w") as f:
            json.dump({"ratios": ratios}, f, indent=2)
    return 1 if failed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", help="write the ratios as JSON")
    a = parser.parse_args()
    if a.small:
        sys.exit(small(a.out))
    if len(a.files) != 2:
        parser.error("give OLD and NEW, or --small")
    sys.exit(compare(*(json.load(open(f)) for f in a.files)))
