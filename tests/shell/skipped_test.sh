#!/usr/bin/env bash
# Where MindSpore is not there or cannot be installed, its stage says so and is counted as skipped; it fails where it is
# required. In a copy of build.sh with nothing to build and no other tests.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tests/shell/expect.sh
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
mkdir -p "$copy/tests/shell"
cp build.sh requirements-mindspore.txt "$copy"
cp tests/stages.sh tests/summary.py "$copy/tests"
echo 'echo ok' >"$copy/tests/shell/nothing_test.sh"
touch "$copy/requirements.txt" "$copy/requirements-dev.txt"
"${PYTHON:-python3}" -m venv --without-pip "$copy/.venv"
for file in requirements.txt requirements-dev.txt; do # as if installed
  sha256sum "$copy/$file" | cut -d' ' -f1 >"$copy/.venv/.$file.sha256"
done
cd "$copy" || exit 1
export CMAKE=true PIP_NO_INDEX=1 # nothing is compiled, and pip finds no package
unset OPGRAFT_STAGE OPGRAFT_REQUIRE_MINDSPORE

whole=$(./build.sh test 2>&1 </dev/null)
rc=$?
expect "without MindSpore ./build.sh test passes" 0 '^0$' echo $rc
expect "and says how to install it" 0 '^skipped: MindSpore is not installed; ./build.sh test --all installs it$' echo "$whole"
expect "the stage is counted, with the missing C++ and Python tests" 0 '^1 passed, 0 failed, 3 skipped$' echo "$whole"

# `test --all` runs this stage as follows, and sums up.
# shellcheck disable=SC2016
all='set -- help; source ./build.sh >/dev/null; rm -rf "$RESULTS"; mkdir -p "$RESULTS"
  note passed another; stage "inside MindSpore" stage_mindspore mindspore 1; trap - ERR; "$PY" tests/summary.py "$RESULTS"'
whole=$(bash -c "$all" 2>&1 </dev/null)
rc=$?
expect "where it cannot be installed ./build.sh test --all goes on" 0 '^0$' echo $rc
expect "and says so" 0 '^skipped: MindSpore cannot be installed$' echo "$whole"
expect "the stage is named" 0 '^skipped: inside MindSpore$' echo "$whole"
expect "and counted" 0 '^1 passed, 0 failed, 1 skipped$' echo "$whole"
export OPGRAFT_REQUIRE_MINDSPORE=1
whole=$(bash -c "$all" 2>&1 </dev/null)
rc=$?
expect "where it is required that fails" 0 '^1$' echo $rc
expect "and says why" 0 '^build.sh: MindSpore cannot be installed$' echo "$whole"
expect "and once more at the end" 0 '^-- inside MindSpore, which failed, said at its end$' echo "$whole"
expect "twice in all" 0 '^2$' grep -c '^build.sh: MindSpore cannot be installed$' <(echo "$whole")
expect "and is counted as failed" 0 '^1 passed, 1 failed, 0 skipped$' echo "$whole"
[ $failures = 0 ]
