# shellcheck shell=bash
# The stages of `./build.sh test`; sourced by build.sh, whose variables and functions they use.
RESULTS=$BUILD/results
# note passed|failed|skipped NAME: one result that no test runner reports.
note() {
  printf '%s\t%s\n' "$1" "$2" >>"$RESULTS/stages.tsv"
  printf '%s: %s\n' "$1" "$2"
}
run_ctest() {  # NAME DIR [ctest options]
  local name=$1 dir=$2
  shift 2
  ctest --test-dir "$dir" --output-on-failure -j "$JOBS" --output-junit "$RESULTS/$name.xml" "$@" </dev/null
}
run_pytest() {
  # On all cores, then those that look at the cores themselves. Exit 5: nothing collected; the summary then shows it.
  local rc=0 alone=0
  # NumPy multiplies on one core in each process, as there is a process for each.
  OPENBLAS_NUM_THREADS=1 LD_PRELOAD=$BUILD/tests/fence.so "$PY" -m pytest -q -n "$JOBS" --dist worksteal \
    -m "not alone" tests/python --junitxml="$RESULTS/pytest.xml" </dev/null || rc=$?
  "$PY" -m pytest -q -m alone tests/python --junitxml="$RESULTS/pytest2.xml" </dev/null || alone=$?
  [ $rc = 0 ] || [ $rc = 5 ] || return $rc
  [ $alone = 0 ] || [ $alone = 5 ]
}
# stage NAME COMMAND…: runs a command in a shell of its own; its failure is counted, not fatal, and the end of what it
# printed is printed again by summary(): what comes after it may be long, and what keeps a log may keep its end alone.
stage() {
  local name=$1 rc=0 begin=$SECONDS log=$RESULTS/said/$1.log
  shift
  say "$name"
  mkdir -p "$RESULTS/said"
  OPGRAFT_STAGE=1 bash "$ROOT/build.sh" _stage "$@" 2>&1 | tee "$log" || rc=$?
  printf '%s: %d s\n' "$name" $((SECONDS - begin))
  [ $rc != 0 ] && [ $rc != 77 ] || rm "$log"
  if [ $rc = 77 ]; then note skipped "$name"; return 0; fi
  # A test runner's JUnit file is counted by summary(); its exit code matters where that file shows no failure.
  case $1 in
    run_ctest | run_pytest | stage_asan | stage_asan_ops | stage_tsan | stage_mindspore)
      [ $rc = 0 ] || printf 'runner\t%s (exit code %s)\t%s\n' "$name" $rc "$2" >>"$RESULTS/stages.tsv"
      ;;
    *) if [ $rc = 0 ]; then note passed "$name"; else note failed "$name (exit code $rc)"; fi ;;
  esac
}
skip() { printf 'skipped: %s\n' "$*"; exit 77; }

