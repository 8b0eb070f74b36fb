"""One program that decodes: it does what the lines on standard input say (bench/llama.py writes them).

{"do": "version"} -> {"version": V}
{"do": "load", "files": {...}} -> {"seconds": S}
{"do": "check", "oracle": FILE.npz, "prompts": N} -> {"agree": A, "of": B, "logits": greatest difference,
    "missed": [margin of the oracle where it chose another]}; the oracle's own text is fed
{"do": "fill", "ids": [...], "positions": [P, ...]} -> {}; slot k gets the first P ids, for the turns
{"do": "prefill", "ids": [...]} -> {"seconds": S}, from ids to the first token
{"do": "decode", "slot": K, "ids": [...], "position": P} -> {"seconds": [S, ...]} of every step but the first
{"do": "kv", "slot": K}, {"do": "profile", "slot": K, "position": P, "ids": [...]} -> as Decoder says
{"do": "memory"} -> {"peak": bytes of the process so far}
"""

import argparse
import gc
import importlib
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import serving  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("variant")
parser.add_argument("--threads", type=int, default=2)
args = parser.parse_args()
answers = serving.begin()

import numpy as np  # noqa: E402

from decoding import SLOTS, VARIANTS, Missing  # noqa: E402

variant = VARIANTS[args.variant]
program = importlib.import_module(f"decoding.{variant.module}")
decoder = None


def check(oracle, prompts):
    found = {"agree": 0, "of": 0, "logits": 0.0, "missed": []}
    oracle = np.load(oracle)
    for k in range(prompts):
        position = int(oracle["lengths"][k])
        drawn = decoder.begin(0, oracle["ids"][k, :position].tolist())
        off = np.abs(decoder.logits()[oracle["picked"]] - oracle["logits"][k]).max()
        found["logits"] = max(found["logits"], float(off) if np.isfinite(off) else float("inf"))
        for token, margin in zip(oracle["greedy"][k].tolist(), oracle["margins"][k].tolist()):
            found["of"] += 1
            found["agree"] += drawn == token
            if drawn != token:
                found["missed"].append(margin)
            drawn = decoder.step(0, position, token)
            position += 1
    return found


def decode(slot, ids, position):
    seconds = []
    for k, token in enumerate(ids):
        begin = time.perf_counter()
        decoder.step(slot, position + k, token)
        seconds.append(time.perf_counter() - begin)
    return {"seconds": seconds[1:]}  # the first brings the caches back from who had them before


def handle(task):
    global decoder
    what = task.pop("do")
    if what == "version":
        return {"version": program.VERSION()}
    begin = time.perf_counter()
    if what == "load":
        decoder = program.Decoder(task["files"], args.threads, variant.form)
        gc.collect()
        gc.freeze()
    elif what == "check":
        return check(**task)
    elif what == "fill":
        for slot, position in enumerate(task["positions"]):
            decoder.begin(slot, task["ids"][:position])
        return {}
    elif what == "prefill":
        decoder.begin(SLOTS - 1, task["ids"])
    elif what == "decode":
        return decode(**task)
    elif what == "kv":
        return decoder.kv(task["slot"])
    elif what == "profile":
        return decoder.profile(**task)
    elif what == "sequences":
        return decoder.sequences(**task)
    elif what == "memory":
        # Not getrusage's, which begins with the controller's.
        status = pathlib.Path("/proc/self/status").read_text()
        return {"peak": next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))}
    return {"seconds": time.perf_counter() - begin}


serving.serve(answers, handle, Missing)
