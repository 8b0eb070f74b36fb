#!/usr/bin/env bash
# coverage.sh BUILD: line coverage of the code that reads untrusted files, by what the fuzzers in BUILD ran
# (BUILD/profile/*.profraw). Prints a table; fails where a file is below 80 %.
set -Eeuo pipefail
[ $# = 1 ] || { echo "usage: $0 BUILD" >&2; exit 2; }
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$(cd "$1" && pwd)
objects=()
for fuzzer in "$build"/fuzz_*; do [ -x "$fuzzer" ] && objects+=(-object "$fuzzer"); done
llvm-profdata merge -sparse "$build"/profile/*.profraw -o "$build/profile/all.profdata"
llvm-cov export -summary-only -instr-profile "$build/profile/all.profdata" "${objects[@]}" >"$build/profile/summary.json"
python3 - "$root" "$build" <<'PYTHON'
import json, os, pathlib, re, sys

root, build = map(pathlib.Path, sys.argv[1:])
summary = json.load(open(build / "profile/summary.json"))
reading = re.compile(r"registry/(manifest|elf|descriptor)\.cc|infer/(npy|checkpoint)\.cc|infer/mindir_(?!writer|encode)\w+\.cc"
                     r"|infer/cli/text/(bpe|splitter|tokenizer|utf8)\.cc|infer/cli/llama/(?!llama|checkpoint)\w+\.cc")
least, low, lines, covered = 80, [], 0, 0
print(f"{'line coverage of':44} {'lines':>6} {'run':>6} {'%':>6}")
for file in sorted(summary["data"][0]["files"], key=lambda f: f["filename"]):
    path = pathlib.Path(os.path.normpath(build / file["filename"]))  # a compiler cache has paths from the build
    name = str(path.relative_to(root)) if path.is_relative_to(root) else ""
    if not reading.fullmatch(name):
        continue
    count = file["summary"]["lines"]
    lines, covered = lines + count["count"], covered + count["covered"]
    print(f"{name:44} {count['count']:6} {count['covered']:6} {count['percent']:6.1f}")
    if count["percent"] < least:
        low.append(name)
if not lines:
    sys.exit("coverage.sh: no reading code was counted")
print(f"{'together':44} {lines:6} {covered:6} {100 * covered / lines:6.1f}")
if low:
    sys.exit(f"coverage.sh: below {least} %: {', '.join(low)}")
PYTHON
