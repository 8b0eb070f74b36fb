"""The SIMD targets of include/opgraft/simd_target.h that the machine has; a test file under another than in force."""

import os
import pathlib
import subprocess
import sys

import pytest

# What the CPU must have for them.
AVX2 = {"avx2", "fma", "f16c", "bmi1", "bmi2"}
AVX3 = AVX2 | {f"avx512{x}" for x in ("f", "bw", "dq", "vl", "cd")}
AMX = AVX3 | {"avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16"}
TARGETS = {"SSE4": {"sse4_2"}, "AVX2": AVX2, "AVX3": AVX3, "AMX": AMX}


def machine_flags():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return set(line.split()[2:])
    return set()


def machine_targets():
    flags = machine_flags()
    return [name for name, needs in TARGETS.items() if needs <= flags]


IN_FORCE = os.environ.get("OPGRAFT_SIMD") or (machine_targets() or [None])[-1]  # what this process runs
VNNI = IN_FORCE in ("AVX3", "AMX") and "avx512_vnni" in machine_flags()  # bytes are multiplied four at a time
ONE = "OPGRAFT_ONE_TARGET" in os.environ  # as a build of that CMake option has
OTHERS = [] if ONE else [t for t in machine_targets() if t != IN_FORCE]
every_other_target = pytest.mark.parametrize("target", OTHERS)


def differs_in_products(target):
    """Whether the target has the kernels of the one in force but for products of bfloat16 and of bytes."""
    return {target, IN_FORCE} == {"AVX3", "AMX"}


# For operators without such products.
every_other_kernel = pytest.mark.parametrize("target", [t for t in OTHERS if not differs_in_products(t)])


def held_to(target):
    """The environment of a process that is held to the target, with the package that is imported here."""
    return os.environ | {"OPGRAFT_SIMD": target, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def run_again(file, target, select="not every"):
    """What `select` (pytest's -k) names of a test file, in a process that is held to the target: the choice is made
    once a process. Returns what pytest wrote, after all have passed."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", "-k", select, file]
    done = subprocess.run(command, env=held_to(target), stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    return done.stdout
