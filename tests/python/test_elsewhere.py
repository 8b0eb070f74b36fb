"""The processes in which tests run kernels of other SIMD targets."""

import os

import pytest
from elsewhere import on_every_other_target
from targets import OTHERS

pytestmark = pytest.mark.skipif(not OTHERS, reason="this machine has one target")


def target():
    return os.environ["OPGRAFT_SIMD"]


def test_each_is_held_to_its_target():
    assert on_every_other_target(target)() == [(t, t) for t in OTHERS]
    assert on_every_other_target(target, skip=lambda t: t != OTHERS[0])() == [(OTHERS[0], OTHERS[0])]


def test_what_a_function_raises_is_told_with_its_target():
    with pytest.raises(AssertionError, match=f"(?s)^{OTHERS[0]}: .*ValueError.*'no number'"):
        on_every_other_target(int, "no number")()


def test_the_next_call_finds_its_own_answer_where_one_was_not_taken():
    on_every_other_target(os.getppid)
    assert [given for _, given in on_every_other_target(abs, -2)()] == [2] * len(OTHERS)


def test_a_process_that_ends_is_told_and_the_next_call_has_another():
    with pytest.raises(AssertionError, match=f"^{OTHERS[0]}: its process ended with exit code 3"):
        on_every_other_target(os._exit, 3)()
    assert dict(on_every_other_target(abs, -2)()) == dict.fromkeys(OTHERS, 2)
