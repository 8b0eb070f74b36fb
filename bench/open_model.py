"""Opening a model with 1 GiB of weights in a new process: seconds, and what of the weights was read into memory."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

TARGET = 0.2  # seconds, weights as external data
WIDTH = 4096  # a float32 layer of this width has 64 MiB


def write(file, layers, external):
    import numpy as np
    import opgraft
    from opgraft import Tensor, _core, nn

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.layers = nn.CellList(nn.Dense(1, 1, has_bias=False) for _ in range(layers))
            for i, layer in enumerate(self.layers):
                layer.weight = opgraft.Parameter(np.full((WIDTH, WIDTH), (i + 1) / WIDTH, np.float32))

        def construct(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    opgraft.export(Net(), Tensor(shape=[None, WIDTH], dtype=opgraft.float32), file_name=file)
    if not external:  # the same graph again, its weights within the file
        graph = opgraft.load(file)
        _core.write_mindir(graph, str(file), external_from=1 << 62)


def memory():
    """Resident kB: (all, of that not backed by a file)."""
    lines = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
    return tuple(int(lines[key].split()[0]) for key in ("VmRSS", "RssAnon"))


def measure(file):
    """In a process of its own."""
    import time

    import opgraft
    from opgraft import _core, nn

    _core.list_ops()  # loads the operators, whatever the model
    before = memory()
    start = time.perf_counter()
    cell = nn.GraphCell(opgraft.load(file))
    seconds = time.perf_counter() - start
    after = memory()
    weights = [cell.graph.constant(i) for n in cell.graph.nodes for i in n["inputs"]]
    weights = [w for w in weights if w is not None and w.nbytes >= 1 << 20]
    print(json.dumps({
        "seconds": seconds,
        "weight_bytes": sum(w.nbytes for w in weights),
        "alignment": min((w.ctypes.data & -w.ctypes.data for w in weights), default=0),
        "rss_kb": after[0] - before[0],
        "anonymous_kb": after[1] - before[1],
    }))  # fmt: skip


def forget(folder):
    """Takes the files out of the page cache."""
    for file in folder.rglob("*"):
        if file.is_file():
            fd = os.open(file, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=16, help="of 64 MiB each, default %(default)s")
    parser.add_argument("--out", help="write the figures here (JSON)")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        return measure(args.measure)
    figures = {}
    print(f"{'weights':10} {'page cache':10} {'MiB':>6} {'seconds':>9} {'target':>9} {'RSS MiB':>9} {'copied MiB':>10} "
          f"{'aligned':>8}")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for kind in ("external", "inline"):
            for file in folder.rglob("*.mindir"):
                file.unlink()
            file = folder / f"{kind}.mindir"
            write(file, args.layers, kind == "external")
            for cache in ("empty", "full"):
                if cache == "empty":
                    forget(folder)
                run = subprocess.run(
                    [sys.executable, __file__, "--measure", str(file)], check=True, capture_output=True
                )
                f = json.loads(run.stdout)
                figures[f"{kind}_{cache}"] = f
                late = "  MISSED" if kind == "external" and f["seconds"] > TARGET else ""
                target = f"<= {TARGET}" if kind == "external" else "-"
                rss, copied = f["rss_kb"] / 1024, f["anonymous_kb"] / 1024
                print(f"{kind:10} {cache:10} {f['weight_bytes'] >> 20:6} {f['seconds']:9.4f} {target:>9} {rss:9.1f} "
                      f"{copied:10.1f} {f['alignment']:8}{late}")  # fmt: skip
    if args.out:
        pathlib.Path(args.out).write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
