"""Tests against the real MindSpore; run in its own environment (.venv-mindspore)."""

import gc
import pathlib
import sys

import mindspore as ms

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))  # the case tables
ms.set_device("CPU")


def settle():
    """MindSpore looks for garbage with each graph that it compiles: not among what stays to the end anyway."""
    gc.collect()
    gc.freeze()


def pytest_collection_finish():
    settle()


def pytest_runtest_logfinish():
    settle()
