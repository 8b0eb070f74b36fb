"""The closing line of `./build.sh test`, from the runners' JUnit files and the stages' notes: summary.py FOLDER.

Exits with 1 where something failed or nothing passed.
"""

import pathlib
import sys
import xml.etree.ElementTree as tree

total = dict(passed=0, failed=0, skipped=0)
folder = pathlib.Path(sys.argv[1])
failures = {}
for file in sorted(folder.glob("*.xml")):
    for suite in tree.parse(file).getroot().iter("testsuite"):
        count = {k: int(suite.get(k) or 0) for k in ("tests", "failures", "errors", "skipped", "disabled")}
        failed, skipped = count["failures"] + count["errors"], count["skipped"] + count["disabled"]
        runner = file.stem.rstrip("0123456789")  # one may have run in several processes
        failures[runner] = failures.get(runner, 0) + failed
        total["failed"] += failed
        total["skipped"] += skipped
        total["passed"] += count["tests"] - failed - skipped
for log in sorted(folder.glob("said/*.log")):  # of the stages that failed
    lines = log.read_text(errors="replace").splitlines()
    print(f"-- {log.stem}, which failed, said at its end", *lines[-60:], sep="\n")
notes = folder / "stages.tsv"
for line in notes.read_text().splitlines() if notes.exists() else []:
    result, name, *report = line.split("\t")
    if result == "runner":  # failed: counted above, unless it broke before it could report a failure
        result = "failed"
        total["failed"] += not failures.get(report[0])
    else:
        total[result] += 1
    if result != "passed":
        print(f"{result}: {name}")
print("{passed} passed, {failed} failed, {skipped} skipped".format(**total))
sys.exit(total["failed"] > 0 or total["passed"] == 0)
