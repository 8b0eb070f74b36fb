"""Prints docs/conformance.md: every row of test_rows.py, run in MindSpore and in opgraft.

./build.sh test --all runs the rows; this only writes them down:
cd build/mindspore && PYTHONPATH=../python ../../.venv-mindspore/bin/python ../../tests/mindspore/conformance.py
"""

import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import conftest  # noqa: F401  sets MindSpore's device
import mindspore as ms
import opgraft
from helpers import compile_kernels
from test_rows import ROWS, Host, same

TITLE = """# MindSpore's AOT contract, row by row

Written by `tests/mindspore/conformance.py`; `tests/mindspore/test_rows.py` has the rows. Each runs the same lines with
MindSpore and with opgraft imported, eagerly and in a graph, and compares results, shapes and dtypes.
"""


def main():
    folder = tempfile.mkdtemp()
    files = {abi: compile_kernels(folder, abi) for abi in (0, 1)}
    rows = []
    for name, row in ROWS.items():
        want, found = row(Host(ms, 0), files[0]), []
        for abi in (0, 1):
            got = row(Host(opgraft, abi), files[abi])
            try:
                for g, w in zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]:
                    same(g, w)
                found.append("same")
            except AssertionError:
                found.append("DIFFERS")
        rows.append((name.replace("_", " "), "runs", *found))
    head = ("row", f"MindSpore {ms.__version__}", "opgraft, the same file", "opgraft, built with the new std::string")
    widths = [max(len(r[i]) for r in [head, *rows]) for i in range(4)]
    print(TITLE)
    for r in [head, tuple("-" * w for w in widths), *rows]:
        print("| " + " | ".join(c.ljust(w) for c, w in zip(r, widths)) + " |")


if __name__ == "__main__":
    main()
