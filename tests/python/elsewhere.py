"""Functions of these tests in processes that are held to other SIMD targets: the choice is made once a process."""

import functools
import os
import pickle
import subprocess
import sys
import traceback

from targets import OTHERS, held_to


class Elsewhere:
    """One such process. A call is begun on each, then what it gave is taken: they run beside each other."""

    def __init__(self, target):
        self.target, self.process, self.begun = target, None, False

    def begin(self, function, *args):
        """`function`: of a module in this folder, by name. Arguments and result are pickled."""
        if self.begun:  # what a test that failed did not take
            self._answer()
        if not self.process or self.process.poll() is not None:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "ignore", __file__],
                env=held_to(self.target),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        pickle.dump((function, args), self.process.stdin)
        self.process.stdin.flush()
        self.begun = True

    def end(self):
        """What the function gave; AssertionError with what it raised, or with how its process ended."""
        raised, result = self._answer()
        assert not raised, f"{self.target}: {raised}"
        return result

    def _answer(self):
        self.begun = False
        try:
            return pickle.load(self.process.stdout)
        except EOFError:
            return f"its process ended with exit code {self.process.wait()}", None


@functools.cache
def processes():
    return [Elsewhere(target) for target in OTHERS]


def on_every_other_target(function, *args, skip=lambda target: False):
    """Begins the function on each target but skipped ones; -> a call that gives [(target, what it gave)]."""
    chosen = [p for p in processes() if not skip(p.target)]
    for p in chosen:
        p.begin(function, *args)
    return lambda: [(p.target, p.end()) for p in chosen]


def serve():
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a function prints is no answer
    while True:
        try:
            function, args = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = "", function(*args)
        except Exception:
            answer = traceback.format_exc(), None
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    serve()
