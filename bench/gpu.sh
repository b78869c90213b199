#!/usr/bin/env bash
# What a machine with a GPU is needed for, in one command: --help below.
set -uo pipefail
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
  --stages A,B       only these, in the order below; the binaries of a former call are used
  --limit SECONDS    of everything together (570)
  --each SECONDS     a command's limit is at most this

Stages, and the limit of each in seconds:

  ${stages_text//$'\n'/$'\n'  }

The exit code is 1 if anything failed or was stopped, 2 for wrong usage.
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
ranks     300  tests whose ranks are threads or processes: they may hang
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
for name in ${stages//,/ }; do
  [[ " ${all_stages[*]} " == *" $name "* ]] || misuse "--stages: there is no stage '$name'"
done
build=${build:-$root/build/$device}
build=$(readlink -m -- "$build")
if [[ -n $deps ]]; then
  deps=$(readlink -e -- "$deps") || misuse "--deps: there is no such folder"
fi
mkdir -p -- "$out" && out=$(readlink -f -- "$out") || exit 1

commit=$(git -C "$root" describe --always --dirty 2>/dev/null) || commit=unknown

nvcc=${CUDACXX-}
nvcc=$(command -v "${nvcc%% *}" || command -v nvcc || echo /usr/local/cuda/bin/nvcc)

# --- Libraries that have no place in the system ---------------------------------------------------

# They are linked into one folder, with the plain names that linkers look for. cuBLAS only if the
# toolkit has none.
link_libraries() {
  local plain=$build/libraries names=nccl folder name file folders=()
  [[ -e $(readlink -m -- "$nvcc/../../lib64/libcublas.so") ]] || names='nccl cublas cublasLt'
  mapfile -t folders < <(timeout 20 "$python" -c \
    'import nvidia; print(*nvidia.__path__, sep="\n")' 2>/dev/null)
  [[ -z $deps ]] || folders+=("$deps" "$deps/usr")
  mkdir -p "$plain/lib" "$plain/include"
  for folder in "${folders[@]}"; do
    for name in $names; do
      for file in "$folder"/{,*/}{lib,lib64}/{,*/}"lib$name".so.*; do
        [[ ! -e $file ]] || link_as "$file" "$plain/lib/${file##*/}" "$plain/lib/lib$name.so"
      done
      for file in "$folder"/{,*/}include/"$name"*; do
        [[ ! -e $file ]] || link_as "$file" "$plain/include/${file##*/}"
      done
    done
  done
  use_library LOCKSTEP_NCCL_LIBRARY libnccl.so LOCKSTEP_NCCL_INCLUDE
  use_library CUDA_cublas_LIBRARY libcublas.so
  use_library CUDA_cublasLt_LIBRARY libcublasLt.so
  search "$plain"
}
# link_as FILE NAME...
link_as() {
  local name
  for name in "${@:2}"; do ln -sfn -- "$(readlink -f -- "$1")" "$name"; done
}
# use_library VARIABLE FILE [VARIABLE]: what CMake has to find, and the headers' folder.
use_library() {
  local plain=$build/libraries
  [[ -e $plain/lib/$2 ]] || return
  configure+=("-D$1=$plain/lib/$2" ${3+"-D$3=$plain/include"})
}

# search PREFIX...: compilers and programs look there, too. Debian has folders per architecture.
search() {
  local prefix machine libraries=${LD_LIBRARY_PATH-} headers=${CPLUS_INCLUDE_PATH-}
  machine=$(g++ -print-multiarch 2>/dev/null)
  for prefix; do
    libraries=$prefix/lib/$machine:$prefix/lib:$prefix/lib64${libraries:+:$libraries}
    headers=$prefix/include:$prefix/include/$machine${headers:+:$headers}
  done
  export LD_LIBRARY_PATH=$libraries CPLUS_INCLUDE_PATH=$headers
}

# The preset of the folder's name (CMakePresets.json), such as sim-asan.
preset=$device
[[ ${build##*/} != "$device"-* ]] || preset=${build##*/}
configure=(cmake -S "$root" --preset "$preset" -B "$build")
if [[ -n $deps ]]; then
  prefix=$deps
  [[ ! -d $deps/usr ]] || prefix=$deps/usr
  configure+=("-DCMAKE_PREFIX_PATH=$prefix;$deps" "-DOPENSSL_ROOT_DIR=$prefix" -DLOCKSTEP_MPI=OFF
              -DOPENSSL_USE_STATIC_LIBS=ON -DZLIB_USE_STATIC_LIBS=ON)
  search "$deps" "$prefix"
fi
[[ $device == sim ]] || link_libraries

# --- The stages -----------------------------------------------------------------------------------

# shellcheck source=bench/gpu/commands.sh
source "$root/bench/gpu/commands.sh"
# shellcheck source=bench/gpu/stages.sh
source "$root/bench/gpu/stages.sh"

echo "=== bench/gpu.sh --device $device, commit $commit, $(date -u)" >>"$out/log.txt"
for name in "${all_stages[@]}"; do
  [[ -z $stages || ,$stages, == *,"$name",* ]] || continue
  begin_stage "$name" "${limit_of[$name]}"
  "stage_$name"
  end_stage
done
echo "written to $out"
((interrupted == 0)) || exit "$interrupted"
exit "$failed"
