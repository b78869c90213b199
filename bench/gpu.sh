#!/usr/bin/env bash
# Everything that a machine with a GPU is needed for, in one command: builds for CUDA, runs the
# tests on the GPU, under compute-sanitizer too, and the benchmarks. A stage that fails, or takes
# longer than its limit, does not keep the next ones from running; the exit code is 1 if one did.
#
#   bench/gpu.sh --out DIR [options]
#
#     --out DIR         what is written: log.txt (everything), summary.md (a table of the stages,
#                       then those of the benchmarks, as docs/benchmarks.md has them),
#                       kernels.json, steps.json
#     --build DIR       the build folder (build/cuda)
#     --deps DIR        a further place of libraries and headers, laid out like / or like /usr, for
#                       machines that cannot install packages; static libraries do
#     --python PROGRAM  a Python with torch, to be compared with ($LOCKSTEP_PYTHON, python3)
#     --stages A,B      some of: build tests ranks kernels steps memcheck racecheck (all, in this
#                       order); ranks: several on one GPU, and NCCL
#     --limit SECONDS   of all stages together (570)
set -uo pipefail

root=$(dirname -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")")
build=$root/build/cuda out='' deps='' python=${LOCKSTEP_PYTHON:-python3} limit=570
stages=build,tests,ranks,kernels,steps,memcheck,racecheck

misuse() { echo "gpu.sh: $*" >&2; exit 2; }

while (( $# )); do
  case $1 in
    --out | --build | --deps | --python | --stages | --limit)
      [[ -n ${2-} ]] || misuse "$1 needs a value"
      printf -v "${1#--}" '%s' "$2"
      shift 2 ;;
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) misuse "unknown option '$1' (see --help)" ;;
  esac
done
[[ -n $out ]] || misuse "--out DIR is needed"
for name in ${stages//,/ }; do
  [[ $name =~ ^(build|tests|ranks|kernels|steps|memcheck|racecheck)$ ]] ||
    misuse "--stages: there is no stage '$name' (see --help)"
done
mkdir -p -- "$out" && out=$(readlink -f -- "$out") || exit 1
log=$out/log.txt summary=$out/summary.md
: >"$log"
failed=0

# stage NAME SECONDS COMMAND...: runs it, at most for so long, and says how it ended. Its output
# goes to the log, and to $stage_output.
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT
stage_output=$scratch/output
stage() {
  local name=$1 most=$2 left=$((limit - SECONDS)) code=0 result
  shift 2
  (( most < left )) || most=$left
  echo "=== $name: $*" >>"$log"
  local start=$SECONDS
  if (( most > 0 )); then
    timeout --kill-after=5 "$most" "$@" >"$stage_output" 2>&1 </dev/null || code=$?
  else
    echo "no time left" >"$stage_output"
    code=124
  fi
  cat -- "$stage_output" >>"$log"
  case $code in
    0) result=passed ;;
    124 | 137) result="stopped after $most s" ;;
    *) result="failed ($code)" ;;
  esac
  (( code == 0 )) || failed=1
  report "$name" "$result" $((SECONDS - start)) "$(last_line)"
  return "$code"
}

# report NAME RESULT SECONDS REMARK: a line of the table of stages.
report() {
  printf '| %s | %s | %s | %s |\n' "$@" >>"$summary"
  printf '%-32s %-18s %4s s  %s\n' "$@"
}
skipped() { report "$1" skipped 0 "$2"; }

# What the stage said in the end, or the first error among it.
last_line() {
  { grep -m1 -iE '(^|[^a-z])error:|\[[a-z_ ]+\].*(no CUDA|no such device)' -- "$stage_output" ||
      grep -v '^[[:space:]]*$' -- "$stage_output" | tail -n 1; } | cut -c -160 | tr '|' '/'
}

wanted() { [[ ,$stages, == *,"$1",* ]]; }

# --- The machine ----------------------------------------------------------------------------------

nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
sanitizer=$(command -v compute-sanitizer || echo "${nvcc%/*}/compute-sanitizer")
has_torch=no
"$python" -c 'import torch' 2>/dev/null && has_torch=yes

facts() {
  local commit gpu processor
  commit=$(git -C "$root" describe --always --dirty 2>/dev/null) || commit=unknown
  gpu=$(nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm \
    --format=csv,noheader 2>/dev/null) || gpu='none found'
  processor=$(sed -n '/^model name/{s/^[^:]*: //p;q}' /proc/cpuinfo)
  echo "- $(date -u '+%Y-%m-%d %H:%M') UTC, commit $commit"
  echo "- GPU: $gpu"
  echo "- CUDA compiler: $("$nvcc" --version 2>/dev/null | sed -n 's/.*release \([^,]*\),.*/\1/p')"
  echo "- host: $(nproc) cores of $processor, $(g++ --version | head -n 1)"
  [[ $has_torch == no ]] ||
    "$python" -c 'import torch; print(f"- PyTorch {torch.__version__}, CUDA {torch.version.cuda}")'
}
{
  facts
  printf '\n| stage | result | seconds | remark |\n|---|---|---:|---|\n'
} >"$summary"
cat -- "$summary"

# --- Build ----------------------------------------------------------------------------------------