stage_shell() {
  local script rc=0
  for script in tests/shell/*_test.sh; do bash "$script" || rc=1; done
  return $rc
}
# What gcc 12's run-time libraries need on kernels with wide address randomisation.
fixed_addresses() { if setarch -R true 2>/dev/null; then setarch -R "$@"; else "$@"; fi; }

# The widest that the machine has; AMX is AVX3 that finds it as it runs.
one_target() { PYTHONPATH=tests/python "$PY" -c 'import targets; print(targets.machine_targets()[-1].replace("AMX", "AVX3"))'; }
asan_tree() {
  configure "$BUILD/asan" -DOPGRAFT_BUILD_TESTS=ON -DOPGRAFT_SANITIZE=address,undefined "-DOPGRAFT_ONE_TARGET=$(one_target)" \
    -DOPGRAFT_BUILD_PYTHON=ON "-DPython_EXECUTABLE=$PY" -DPython_FIND_VIRTUALENV=ONLY
  fixed_addresses "$CMAKE" --build "$BUILD/asan" -j "$JOBS" --target opgraft_tests _core swiglu_graph
  # GCC 12's libasan takes what lies before a thread-local block for a header of glibc 2.19's when the block happens
  # to lie 16 bytes into a page, and then reads anywhere (LeakSanitizer: "Tracer caught signal 11"): not asked to.
  export UBSAN_OPTIONS=print_stacktrace=1
  export ASAN_OPTIONS=detect_stack_use_after_return=1:allocator_may_return_null=1:intercept_tls_get_addr=0
}
# In a process for each core, and not for each test: to load the operators takes seconds in these builds.
stage_asan() {
  asan_tree
  local i rc=0 shards=()
  for ((i = 0; i < JOBS; ++i)); do
    GTEST_TOTAL_SHARDS=$JOBS GTEST_SHARD_INDEX=$i GTEST_OUTPUT=xml:$RESULTS/asan$i.xml fixed_addresses \
      "$BUILD/asan/tests/opgraft_tests" --gtest_brief=1 &
    shards+=($!)
  done
  for i in "${shards[@]}"; do wait "$i" || rc=1; done
  fixed_addresses ctest --test-dir "$BUILD/asan" --output-on-failure --no-tests=error -R '^Example\.' \
    --output-junit "$RESULTS/asan.xml" || rc=1
  return $rc
}
# The case tables of the operators, sizes that nobody chose, and what branches ask for. The interpreter is not
# instrumented and frees little at its end: no leaks are looked for. More threads than cores, as the number of a worker is
# not bound by them. -s: a report of the sanitizers ends the process, and what pytest had captured with it. This build has
# one SIMD target: the cases need not run once more for each that the machine has.
stage_asan_ops() {
  asan_tree
  ASAN_OPTIONS+=:detect_leaks=0
  fixed_addresses env LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)" \
    OPGRAFT_ONE_TARGET=1 OPGRAFT_NUM_THREADS=5 OPENBLAS_NUM_THREADS=1 PYTHONMALLOC=malloc \
    PYTHONPATH="$BUILD/asan/python" OPGRAFT_OPS_PATH="$BUILD/asan/ops" \
    "$PY" -m pytest -q -s -n "$JOBS" --dist worksteal -p no:cacheprovider tests/python/test_ops.py \
    tests/python/test_{random_sizes,branches}.py --junitxml="$RESULTS/asan_ops.xml" </dev/null
}
# With the operators that these tests call: the others would be compiled and not run.
stage_tsan() {
  [ -e tests/CMakeLists.txt ] || skip "no C++ tests"
  local dir=$BUILD/tsan
  configure "$dir" -DOPGRAFT_BUILD_TESTS=ON -DOPGRAFT_SANITIZE=thread "-DOPGRAFT_ONE_TARGET=$(one_target)" \
    '-DOPGRAFT_OPS=elementwise;swiglu'
  fixed_addresses "$CMAKE" --build "$dir" -j "$JOBS" --target opgraft_tests
  fixed_addresses ctest --test-dir "$dir" --output-on-failure --no-tests=error -j "$JOBS" -R 'Thread|Concurrent|Registry' --output-junit "$RESULTS/tsan.xml"
}
stage_fuzz() {
  need_apt clang libclang-rt-14-dev llvm
  local yaml
  mkdir -p "$RESULTS"
  if ! yaml=$(tests/fuzz/yaml_cpp.sh "$BUILD/fuzz/yaml-cpp"); then
    yaml=
    note skipped "fuzzing inside yaml-cpp: its source cannot be had, the system's library is not instrumented"
  fi
  tests/fuzz/run.sh "$BUILD/fuzz" "$BUILD/ops" "$yaml"
}
# In environments of their own: the wheel of ./build.sh wheel, and what `pip install .` makes.
stage_wheel() {
  local tmp name source build=build-wheel
  tmp=$(mktemp -d)
  trap 'rm -rf "${tmp:-}" "$ROOT/build-wheel"' EXIT
  # The compilers as CMake finds them by itself, and a folder as deep as build/: for ccache.
  export CC=cc CXX=c++
  cmd_wheel -C "build-dir=$build"
  for name in wheel folder; do
    source=$(ls dist/opgraft-*.whl)
    [ $name = wheel ] || source=.
    say "pip install $source"
    "$PY" -m venv "$tmp/$name/venv"
    "$tmp/$name/venv/bin/python" -m pip install --quiet --disable-pip-version-check -C "build-dir=$build" "$source" </dev/null
    cp -r aot_ops/swiglu "$tmp/$name/my_swiglu"
    sed -i 's/^version: 1.0.0/version: 1.0.1/' "$tmp/$name/my_swiglu/op.yaml" # 1.0.0 comes with the wheel
    cp tests/shell/wheel_check.py "$tmp/$name/"
    (cd "$tmp/$name" && env -u PYTHONPATH -u OPGRAFT_OPS_PATH PATH="$tmp/$name/venv/bin:$PATH" venv/bin/python wheel_check.py my_swiglu)
  done
}
# `./build.sh demo` in a copy of the sources with nothing built, for a user with an empty home: from nothing to the
# right numbers, and nothing left on the system outside the copy.
stage_demo() {
  local tmp touched
  tmp=$(mktemp -d)
  trap 'rm -rf "${tmp:-}"' EXIT
  mkdir "$tmp/clone" "$tmp/home" "$tmp/tmp" "$tmp/rustup"
  export RUSTUP_HOME=$tmp/rustup # pip asks for rustc's version, and a rustup notes that it was asked
  git ls-files -co --exclude-standard -z | xargs -0 cp --parents -t "$tmp/clone"
  [ -z "${CMAKE_CXX_COMPILER_LAUNCHER:-}" ] || need_ccache "$tmp/clone"
  touch "$tmp/before"
  cd "$tmp/clone"
  env -u OPGRAFT_STAGE -u XDG_CACHE_HOME -u CCACHE_DIR HOME="$tmp/home" TMPDIR="$tmp/tmp" ./build.sh demo
  touched=$(find "$tmp/home" "$tmp/tmp" -mindepth 1
    find /bin /etc /lib /opt /root /sbin /srv /usr /var/lib -xdev -newer "$tmp/before" -type f -not -path "$ROOT/*" \
      -not -path "$OBJECTS/*" 2>/dev/null || true)
  [ -z "$touched" ] || die "demo left files outside its folder: $touched"
  env -u OPGRAFT_STAGE HOME="$tmp/home" TMPDIR="$tmp/tmp" .venv/bin/python tests/shell/demo_check.py
}
# The real MindSpore, 3 GB installed, in an environment of its own: made by `test --all`, used by `test` where it is.
# OPGRAFT_REQUIRE_MINDSPORE=1: where it cannot be had the stage fails instead of being skipped.
stage_mindspore() {
  local make=${2:-} venv=$ROOT/.venv-mindspore sum out=skip
  [ -z "${OPGRAFT_REQUIRE_MINDSPORE:-}" ] || out=die
  sum=$(sha256sum requirements-mindspore.txt | cut -d' ' -f1)
  if [ "$(cat "$venv/.requirements.sha256" 2>/dev/null)" != "$sum" ]; then
    [ -n "$make" ] || skip "MindSpore is not installed; ./build.sh test --all installs it"
    say "installing MindSpore into .venv-mindspore"
    [ -x "$venv/bin/python" ] || "$PY" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r requirements-mindspore.txt </dev/null ||
      $out "MindSpore cannot be installed"
    printf '%s\n' "$sum" >"$venv/.requirements.sha256"
  fi
  # MindSpore is the slower the more graphs a process has compiled: the two longest files have one each, and begin, four
  # of the others share one.
  { printf '%s\n' tests/mindspore/test_{ops,primitives}.py
    ls tests/mindspore/test_*.py | grep -vE '/test_(ops|primitives)\.py$' | xargs -n 4
  } | cat -n | OPGRAFT_SLOW=$make xargs -P "$JOBS" -L 1 bash build.sh _stage mindspore_tests
}
# mindspore_tests NUMBER FILE…: in one process, with a working directory of its own, into which MindSpore writes.
mindspore_tests() {
  local number=$1 rc=0 log=$RESULTS/mindspore$1.log
  shift
  mkdir -p "$BUILD/mindspore/$number"
  (cd "$BUILD/mindspore/$number" && PYTHONPATH=$BUILD/python "$ROOT/.venv-mindspore/bin/python" -m pytest -q \
    -p no:cacheprovider -W ignore "${@/#/$ROOT/}" --junitxml="$RESULTS/mindspore$number.xml" </dev/null) >"$log" 2>&1 || rc=$?
  cat "$log"
  return $rc
}
stage_gate() {
  [ -e bench/gate.py ] || skip "no bench/gate.py"
  "$PY" bench/gate.py --small
}
