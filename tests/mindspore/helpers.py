"""What the tests beside it share: operators compiled from sources, and how results are compared."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import opgraft

HERE = pathlib.Path(__file__).resolve().parent
INCLUDE = pathlib.Path(opgraft.__file__).resolve().parents[2] / "include" / "opgraft"


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# Scores for a softmax, and where they are hidden: a row whole.
SCORES, GONE = normal(3, 5, 24), normal(5, 24, seed=1) > 0.5
GONE[2] = True


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


def compile_text(folder, text, *flags):
    """The same of a source's text, in the folder."""
    source = pathlib.Path(folder) / "op.cc"
    source.write_text(text)
    return compile_so(source, source.with_suffix(".so"), *flags)


def compile_kernels(folder, build="old std::string", name="kernels"):
    """kernels.cc, or the file of that name beside it; its path."""
    return compile_so(HERE / f"{name}.cc", pathlib.Path(folder) / f"{name}.so", *BUILDS[build])


def customs(mode, folder, *given, **env):
    """(exit code, lines, what else it wrote) of Customs, each a "FILE.so:Function" and attributes, in MindSpore, in a
    process of their own."""
    pairs = [text for func, attrs in given for text in (str(func), json.dumps(attrs))]
    command = [sys.executable, str(HERE / "run_customs.py"), mode, *pairs]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=os.environ | env, timeout=300)
    return done.returncode, done.stdout.splitlines(), done.stderr


def one_custom(mode, func, folder, attrs=None, **env):
    """The same of one, with its line or ""."""
    code, lines, log = customs(mode, folder, (func, attrs or {}), **env)
    return code, "".join(lines), log


def doctor(file, *more, **env):
    """(exit code, verdict) of opgraft doctor --host mindspore"""
    command = [sys.executable, "-m", "opgraft.cli", "doctor", "--host", "mindspore", *more, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | env)
    assert done.stderr == ""
    return done.returncode, done.stdout.strip().splitlines()[-1]


def optimize(*args, rc=0):
    """What `opgraft optimize` says on stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "opgraft", "optimize", *map(str, args)], capture_output=True, text=True
    )
    assert done.returncode == rc, done.stderr
    return done.stderr


def module_from(file):
    """A file of Python that no path leads to."""
    spec = importlib.util.spec_from_file_location(f"opgraft_{file.parent.name}_{file.stem}", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where MindSpore looks for the source of a Cell
    spec.loader.exec_module(module)
    return module


def cases(folder):
    """The case table of a folder under aot_ops."""
    return module_from(HERE.parents[1] / "aot_ops" / folder / "cases.py")


def close(got, want, rtol=1e-5):
    """Two float32 implementations of one model: |got - want| <= rtol of the element and of the largest one.

    1e-5 is 168 roundings of 2^-24. The longest way through the models here, a LLaMA block, has sums of 32 to 64 terms
    in seven products one after another; their roundings partly cancel. 1e-2 for float16 is 20
    roundings of 2^-11: every node of the plain side rounds its result to it.
    """
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * np.abs(want).max())


def taken(net, x, folder, op="ScaledDotProductAttention"):
    """MindSpore's result, that of the exported model of which one operator is left, and its attributes; written back to
    MindSpore as well it gives the same."""
    import mindspore as ms

    ms.set_context(mode=ms.GRAPH_MODE)
    tensors = [ms.Tensor(y) for y in x]
    want = net(*tensors).asnumpy()
    ms.export(net, *tensors, file_name=str(folder / "net"), file_format="MINDIR")
    graph = opgraft.load(folder / "net.mindir")
    opgraft.rewrite.substitute(graph, prove=x)
    assert [n["op"] for n in graph.nodes] == [op], str(graph)
    got = opgraft.nn.GraphCell(graph)(*map(opgraft.Tensor, x)).asnumpy()
    opgraft._core.write_mindir(graph, str(folder / "grafted.mindir"))
    np.testing.assert_array_equal(ms.nn.GraphCell(ms.load(str(folder / "grafted.mindir")))(*tensors).asnumpy(), got)
    return want, got, graph.nodes[0]["attrs"]


def swapped(net, given, folder, *names):
    """MindSpore's results and those of the exported model, of which these operators are left, and views; written back
    to MindSpore, which packs no weights, it gives these but for the order of sums."""
    import mindspore as ms

    ms.set_context(mode=ms.GRAPH_MODE)
    tensors = [ms.Tensor(y) for y in given]

    def arrays(results):
        return [t.asnumpy() for t in (results if isinstance(results, (tuple, list)) else [results])]

    want = arrays(net(*tensors))
    ms.export(net, *tensors, file_name=str(folder / "net"), file_format="MINDIR")
    graph = opgraft.load(folder / "net.mindir")
    opgraft.rewrite.substitute(graph, prove=[list(given)])
    assert [n["op"] for n in graph.nodes if n["op"] != "Reshape"] == list(names), str(graph)
    got = arrays(opgraft.nn.GraphCell(graph)(*map(opgraft.Tensor, given)))
    opgraft._core.write_mindir(graph, str(folder / "grafted.mindir"))
    back = arrays(ms.nn.GraphCell(ms.load(str(folder / "grafted.mindir")))(*tensors))
    for ours, theirs in zip(got, back, strict=True):
        assert theirs.dtype == ours.dtype
        if ours.dtype == np.float32:
            close(theirs, ours)
        else:
            half = ours.dtype == np.float16  # rounded once by each; codes and bools are the same
            np.testing.assert_allclose(theirs, ours, rtol=2.0**-10 if half else 0, atol=0)
    return want, got
