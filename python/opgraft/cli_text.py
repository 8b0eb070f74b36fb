"""`opgraft export` and `opgraft generate`: models that are built from a checkpoint, and text of them."""

import importlib.util
import json
import pathlib
import resource
import signal
import sys

from . import _core, load
from .generation import TextModel
from .serialization import export

DEFAULT_CELLS = "examples/llama"


def cells(folder):
    """The Python package in a folder, of which `build(checkpoint, weights, rows)` makes (Cell, user_info)."""
    path = pathlib.Path(folder).resolve()
    file = path / "__init__.py"
    if not file.is_file():
        raise FileNotFoundError(f"{folder}: no such model: it has no __init__.py")
    name = f"opgraft_cells_{path.name}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=[str(path)])
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    if not hasattr(sys.modules[name], "build"):
        raise ValueError(f"{folder}: its __init__.py has no build(checkpoint, weights, rows)")
    return sys.modules[name]


def run_export(args):
    net, user_info = cells(args.cells).build(args.model, args.weights, args.rows)
    file = export(net, file_name=args.output, user_info=user_info)
    if args.json:
        print(json.dumps({"model": file, "weights": args.weights, "rows": args.rows}, indent=2))
    else:
        print(file)
    return 0


def _graph(args):
    if pathlib.Path(args.model).suffix == ".mindir":
        return load(args.model)
    net, user_info = cells(args.cells).build(args.model, args.weights, args.rows)
    leaves, structure = net._declared
    graph, _ = net._trace([(t.dtype, t.shape) for t in leaves], structure)
    if not args.plain_operators:
        _core.substitute(graph, _core.rules())
    graph.user_info = user_info
    return graph


def run_generate(args):
    if args.threads:
        _core.set_threads(args.threads)
    model = TextModel(_graph(args))
    if args.state_bytes:
        model.model.limit_state(args.state_bytes)
    ids = model.encode(args.prompt, chat=not args.no_chat, system=args.system)
    interrupted, stats, pieces, drawn = [], None, [], []

    def interrupt(number, frame):
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second one ends the program
        interrupted.append(number)

    def collected():
        nonlocal stats
        stats = yield from model.generate(ids, args.max_tokens, args.temperature, args.top_k, args.top_p, args.seed,
                                          stop=lambda: bool(interrupted))  # fmt: skip

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        for token, piece in collected():
            drawn.append(token)
            pieces.append(piece)
            if not args.json:
                print(piece, end="", flush=True)
    finally:
        signal.signal(signal.SIGINT, before)
    report = stats.to_dict() | {"peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    if args.json:
        print(json.dumps({"text": "".join(pieces), "ids": drawn} | report, indent=2))
    else:
        print(f"\n\n{summary(report)}" + ("" if stats.end == "eos" else f"\nended by {stats.end}"))
    return 130 if stats.end == "interrupted" else 0


def add_commands(command, positive, threads):
    """The parsers of both; `command` makes one."""

    def checkpoint(p):
        p.add_argument("--weights", choices=["float32", "bfloat16", "stored", "int8"], default="stored",
                       help="of a checkpoint: expanded, as it has them (default), or eight bits")  # fmt: skip
        p.add_argument("--rows", type=positive, metavar="N", help="tokens that the caches hold; default: the context")

    p = command("export", run_export, "build a model from a checkpoint and write it")
    p.add_argument("cells", help="the folder of the model's Cells, such as examples/llama")
    p.add_argument("--model", required=True, metavar="FILE", help="the checkpoint, such as FILE.gguf")
    p.add_argument("-o", "--output", required=True, metavar="FILE.mindir")
    checkpoint(p)
    p.add_argument("--json", action="store_true")
    p = command("generate", run_generate, "write on from a prompt; Ctrl-C ends the text")
    p.add_argument("--model", required=True, metavar="FILE", help="a model of `opgraft export`, or a checkpoint")
    p.add_argument("--prompt", required=True)
    p.add_argument("--system", metavar="TEXT", help="what the model is told before the prompt, in its chat form")
    p.add_argument("--max-tokens", type=positive, default=256, metavar="N", help="default: 256")
    p.add_argument("--temperature", type=float, default=0.0, help="default: 0, the likeliest token each time")
    p.add_argument("--top-k", type=int, default=0, metavar="N", help="draw among the N likeliest; default: all")
    p.add_argument(
        "--top-p", type=float, default=1.0, metavar="P", help="and the fewest that hold P of the probability"
    )
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--no-chat", action="store_true", help="the prompt as it is, outside the model's chat form")
    p.add_argument(
        "--state-bytes", type=positive, metavar="BYTES", help="what keys and values may take; default: no bound"
    )
    p.add_argument("--cells", default=DEFAULT_CELLS, help=f"of a checkpoint; default: {DEFAULT_CELLS}")
    checkpoint(p)
    p.add_argument("--plain-operators", action="store_true", help="of a checkpoint: fuse nothing")
    p.add_argument("--threads", type=threads, metavar="N", help="default: all cores")
    p.add_argument("--json", action="store_true", help="print text and figures when all is done")


def summary(r):
    def rate(value):
        return f"{value:.1f} tokens/s" if value else "-"

    lines = [
        f"prompt {r['prompt_tokens']} tokens, {rate(r['prompt_tokens_per_s'])}",
        f"first token {r['first_token_ms']:.1f} ms",
        f"then {r['tokens']} tokens, {rate(r['decode_tokens_per_s'])}",
        f"peak memory {r['peak_rss_bytes'] / 2**20:.0f} MiB, keys and values {r['kv_bytes'] / 2**20:.1f} MiB",
    ]
    return "\n".join(lines)
