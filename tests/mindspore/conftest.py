"""Tests against the real MindSpore; run in its own environment (.venv-mindspore)."""

import pathlib
import sys

import mindspore as ms

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))  # the case tables
ms.set_device("CPU")
