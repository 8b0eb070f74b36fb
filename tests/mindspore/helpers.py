"""What the tests beside it share: operators compiled from kernels.cc, and how results are compared."""

import pathlib
import subprocess

import numpy as np
import opgraft

HERE = pathlib.Path(__file__).resolve().parent
INCLUDE = pathlib.Path(opgraft.__file__).resolve().parents[2] / "include" / "opgraft"


def compile_kernels(folder, abi=0):
    """kernels.cc as a shared object of the old (0) or the new (1) std::string; its path."""
    so = str(pathlib.Path(folder) / f"kernels{abi}.so")
    flags = ["-O2", "-std=c++17", "-shared", "-fPIC", f"-D_GLIBCXX_USE_CXX11_ABI={abi}", f"-I{INCLUDE}"]
    subprocess.run(["g++", *flags, str(HERE / "kernels.cc"), "-o", so], check=True)
    return so


def close(got, want, rtol=1e-5):
    """Two float32 implementations of one model: |got - want| <= rtol of the element and of the largest one.

    1e-5 is 168 roundings of 2^-24. The longest way through the models here, a LLaMA block, has sums of 32 to 64 terms
    in seven products one after another; their roundings partly cancel. 1e-2 for float16 is 20
    roundings of 2^-11: every node of the plain side rounds its result to it.
    """
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * np.abs(want).max())
