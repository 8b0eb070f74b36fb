"""A peer's process, as its controller sees it."""

import json
import os
import pathlib
import signal
import subprocess
import threading

PATIENCE = 900  # seconds for one answer; a scalar twin's largest product takes a tenth of that
ROOT = pathlib.Path(__file__).resolve().parent.parent


class Process:
    """A program that answers lines of JSON (bench/serving.py); it runs only while it is asked something."""

    def __init__(self, command, threads, log, variables=None):
        held = {k: str(threads) for k in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
        held |= {"OPGRAFT_NUM_THREADS": str(threads), "GLOG_v": "4", "PYTHONDONTWRITEBYTECODE": "1",
                 "PYTHONPATH": str(ROOT / "build" / "python")} | (variables or {})  # fmt: skip
        self.process = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            env=os.environ | held, start_new_session=True,
        )  # fmt: skip

    def ask(self, **task):
        if self.process.poll() is not None:
            return {"missing": f"the process ended with {self.process.returncode}"}
        os.killpg(self.process.pid, signal.SIGCONT)
        hung = threading.Timer(PATIENCE, self.process.kill)
        hung.daemon = True  # a signal may come before it is cancelled below: it must not keep the program
        try:
            hung.start()
            self.process.stdin.write(json.dumps(task) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
            answer = json.loads(line) if line else None
        except (BrokenPipeError, ValueError):  # an answer may be cut off
            answer = None
            self.process.kill()
        finally:
            hung.cancel()
        if answer is None:
            return {"missing": f"the process ended with {self.process.wait()}"}
        os.killpg(self.process.pid, signal.SIGSTOP)
        return answer

    def close(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGCONT)
            self.process.kill()
        self.process.wait()
