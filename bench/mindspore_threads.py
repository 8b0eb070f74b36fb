"""opgraft's operators in a graph with MindSpore's own MatMul: do their two pools of threads get in each other's way?

Run in an environment with MindSpore and opgraft, as bench/mindspore_calls.py. Each line is two processes, started anew
--turns times, with `runtime_num_threads`, of which opgraft's pool takes no more, and actors (`inter_op_parallel_num`:
how many nodes MindSpore may run at once, without its queue of launches). Milliseconds of a call, best and in brackets
median of 30 ms each, of four products of [256, 1024] by [1024, 1024]: MindSpore's MatMul, in a process without opgraft;
opgraft's Dense with GELU; four of each in turns, each on the result of the one before; and four of each side by side,
where neither needs the other. Nothing is lost where the last two are no more than the first two together. `CPU`: what
opgraft's own threads take in them, over what they take for Dense alone (medians of 10 turns of two calls each): more is
time that they take from MindSpore's.
Exits with 1 where, with two threads of opgraft's, the best time or the CPU is more than --limit times that, and still
is with as many turns more. Of the turns as many are made as fit into --seconds, one at least.

MindSpore's MatMul is made by two threads of its own, whatever runtime_num_threads is, while the thread that called it
yields and yields: three on two cores. Which two share one is the system's choice, for many calls: 5 or 10 ms, with or
without opgraft. The medians show it; so does the first line, where opgraft has no thread of its own.
"""

import argparse
import json
import pathlib
import statistics
import sys
import time

import serving
from process import Process

LIMIT = 1.15
EACH = 4
SETTINGS = [(1, 1), (2, 1), (2, 2)]
PARTS = (("MatMul",), ("Dense", "in turns", "side by side"))  # a process each: without opgraft, and with it
KINDS = PARTS[0] + PARTS[1]


def cpu_of_pool():
    """Seconds that opgraft's own threads have run."""
    ns = 0
    for task in pathlib.Path("/proc/self/task").iterdir():
        if (task / "comm").read_text().strip() == "opgraft":
            ns += int((task / "schedstat").read_text().split()[0])
    return ns / 1e9


def ask(setting, part, rounds):
    """What a new process answers."""
    # Not OPGRAFT_NUM_THREADS, but opgraft.mindspore tells the pool how many.
    variables = {"OPGRAFT_NUM_THREADS": "0"}
    if setting[1] > 1:
        variables["MS_DEV_RUNTIME_CONF"] = "pipeline:False"
    process = Process([sys.executable, __file__, "--serve", *setting, part], setting[0], sys.stderr, variables)
    try:
        answer = process.ask(rounds=rounds)
    finally:
        process.close()
    if "missing" in answer:
        raise SystemExit(f"{setting}: {answer['missing']}")
    return answer


def serve(threads, actors, part):
    answers = serving.begin()

    import mindspore as ms
    import numpy as np
    from timing import interleaved

    if part:
        import opgraft.mindspore

    ms.set_device("CPU")
    ms.set_context(mode=ms.GRAPH_MODE, runtime_num_threads=threads, inter_op_parallel_num=actors)
    random = np.random.default_rng(0)
    x = ms.Tensor(random.standard_normal((256, 1024), np.float32))
    weights = [ms.Tensor(random.standard_normal((1024, 1024), np.float32) / 32) for _ in range(2 * EACH)]

    class Net(ms.nn.Cell):
        def __init__(self, kind):
            super().__init__()
            self.kind, self.theirs = kind, ms.ops.MatMul()
            if part:
                self.ours = opgraft.mindspore.custom("Dense", n_inputs=2, activation="gelu")

        def construct(self, x, *weights):
            y, z = x, x
            for k in range(EACH):
                if self.kind != "Dense":
                    y = self.theirs(y, weights[k])
                if self.kind == "in turns":
                    y = self.ours(y, weights[EACH + k])
                elif self.kind != "MatMul":
                    z = self.ours(z, weights[EACH + k])
            return y + z

    nets = {kind: Net(kind) for kind in PARTS[part]}
    calls = {kind: lambda net=net: net(x, *weights).asnumpy() for kind, net in nets.items()}

    def cpu(call, times=2):
        before = cpu_of_pool()
        for _ in range(times):
            call()
        return (cpu_of_pool() - before) / times

    def measure(task):
        seconds = interleaved(calls, task["rounds"], 0.03)
        of_turns = [{kind: cpu(call) for kind, call in calls.items()} for _ in range(10)]
        return {"seconds": seconds, "cpu": {kind: [turn[kind] for turn in of_turns] for kind in calls}}

    serving.serve(answers, measure, ())


def turns(figures, times, rounds, seconds):
    """Adds what new processes of these settings measure; the turns made."""
    begin = time.perf_counter()
    for turn in range(1, times + 1):
        for setting, found in figures.items():
            for part in range(len(PARTS)):
                answer = ask(setting, part, rounds)
                for kind in PARTS[part]:
                    found[kind]["seconds"] += answer["seconds"][kind]
                    found[kind]["cpu"] += answer["cpu"][kind]
        if (time.perf_counter() - begin) * (turn + 1) / turn > seconds:
            break
    return turn


def line(setting, found):
    """Prints a setting's figures; the largest that is held to the limit, 0 where opgraft has no thread of its own."""
    times = [(min(f["seconds"]), statistics.median(f["seconds"])) for f in found.values()]
    over = [[t[k] / (times[0][k] + times[1][k]) for k in range(2)] for t in times[2:]]
    alone, *beside = (statistics.median(found[kind]["cpu"]) for kind in PARTS[1])
    cpu = [b / alone for b in beside if alone]
    print("{:16}".format("{}, {}".format(*setting))
          + "".join(f"{1e3 * best:8.2f} ({1e3 * median:5.2f})" for best, median in times)
          + "{:>26}".format(", ".join("{:.2f} ({:.2f})".format(*o) for o in over))
          + "{:>12}".format(", ".join(map("{:.2f}".format, cpu)) or "-"), flush=True)  # fmt: skip
    return max(cpu + [best for best, _ in over]) if cpu else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="batches of 30 ms a turn (default 30)")
    parser.add_argument("--turns", type=int, default=3, help="processes of each kind (default 3)")
    parser.add_argument("--seconds", type=float, default=100, help="for the turns, one at least (default 100)")
    parser.add_argument("--limit", type=float, default=LIMIT, help="most time over that of both parts (default 1.15)")
    parser.add_argument("--out", type=pathlib.Path, help="write the figures as JSON")
    parser.add_argument("--serve", type=int, nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve(*args.serve)
    figures = {setting: {kind: {"seconds": [], "cpu": []} for kind in KINDS} for setting in SETTINGS}
    made = turns(figures, args.turns, args.rounds, args.seconds)
    print(f"{'threads, actors':16}" + "".join(f"{kind:>16}" for kind in KINDS) + f"{'over both':>26}{'CPU':>12}")
    slow = [s for s, found in figures.items() if line(s, found) > args.limit]
    if slow:
        print(f"above {args.limit:g}; with {made} turns more:")
        again = {setting: figures[setting] for setting in slow}
        turns(again, made, args.rounds, args.seconds)
        slow = [s for s, found in again.items() if line(s, found) > args.limit]
    if args.out:
        args.out.write_text(json.dumps({"{}, {}".format(*s): found for s, found in figures.items()}, indent=2) + "\n")
    return int(bool(slow))


if __name__ == "__main__":
    sys.exit(main())
