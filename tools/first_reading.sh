#!/usr/bin/env bash
# The first reading: the files that ARCHITECTURE.md names, in its order. Prints their lines.
#
#   tools/first_reading.sh          fails if they have more than 1,850 lines
#   tools/first_reading.sh --gcov   also builds in build/coverage, runs one training step on two
#                                   ranks with the ring over threads, and prints which share of the
#                                   lines executed in dist/, the tape and parameters lies in these
#                                   files; fails below 40 %
set -euo pipefail
root=$(dirname -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")")
cd -- "$root"

# Table rows of the section, whose second cell begins with a path in backticks.
mapfile -t files < <(sed -n '/^## The first reading/,/^## /p' ARCHITECTURE.md |
  sed -nE 's/^\| *[0-9]+ *\| *`([^`]+)`.*/\1/p')
(( ${#files[@]} > 0 )) || { echo "ARCHITECTURE.md names no files" >&2; exit 1; }
wc -l -- "${files[@]}"
total=$(cat -- "${files[@]}" | wc -l)
(( total <= 1850 )) || { echo "the first reading has $total lines, more than 1850" >&2; exit 1; }
[[ ${1-} == --gcov ]] || exit 0

build=$root/build/coverage
[[ -f $build/build.ninja ]] || cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=None \
  -DCMAKE_CXX_FLAGS="-O0 --coverage -fno-inline" -DLOCKSTEP_CUDA=OFF -DLOCKSTEP_NATIVE=OFF \
  -DLOCKSTEP_ONEDNN=OFF -DLOCKSTEP_MPI=OFF -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON \
  -DCMAKE_CXX_COMPILER_LAUNCHER= >/dev/null
ninja -C "$build" ring_step >/dev/null
find "$build" -name '*.gcda' -delete
"$build/bin/ring_step"

# gcov prints COUNT:LINE:TEXT; '-' is no code, '#####' was not executed. A header's lines appear
# once per source: the union counts.
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT
cd -- "$scratch"
find "$build" -name '*.gcda' -print0 | xargs -0 gcov -p >/dev/null 2>&1
cat -- *.gcov | awk -F: -v root="$root/" -v list="${files[*]}" '
  BEGIN { n = split(list, names, " "); for (i = 1; i <= n; ++i) inside[names[i]] = 1 }
  $2 ~ /^ *0$/ && $3 == "Source" {
    source = $4; sub(".*/build/coverage/include/lockstep/", "", source); sub(root, "", source)
    counted = source ~ /^dist\// || source ~ /^autograd\/(tape|parameter|gradient_)/
  }
  counted && $1 ~ /^ *[0-9]+\*?$/ && !seen[source, $2]++ {
    ++lines[source]; ++all; hit += inside[source]
  }
  END {
    for (source in lines)
      printf "%6d  %s%s\n", lines[source], source, inside[source] ? "" : "   (outside)" | "sort -k2"
    close("sort -k2")
    share = all ? 100 * hit / all : 0
    printf "%d of %d executed lines lie in the first reading: %.1f %%\n", hit, all, share
    exit share < 40
  }'
