"""The command `opgraft`."""

import argparse
import json
import os
import pathlib
import sys
import time

import numpy as np

from . import __version__, _core, cli_text, load, rewrite
from . import dtype as dt
from .checkpoint import read_numpy
from .context import MOST_THREADS
from .proof import Report


def _print_json(value):
    print(json.dumps(value, indent=2))


def _table(rows):
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        print("  ".join(c.ljust(w) for c, w in zip(row, widths)).rstrip())


def _load_ops(directories):
    for directory in directories:
        if not pathlib.Path(directory).is_dir():
            raise FileNotFoundError(f"--ops {directory}: no such directory")
        for refused in _core.load_directory(directory):
            print(f"opgraft: refused {refused}", file=sys.stderr)


def _weights(model):
    """The folder of a model's weights."""
    path = pathlib.Path(model)
    return path.with_name(f"{path.stem}_variables")


def _model_files(model):
    return [("the model", model), *(("the model's weights", file) for file in _weights(model).glob("*"))]


def _is_same(file, other):
    file, other = pathlib.Path(file), pathlib.Path(other)
    return file.resolve() == other.resolve() or file.exists() and other.exists() and file.samefile(other)


def _check_distinct(option, file, others):
    """Before any work: is the file to be written none of the others, (what, file) each?"""
    for what, other in others:
        if _is_same(file, other):
            raise ValueError(f"{option} {file}: must be another file than {what}")


def _check_target(option, file):
    """Before any work: can the file be written where the option says?"""
    path = pathlib.Path(file)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{option} {file}: no such directory: {path.parent}")
    if path.is_dir():
        raise IsADirectoryError(f"{option} {file}: must be a file, got a directory")


def _ls(args):
    _load_ops(args.ops)
    ops = [
        {"name": o.name, "version": o.version, "score": o.score, "path": o.path, "replaces": o.manifest["replaces"]}
        for o in _core.list_ops()
    ]
    if args.json:
        _print_json(ops)
    else:
        rows = [(o["name"], o["version"], str(o["score"]), o["path"]) for o in ops]
        _table([("name", "version", "score", "path"), *rows])
    return 0


_VERDICTS = {
    "loads": "MindSpore loads it",
    "may crash": "MindSpore loads it, and crashes if it asks for an attribute",
    "crashes": "MindSpore would crash",
    "refuses": "MindSpore would refuse it",
}


def _doctor(args):
    if args.probe and args.host != "mindspore":
        raise _Usage("--probe goes with --host mindspore")
    verdict = None
    if args.host == "mindspore":
        verdict, checks = _core.examine_for_mindspore(args.file, args.probe)
    else:
        checks = _core.examine(args.file)
    accepted = all(ok for _, ok, _ in checks)
    if args.json:
        report = {"file": args.file, "accepted": accepted} | ({"verdict": verdict} if verdict else {})
        _print_json(report | {"checks": [{"check": c, "ok": ok, "detail": detail} for c, ok, detail in checks]})
    else:
        for step, ok, detail in checks:
            print(f"{'ok  ' if ok else 'FAIL'} {step}: {detail}" if detail else f"{'ok  ' if ok else 'FAIL'} {step}")
        if verdict:
            find_out = "; --probe finds out" if verdict == "may crash" and not args.probe else ""
            print(f"{verdict}: {_VERDICTS[verdict]}{find_out}")
    return 0 if accepted else 1


def _array(what, array, graph, value):
    """The array, if the model's input takes it."""
    if isinstance(array, dict):
        raise ValueError(f"{what}: must be an .npy file with one array, got an .npz file")
    wanted, dims = dt.from_id(graph.dtype(value)), graph.dims(value)
    if array.dtype != wanted:
        raise TypeError(f"{what}: dtype must be {dt.name(wanted)}, got {array.dtype}")
    if graph.ranked(value) and (
        array.ndim != len(dims) or any(d >= 0 and d != n for d, n in zip(dims, array.shape, strict=True))
    ):
        shape = ", ".join(graph.dim_text(d) for d in dims)
        raise ValueError(f"{what}: shape must be ({shape}), got {array.shape}")
    return array


def _proof_inputs(graph, files):
    names = [graph.value_name(v) for v in graph.inputs]
    sets = []
    for file in files:
        arrays = read_numpy("--prove", file)
        if not isinstance(arrays, dict):
            raise ValueError(f"--prove {file}: must be an .npz file with arrays {', '.join(names)}, got one array")
        if set(arrays) != set(names):
            raise ValueError(f"--prove {file}: must hold arrays {', '.join(names)}, got {', '.join(arrays) or 'none'}")
        sets.append([_array(f"--prove {file}: {n}", arrays[n], graph, v) for n, v in zip(names, graph.inputs)])
    return sets


