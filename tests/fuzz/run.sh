#!/usr/bin/env bash
# run.sh BUILD OPS [YAML_CPP]: builds the fuzzers in BUILD and runs each on its seeds for OPGRAFT_FUZZ_SECONDS (30),
# with the operators of folder OPS; then the line coverage of all of them. YAML_CPP is the folder that yaml_cpp.sh
# printed; without it the system's yaml-cpp is used, which is not instrumented.
set -Eeuo pipefail
if [ $# -lt 2 ] || [ $# -gt 3 ]; then
  echo "usage: $0 BUILD OPS [YAML_CPP]" >&2
  exit 2
fi
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$1"
build=$(cd "$1" && pwd)
cmake=${CMAKE:-cmake}
export OPGRAFT_OPS_PATH
OPGRAFT_OPS_PATH=$(cd "$2" && pwd):$build/functions # where models may load functions from

"$cmake" -S "$here" -B "$build" -G Ninja -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ \
  -DOPGRAFT_YAML_CPP_SOURCE="${3:-}"
"$cmake" --build "$build" -j "${JOBS:-$(nproc)}"
rm -rf "$build"/{profile,{crash,leak,oom,timeout}-*,*.failed}
# Where a kernel randomises addresses widely (32 bits) one start in four of a program with clang 14's AddressSanitizer
# ends with a segmentation fault. And LeakSanitizer has one ("Tracer caught signal 11") in one of a dozen runs that open
# shared objects, by what it takes for a header of their thread-local blocks: see asan_tree of tests/stages.sh.
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}intercept_tls_get_addr=0
fixed=
if setarch -R true 2>/dev/null; then fixed="setarch -R"; fi
# fuzz NAME: its words go to a file, since as many run at once as there are jobs.
fuzz() {
  set -o pipefail
  LLVM_PROFILE_FILE="$build/profile/$1.profraw" $fixed "$build/fuzz_$1" -max_total_time="${OPGRAFT_FUZZ_SECONDS:-30}" -timeout=10 \
    -rss_limit_mb=2048 -malloc_limit_mb=64 -artifact_prefix="$build/" -verbosity=0 -print_funcs=0 -print_final_stats=1 \
    "$build/found/$1" "$here/corpus/$1" 2>&1 | { grep -v '# Uses:\|^######' || true; } >"$build/$1.log" ||
    { touch "$build/$1.failed" && false; }
}
export -f fuzz
export build here fixed
names=()
for source in "$here"/*_fuzz.cc; do
  name=$(basename "$source" _fuzz.cc)
  names+=("$name")
  mkdir -p "$build/found/$name" # new inputs go there, seeds are only read
  if [ "$name" = manifest ]; then # the operators' own
    for file in "$here"/../../aot_ops/*/op.yaml; do cp "$file" "$build/found/$name/$(basename "${file%/op.yaml}").yaml"; done
  fi
done
rc=0
printf '%s\n' "${names[@]}" | xargs -P "${JOBS:-$(nproc)}" -I{} bash -c 'fuzz {}' || rc=$?
for name in "${names[@]}"; do echo "-- $name" && cat "$build/$name.log"; done
if [ $rc != 0 ]; then # found by chance, and perhaps not again: the input must come out of here, and what was said last
  for file in "$build"/{crash,leak,oom,timeout}-*; do
    [ ! -e "$file" ] || { echo "-- $file in base64" && head -c 16384 "$file" | base64 -w 0 && echo; }
  done
  for file in "$build"/*.failed; do echo "-- fuzz_$(basename "$file" .failed) failed" && tail -n 25 "${file%failed}log"; done
  exit $rc
fi
"$here/coverage.sh" "$build"
