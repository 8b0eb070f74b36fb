"""DenseQKV and DenseSwiGLU against the products one by one, in turns in one process: the shapes of SmolLM2 and of
LLaMA-2-7B, one token and a prompt. Weights are packed; for one token too many for the caches, as a decoder reads them.
"""

import argparse
import json
import pathlib
import statistics
from functools import partial

import ml_dtypes
import numpy as np
import opgraft
from opgraft import Parameter, Tensor, nn, ops
from timing import interleaved

WEIGHTS = 96 << 20  # bytes, at least: as many layers
SHAPES = [
    ("SmolLM2", "DenseQKV", 576, (576, 192, 192)), ("SmolLM2", "DenseSwiGLU", 576, (1536, 1536)),
    ("LLaMA-2-7B", "DenseQKV", 4096, (4096,) * 3), ("LLaMA-2-7B", "DenseSwiGLU", 4096, (11008,) * 2),
]  # fmt: skip
DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}


class Layer(nn.Cell):
    def __init__(self, op, weights, joint):
        super().__init__()
        self.op, self.joint, self.names = op, joint, [f"w{i}" for i in range(len(weights))]
        for name, w in zip(self.names, weights):
            setattr(self, name, Parameter(w, requires_grad=False))

    def construct(self, x):
        weights = [getattr(self, n) for n in self.names]
        if self.joint:
            return ops.primitive(self.op, x, *weights, transpose_b=True)
        y = [ops.primitive("Dense", x, w, transpose_b=True) for w in weights]
        return ops.primitive("SwiGLU", y[1], y[0]) if self.op == "DenseSwiGLU" else tuple(y)


class Layers(nn.Cell):
    """Layers of one x."""

    def __init__(self, op, layers, joint):
        super().__init__()
        self.layers = nn.CellList(Layer(op, weights, joint) for weights in layers)

    def construct(self, x):
        return [layer(x) for layer in self.layers]


def weights_of(k, columns, dtype):
    rng, size = np.random.default_rng(0), k * sum(columns) * np.dtype(dtype).itemsize
    return [
        [rng.standard_normal((n, k), np.float32).astype(dtype) * dtype(k**-0.5) for n in columns]
        for _ in range(-(-WEIGHTS // size))
    ]


def measure(op, k, columns, dtype, rows, rounds):
    """(microseconds of a layer one by one, jointly), by the number of rows: medians of turns."""
    weights = weights_of(k, columns, dtype)
    for m in rows:
        layers = weights if m == 1 else weights[:1]
        nets = {joint: Layers(op, layers, joint) for joint in (False, True)}
        x = np.random.default_rng(1).standard_normal((m, k), np.float32).astype(dtype)
        calls = {joint: partial(net.session(Tensor(x)).run, [x]) for joint, net in nets.items()}
        found = interleaved(calls, rounds, seconds=1e-2)
        yield m, *(statistics.median(found[joint]) / len(layers) * 1e6 for joint in (False, True))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 128], help="rows of x (default 1 128)")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--json", type=pathlib.Path, help="write the figures")
    args = parser.parse_args()
    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    figures = {}
    print(f"{'a layer':44}{'one by one':>14}{'jointly':>14}{'of it':>8}")
    for model, op, k, columns in SHAPES:
        for dtype in args.dtypes:
            for m, apart, joint in measure(op, k, columns, DTYPES[dtype], args.rows, args.rounds):
                name = f"{model} {op} {dtype} {m}x{k}"
                figures[name] = {"one by one": apart, "jointly": joint}
                print(f"{name:44}{apart:11.1f} us{joint:11.1f} us{joint / apart:8.3f}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