configure=(cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DLOCKSTEP_CUDA=ON)
if [[ -n $deps ]]; then
  [[ ! -d $deps/usr ]] || deps=$deps/usr
  deps=$(readlink -f -- "$deps")
  configure+=("-DCMAKE_PREFIX_PATH=$deps" "-DOPENSSL_ROOT_DIR=$deps" -DOPENSSL_USE_STATIC_LIBS=ON
              -DZLIB_USE_STATIC_LIBS=ON)
  # Debian's packages keep some headers in a folder of the architecture.
  CPLUS_INCLUDE_PATH=$deps/include:$deps/include/$(g++ -print-multiarch)
  export CPLUS_INCLUDE_PATH
fi
if wanted build; then
  stage configure 60 "${configure[@]}"
  stage build 420 cmake --build "$build" --parallel "$(nproc)" -- -k 0
fi

# --- On the GPU -----------------------------------------------------------------------------------

export LOCKSTEP_TEST_DEVICE=cuda
if wanted tests; then
  stage tests 180 ctest --test-dir "$build" --parallel 4 --timeout 150 --output-on-failure
fi

# Several ranks on one GPU by CUDA IPC; NCCL with one rank, and with two by its unofficial way, for
# which every rank claims a machine of its own. Training checks that the replicas are identical.
if wanted ranks; then
  # A queue of its own for each stream: one that waits for a peer must hold up no other.
  export CUDA_DEVICE_MAX_CONNECTIONS=32 CUDA_MODULE_LOADING=EAGER
  train=("$build/bin/train_mlp" --device cuda --data "$root/samples/data/digits" --epochs 3
         --timeout 20)
  for ranks in 2 4; do
    stage "ipc direct, $ranks ranks" 40 "${train[@]}" --ranks "$ranks" --transport ipc
    stage "ipc ring, $ranks ranks" 40 "${train[@]}" --ranks "$ranks" --transport ipc --comm ring
  done
  stage "nccl, 1 rank" 40 "${train[@]}" --ranks 1 --comm nccl
  for comm in nccl nccl-direct; do
    stage "$comm, 2 ranks on one GPU" 60 env NCCL_SOCKET_IFNAME=lo NCCL_NET=Socket \
      NCCL_IB_DISABLE=1 NCCL_NVLS_ENABLE=0 NCCL_MNNVL_ENABLE=0 NCCL_MAX_CTAS=1 NCCL_ALGO=Ring \
      NCCL_PROTO=Simple "$build/bin/lockstep-run" -n 2 \
      sh -c 'NCCL_HOSTID=r$RANK exec "$@"' rank "${train[@]}" --comm "$comm"
  done
  stage "recorded steps, 2 ranks" 40 "$build/bin/bench_step" --device cuda --ranks 2 \
    --transport ipc --graph --layers 784,512,256,10 --batch 128 --round 0.2
  cat -- "$stage_output" >>"$scratch/steps"
  # When kernels and collectives ran: one file per rank, for Nsight Systems.
  if command -v nsys >/dev/null; then
    stage "timeline" 60 nsys profile --force-overwrite true --trace cuda --output "$out/timeline" \
      "$build/bin/bench_step" --device cuda --ranks 2 --transport ipc --layers 1024,2048,2048,10 \
      --batch 128 --rounds 5 --round 0.05
  else
    skipped timeline "nsys is not installed"
  fi
fi

peer=()
[[ $has_torch == no ]] || peer=(--peer pytorch --python "$python")
if wanted kernels; then
  stage kernels 240 "$build/bin/bench_kernels" --device cuda --json "$out/kernels.json" "${peer[@]}"
  cp -- "$stage_output" "$scratch/kernels"
fi
if wanted steps; then
  for layers in 784,512,256,10 64,128,64,10 1024,2048,2048,2048,10; do
    step=("$build/bin/bench_step" --device cuda --ranks 1 --layers "$layers" --batch 128 --round 0.2
          --json "$scratch/step.json")
    for mode in recorded plain; do
      # PyTorch once for each network.
      [[ $mode == plain ]] && arguments=() || arguments=(--graph "${peer[@]}")
      stage "$mode $layers" 40 "${step[@]}" "${arguments[@]}" &&
        { [[ -s $scratch/steps.json ]] && echo , || echo '['; cat -- "$scratch/step.json"; } \
          >>"$scratch/steps.json"
      cat -- "$stage_output" >>"$scratch/steps"
    done
  done
  [[ ! -s $scratch/steps.json ]] || { cat -- "$scratch/steps.json"; echo ']'; } >"$out/steps.json"
fi

# Of the tests, those that launch every kernel.
for tool in memcheck racecheck; do
  wanted "$tool" || continue
  if [[ ! -x $sanitizer ]]; then
    skipped "$tool" "compute-sanitizer is not installed"
    continue
  fi
  for program in test_cuda test_kernels; do
    stage "$tool $program" 150 "$sanitizer" --tool "$tool" --error-exitcode 9 \
      "$build/test/$program"
  done
done

# The steps' tables are for people with a fixed pitch.
{
  [[ ! -s $scratch/kernels ]] || { echo; cat -- "$scratch/kernels"; }
  [[ ! -s $scratch/steps ]] || { printf '\n```\n'; cat -- "$scratch/steps"; echo '```'; }
} >>"$summary"
echo "written to $out"
exit "$failed"
