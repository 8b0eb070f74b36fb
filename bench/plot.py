"""Draws a result of bench/operators.py: bars of every row against its best peer, and the roofline.

plot.py RESULT.json -o FILE.svg|FILE.png
"""

import argparse
import json
import pathlib

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

# One colour a peer, the same in every picture; safe for colour-blind readers (Okabe and Ito 2008).
COLOURS = {"opgraft": "#D55E00", "numpy": "#999999", "torch": "#E69F00", "torch.compile": "#F0E442",
           "onnxruntime": "#0072B2", "openvino": "#56B4E9", "mindspore graph": "#009E73",
           "mindspore pynative": "#CC79A7"}  # fmt: skip


def bars(ax, result):
    """Each peer's time over opgraft's, as a bar from 1: to the right it is slower than opgraft, to the left faster."""
    peers = [p for p in COLOURS if p in result["peers"] and p != "opgraft"]
    rows = [(n, r) for n, r in result["rows"].items() if "min" in r["figures"].get("opgraft", {})]
    height = 0.8 / max(len(peers), 1)
    ax.axvline(1, color=COLOURS["opgraft"], linewidth=1.5)
    for at, (_, row) in enumerate(rows):
        ours = row["figures"]["opgraft"]["min"]
        for k, peer in enumerate(peers):
            figure = row["figures"].get(peer, {})
            if "min" in figure:
                y, times = at + (k - len(peers) / 2 + 0.5) * height, figure["min"] / ours
                ax.barh(y, times - 1, height, left=1, color=COLOURS[peer])
        target = row["targets"].get("best peer")
        if target:  # the best peer's bar must reach the mark
            ax.plot([1 / target["at_most"]] * 2, [at - 0.45, at + 0.45], color="black", linewidth=1.2, zorder=3)
    ax.set_xscale("log")
    ax.set_yticks(range(len(rows)), [n for n, _ in rows], fontsize=8)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    ax.set_xlabel("time / opgraft's time (right of 1: slower than opgraft; black mark: the target for the fastest)")
    handles = [plt.Rectangle((0, 0), 1, 1, color=COLOURS[p]) for p in peers]
    ax.legend(handles, peers, loc="upper center", bbox_to_anchor=(0.4, 1 + 1.4 / (len(rows) + 1)), ncols=4, fontsize=8,
              frameon=False)  # fmt: skip
    ax.grid(axis="x", which="both", alpha=0.25)


def roofline(ax, result):
    """GFLOP/s over operations a byte, with the copy's bandwidth and the product's rate as the roof."""
    machine = result["machine"]
    points = [(r["flops"] / r["bytes"], r["GFLOP/s"], n) for n, r in result["rows"].items() if r.get("GFLOP/s")]
    if not points:
        return ax.set_visible(False)
    bandwidth, peak = machine["copy_bandwidth"] / 1e9, machine["gemm_peak"] / 1e9
    low, high = min(p[0] for p in points) / 2, max(max(p[0] for p in points), peak / bandwidth) * 2
    knee = peak / bandwidth
    ax.plot([low, knee, high], [low * bandwidth, peak, peak], color="black", linewidth=1.2)
    ax.scatter([p[0] for p in points], [p[1] for p in points], color=COLOURS["opgraft"], s=18, zorder=3)
    for k, (x, y, _) in enumerate(points):
        ax.annotate(str(k + 1), (x, y), textcoords="offset points", xytext=(4, 3), fontsize=7)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("operations a byte (least traffic)")
    ax.set_ylabel("GFLOP/s")
    ax.set_title(f"opgraft under the roof: copy {bandwidth:.0f} GB/s, matrix product {peak:.0f} GFLOP/s;\n"
                 "what stays in the caches may lie above its slope", fontsize=9)  # fmt: skip
    columns = 2
    lines = [f"{k + 1} {p[2]}" for k, p in enumerate(points)]
    length = (len(lines) + columns - 1) // columns
    for c in range(columns):
        ax.text(c / columns, -0.17, "\n".join(lines[c * length : (c + 1) * length]), transform=ax.transAxes, fontsize=7,
                va="top")  # fmt: skip
    ax.grid(which="both", alpha=0.25)


def draw(result, path):
    count = len(result["rows"])
    tall, below = 1.2 + 0.4 * count, 0.13 * (count / 2 + 2)
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(10, tall + 5 + below), height_ratios=[tall, 5])
    bars(top, result)
    roofline(bottom, result)
    machine = result["machine"]
    figure.suptitle(f"{machine['cpu']}, {machine['simd']}, {result['threads']} threads each", fontsize=10, y=0.995)
    figure.tight_layout(rect=(0, 0, 1, 0.99))  # leaves room for the names below
    figure.savefig(path, dpi=130, bbox_inches="tight")
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=pathlib.Path)
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True, help="FILE.svg or FILE.png")
    args = parser.parse_args()
    draw(json.loads(args.result.read_text()), args.output)


if __name__ == "__main__":
    main()
