"""opgraft's operators in a graph with MindSpore's own MatMul: do their two pools of threads get in each other's way?

Run in an environment with MindSpore and opgraft, as bench/mindspore_calls.py. Each line is a process of its own, with
MindSpore's threads (`runtime_num_threads`, of which opgraft's pool takes no more) and actors (`inter_op_parallel_num`:
how many nodes MindSpore may run at once, without its queue of launches). Milliseconds of a call, medians of turns, of
four products of [256, 1024] by [1024, 1024]: MindSpore's MatMul; opgraft's Dense with GELU; four of each in turns, each
on the result of the one before; and four of each side by side, where neither needs the other. Nothing is lost where the
last two are no more than the first two together; exits with 1 where one of them is more than --limit times that.
"""

import argparse
import json
import pathlib
import statistics
import sys

import serving
from process import Process

LIMIT = 1.15
EACH = 4
SETTINGS = [(1, 1), (2, 1), (2, 2)]
KINDS = ("MatMul", "Dense", "in turns", "side by side")


def serve(threads, actors):
    answers = serving.begin()

    import mindspore as ms
    import numpy as np
    import opgraft.mindspore
    from timing import interleaved

    ms.set_device("CPU")
    ms.set_context(mode=ms.GRAPH_MODE, runtime_num_threads=threads, inter_op_parallel_num=actors)
    random = np.random.default_rng(0)
    x = ms.Tensor(random.standard_normal((256, 1024), np.float32))
    weights = [ms.Tensor(random.standard_normal((1024, 1024), np.float32) / 32) for _ in range(2 * EACH)]

    class Net(ms.nn.Cell):
        def __init__(self, kind):
            super().__init__()
            self.kind = kind
            self.theirs, self.ours = ms.ops.MatMul(), opgraft.mindspore.custom("Dense", n_inputs=2, activation="gelu")

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

    nets = {kind: Net(kind) for kind in KINDS}
    calls = {kind: lambda net=net: net(x, *weights).asnumpy() for kind, net in nets.items()}
    serving.serve(answers, lambda task: interleaved(calls, task["rounds"], 0.1), ())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--turns", type=int, default=3, help="how often each process is asked (default 3)")
    parser.add_argument("--limit", type=float, default=LIMIT, help="most time over that of both parts (default 1.15)")
    parser.add_argument("--out", type=pathlib.Path, help="write the figures as JSON")
    parser.add_argument("--serve", type=int, nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve(*args.serve)
    figures = {setting: {kind: [] for kind in KINDS} for setting in SETTINGS}
    processes = {}
    try:
        for setting in SETTINGS:
            command = [sys.executable, __file__, "--serve", *setting]
            # Not OPGRAFT_NUM_THREADS, but opgraft.mindspore tells the pool how many.
            variables = {"OPGRAFT_NUM_THREADS": "0"}
            if setting[1] > 1:
                variables["MS_DEV_RUNTIME_CONF"] = "pipeline:False"
            processes[setting] = Process(command, setting[0], sys.stderr, variables)
        for _ in range(args.turns):
            for setting, process in processes.items():
                answer = process.ask(rounds=args.rounds)
                if "missing" in answer:
                    raise SystemExit(f"{setting}: {answer['missing']}")
                for kind, seconds in answer.items():
                    figures[setting][kind] += seconds
    finally:
        for process in processes.values():
            process.close()
    slow = False
    print(f"{'threads, actors':16}" + "".join(f"{kind:>14}" for kind in KINDS) + f"{'over both':>18}")
    for setting, found in figures.items():
        medians = [statistics.median(found[kind]) for kind in KINDS]
        over = [m / sum(medians[:2]) for m in medians[2:]]
        slow |= max(over) > args.limit
        print("{:16}".format("{}, {}".format(*setting)) + "".join(f"{1e3 * m:14.2f}" for m in medians)
              + "{:>18}".format("{:.2f}, {:.2f}".format(*over)), flush=True)  # fmt: skip
    if args.out:
        args.out.write_text(json.dumps({"{}, {}".format(*s): found for s, found in figures.items()}, indent=2) + "\n")
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
