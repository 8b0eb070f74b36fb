"""The LLaMA example beside transformers and llama.cpp: SmolLM2-135M, one run, every program in its turn.

Each is a process of its own in an environment of its own, with the same number of threads; one that is not in its turn
is stopped. Before its times count, a program is fed the texts of tests/python/llama_oracle.npz, which transformers
wrote in float32: in float32 its own choice must be the oracle's at each of their tokens; where weights or activations
are rounded further, how often it is is stated, and it may be another no more often than chance explains beside
llama.cpp's. The model is what `./build.sh test --all` fetches.
"""

import argparse
import fnmatch
import json
import os
import pathlib
import signal
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import environments  # noqa: E402
import machine  # noqa: E402
import operators  # noqa: E402
from decoding import VARIANTS, layers, prepare, table  # noqa: E402
from process import Process  # noqa: E402

PARTS = ("decode", "sequences", "shares", "layers")
ORACLE = ROOT / "tests" / "python" / "llama_oracle.npz"
POSITIONS = table.POSITIONS
PROMPT = 128  # tokens, of the first token's time
STEPS = 9  # of a turn at each position; the first is not counted
BOUND, KEPT = 128 << 20, 100  # bytes of keys and values; tokens of each of the texts that share them
NOT_THERE = "is not installed (--install does)"


class Program(Process):
    def __init__(self, name, python, threads, simd, log):
        self.name = name
        worker = ROOT / "bench" / "decoding" / "worker.py"
        variables = {"HF_HUB_OFFLINE": "1"} | operators.SIMD[simd]
        super().__init__([python, worker, name, "--threads", threads], threads, log, variables)

    def must(self, **task):
        answer = self.ask(**task)
        if "missing" in answer:
            raise Failed(answer["missing"])
        return answer


class Failed(Exception):
    pass


def text():
    """Ids of real text, enough for the last position: the licence's."""
    sys.path.insert(0, str(ROOT / "examples"))
    del sys.path[sys.path.index(str(ROOT / "bench"))]  # this file's name is the example's, too
    sys.modules.pop("llama", None)
    import llama

    sys.path.append(str(ROOT / "bench"))
    words = (ROOT / "LICENSE").read_text()
    ids = llama.LlamaTokenizer(llama.Checkpoint(prepare.gguf())).encode(words)
    if len(ids) < max(POSITIONS) + STEPS:
        raise SystemExit("llama.py: LICENSE is too short")
    return ids


class Progress:
    """Lines of what is done, and how long the rest will take."""

    def __init__(self, steps):
        self.begin, self.steps, self.done = time.monotonic(), steps, 0

    def step(self, what):
        spent = time.monotonic() - self.begin
        left = f", about {spent / self.done * (self.steps - self.done):.0f} s left" if self.done else ""
        self.done += 1
        print(f"[{self.done}/{self.steps}, {spent:.0f} s{left}] {what}", file=sys.stderr, flush=True)


def started(programs, files, prompts, progress, result):
    """Those whose results are right, loaded and checked; the others are ended, with the reason."""
    for program in programs:
        progress.step(f"{program.name}: loads, and is checked")
        figures = result["rows"][program.name] = {}
        for task in ({"do": "version"}, {"do": "load", "files": files},
                     {"do": "check", "oracle": str(ORACLE), "prompts": prompts}):  # fmt: skip
            answer = program.ask(**task)
            if "missing" in answer:
                figures["missing"] = answer["missing"]
                break
            figures[task["do"]] = answer.get("version", answer)
    checks = {name: r["check"] for name, r in result["rows"].items() if "check" in r}
    for program in list(programs):
        figures = result["rows"][program.name]
        if "missing" not in figures and (wrong := table.wrong(program.name, checks)):
            figures["wrong"] = wrong
        if "missing" in figures or "wrong" in figures:
            program.close()
            programs.remove(program)


def turns(programs, ids, rounds, progress, result):
    def turn(program, figures):
        figures["prefill"].append(program.must(do="prefill", ids=ids[:PROMPT])["seconds"])
        for slot, p in enumerate(POSITIONS):
            took = program.must(do="decode", slot=slot, position=p, ids=ids[p : p + STEPS])["seconds"]
            figures["decode"][p].append(took)

    def rest(program, figures):
        figures["kv"] = {p: program.must(do="kv", slot=slot) for slot, p in enumerate(POSITIONS)}
        figures["peak"] = program.must(do="memory")["peak"]

    for program in programs:
        result["rows"][program.name] |= {"prefill": [], "decode": {p: [] for p in POSITIONS}}
    for what in [turn] * rounds + [rest]:
        # Between the turns, as what the machine's neighbours leave of it changes by the second.
        seen = machine.read_bandwidth(result["threads"], rounds=2)
        result["machine"]["read_bandwidth"] = max(seen, result["machine"]["read_bandwidth"])
        for program in programs:
            figures = result["rows"][program.name]
            if what is turn:
                progress.step(program.name)
            if "missing" not in figures:
                try:
                    what(program, figures)
                except Failed as e:
                    result["rows"][program.name] = {"missing": str(e)}


def more(programs, ids, parts, progress, result):
    """How many texts fit a bound; the operators' shares."""
    for program in programs:
        figures = result["rows"][program.name]
        if "missing" in figures:
            continue
        if "shares" in parts:
            progress.step(f"{program.name}: shares of its operators")
            figures["shares"] = program.ask(do="profile", slot=1, position=POSITIONS[1], ids=ids[:PROMPT])
        if "sequences" in parts:
            progress.step(f"{program.name}: texts at once in {BOUND >> 20} MiB")
            figures["sequences"] = program.ask(do="sequences", bound=BOUND, ids=ids[: KEPT + 1])


