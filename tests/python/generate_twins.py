"""`opgraft generate` and opgraft_generate, the C++ program, beside each other."""

import json
import pathlib
import subprocess

import opgraft
import pytest

PROGRAM = pathlib.Path(opgraft.__file__).parents[2] / "opgraft_generate"
needs_program = pytest.mark.skipif(not PROGRAM.exists(), reason="it needs PCRE2")
TIMES = ("first_token_ms", "prompt_tokens_per_s", "decode_tokens_per_s", "peak_rss_bytes")


def generate(*args):
    return subprocess.run([PROGRAM, *map(str, args)], capture_output=True, encoding="utf-8", timeout=120)


def same_text(python, *args):
    code, want, _ = python(*args, "--json")
    done = generate(*args, "--json")
    assert (done.returncode, done.stderr, code) == (0, "", 0)
    got, want = json.loads(done.stdout), json.loads(want)
    assert list(got) == list(want)
    assert {k: v for k, v in got.items() if k not in TIMES} == {k: v for k, v in want.items() if k not in TIMES}
    for name in TIMES:
        assert type(got[name]) is type(want[name]) and (got[name] is None or got[name] > 0)
    return got


def same_error(python, *args):
    """What both say, without the program's name."""
    code, _, said = python(*args)
    done = generate(*args)
    assert done.stderr.removeprefix("opgraft_generate: ") == said.removeprefix("opgraft: ")
    assert done.returncode == code == 1 and done.stdout == ""
    return said
