"""What the processes of peers have in common: each answers lines of JSON on standard input by lines on standard output,
until its controller (bench/process.py) ends."""

import ctypes
import json
import os
import signal
import sys
import traceback


def begin():
    """Where answers go. To be called before a framework is imported: they print to standard output, too."""
    # Whatever ends the controller ends this process too, which may be stopped at that time.
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def serve(answers, handle, missing):
    """`handle` takes a line's object and gives the answer's; an exception of the type `missing` gives the reason."""
    for line in sys.stdin:
        try:
            answer = handle(json.loads(line))
        except missing as e:
            answer = {"missing": str(e)}
        except Exception as e:  # noqa: BLE001 - a peer's failure is a figure that is missing, with its reason
            traceback.print_exc()
            # MindSpore's begin with a line of hyphens.
            first = next((line.strip("- ") for line in str(e).splitlines() if line.strip("- ")), "")
            answer = {"missing": f"{type(e).__name__}: {first}"[:200]}
        print(json.dumps(answer), file=answers, flush=True)