class _Progress:
    """One line on stderr that counts up; on a terminal in place, else not more often than every 5 s."""

    def __init__(self, what):
        self.what, self.last, self.begin = what, 0.0, time.monotonic()

    def __call__(self, done, total):
        now, tty = time.monotonic(), sys.stderr.isatty()
        if tty and (done == total or now - self.last > 0.1):
            print(f"\r{self.what} {done}/{total}", end="\n" if done == total else "", file=sys.stderr, flush=True)
        elif not tty and (done == total or now - max(self.last, self.begin) > 5):
            print(f"{self.what} {done}/{total}", file=sys.stderr, flush=True)
        else:
            return
        self.last = now


def _optimize(args):
    if args.only_faster and not args.prove:
        raise _Usage("--only-faster needs --prove")
    read = [*_model_files(args.model), *(("the inputs of --prove", file) for file in args.prove)]
    _check_distinct("-o", args.output, read)
    if _is_same(_weights(args.output), _weights(args.model)):
        raise ValueError(f"-o {args.output}: must have another name than the model, whose weights it would replace")
    _check_target("-o", args.output)
    if args.report:
        _check_distinct("--report", args.report, [*read, ("the model to write", args.output)])
        _check_target("--report", args.report)
    _load_ops(args.ops)
    graph = load(args.model)
    by_env = args.custom_path == "env"
    sets = _proof_inputs(graph, args.prove) or None
    print(f"{args.model}: {len(graph.nodes)} nodes, level {args.fusion_level}", file=sys.stderr)
    if args.fusion_level != "O0":
        for improve in (_core.fold_constants, _core.merge_common, _core.remove_dead_code):
            improve(graph)
    rules = rewrite.rules_of_level(args.fusion_level)
    report = Report(**_core.substitute(graph, rules, sets, args.only_faster, _Progress("proving") if sets else None))
    _core.write_mindir(graph, args.output, path_from_env=by_env)
    if by_env:
        for so in sorted({n["library"] for n in graph.nodes if n["grafted"]}):
            print(f"MindSpore finds {_core.library_variable(so)}: export it as {so}, or where that has moved to",
                  file=sys.stderr)  # fmt: skip
    keep = ("op", "node", "max_abs", "ms_before", "ms_after")
    body = {
        "swapped": [{k: s[k] for k in keep} for s in report.swapped],
        "left": [{"node": x["node"], "why": x["why"]} for x in report.left],
        **({"note": report.note} if report.note else {}),
    }
    if args.report:
        pathlib.Path(args.report).write_text(json.dumps(body, indent=2) + "\n")
    _print_json(body) if args.json else print(report)
    return 0


def _infer_inputs(graph, pairs):
    names = [graph.value_name(v) for v in graph.inputs]
    given = {}
    for pair in pairs:
        name, equals, file = pair.partition("=")
        if not equals:
            raise _Usage(f"--input takes NAME=FILE, got '{pair}'")
        if name not in names and name.isdecimal() and int(name) < len(names):
            name = names[int(name)]
        if name not in names:
            raise _Usage(f"the model has no input '{name}'; its inputs are: {', '.join(names)}")
        if name in given:
            raise _Usage(f"input '{name}' is given twice")
        given[name] = file
    for name in names:
        if name not in given:
            raise _Usage(f"input '{name}' is missing: --input {name}=FILE")
    return [_array(f"--input {n}", read_numpy("--input", given[n]), graph, v) for n, v in zip(names, graph.inputs)]


def _file_names(names):
    """A file's name for every output; the model must not choose the directory."""
    taken = {}
    for name in names:
        base = "".join("_" if c in "/\\\0" else c for c in name)
        base = f"_{base}" if not base or base[0] == "." else base
        n = taken[base] = taken.get(base, -1) + 1
        yield f"{base}_{n}.npy" if n else f"{base}.npy"


def _latency(ms):
    """A tenth of a millisecond and less is told in microseconds."""
    return f"{ms * 1e3:.2f} us" if ms < 0.1 else f"{ms:.3f} ms"


def _infer(args):
    out = pathlib.Path(args.output)
    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"--output {out}: must be a directory, got a file")
    if args.profile:
        inputs = [(f"--input {pair}", pair.partition("=")[2]) for pair in args.input]
        _check_distinct("--profile", args.profile, [*_model_files(args.model), *inputs])
        if pathlib.Path(args.profile).resolve().parent != out.resolve():  # made below
            _check_target("--profile", args.profile)
    if args.threads:
        _core.set_threads(args.threads)
    _load_ops(args.ops)
    graph = load(args.model)
    files = list(_file_names(graph.output_names))
    if args.profile:
        _check_distinct("--profile", args.profile, [("an output", out / file) for file in files])
    arrays = _infer_inputs(graph, args.input)
    session = _core.Session(_core.Model(graph))
    outputs = session.run(arrays)
    times = []
    for _ in range(args.repeat):
        begin = time.perf_counter()
        outputs = session.run(arrays)
        times.append(1e3 * (time.perf_counter() - begin))
    out.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, file, array in zip(graph.output_names, files, outputs):
        np.save(out / file, array)
        rows.append({"name": name, "dtype": dt.name(array.dtype), "shape": list(array.shape), "file": str(out / file)})
    if args.profile:
        pathlib.Path(args.profile).write_text(session.profile(arrays, args.repeat) + "\n")
    least, median = min(times), float(np.median(times))
    if args.json:
        _print_json({"model": args.model, "runs": args.repeat, "ms_min": least, "ms_median": median,
                     "arena_bytes": session.arena_bytes, "outputs": rows})  # fmt: skip
        return 0
    lines = [(r["name"], r["dtype"], str(tuple(r["shape"])), r["file"]) for r in rows]
    _table([("output", "dtype", "shape", "file"), *lines])
    print(
        f"latency over {args.repeat} runs: min {_latency(least)}, median {_latency(median)}; "
        f"arena {session.arena_bytes} bytes"
    )
    return 0


