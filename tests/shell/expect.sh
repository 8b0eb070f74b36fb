# shellcheck shell=bash
# What the tests of build.sh share; sourced.
failures=0
# expect NAME EXIT_CODE PATTERN COMMAND…
expect() {
  local name=$1 code=$2 pattern=$3 output rc=0
  shift 3
  output=$("$@" 2>&1 </dev/null) || rc=$?
  if [ "$rc" = "$code" ] && grep -qE -- "$pattern" <<<"$output"; then
    echo "ok: $name"
  else
    printf 'not ok: %s: expected exit code %s and "%s", got %s and\n%s\n' "$name" "$code" "$pattern" "$rc" "$output"
    failures=$((failures + 1))
  fi
}
