"""Cost of a call on 4 elements: the same .so in MindSpore and in opgraft, in one process, in turns.

Run in an environment with MindSpore and opgraft: `./build.sh bench` does, where .venv-mindspore is.
A chain is 100 Custom nodes, each on the result of the one before; its figure is of one node.
"""

import argparse
import json
import os
import pathlib
import subprocess
import tempfile

import mindspore as ms
import numpy as np
import opgraft
from timing import interleaved

SOURCE = pathlib.Path(__file__).resolve().parents[1] / "tests" / "custom_ops" / "add.cc"
NODES = 100
# At most this share of MindSpore's time.
TARGETS = {"opgraft eager / MindSpore PyNative": 1 / 50, "opgraft session / MindSpore graph": 1 / 50}


def best(programs, rounds):
    return {name: min(s) for name, s in interleaved(programs, rounds).items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=pathlib.Path, help="write the figures as JSON")
    args = parser.parse_args()
    folder = tempfile.mkdtemp()
    so = os.path.join(folder, "add.so")
    subprocess.run(["g++", "-O2", "-shared", "-fPIC", "-D_GLIBCXX_USE_CXX11_ABI=0", str(SOURCE), "-o", so], check=True)
    ms.set_device("CPU")
    a, b = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
    theirs = ms.ops.Custom(f"{so}:CustomAdd", lambda x, y: x, lambda x, y: x, "aot")
    ours = opgraft.ops.Custom(f"{so}:CustomAdd", lambda x, y: x, lambda x, y: x)

    def chain(base, custom):
        class Chain(base):
            def __init__(self):
                super().__init__()
                self.add = custom

            def construct(self, x, y):
                for _ in range(NODES):
                    x = self.add(x, y)
                return x

        return Chain()

    ta, tb = ms.Tensor(a), ms.Tensor(b)
    ms.set_context(mode=ms.GRAPH_MODE)
    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    their_chain, our_chain = chain(ms.nn.Cell, theirs), chain(opgraft.nn.Cell, ours)
    want = a + NODES * b
    session = our_chain.session(a, b)
    eager = {"MindSpore PyNative": lambda: theirs(ta, tb).asnumpy(), "opgraft eager": lambda: ours(a, b),
             "NumPy": lambda: np.add(a, b)}  # fmt: skip
    chains = {
        "MindSpore graph": lambda: their_chain(ta, tb).asnumpy(),
        "opgraft session": lambda: session.run([a, b])[0],
    }
    for name, run in chains.items():
        if not np.array_equal(run(), want):
            raise SystemExit(f"{name} is wrong; no time counts")
    seconds = {name: s / NODES for name, s in best(chains, args.rounds).items()}
    ms.set_context(mode=ms.PYNATIVE_MODE)
    for name, run in eager.items():
        if not np.array_equal(run(), a + b):
            raise SystemExit(f"{name} is wrong; no time counts")
    seconds |= best(eager, args.rounds)
    print(f"{'a call on 4 elements':24} {'µs':>9}")
    for name, s in seconds.items():
        print(f"{name:24} {1e6 * s:9.3f}")
    ratios = {}
    for name, wanted in TARGETS.items():
        one, other = name.split(" / ")
        ratios[name] = seconds[one] / seconds[other]
        verdict = "reached" if ratios[name] <= wanted else "NOT reached"
        print(f"{name}: 1/{1 / ratios[name]:.0f} (at most 1/{1 / wanted:.0f}) {verdict}")
    if args.out:
        args.out.write_text(json.dumps({"seconds": seconds, "ratios": ratios}, indent=2) + "\n")


if __name__ == "__main__":
    main()
