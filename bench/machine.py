"""The machine a table was measured on, and its limits: bandwidth of a copy, rate of a matrix product."""

import os
import pathlib
import platform
import threading
import time

import numpy as np
from opgraft import _core


def _said(field):
    """What the kernel says of the first core, or nothing."""
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(field):
            return line.split(":", 1)[1].strip()
    return ""


def vendor():
    """Of the processor, such as AuthenticAMD."""
    return _said("vendor_id") or platform.machine()


def family():
    """Of the processor, a number: with AMD 25 is Zen 3 and 4, 26 Zen 5."""
    return _said("cpu family") or "0"


def simd():
    flags = set(_said("flags").split())
    best = "AVX-512" if "avx512f" in flags else "AVX2" if "avx2" in flags else "SSE4"
    return {"SSE4": "SSE4", "AVX2": "AVX2", "AVX3": "AVX-512"}.get(os.environ.get("OPGRAFT_SIMD"), best)


def _name():
    """Of the processor, with what a product of half or eight-bit numbers may use besides its vectors."""
    amx = "amx_tile" in _said("flags").split() and os.environ.get("OPGRAFT_SIMD") in (None, "", "AMX")
    return (_said("model name") or platform.machine()) + (" with AMX" if amx else "")


def copy_bandwidth(threads, megabytes=256, rounds=5):
    """Bytes per second, read and written, of `threads` threads that copy memory far beyond the caches."""
    size = megabytes * 2**20 // threads
    pairs = [(np.ones(size, np.uint8), np.zeros(size, np.uint8)) for _ in range(threads)]
    best = float("inf")
    for _ in range(rounds):
        best = min(best, _seconds([threading.Thread(target=np.copyto, args=(to, of)) for of, to in pairs]))
    return 2 * size * threads / best


def read_bandwidth(threads, megabytes=256, rounds=7):
    """Bytes per second of `threads` threads that only read: each the greatest of its numbers."""
    parts = [np.ones(megabytes * 2**20 // threads // 4, np.int32) for _ in range(threads)]
    best = min(_seconds([threading.Thread(target=np.max, args=(a,)) for a in parts]) for _ in range(rounds))
    return sum(a.nbytes for a in parts) / best


def gemm_peak(threads, n=2048, rounds=5):
    """float32 operations per second of the product of two n x n matrices: NumPy's (one part of the rows per thread) or
    opgraft's, whichever is faster."""
    a, b = np.ones((n, n), np.float32), np.ones((n, n), np.float32)
    c = np.empty_like(a)
    cuts = [n * k // threads for k in range(threads + 1)]
    op, best = _core.resolve("MatMul"), float("inf")
    for _ in range(2 * rounds):  # ours first: OpenBLAS's threads spin for a while
        begin = time.perf_counter()
        _core.run_into(op, [a, b], [c], {})
        best = min(best, time.perf_counter() - begin)
    for _ in range(rounds):
        running = [
            threading.Thread(target=np.matmul, args=(a[i:j], b), kwargs={"out": c[i:j]}) for i, j in zip(cuts, cuts[1:])
        ]
        best = min(best, _seconds(running))
    return 2.0 * n**3 / best


def _seconds(running):
    begin = time.perf_counter()
    for t in running:
        t.start()
    for t in running:
        t.join()
    return time.perf_counter() - begin


def describe(threads, before=None):
    """The limits are the best of those measured now and `before`: a busy neighbour only lowers them."""
    _core.set_threads(threads)
    found = {"copy_bandwidth": copy_bandwidth(threads), "gemm_peak": gemm_peak(threads)}
    best = {k: max(v, (before or {}).get(k, 0.0)) for k, v in found.items()}
    return {"cpu": _name(), "cores": os.cpu_count(), "simd": simd()} | best
