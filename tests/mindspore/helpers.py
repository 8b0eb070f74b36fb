"""What the tests beside it share: operators compiled from sources, and how results are compared."""

import pathlib
import subprocess

import numpy as np
import opgraft

HERE = pathlib.Path(__file__).resolve().parent
INCLUDE = pathlib.Path(opgraft.__file__).resolve().parents[2] / "include" / "opgraft"


# How a user may build an operator: the first as MindSpore needs it, all for opgraft.
BUILDS = {
    "old std::string": ["-D_GLIBCXX_USE_CXX11_ABI=0"],
    "new std::string": ["-D_GLIBCXX_USE_CXX11_ABI=1"],
    "old, static libstdc++": ["-D_GLIBCXX_USE_CXX11_ABI=0", "-static-libstdc++"],
    "new, static libstdc++": ["-D_GLIBCXX_USE_CXX11_ABI=1", "-static-libstdc++"],
}


def compile_so(source, so, *flags):
    """A source as a shared object; its path."""
    always = ["-O2", "-std=c++17", "-shared", "-fPIC", f"-I{INCLUDE}"]
    subprocess.run(["g++", *always, *flags, str(source), "-o", str(so)], check=True)
    return str(so)


def compile_kernels(folder, build="old std::string", name="kernels"):
    """kernels.cc, or the file of that name beside it; its path."""
    return compile_so(HERE / f"{name}.cc", pathlib.Path(folder) / f"{name}.so", *BUILDS[build])


def close(got, want, rtol=1e-5):
    """Two float32 implementations of one model: |got - want| <= rtol of the element and of the largest one.

    1e-5 is 168 roundings of 2^-24. The longest way through the models here, a LLaMA block, has sums of 32 to 64 terms
    in seven products one after another; their roundings partly cancel. 1e-2 for float16 is 20
    roundings of 2^-11: every node of the plain side rounds its result to it.
    """
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * np.abs(want).max())
