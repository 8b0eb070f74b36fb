"""From what was measured to tables and verdicts."""

import statistics

from report import duration
from report import table as markdown

from . import SLOTS, VARIANTS, layers

POSITIONS = [16, 256, 1024]
PLAIN, F32, BF16, STORED = [n for n in VARIANTS if n.startswith("opgraft")]
CPP = next(n for n in VARIANTS if n.startswith("llama.cpp"))
TRANSFORMERS = [n for n in VARIANTS if n.startswith("transformers")]
# transformers and opgraft in float32 differ by this much at most: the project's bound.
CLOSE = 1e-3


def wrong(name, checks):
    """Why a program's times do not count, or None. `checks` {name: what a worker's check gave}."""
    mine, variant = checks[name], VARIANTS[name]
    if variant.exact:
        if mine["agree"] != mine["of"]:
            return f"{mine['of'] - mine['agree']} of {mine['of']} tokens are not the float32 oracle's"
        if not mine["logits"] <= CLOSE:
            return f"logits are {mine['logits']:.2g} off the float32 oracle's, more than {CLOSE:g}"
        return None
    missed = mine["of"] - mine["agree"]
    if name == CPP or CPP not in checks:  # nothing to compare with but the oracle: a model that knows the text
        most, why = mine["of"] / 2, "half of all"
    else:
        # Of two counts of chances as rare as these the difference has the root of their sum as its deviation.
        other = checks[CPP]["of"] - checks[CPP]["agree"]
        most, why = other + 3 * (missed + other) ** 0.5, f"chance explains beside {CPP}'s {other}"
    if missed > most:
        return f"{missed} of {mine['of']} tokens are not the float32 oracle's: more than {why}"
    return None


def step_seconds(row, position):
    """Of a token: the best turn's mean, as other programs on the machine only slow it down."""
    turns = row.get("decode", {}).get(position)
    return min(statistics.fmean(t) for t in turns) if turns else None


def latency(row, position):
    """The median of all steps."""
    turns = row.get("decode", {}).get(position)
    return statistics.median(s for t in turns for s in t) if turns else None


def first_seconds(row):
    return min(row["prefill"]) if row.get("prefill") else None


def _ratio(a, b):
    return a / b if a and b else None


def bandwidth(result):
    """Bytes per second: the most that was read in this run, by threads that do nothing else or by a program."""
    found = [result["machine"]["read_bandwidth"]]
    for name, row in result["rows"].items():
        found += [result["weights"][name] / s for p in POSITIONS if (s := step_seconds(row, p))]
    return max(found)


def targets(result):
    """[{"what", "got", "at_least" or "at_most", "reached"}]; what has no figures is left out."""
    rows, found = result["rows"], []

    def add(what, got, **bound):
        if got is not None:
            ((kind, value),) = bound.items()
            found.append({"what": what, "got": got, kind: value,
                          "reached": got >= value if kind == "at_least" else got <= value})  # fmt: skip

    def best(names, figure):
        return min((f for n in names if (f := figure(rows.get(n, {})))), default=None)

    def mine(name, figure):
        return figure(rows.get(name, {}))

    for p in POSITIONS:

        def step(row, p=p):
            return step_seconds(row, p)

        def middle(row, p=p):
            return latency(row, p)

        theirs, at = best(TRANSFORMERS, step), f"at {p}"
        add(f"grafted f32 decode tokens/s {at}, of transformers'", _ratio(theirs, mine(F32, step)), at_least=1.86)
        add(f"grafted f32 step latency {at}, of transformers'", _ratio(mine(F32, middle), best(TRANSFORMERS, middle)),
            at_most=0.552)  # fmt: skip
        add(f"grafted f32 decode tokens/s {at}, of transformers' (3 times)", _ratio(theirs, mine(F32, step)),
            at_least=3.0)  # fmt: skip
        add(f"plain decode tokens/s {at}, of transformers'", _ratio(theirs, mine(PLAIN, step)), at_least=1.0)
        add(f"grafted Q4_1 decode tokens/s {at}, of llama.cpp's", _ratio(mine(CPP, step), mine(STORED, step)),
            at_least=1.3)  # fmt: skip
        peaks = [rows.get(n, {}).get("kv", {}).get(p, {}).get("peak") for n in (F32, PLAIN)]
        add(f"peak KV bytes {at}, grafted f32 of concatenated caches", _ratio(*peaks), at_most=0.658)
    first = best(TRANSFORMERS, first_seconds)
    add("grafted f32 first token, of transformers'", _ratio(mine(F32, first_seconds), first), at_most=0.71)
    add("plain first token, of transformers'", _ratio(mine(PLAIN, first_seconds), first), at_most=1.0)
    faster = best([*TRANSFORMERS, CPP], first_seconds)
    for name in (F32, STORED):
        add(f"{name} prefill tokens/s, of the faster peer's", _ratio(faster, mine(name, first_seconds)), at_least=1.0)
    counts = [rows.get(n, {}).get("sequences", {}).get("count") for n in (F32, PLAIN)]
    add("texts at once under the bound, grafted f32 of concatenated caches", _ratio(*counts), at_least=1.75)
    return found


