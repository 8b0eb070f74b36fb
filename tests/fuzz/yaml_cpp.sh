#!/usr/bin/env bash
# yaml_cpp.sh FOLDER: unpacks the source of Debian's yaml-cpp into FOLDER, so that it can be built instrumented, and
# prints where it lies. It comes from the mirror that apt uses; apt's own lists are left as they are.
set -Eeuo pipefail
[ $# = 1 ] || { echo "usage: $0 FOLDER" >&2; exit 2; }
version=0.7.0
file=yaml-cpp_$version+dfsg.orig.tar.xz
sum=dc63708605404e0b963e0ca3a9619d1c8270eda2839603e6fa0384e5e51e5312
die() { printf 'the source of yaml-cpp %s: %s\n' "$version" "$*" >&2; exit 1; }

mkdir -p "$1"
dir=$(cd "$1" && pwd)
verified() { [ -e "$dir/$file" ] && printf '%s  %s\n' "$sum" "$dir/$file" | sha256sum --check --status; }
address() { apt-get "$@" download --print-uris libyaml-cpp-dev 2>/dev/null | sed -n "s/^'\([^']*\)'.*/\1/p" | head -1; }

if ! verified; then
  command -v apt-get >/dev/null || die "apt-get is needed to fetch it"
  uri=$(address || true)
  if [ -z "$uri" ]; then # no lists: fetched, but not into the system's place
    mkdir -p "$dir/apt/lists/partial" "$dir/apt/cache/archives/partial"
    own=(-o "Dir::State::lists=$dir/apt/lists" -o "Dir::Cache=$dir/apt/cache")
    apt-get "${own[@]}" update >"$dir/apt.log" 2>&1 </dev/null || die "apt-get update failed (log: $dir/apt.log)"
    uri=$(address "${own[@]}" || true)
    rm -rf "$dir/apt"
  fi
  [ -n "$uri" ] || die "apt knows no package libyaml-cpp-dev"
  rm -f "$dir/$file"
  # Beside the package, as the mirror lays them out.
  /usr/lib/apt/apt-helper download-file "${uri%/*}/${file//+/%2b}" "$dir/$file" "SHA256:$sum" >"$dir/apt.log" 2>&1 </dev/null ||
    die "fetching it failed: $(tail -1 "$dir/apt.log")"
  verified || die "expected SHA-256 $sum, got $(sha256sum <"$dir/$file" | cut -d' ' -f1)"
fi
if [ ! -e "$dir/.unpacked" ]; then
  rm -rf "$dir/source"
  mkdir "$dir/source"
  tar -xJf "$dir/$file" -C "$dir/source" --strip-components=1 || die "cannot unpack it"
  touch "$dir/.unpacked"
fi
printf '%s\n' "$dir/source"
