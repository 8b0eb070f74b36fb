"""From figures to a table: ratios, achieved rates, verdicts."""

from peers import AGAINST, OURS, PEERS

MINDSPORE = [p for p in PEERS if p.startswith("mindspore")]


def traffic(row, inputs, weights, outputs):
    """Bytes that a call must at least read and write."""
    if row.bytes:
        return row.bytes
    element = {"float32": 4}.get(row.dtype, 2)
    return sum(a.nbytes for a in inputs + weights) + sum(a.size * element for a in outputs)


def summary(row, figures, traffic):
    """The JSON of one row."""
    ours = figures.get("opgraft", {}).get("min")
    peers = {p: f["min"] for p, f in figures.items() if p not in OURS and "min" in f}
    best = min(peers, key=peers.get) if peers else None
    mindspore = min((peers[p] for p in MINDSPORE if p in peers), default=None)
    ratios, by_peer = {}, {}
    if ours:
        by_peer = {p: ours / f["min"] for p, f in figures.items() if p != "opgraft" and "min" in f}
        others = {"best peer": peers.get(best), "numpy": peers.get("numpy"), "mindspore": mindspore,
                  "twin": figures.get("twin", {}).get("min")}  # fmt: skip
        others[row.against] = figures.get(AGAINST, {}).get("min")
        ratios = {k: ours / v for k, v in others.items() if v}
    verdicts = {
        "best peer": (row.target, ratios.get("best peer")),
        "twin": (1 / row.twin if row.twin else None, ratios.get("twin")),
        "mindspore": (1 / row.mindspore_target if row.mindspore_target else None, ratios.get("mindspore")),
        row.against: (row.target_against, ratios.get(row.against)),
    }
    return {
        "figures": figures, "best": best, "ratios": ratios, "by peer": by_peer,
        "targets": {k: {"at_most": t, "got": r, "reached": r <= t} for k, (t, r) in verdicts.items() if t and r},
        "GB/s": traffic / ours / 1e9 if ours else None,
        "GFLOP/s": row.flops / ours / 1e9 if ours and row.flops else None,
        "flops": row.flops, "bytes": traffic, "note": row.note,
    }  # fmt: skip


def duration(seconds):
    for unit, factor in (("s", 1), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1 or unit == "µs":
            value = seconds * factor
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    raise AssertionError


def table(header, lines):
    """A Markdown table, its columns aligned; all but the first to the right."""
    widths = [max(len(r[k]) for r in [header, *lines]) for k in range(len(header))]

    def line(cells):
        return (
            "| "
            + " | ".join(c.ljust(w) if k == 0 else c.rjust(w) for k, (c, w) in enumerate(zip(cells, widths)))
            + " |"
        )

    rule = "|" + "|".join("-" * (w + 2) if k == 0 else "-" * (w + 1) + ":" for k, w in enumerate(widths)) + "|"
    return "\n".join([line(header), rule, *map(line, lines)])


def verdict(row):
    """'0.52 of 0.65' or, short of it, '**0.72** of 0.65'."""
    found = []
    for what, v in row["targets"].items():
        if what in ("twin", "mindspore"):
            got = bold(f"{1 / v['got']:.1f}x", v)
            found.append(f"{got} {what} of {1 / v['at_most']:.3g}x")
        else:
            got, other = bold(f"{v['got']:.2f}", v), "" if what == "best peer" else f" of '{what}'"
            found.append(f"{got} of {v['at_most']:.2f}{other}")
    if not row["targets"] and row["ratios"].get("best peer"):
        found.append(f"{row['ratios']['best peer']:.2f}")
    return "; ".join(found)


def bold(text, target):
    return text if target["reached"] else f"**{text}**"


def head(result):
    m = result["machine"]
    return (
        f"{m['cpu']}, {m['simd']}, {result['threads']} threads each; copy {m['copy_bandwidth'] / 1e9:.1f} GB/s, "
        f"product of 2048² matrices {m['gemm_peak'] / 1e9:.0f} GFLOP/s. "
        + ", ".join(f"{p} {v}" for p, v in result["peers"].items() if p != "twin")
        + f". Up to {result['rounds']} turns of each."
    )


def times(row, what):
    """'12.3 (3)': how many times opgraft's time `what` takes, and is to take at least."""
    if what not in row["ratios"]:
        return "-"
    got, target = f"{1 / row['ratios'][what]:.1f}", row["targets"].get(what)
    return f"{bold(got, target)} ({1 / target['at_most']:.3g})" if target else got


def rates(row, *names):
    return [f"{row[k]:.3g}" if row.get(k) else "-" for k in names]


def short(result):
    """The table of docs/performance.md: opgraft, its twin, the best peer; and rows against rows."""
    lines, pairs = [], []
    for name, row in result["rows"].items():
        ours = row["figures"].get("opgraft", {})
        best, target = row["best"], row["targets"].get("best peer")
        ratio = row["ratios"].get("best peer")
        lines.append([
            name, duration(ours["min"]) if "min" in ours else "wrong" if "wrong" in ours else "-",
            f"{duration(row['figures'][best]['min'])} {best}" if best else "-",
            "-" if ratio is None else bold(f"{ratio:.2f}", target) if target else f"{ratio:.2f}",
            f"{target['at_most']:.2f}" if target else "-",
            times(row, "mindspore"), times(row, "twin"), *rates(row, "GFLOP/s", "GB/s"),
        ])  # fmt: skip
        for other, v in row["targets"].items():
            if other not in ("best peer", "mindspore", "twin"):
                got = bold(f"{v['got']:.2f}", v)
                pairs.append(f"- {name}: {got} of '{other}', at most {v['at_most']:.3g}")
    columns = ["row", "opgraft", "best peer", "ratio", "at most", "MindSpore / opgraft (at least)",
               "twin / opgraft (at least)", "GFLOP/s", "GB/s"]  # fmt: skip
    text = head(result) + " In bold what falls short.\n\n" + table(columns, lines)
    return text + ("\n\nRows against rows of ours:\n\n" + "\n".join(pairs) if pairs else "")


def text(result):
    return short(result) + "\n\n" + wide(result)


def wide(result):
    """Every peer's minimum and median, and why one has none."""
    lines, notes = [], {}
    for name, row in result["rows"].items():
        cells = [name]
        for p in result["peers"]:
            f = row["figures"].get(p, {})
            more = duration(f["median"]) if f.get("batches", 2) > 1 and "median" in f else "one call"
            cells.append(f"{duration(f['min'])} ({more})" if "min" in f else "wrong" if "wrong" in f else "-")
            if reason := f.get("wrong") or f.get("missing"):
                notes.setdefault((p, reason), []).append(name)
        lines.append([*cells, *rates(row, "GB/s", "GFLOP/s"), verdict(row)])
    text = "Minimum (median):\n\n" + table(["row", *result["peers"], "GB/s", "GFLOP/s", "opgraft / best peer"], lines)
    reasons = [f"- {p}: {reason}: {'; '.join(names)}" for (p, reason), names in notes.items()]
    return text + ("\n\nNo figure:\n\n" + "\n".join(reasons) if reasons else "")
