"""The command `opgraft`."""

import argparse
import json
import pathlib
import sys
import time

import numpy as np

from . import __version__, _core, load, nn, rewrite

LEVELS = {
    "O0": "folding, merging and dead code only",
    "O1": "fusions of normalisation and activation",
    "O2": "all fusions of registered operators",
    "O3": "as O2, and with inputs to prove on only where faster",
}


def _ls(args):
    ops = [
        {"name": o.name, "version": o.version, "score": o.score, "path": o.path, "replaces": o.manifest["replaces"]}
        for o in _core.list_ops()
    ]
    if args.json:
        print(json.dumps(ops, indent=2))
        return 0
    for o in ops:
        print(f"{o['name']:28} {o['version']:8} {o['score']:5}  {o['path']}")
    return 0


def _doctor(args):
    checks = _core.examine(args.file)
    for step, ok, detail in checks:
        print(f"{'ok  ' if ok else 'FAIL'} {step}: {detail}" if detail else f"{'ok  ' if ok else 'FAIL'} {step}")
    return 0 if all(ok for _, ok, _ in checks) else 1


def _optimize(args):
    if args.ops:
        for refused in _core.load_directory(args.ops):
            print(f"opgraft: {refused}", file=sys.stderr)
    cell = nn.GraphCell(load(args.model))
    graph, report = cell.graph, rewrite.Report()
    _core.fold_constants(graph), _core.merge_common(graph), _core.remove_dead_code(graph)
    if args.fusion_level != "O0":
        rules = _core.rules()
        if args.fusion_level == "O1":
            rules = [r for r in rules if any(k in r.op for k in ("Norm", "LU"))]
        arrays = None
        if args.prove:
            with np.load(args.prove) as f:
                arrays = [[f[graph.value_name(v)] for v in graph.inputs]]
        report = rewrite.Report(
            **_core.substitute(graph, rules, arrays, args.fusion_level == "O3" and arrays is not None)
        )
    _core.write_mindir(graph, args.output)
    print(report)
    if args.report:
        keep = ("op", "node", "max_abs", "ms_before", "ms_after")
        body = {
            "swapped": [{k: s.get(k) for k in keep} for s in report.swapped],
            "left": [{"node": x["node"], "why": x["why"]} for x in report.left],
        }
        pathlib.Path(args.report).write_text(json.dumps(body, indent=2) + "\n")
    return 0


def _infer(args):
    graph = load(args.model)
    given = dict(i.split("=", 1) for i in args.input)
    names = [graph.value_name(v) for v in graph.inputs]
    missing = [n for n in names if n not in given]
    if missing or set(given) - set(names):
        raise ValueError(f"infer: inputs must be {', '.join(names)}, got {', '.join(given) or 'none'}")
    session = _core.Session(_core.Model(graph))
    arrays = [np.load(given[n]) for n in names]
    begin = time.perf_counter()
    outputs = session.run(arrays)
    print(f"{1e3 * (time.perf_counter() - begin):.3f} ms, arena {session.arena_bytes} bytes")
    out = pathlib.Path(args.output)
    out.mkdir(parents=True, exist_ok=True)
    for name, array in zip(graph.output_names, outputs):
        np.save(out / f"{name.replace('/', '_')}.npy", array)
    if args.profile:
        pathlib.Path(args.profile).write_text(session.profile(arrays, 10))
    return 0


def _build(args):
    from opgraft.build import build

    print(build(args.directory))
    return 0


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(prog="opgraft", description="Operators built ahead of time, grafted into models.")
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name, run, text):
        p = commands.add_parser(name, help=text, description=text)
        p.set_defaults(run=run)
        return p

    command("ls", _ls, "list the registered operators").add_argument("--json", action="store_true")
    command("doctor", _doctor, "run every loading check on a shared object").add_argument("file")
    p = command(
        "optimize", _optimize, "fuse a model's operators; levels: " + "; ".join(f"{k} {v}" for k, v in LEVELS.items())
    )
    p.add_argument("model")
    p.add_argument("-o", "--output", required=True)
    p.add_argument("--fusion-level", "--fusion_level", choices=LEVELS, default="O2")
    p.add_argument("--ops", help="directory of further operators")
    p.add_argument("--prove", help="inputs by name (.npz): keep only swaps that agree")
    p.add_argument("--report", help="write the report here (JSON)")
    p = command("infer", _infer, "run a model on .npy inputs")
    p.add_argument("--model", required=True)
    p.add_argument("--input", action="append", default=[], metavar="NAME=FILE.npy")
    p.add_argument("--output", required=True, metavar="DIR")
    p.add_argument("--profile", metavar="FILE.json")
    command("build", _build, "build an operator folder into a shared object").add_argument("directory")
    command("version", lambda _: print(__version__) or 0, "print the version")
    args = parser.parse_args(argv)
    try:
        return args.run(args)
    except (OSError, ValueError, TypeError, RuntimeError) as e:
        print(f"opgraft: {e}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
