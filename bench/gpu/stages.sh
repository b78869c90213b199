# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034  # variables of gpu.sh and commands.sh
#
# The stages of bench/gpu.sh. What may hang has few test cases in a process.

on_gpu() { [[ $device == cuda ]]; }
small() { if on_gpu; then echo "$1"; else echo "$2"; fi; }  # small REAL SIMULATED

# Tests take the device from the first. A queue of its own for each stream: one that waits for a
# peer must hold up no other.
export LOCKSTEP_TEST_DEVICE=$device CUDA_DEVICE_MAX_CONNECTIONS=32

train_anywhere=("$build/bin/train_mlp" --data "$root/samples/data/digits" --timeout 20
                --bucket-cap-mb 0.03)  # of several buckets
train=("${train_anywhere[@]}" --device "$device")
epochs=(--epochs "$(small 3 1)")
step=("$build/bin/bench_step" --device "$device" --rounds 5 --round "$(small 0.1 0.001)"
      --json "$figures")
kernels=("$build/bin/bench_kernels" --device cuda --json "$figures")
on_gpu || kernels=("$build/bin/bench_kernels" --device cpu --quick --json "$figures")
read -ra networks <<<"$(small '784,512,256,10 1024,2048,2048,2048,10' '') 64,128,64,10"

# find_tool NAME: on the PATH or beside nvcc.
find_tool() { command -v "$1" || { [[ -x ${nvcc%/*}/$1 ]] && echo "${nvcc%/*}/$1"; }; }

# gpu_tool NAME: sets `tool`; if it cannot be used, says why and returns 1.
gpu_tool() {
  if ! on_gpu; then
    skip "$1" "a GPU's tool"
    return 1
  fi
  tool=$(find_tool "$1") || { skip "$1" "not installed"; return 1; }
}

# --- The machine, and the programs ----------------------------------------------------------------

stage_probe() {
  local name
  if on_gpu; then
    execute 20 nvidia-smi --format=csv,noheader \
      --query-gpu=name,driver_version,memory.total,clocks.max.sm,compute_cap
    # It may say "No devices were found" and end well.
    ((code)) || lines -qE ', *[0-9]+[.][0-9]+ *$' || code=1 remark="no GPU: $(remark_of passed)"
    record GPU
    run 'CUDA compiler' 10 "$nvcc" --version
  else
    skip GPU "the simulator"
  fi
  for name in g++ cmake ninja; do
    telling='[0-9][.][0-9]'
    run "$name" 10 "$name" --version
  done
  telling='^model name'
  run processor 10 cat /proc/cpuinfo
  run 'processors' 10 nproc
  find_pytorch
  for name in ncu nsys compute-sanitizer; do
    ! gpu_tool "$name" || run "$name" 10 "$tool" --version
  done
}

# Sets `peer`, once: the options that compare with PyTorch, if there is one.
find_pytorch() {
  [[ -z ${peer_known-} ]] || return
  peer=()
  if ! on_gpu; then
    skip PyTorch "the peer of a GPU"
    return
  fi
  execute 60 "$python" -c 'import torch; print(torch.__version__, "CUDA", torch.version.cuda)'
  if ((code == 124)); then  # perhaps the next stage has more time
    record PyTorch
  elif ((code)); then
    peer_known=yes
    skip PyTorch "$python cannot import torch"
  else
    peer_known=yes
    record PyTorch
    peer=(--peer pytorch --python "$python")
  fi
}

# --- Tests ----------------------------------------------------------------------------------------

stage_kernels() {
  test_groups kernels
  tests 'all kernels' 150 test_kernels '*'
  tests 'operations and gradients' 90 test_autograd '*'
}

stage_recorded() {
  local layers ranks
  for layers in "${networks[@]}"; do
    telling='^Lockstep'
    run "1 rank, $layers" 30 "${step[@]}" --ranks 1 --layers "$layers" --batch 128 --graph
  done
  for ranks in 2 4; do
    telling='^Lockstep'
    run "$ranks ranks, IPC" 40 "${step[@]}" --ranks "$ranks" --transport ipc \
      --layers "${networks[0]}" --batch "$(small 128 32)" --graph
  done
  test_groups recorded
}

# At the end those cases that the table does not know yet.
stage_ranks() {
  local named
  test_groups ranks
  named=$(printf '%s\n' "${cuda_tests[@]}" | cut -d '|' -f 4 | paste -sd ,)
  if unnamed_cases test_cuda "$named"; then
    tests 'cases without a group' 60 test_cuda '*' "$named"
  fi
}

# --- Training -------------------------------------------------------------------------------------

stage_ipc() {
  local ranks comm
  for ranks in 2 4; do
    for comm in direct ring; do
      run "$comm, $ranks ranks" 40 "${train[@]}" "${epochs[@]}" --ranks "$ranks" \
        --transport ipc --comm "$comm"
    done
  done
  # When kernels and collectives ran: one file per rank, for Nsight Systems.
  rm -f -- "$out"/timeline.*
  gpu_tool nsys || return
  run timeline 60 "$tool" profile --force-overwrite true --trace cuda --output "$out/timeline" \
    "${step[@]}" --ranks 2 --transport ipc --layers 1024,2048,2048,10 --batch 128 &&
    run 'its file' 10 ls -- "$out"/timeline.*
}

# nccl NAME SECONDS RANKS PROGRAM...: several ranks share a GPU, which NCCL refuses to ranks of one
# machine: each claims a machine of its own. They then talk by sockets.
nccl() {
  local settings=(NCCL_SOCKET_IFNAME=lo NCCL_NET=Socket NCCL_IB_DISABLE=1 NCCL_NVLS_ENABLE=0
                  NCCL_MNNVL_ENABLE=0 NCCL_MAX_CTAS=1 NCCL_ALGO=Ring NCCL_PROTO=Simple
                  NCCL_DEBUG=WARN)
  # shellcheck disable=SC2016  # each rank has its RANK
  run "$1" "$2" env "${settings[@]}" "$build/bin/lockstep-run" -n "$3" \
    sh -c 'NCCL_HOSTID=r$RANK exec "$@"' rank "${@:4}"
}

# As CMake has found out; the simulator has an NCCL of its own.
has_nccl() {
  ! grep -qs '^LOCKSTEP_NCCL_[A-Z]*:.*NOTFOUND' "$build/CMakeCache.txt" ||
    { skip NCCL "this build has none"; return 1; }
}

stage_nccl() {
  has_nccl || return
  run "1 rank" 40 "${train[@]}" "${epochs[@]}" --ranks 1 --comm nccl
  local comm
  for comm in nccl nccl-direct; do
    nccl "$comm, 2 ranks" 60 2 "${train[@]}" "${epochs[@]}" --comm "$comm"
  done
  telling='^Lockstep'
  nccl "recorded steps, 2 ranks" 60 2 "${step[@]}" --comm nccl --graph --layers "${networks[0]}" \
    --batch "$(small 128 32)"
}

# The files are train_mlp's.
# shellcheck disable=SC2016
same_losses='
  FNR == 1 { file++; on = 0 }
  on && /\]/ { on = 0 }
  on { gsub(/[ ,]/, ""); loss[file, ++steps[file]] = $0 }
  /"losses": \[/ { on = 1 }
  END {
    if (!steps[1] || steps[1] != steps[2]) {
      print "error: " steps[1] + 0 " losses and " steps[2] + 0
      exit 1
    }
    for (i = 1; i <= steps[1]; i++) {
      apart = loss[1, i] - loss[2, i]
      if (apart < 0) apart = -apart
      if (apart > 1e-5 * loss[1, i] || loss[2, i] !~ /^[0-9.e+-]+$/) {
        print "error: loss " i " is " loss[2, i] ", not " loss[1, i]
        exit 1
      }
      if (apart > worst * loss[1, i]) worst = apart / loss[1, i]
    }
    print steps[1] " losses, at most " worst + 0 " apart"
  }'
# shellcheck disable=SC2016
same_digest='
  $1 == "\"parameter_digest\":" { digest[++files] = substr($2, 2, 64) }
  $1 == "\"replayed_steps\":" { replayed[files] = $2 + 0 }
  END {
    same = files == 2 && digest[1] == digest[2] && replayed[1] > 0 && replayed[2] == 0
    print same ? replayed[1] " steps replayed, one digest: " digest[1] : "error: digests " \
      digest[1] " and " digest[2] ", steps replayed " replayed[1] " and " replayed[2]
    exit !same
  }'

# Losses are compared in the first epoch: rounding errors grow with the steps.
stage_training() {
  local ranks comm comms=ipc json=$scratch/training cpu
  ! has_nccl || comms+=' nccl'
  mkdir -p "$json"
  for ranks in 1 2 3; do
    rm -f -- "$json"/*  # what this world does not write must not be the last one's
    cpu=failed
    run "CPU, world of $ranks" 40 "${train_anywhere[@]}" --device cpu --ranks "$ranks" --epochs 1 \
      --json "$json/cpu" && cpu=passed
    for comm in $comms; do
      train_by "$comm" "$comm, world of $ranks" "$ranks" --epochs 1 --json "$json/$comm" &&
        [[ $cpu == passed ]] && run "its losses" 10 awk "$same_losses" "$json/cpu" "$json/$comm"
    done
    train_by ipc "recorded, world of $ranks" "$ranks" "${epochs[@]}" --json "$json/recorded" &&
      train_by ipc "plain, world of $ranks" "$ranks" "${epochs[@]}" --json "$json/plain" \
        --no-record &&
      run "their digests" 10 awk "$same_digest" "$json/recorded" "$json/plain"
  done
}

# train_by COMM NAME RANKS OPTION...
train_by() {
  if [[ $1 == nccl ]]; then
    nccl "$2" 60 "$3" "${train[@]}" --comm nccl "${@:4}"
  else
    run "$2" 40 "${train[@]}" --transport ipc --ranks "$3" "${@:4}"
  fi
}

# --- Times ----------------------------------------------------------------------------------------

stage_steps() {
  local layers batch precision gemm
  find_pytorch
  for layers in "${networks[@]}"; do
    telling='^Lockstep'
    run "plain, $layers" 60 "${step[@]}" --ranks 1 --layers "$layers" --batch 128 \
      "${peer[@]}"
    attach
    for batch in $(small '128 1024' 16); do
      for precision in f32 tf32 bf16; do
        for gemm in $(small 'cublas handwritten' handwritten); do
          telling='^Lockstep'
          run "recorded, $layers, batch $batch, $precision, $gemm" 30 "${step[@]}" --ranks 1 \
            --layers "$layers" --batch "$batch" --precision "$precision" \
            --gemm "$gemm" --graph
        done
      done
    done
  done
}

# In groups, all rows in one at least: figures of a group that is stopped are lost.
stage_speed() {
  local groups=gemm_ rows
  groups+=' mul,linear log,softmax,cross_entropy batch_ sum,argmax,mse,find,tree'
  groups+=' relu,sigmoid,tanh,exp,sqrt,gelu,silu,square,neg,cast'
  groups+=' add,sub,div,scale,transpose,broadcast,dropout,step'
  # shellcheck disable=SC2016
  run 'all rows are in a group' 30 bash -c \
    'all=$("${@:2}" --list) && diff <(echo "$all") <("${@:2}" --list --only "$1")' \
    bash "${groups// /,}" "${kernels[@]}"
  find_pytorch
  on_gpu || groups=softmax
  for rows in $groups; do
    telling=ceilings
    run "$rows" 150 "${kernels[@]}" --only "$rows" "${peer[@]}" && attach ''
  done
}

# Ratios of sectors to requests, to hold the simulator's counts against.
stage_counters() {
  rm -f -- "$out/counters.csv"
  gpu_tool ncu || return
  local metrics=gpu__time_duration.sum,smsp__inst_executed.sum,launch__occupancy_limit_registers
  local name
  for name in sm dram; do metrics+=,${name}__throughput.avg.pct_of_peak_sustained_elapsed; done
  metrics+=,l1tex__data_bank_conflicts_pipe_lsu.sum
  for name in ld st; do
    metrics+=,l1tex__t_sectors_pipe_lsu_mem_global_op_$name.sum
    metrics+=,l1tex__t_requests_pipe_lsu_mem_global_op_$name.sum
  done
  run ncu 240 "$tool" --clock-control none --metrics "$metrics" --csv \
    --log-file "$out/counters.csv" --kernel-name-base function --launch-count 60 \
    --kernel-name regex:'gemm|hopper|softmax|transpose|batch|optimizer|cross' \
    "${kernels[@]}" --quick --only gemm_0,gemm_1,softmax,transpose,batch,adam,cross &&
    run 'its rows' 10 grep -c l1tex__t_sectors "$out/counters.csv"
}

stage_sanitize() {
  local kind unmet cases='every rung*,hopper: one tile*,hopper: several*'
  if list_cases test_cuda && unmet=$(unmet_patterns test_cuda "$cases") && [[ -n $unmet ]]; then
    not_run 1 "no case has the name $unmet"
    record rungs
  fi
  gpu_tool compute-sanitizer || return
  for kind in memcheck racecheck synccheck; do
    run "$kind, rungs" 120 "$tool" --tool "$kind" --error-exitcode 9 "$build/test/test_cuda" \
      "--test-case=$cases"
  done
  run 'memcheck, kernels' 200 "$tool" --tool memcheck --error-exitcode 9 "$build/test/test_kernels"
}
