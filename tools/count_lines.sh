#!/usr/bin/env bash
# Counts lines of code: of C++ and CUDA sources, without blank lines and // comments.
#
#   tools/count_lines.sh                 one row per folder, and per room of dist/
#   tools/count_lines.sh FOLDER...       one row for each of these, with their subfolders
#
# The last row is the sum of dist/ and launch/. Paths are relative to the root of the sources.
set -euo pipefail
cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.."

# Prints the number of lines of code in a folder and its subfolders.
count() {
  find "$@" -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cuh' -o -name '*.cu' \) -print0 |
    xargs -0 -r cat | awk '!/^[ \t]*(\/\/.*)?$/ { ++lines } END { print lines + 0 }'
}

folders=("$@")
if (( $# == 0 )); then
  for folder in */; do
    folder=${folder%/}
    [[ $folder != build && $(count "$folder") != 0 ]] || continue
    folders+=("$folder")
    [[ $folder != dist ]] || for room in dist/*/; do folders+=("${room%/}"); done
  done
fi
for folder in "${folders[@]}"; do printf '%-22s %7d\n' "$folder" "$(count "$folder")"; done
if (( $# == 0 )); then
  both=(dist)
  [[ ! -d launch ]] || both+=(launch)
  printf '%-22s %7d\n' 'dist/ + launch/' "$(count "${both[@]}")"
fi
