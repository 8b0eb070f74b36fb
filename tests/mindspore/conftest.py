"""Tests against the real MindSpore; run in its own environment (.venv-mindspore)."""

import os
import pathlib
import sys

import mindspore as ms

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))  # the case tables
ms.set_device("CPU")


def pytest_collection_modifyitems(config, items):
    """OPGRAFT_SHARE=0|1: of two processes, which take about as long. The first has three quarters of the operators'
    cases and of the primitives, which is most of all the time."""
    share = os.environ.get("OPGRAFT_SHARE")
    if share is None:
        return
    long = [i for i in items if i.path.stem in ("test_ops", "test_primitives")]
    first = {i for n, i in enumerate(long) if n // 4 % 4 < 3}  # 4: an operator's runs
    kept = [i for i in items if (i in first) == (share == "0")]
    config.hook.pytest_deselected(items=[i for i in items if i not in set(kept)])
    items[:] = kept
