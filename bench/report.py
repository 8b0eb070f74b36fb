"""From figures to a table: ratios, achieved rates, verdicts."""

from peers import OURS, PEERS

MINDSPORE = [p for p in PEERS if p.startswith("mindspore")]


def traffic(row):
    """Bytes that a call must at least read and write."""
    if row.bytes:
        return row.bytes
    inputs, weights = row.arrays()
    element = {"float32": 4}.get(row.dtype, 2)
    return sum(a.nbytes for a in inputs + weights) + sum(a.size * element for a in row.expected())


def summary(row, figures):
    """The JSON of one row."""
    ours = figures.get("opgraft", {}).get("min")
    peers = {p: f["min"] for p, f in figures.items() if p not in OURS and "min" in f}
    best = min(peers, key=peers.get) if peers else None
    mindspore = min((peers[p] for p in MINDSPORE if p in peers), default=None)
    ratios = {}
    if ours:
        others = {"best peer": peers.get(best), "numpy": peers.get("numpy"), "mindspore": mindspore,
                  "twin": figures.get("twin", {}).get("min")}  # fmt: skip
        ratios = {k: ours / v for k, v in others.items() if v}
    verdicts = {
        "best peer": (row.target, ratios.get("best peer")),
        "twin": (1 / row.twin if row.twin else None, ratios.get("twin")),
        "mindspore": (1 / row.mindspore_target if row.mindspore_target else None, ratios.get("mindspore")),
    }
    return {
        "figures": figures, "best": best, "ratios": ratios,
        "targets": {k: {"at_most": t, "got": r, "reached": r <= t} for k, (t, r) in verdicts.items() if t and r},
        "GB/s": traffic(row) / ours / 1e9 if ours else None,
        "GFLOP/s": row.flops / ours / 1e9 if ours and row.flops else None,
        "flops": row.flops, "bytes": traffic(row), "note": row.note,
    }  # fmt: skip


def compare_rows(chosen, summaries):
    """Adds to the summaries what compares a row with another of the same run."""
    for row in chosen:
        ours, other = (summaries.get(n, {}).get("figures", {}).get("opgraft", {}) for n in (row.name, row.against))
        if "min" in ours and "min" in other:
            got = ours["min"] / other["min"]
            summaries[row.name]["ratios"][row.against] = got
            if t := row.target_against:
                summaries[row.name]["targets"][row.against] = {"at_most": t, "got": got, "reached": got <= t}


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
    """'0.52 of 0.65' or, short of it, '0.72 of 0.65 NOT'."""
    found = []
    for what, v in row["targets"].items():
        mark = "" if v["reached"] else " **NOT**"
        if what == "best peer":
            found.append(f"{v['got']:.2f} of {v['at_most']:.2f}{mark}")
        elif what not in ("twin", "mindspore"):
            found.append(f"{v['got']:.2f} of {v['at_most']:.2f} of '{what}'{mark}")
        else:
            found.append(f"{1 / v['got']:.1f}x {what} of {1 / v['at_most']:.3g}x{mark}")
    if not row["targets"] and row["ratios"].get("best peer"):
        found.append(f"{row['ratios']['best peer']:.2f}")
    return "; ".join(found)


def markdown(result):
    m = result["machine"]
    names = [p for p in PEERS if p in result["peers"]]
    head = (
        f"{m['cpu']}, {m['simd']}, {result['threads']} threads each; copy {m['copy_bandwidth'] / 1e9:.1f} GB/s, "
        f"product of 2048² matrices {m['gemm_peak'] / 1e9:.0f} GFLOP/s. "
        + ", ".join(f"{p} {result['peers'][p]}" for p in names if p != "twin")
        + f". Minimum (median) of {result['rounds']} turns."
    )
    lines, notes = [], []
    for name, row in result["rows"].items():
        cells = [name]
        for p in names:
            f = row["figures"].get(p, {})
            cells.append(
                f"{duration(f['min'])} ({duration(f['median'])})" if "min" in f else "wrong" if "wrong" in f else "-"
            )
            if reason := f.get("wrong") or f.get("missing"):
                notes.append(f"- {name}, {p}: {reason}")
        rates = [f"{row[k]:.3g}" if row.get(k) else "-" for k in ("GB/s", "GFLOP/s")]
        lines.append([*cells, *rates, verdict(row)])
    text = head + "\n\n" + table(["row", *names, "GB/s", "GFLOP/s", "opgraft / best peer"], lines)
    return text + ("\n\nNo figure:\n\n" + "\n".join(notes) if notes else "")
