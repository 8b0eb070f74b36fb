"""Prints docs/conformance.md: every row of rows.py, run in MindSpore and in opgraft.

test_rows.py runs the rows and compares the document; this only writes it down:
cd build/mindspore && PYTHONPATH=../python ../../.venv-mindspore/bin/python ../../tests/mindspore/conformance.py
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import mindspore as ms
from helpers import BUILDS
from hosts import WAYS, Files, in_mindspore, in_opgraft, same
from rows import EMPTY, FAILURES, ROWS

TITLE = f"""# MindSpore's AOT contract, row by row

Written by `tests/mindspore/conformance.py`; `tests/mindspore/rows.py` has the rows and `test_rows.py` runs them: the
same lines with MindSpore and with opgraft imported, the same `.so` and the same inputs. MindSpore runs each in
PYNATIVE_MODE and GRAPH_MODE; opgraft eagerly, traced and from a MindIR file, with the `.so` built {len(BUILDS)} ways. "same" is
the same bits, shape and dtype in all {len(WAYS)} ways. `test_rows.py` also gives opgraft the model that MindSpore exports of each
row, several threads, and a `.so` that was moved.
"""  # noqa: E501


def outcome(row, so, want):
    differ = []
    for way in WAYS:
        try:
            for g, w in zip(in_opgraft(row, so, way), want, strict=True):
                same(g, w, structure=way != "file")
        except Exception as e:
            print(f"{row.__name__}, {way}: {type(e).__name__}: {e}", file=sys.stderr)
            differ.append(way)
    return f"DIFFERS ({', '.join(differ)})" if differ else "same"


def message(run, *args):
    """The first line of what it raises; MindSpore's call stack is none."""
    try:
        run(*args)
    except Exception as e:
        first = str(e).strip().split("\n")[0]
        return "" if first.startswith("---") else first
    return "DIFFERS: nothing is raised"


def table(head, rows):
    widths = [max(len(r[i]) for r in [head, *rows]) for i in range(len(head))]
    lines = [head, tuple("-" * w for w in widths), *rows]
    return "".join("| " + " | ".join(c.ljust(w) for c, w in zip(r, widths)) + " |\n" for r in lines)


def document(files):
    """The whole of it; `files` are the kernels in every build."""
    theirs = files["old std::string"]
    rows = []
    for name, row in ROWS.items():
        want = in_mindspore(row, theirs, ms.PYNATIVE_MODE)
        in_mindspore(row, theirs, ms.GRAPH_MODE)
        rows.append((name.replace("_", " "), "runs", *(outcome(row, files[b], want) for b in BUILDS)))
    text = f"{TITLE}\n{table(('row', f'MindSpore {ms.__version__}', *(f'opgraft: {b}' for b in BUILDS)), rows)}"
    rows = []
    for name, (row, pattern, _) in FAILURES.items():
        texts = [message(in_mindspore, row, theirs, ms.PYNATIVE_MODE)]
        texts.append(message(in_opgraft, row, theirs, "eager"))
        assert texts[0] or pattern == EMPTY, name
        texts = [t.replace(theirs.kernels, "kernels.so").replace("|", "\\|") for t in texts]
        rows.append((name.replace("_", " "), texts[0] or "(empty)", texts[1]))
    text += "\nFailures, with the first line of each message:\n\n"
    return text + table(("row", f"MindSpore {ms.__version__}", "opgraft"), rows)


if __name__ == "__main__":
    ms.set_device("CPU")
    print(document({build: Files(build) for build in BUILDS}), end="")
