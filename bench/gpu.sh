#!/usr/bin/env bash
# What a machine with a GPU is needed for, in one command: --help below.
set -uo pipefail
exec </dev/null  # nothing here asks anybody
root=$(dirname -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")")

usage() {
  cat <<TEXT
bench/gpu.sh --out DIR [options]

Tests and measures on a GPU, in stages, the most valuable first. Each command has a limit, and so
have each stage and the whole: what hangs costs its own limit, and the next goes on. Needs the CUDA
toolkit, CMake and Ninja, and installs nothing.

  --out DIR          what is written: when a stage ends, STAGE.json and STAGE.md (a table); also
                     summary.md (all stages, of former calls too), log.txt (all output)
  --device DEVICE    cuda (if not given), or sim: a dry run of every stage in the simulator, with
                     small sizes, which takes one or two minutes
  --build DIR        the build folder (build/cuda or build/sim); with --device sim also another of
                     the simulator's, such as build/sim-asan
  --deps DIR         more libraries and headers, laid out like / or like /usr; static ones do. NCCL
                     and cuBLAS need no names without a version, and are also looked for among the
                     packages nvidia-* of --python
  --python PROGRAM   a Python with torch, to be compared with (\$LOCKSTEP_PYTHON, python3)
  --stages A,B       only these, in the order below; without build, what a former call has built
                     for DEVICE in the build folder is run
  --limit SECONDS    of everything together (570)
  --each SECONDS     a command's limit is at most this; what takes no notice of SIGTERM then is
                     killed 5 s later

Stages, and the limit of each in seconds:

  ${stages_text//$'\n'/$'\n'  }

The exit code is 1 if anything failed, was stopped, or could not be written, 2 for wrong usage.
TEXT
}

# NAME LIMIT WHAT: also what the stages below go by.
stages_text='probe      90  which GPU, compilers, libraries and tools there are
build     450  the programs that the next stages need, and no others
kernels   240  tests of every rung and kernel, against f64; nothing in them can wait for a rank
recorded  120  steps that are recorded and replayed: benchmark and tests
ipc       240  training with several ranks on one GPU by CUDA IPC; a timeline by nsys
nccl      200  training by NCCL with one rank, and with two on one GPU in its unofficial way
training  240  losses against those of the CPU; recorded steps against plain ones, bit for bit
ranks     500  tests whose ranks are threads or processes: they may hang
steps     300  times of training steps, beside PyTorch
speed     400  times of kernels, beside cuBLAS, CUB and PyTorch
counters  250  sectors, conflicts and instructions of kernels, by ncu
sanitize  400  the rungs and kernels under compute-sanitizer'

out='' device=cuda build='' deps='' python=${LOCKSTEP_PYTHON:-python3} stages='' limit=570 each=570
misuse() { echo "gpu.sh: $* (see --help)" >&2; exit 2; }
while (( $# )); do
  case $1 in
    --out | --device | --build | --deps | --python | --stages | --limit | --each)
      [[ -n ${2-} ]] || misuse "$1 needs a value"
      printf -v "${1#--}" '%s' "$2"
      shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) misuse "unknown option '$1'" ;;
  esac
done
[[ -n $out ]] || misuse "--out DIR is needed"
[[ $device =~ ^(cuda|sim)$ ]] || misuse "--device takes cuda or sim, not '$device'"
[[ $limit$each =~ ^[0-9]{2,18}$ ]] || misuse "--limit and --each take seconds"
declare -A limit_of
all_stages=()
while read -r name seconds _; do
  all_stages+=("$name") limit_of[$name]=$seconds
done <<<"$stages_text"
[[ -z $stages || $stages =~ ^[a-z]+(,[a-z]+)*$ ]] ||
  misuse "--stages takes names with commas between them, not '$stages'"
chosen=("${all_stages[@]}")
[[ -z $stages ]] || IFS=, read -ra chosen <<<"$stages"
for name in "${chosen[@]}"; do
  [[ -v limit_of[$name] ]] || misuse "--stages: there is no stage '$name'"
done
# is_chosen STAGE
is_chosen() { [[ " ${chosen[*]} " == *" $1 "* ]]; }

build=${build:-$root/build/$device}
build=$(readlink -m -- "$build")
if [[ -n $deps ]]; then
  [[ -d $deps ]] || misuse "--deps: there is no such folder"
  deps=$(readlink -e -- "$deps")
fi
commit=$(git -C "$root" describe --always --dirty 2>/dev/null) || commit=unknown

# shellcheck source=bench/gpu/build.sh
source "$root/bench/gpu/build.sh"
if ! is_chosen build && [[ ${chosen[*]} != probe ]]; then
  problem=$(build_problem)
  [[ -z $problem ]] || misuse "$problem"
fi
{ mkdir -p -- "$out" && out=$(readlink -f -- "$out") && echo >>"$out/log.txt"; } 2>/dev/null ||
  { echo "gpu.sh: --out: '$out' cannot be written to" >&2; exit 1; }

# shellcheck source=bench/gpu/commands.sh
source "$root/bench/gpu/commands.sh"
# shellcheck source=bench/gpu/results.sh
source "$root/bench/gpu/results.sh"
# shellcheck source=bench/gpu/tests.sh
source "$root/bench/gpu/tests.sh"
# shellcheck source=bench/gpu/stages.sh
source "$root/bench/gpu/stages.sh"

# --- The stages -----------------------------------------------------------------------------------

if [[ $device == cuda ]]; then
  ! is_chosen build || link_libraries
  search "$build/libraries"
fi
append "$out/log.txt" echo "=== bench/gpu.sh --device $device, commit $commit, $(date -u)"
for name in "${all_stages[@]}"; do
  is_chosen "$name" || continue
  begin_stage "$name" "${limit_of[$name]}"
  problem=''
  [[ $name == @(probe|build) ]] || { problem=$(build_problem) built_from=$(built_from); }
  if [[ -n $problem ]]; then
    not_run 1 "$problem"
    record programs
  else
    "stage_$name"
  fi
  end_stage
done
echo "written to $out" 2>/dev/null
((interrupted == 0)) || exit "$interrupted"
exit "$failed"
