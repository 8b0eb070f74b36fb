#!/usr/bin/env bash
# build.sh's own promises: usage, refusals that name the cause, and no reinstall on a second run.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tests/shell/expect.sh
expect "help lists the commands" 0 'test --all' ./build.sh help
expect "an unknown command is refused" 2 'unknown command nonsense' ./build.sh nonsense
expect "op without a folder is refused" 1 'op takes one operator folder' ./build.sh op
expect "op of a missing folder is refused" 1 '/nonexistent: no such folder' ./build.sh op /nonexistent
expect "op of a folder without op.yaml is refused" 1 'has no op.yaml' ./build.sh op docs
expect "ops ends with a line per operator: size, targets, exported symbols" 0 \
  'build/ops/swiglu.so +[0-9]+ KiB +AVX2 AVX-512 SSE4 +SwiGLU SwiGLUGrad SwiGLUInterleaved ' ./build.sh ops
expect "test refuses unknown options" 1 'got --al' ./build.sh test --al
if [ -e build/data/smollm2/.complete ]; then
  expect "demo llama exports, grafts and writes" 0 'ended by (length|eos)' ./build.sh demo llama --prompt Hello --max-tokens 3
fi
expect "bench refuses unknown options" 1 'got --fast' ./build.sh bench --fast

# A person who is not root is told the one line to run.
stub=$(mktemp -d)
trap 'rm -rf "$stub"' EXIT
printf '#!/bin/sh\necho 1000\n' >"$stub/id"
printf '#!/bin/sh\nexit 1\n' >"$stub/dpkg-query"
chmod +x "$stub/id" "$stub/dpkg-query"
expect "missing packages without root: one apt line" 1 'apt-get install -y cmake ninja-build libhwy-dev' \
  env PATH="$stub:$PATH" ./build.sh ops

# Op folders that lie anywhere, their path with a space.
mkdir "$stub/a place"
cp -r aot_ops/swiglu "$stub/a place/broken_op"
echo 'name: [' >"$stub/a place/broken_op/op.yaml"
expect "a broken op.yaml is named with its line" 1 'broken_op/op.yaml:[0-9]+' ./build.sh op "$stub/a place/broken_op"
cp -r aot_ops/swiglu "$stub/a place/a b"
expect "a folder whose name cannot be a file's is refused" 1 "letters, digits" ./build.sh op "$stub/a place/a b"
rm -rf build/op/broken_op build/ops/broken_op.so
[ $failures = 0 ]
