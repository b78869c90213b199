#!/usr/bin/env bash
# The table "any world" of docs/any-world.md: one training, many worlds, a row per hash.
#
#     bench/worlds.sh [--device sim] [bench_worlds' options, as in --data DIR --epochs 20]
#
# Ends with 1 if a world has another hash. ./lockstep builds what is missing.
set -euo pipefail
root=$(dirname -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")")
kind=cpu ways='shm/auto tcp/auto threads/auto shm/one-shot tcp/halving'
if [[ " $* " == *" --device sim "* ]]; then  # whose NCCL, as any, has an order of its own
  kind=sim ways='shm/direct tcp/direct threads/direct ipc/direct'
fi
[[ -f $root/build/$kind/build.ninja ]] || "$root/lockstep" test --device "$kind" --only facts -N
ninja -C "$root/build/$kind" bench_worlds >/dev/null

first='' code=0
printf '| ranks | transport | algorithm | SHA-256 of parameters and buffers |\n|---|---|---|---|\n'
for ranks in 1 2 3 4 5 8; do
  for how in $ways; do
    hash=$("$root/build/$kind/bin/bench_worlds" --ranks "$ranks" --transport "${how%/*}" \
      --comm "${how#*/}" "$@")
    [[ -n $first ]] || first=$hash
    [[ $hash == "$first" ]] || code=1
    printf '| %s | %s | %s | `%s...` |\n' "$ranks" "${how%/*}" "${how#*/}" "${hash:0:24}"
  done
done
exit "$code"