def _build(args):
    from opgraft.build import build

    print(build(args.directory, args.output))
    return 0


class _Usage(Exception):
    """Wrong arguments that argparse cannot see."""


def _positive(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"takes a positive number, got '{text}'")
    return int(text)


def _threads(text):
    if not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= MOST_THREADS:
        raise argparse.ArgumentTypeError(f"takes a number from 1 to {MOST_THREADS}, got '{text}'")
    return int(text)


def _parser():
    parser = argparse.ArgumentParser(
        prog="opgraft",
        description="Operators built ahead of time, grafted into models.",
        epilog="Exit code: 0 done, 1 failed or refused, 2 wrong usage.",
    )
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name, run, text, **more):
        p = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", **more)
        p.set_defaults(run=run, command_parser=p)
        return p

    def ops(p):
        p.add_argument(
            "--ops", action="append", default=[], metavar="DIR", help="load the operators of this directory too"
        )

    p = command("ls", _ls, "list the registered operators")
    ops(p)
    p.add_argument("--json", action="store_true")
    p = command(
        "doctor",
        _doctor,
        "run every loading check on a shared object and check its patterns; exit code 1 when one fails",
    )
    p.add_argument("file")
    p.add_argument("--host", choices=["opgraft", "mindspore"], default="opgraft",
                   help="mindspore: whether MindSpore would load it, crash on it or refuse it")  # fmt: skip
    p.add_argument("--probe", action="store_true", help="with --host mindspore: call the file's functions as well, in "
                   "processes of their own, to learn which std::string they speak; runs its code")  # fmt: skip
    p.add_argument("--json", action="store_true")
    p = command(
        "optimize",
        _optimize,
        "put fused operators into a model",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="levels:\n" + "\n".join(f"  {k}  {v}" for k, v in rewrite.LEVELS.items()),
    )
    p.add_argument("model", help="the model (.mindir)")
    p.add_argument("-o", "--output", required=True, metavar="FILE", help="the model to write")
    p.add_argument("--fusion-level", "--fusion_level", choices=rewrite.LEVELS, default="O3", help="default: O3")
    ops(p)
    p.add_argument("--prove", action="append", default=[], metavar="FILE.npz",
                   help="inputs by name: keep only swaps that agree. Open dimensions are proven at two sizes: that of "
                   "the file and one cut out of it, or those of several files (give --prove again)")  # fmt: skip
    p.add_argument("--custom-path", "--custom_path", choices=["absolute", "env"], default="absolute",
                   help="how MindSpore finds a fused operator's .so: by the path it has now (default), or by an "
                   "environment variable, whose name is printed (models without open dimensions)")  # fmt: skip
    p.add_argument("--only-faster", action="store_true", help="with --prove: keep a swap only if at least 5 %% faster")
    p.add_argument("--report", metavar="FILE.json", help='write {"swapped": [...], "left": [...]}')
    p.add_argument("--json", action="store_true", help="print the report as JSON")
    p = command("infer", _infer, "run a model on .npy inputs")
    p.add_argument("--model", required=True)
    p.add_argument(
        "--input", action="append", default=[], metavar="NAME=FILE.npy", help="by name or position, for each"
    )
    p.add_argument("--output", required=True, metavar="DIR", help="where outputs are written, as DIR/<name>.npy")
    ops(p)
    p.add_argument("--threads", type=_threads, metavar="N", help="default: all cores")
    p.add_argument("--repeat", type=_positive, default=1, metavar="N", help="timed runs, default 1")
    p.add_argument("--profile", metavar="FILE.json", help="write cost and share of each node")
    p.add_argument("--json", action="store_true")
    p = command("build", _build, "build an operator folder into a shared object")
    p.add_argument("directory", help="a folder with op.yaml and *.cc")
    p.add_argument("-o", "--output", metavar="DIR", help="where <folder>.so is written; default: the folder itself")
    cli_text.add_commands(command, _positive, _threads)
    command("version", lambda _: print(__version__) or 0, "print the version")
    return parser


def main(argv=None) -> int:
    args = _parser().parse_args(argv)
    try:
        code = args.run(args)
        sys.stdout.flush()
        return code
    except _Usage as e:
        args.command_parser.error(str(e))
    except BrokenPipeError:  # the reader, for example head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # as if SIGPIPE had ended it
    except (OSError, ValueError, TypeError, RuntimeError, MemoryError) as e:
        print(f"opgraft: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("opgraft: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