def measure(programs, files, ids, parts, prompts, rounds, result):
    """Fills in result's rows; False where it was interrupted, with what there is. Ends the programs."""
    for s in (signal.SIGINT, signal.SIGTERM):
        signal.signal(s, operators.interrupt)
    extra = sum(p in parts for p in ("shares", "sequences"))
    progress = Progress(len(programs) * (1 + rounds * ("decode" in parts) + extra))
    every = list(programs)
    try:
        started(programs, files, prompts, progress, result)
        progress.steps -= (len(every) - len(programs)) * (rounds * ("decode" in parts) + extra)
        for program in programs:
            program.ask(do="fill", ids=ids, positions=POSITIONS)
        if "decode" in parts:
            turns(programs, ids, rounds, progress, result)
        more(programs, ids, parts, progress, result)
        return True
    except KeyboardInterrupt:
        print("interrupted: the table has what was measured up to here", file=sys.stderr)
        return False
    finally:
        for program in every:
            program.close()


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and checks, no layers")
    parser.add_argument(
        "--rows", nargs="+", metavar="NAME", help="programs whose name contains this (* and ? as in a shell)"
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, help="default: all; --quick: all but layers")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1), help="of each (default 2)")
    parser.add_argument(
        "--simd", choices=operators.SIMD, default="best", help="hold all but llama.cpp, which cannot be"
    )
    parser.add_argument("--rounds", type=int, help="turns of each program (default 6, --quick 2)")
    parser.add_argument("--prompts", type=int, help="of the oracle's, to check by (default 5, --quick 1, at most 20)")
    parser.add_argument("--install", action="store_true",
                        help="install the peers that are missing; llama.cpp compiles for about 10 minutes")  # fmt: skip
    parser.add_argument("--list", action="store_true", help="name the programs and stop")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures")
    parser.add_argument("--markdown", type=pathlib.Path, help="write the tables")
    args = parser.parse_args()
    for file in filter(None, (args.json, args.markdown)):  # now, not after minutes
        if not file.parent.is_dir():
            parser.error(f"{file}: there is no folder {file.parent}")
    args.rounds = (2 if args.quick else 6) if args.rounds is None else args.rounds
    args.prompts = (1 if args.quick else 5) if args.prompts is None else args.prompts
    if args.threads < 1 or args.rounds < 1 or not 1 <= args.prompts <= 20:
        parser.error("--threads, --rounds and --prompts: must be at least 1, --prompts at most 20")
    args.parts = args.parts or [p for p in PARTS if not (args.quick and p == "layers")]
    patterns = [f"*{p.lower()}*" for p in args.rows or [""]]
    args.chosen = [n for n in VARIANTS if any(fnmatch.fnmatch(n.lower(), p) for p in patterns)]
    if not args.chosen:
        parser.error(f"--rows {' '.join(args.rows)}: no such program; see --list")
    return args


def main():
    args = options()
    if args.list:
        print("\n".join(args.chosen))
        return 0
    os.environ |= operators.SIMD[args.simd]
    result = {"machine": machine.describe(args.threads), "threads": args.threads, "rounds": args.rounds,
              "prompt": PROMPT, "bound": BOUND, "kept": KEPT + 1, "rows": {}}  # fmt: skip
    result["machine"]["read_bandwidth"] = machine.read_bandwidth(args.threads)
    finished = True
    with open(os.environ.get("OPGRAFT_BENCH_LOG", os.devnull), "w") as log:
        if set(args.parts) - {"layers"}:
            if not prepare.gguf():
                raise SystemExit("llama.py: build/data/smollm2 has no model; ./build.sh test --all fetches it")
            pythons = environments.find(args.chosen, args.install, VARIANTS)
            ready = {n: p for n, p in pythons.items() if p}
            files = prepare.files(
                prepare.gguf(), ROOT / "build" / "bench" / "llama",
                {"transformers" if VARIANTS[n].module == "hugging_face" else VARIANTS[n].form for n in ready},
                {VARIANTS[n].folder: p for n, p in ready.items()},
            )  # fmt: skip
            for name in ready:
                result.setdefault("weights", {})[name] = prepare.weight_bytes(prepare.gguf(), VARIANTS[name].width)
            ids = text()
            programs = [Program(n, p, args.threads, args.simd, log) for n, p in ready.items()]
            finished = measure(programs, files, ids, args.parts, args.prompts, args.rounds, result)
            result["rows"] |= {n: {"missing": NOT_THERE} for n in args.chosen if n not in ready}
        if finished and "layers" in args.parts:
            result["layers"], finished = layers.measure(args.threads, args.simd, args.install, log)
    again = machine.describe(args.threads, result["machine"])
    result["machine"] = again | {"read_bandwidth": result["machine"]["read_bandwidth"]}
    result["targets"] = table.targets(result)
    words = table.whole(result)
    print(words)
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    if args.markdown:
        args.markdown.write_text(words + "\n")
    void = [n for n, r in result["rows"].items() if VARIANTS[n].folder == ".venv" and ("wrong" in r or "missing" in r)]
    if void:
        print(f"llama.py: no figure for {', '.join(void)}", file=sys.stderr)
    return operators.INTERRUPTED if not finished else 1 if void else 0


if __name__ == "__main__":
    sys.exit(main())