def _cells(name, row, result):
    if reason := row.get("wrong") or row.get("missing"):
        return [name, "wrong" if "wrong" in row else "-", *["-"] * (len(HEADER) - 2)], f"- {name}: {reason}"
    first, check = first_seconds(row), row.get("check", {})
    cells = [name, duration(first) if first else "-", f"{result['prompt'] / first:.0f}" if first else "-"]
    for p in POSITIONS:
        took = step_seconds(row, p)
        cells.append(f"{1 / took:.1f}" if took else "-")
    middle = latency(row, POSITIONS[1])
    cells.append(duration(middle) if middle else "-")
    cells.append(f"{row['peak'] / 2**20:.0f}" if "peak" in row else "-")
    kv = row.get("kv", {}).get(POSITIONS[-1])
    cells.append(f"{kv['bytes'] / 2**20:.1f} / {kv['peak'] / 2**20:.1f}" if kv else "-")
    cells.append(str(row.get("sequences", {}).get("count", "-")))
    took = step_seconds(row, POSITIONS[0])
    cells.append(f"{100 * result['weights'][name] / took / bandwidth(result):.0f} %" if took else "-")
    cells.append(f"{100 * check['agree'] / check['of']:.1f} %, {check['logits']:.2g}" if check else "-")
    return cells, None


HEADER = ["", "first token", "prefill tokens/s", *[f"decode tokens/s at {p}" for p in POSITIONS],
          f"step at {POSITIONS[1]}, median", "peak MiB", f"KV MiB at {POSITIONS[-1]}: kept / peak", "texts at once",
          "of the wall", "oracle's tokens, logits off by"]  # fmt: skip


def whole(result):
    m, parts = result["machine"], []
    parts.append(
        f"{m['cpu']}, {m['simd']}, {result['threads']} threads each; reads {bandwidth(result) / 1e9:.1f} GB/s, "
        f"copies {m['copy_bandwidth'] / 1e9:.1f} GB/s, product of 2048² matrices {m['gemm_peak'] / 1e9:.0f} GFLOP/s. "
        f"{result['rounds']} turns of each. "
        + ", ".join(dict.fromkeys(r["version"] for r in result["rows"].values() if "version" in r))
    )  # fmt: skip
    cells = [_cells(n, r, result) for n, r in result["rows"].items()]
    if cells:
        parts.append(markdown(HEADER, [c for c, _ in cells]))
        parts.append(
            f"First token: of a prompt of {result['prompt']} tokens. Rates are of the best turn. Peak MiB: of the "
            f"process, which keeps {SLOTS} texts; a mapped file counts as far as it was read. Texts at once: of "
            f"{result['kept']} tokens, with keys and values in {result['bound'] >> 20} MiB; concatenated caches of a "
            "batch are there twice while it is appended to, transformers' those of one layer. Of the wall: weights "
            f"that a step at {POSITIONS[0]} reads, against the {bandwidth(result) / 1e9:.1f} GB/s."
        )
    if reasons := [r for _, r in cells if r]:
        parts.append("No figure:\n\n" + "\n".join(reasons))
    if result["targets"]:
        parts.append(markdown(["target", "got", "to reach", ""], [
            [t["what"], f"{t['got']:.2f}",
             f"at least {t['at_least']:g}" if "at_least" in t else f"at most {t['at_most']:g}",
             "reached" if t["reached"] else "**short**"] for t in result["targets"]
        ]))  # fmt: skip
    for kind, what in (("decode", f"a step at {POSITIONS[1]}"), ("prefill", "the first token of a prompt")):
        profiles = {n: r["shares"][kind] for n, r in result["rows"].items() if kind in r.get("shares", {})}
        parts += shares(profiles, what)
    if "layers" in result:
        parts += layers.tables(result["layers"])
        for count in ("layer, 1 ", "layer, 128 "):
            of = {n: p for n, p in result["layers"].get("shares", {}).items() if count in n}
            parts += shares(dict(sorted(of.items(), reverse=True)), "a layer")
    return "\n\n".join(parts)


def shares(profiles, what, least=0.005):
    """What part of the engine's time goes where, before the swap and after: by parts, and by operators."""
    found = []
    for by, words in (("parts", "parts"), ("ops", "operators")) if profiles else ():
        total = {n: sum(p[by].values()) for n, p in profiles.items()}
        share = {n: {k: us / total[n] for k, us in p[by].items()} for n, p in profiles.items()}
        most = {k: max(s.get(k, 0.0) for s in share.values()) for s in share.values() for k in s}
        lines = [[k, *(f"{100 * s[k]:.1f} %" if k in s else "-" for s in share.values())]
                 for k in sorted(most, key=most.get, reverse=True) if most[k] >= least]  # fmt: skip
        lines.append(["all, µs", *(f"{t:.0f}" for t in total.values())])
        found.append(f"Share of the {words}' time in {what}:\n\n" + markdown([words, *share], lines))
    return found
