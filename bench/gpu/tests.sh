# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034  # variables of gpu.sh, commands.sh and stages.sh
#
# For bench/gpu.sh: which test cases share a process, and how they are run.

# STAGE|NAME|SECONDS|CASES of test_cuda that share a process. What forks its ranks needs one that
# has not used the GPU yet. What takes long (each process begins to use the GPU, in seconds) or has
# hung on hardware comes last.
com='GPU communicators:'
cuda_tests=(
  'kernels|every rung|60|every rung*'
  'kernels|hopper|90|hopper*'
  'kernels|products of 16 bits, defaults|60|products of 16-bit*,a long sum*,the default*,two runs*'
  'kernels|tiles|60|every size*,any number of slices*,slices for*,plans*,tiles in several*'
  'kernels|fill, streams|30|fill*,streams*'
  "recorded|collectives|40|$com a step that is recorded*,$com replays go on*"
  'recorded|DDP|40|GPU DDP: a recorded step*,GPU DDP: what one rank does*,trace: a replay*'
  'recorded|training|60|recorded steps*,GPU DDP: plain steps between*'
  "ranks|threads|60|$com all operations among threads"
  "ranks|what is refused|30|$com what cannot be*,$com ranks that call different*"
  "ranks|groups|30|$com groups,$com a group allocates*"
  "ranks|no rank, an abort|40|$com a rank that never*,$com an abort*"
  'ranks|losses, verdicts|40|GPU DDP: the losses*,GPU DDP: an exc*,GPU DDP: a deferred verdict is*'
  'ranks|traces|40|trace: one rank*,trace: a second*,trace: collectives*'
  'ranks|any training|60|drill*'
  "ranks|conformance|40|$com conformance"
  'ranks|last verdict|30|GPU DDP: a deferred verdict about*'
  'ranks|a late thread|40|GPU ranks that are late: the same*'
  "ranks|processes|150|$com all operations among processes"
  'ranks|a late process|120|GPU ranks that are late: a rank*'
  'ranks|processes that are killed|90|GPU teardown: a rank*'
  'ranks|all ends of processes|240|GPU teardown: the matrix'
)

# test_groups STAGE: runs those of the table.
test_groups() {
  local group its_stage name time cases
  for group in "${cuda_tests[@]}"; do
    IFS='|' read -r its_stage name time cases <<<"$group"
    [[ $its_stage != "$1" ]] || tests "$name" "$time" test_cuda "$cases"
  done
}

# tests NAME SECONDS PROGRAM CASES [EXCLUDED]: the cases that match, in one process. A pattern that
# matches none is a failure: a case has got another name. In the simulator, where the suite runs all
# of them, only one group is run.
#
# Where ranks are threads, all kernels are loaded at once: loading one may wait for the GPU. That
# takes seconds, which processes would each spend.
tests() {
  local program=$build/test/$3 unmet loading=EAGER
  [[ $1 != *process* ]] || loading=LAZY
  local options=("--test-case=$4" "--test-case-exclude=${5-}" --duration=true)
  if [[ ! -x $program ]]; then
    not_run 1 "not built" "$program"
  elif ! list_cases "$3"; then
    not_run 1 "its cases are not known: ${unlisted[$3]}" "$program" "${options[@]}"
  elif unmet=$(unmet_patterns "$3" "$4") && [[ -n $unmet ]]; then
    not_run 1 "no case has the name $unmet" "$program" "${options[@]}"
  elif ! on_gpu && [[ $1 != collectives ]]; then
    not_run -1 'only the names were checked: the suite runs them' "$program" "${options[@]}"
  else
    execute "$2" env "CUDA_MODULE_LOADING=$loading" "$program" "${options[@]}"
    none_ran
  fi
  telling='test cases: '
  record "$1"
}

# doctest takes a run of no case for a success.
none_ran() {
  local ran
  ran=$(sed -n 's/^\[doctest\] test cases: *\([0-9]*\) .*/\1/p' "$output" | tail -n 1)
  ((code == 0)) && [[ ${ran:-0} == 0 ]] && remark='no test case ran' code=1
}

# list_cases PROGRAM: once, into a file; 1 if the program does not list them, and `unlisted` says
# why not. One that hangs does so once.
declare -A unlisted=()
list_cases() {
  [[ -z ${unlisted[$1]-} ]] || return 1
  [[ ! -e $scratch/$1.cases ]] || return 0
  execute 20 "$build/test/$1" --list-test-cases
  if ((code == 124 && most == 0)); then
    unlisted[$1]=$remark
  elif ((code == 124)); then
    unlisted[$1]="--list-test-cases was stopped after $(seconds "$elapsed") s"
  elif ((code)); then
    unlisted[$1]="--list-test-cases ended with code $code: $(remark_of failed)"
  else
    lines -vE '^(\[doctest\]|=*$)' >"$scratch/$1.cases"
    return 0
  fi
  return 1
}

# matching PATTERN...: doctest's patterns as grep's.
matching() { printf '%s\n' "$@" | sed 's/[][\.^$+(){}|]/\\&/g; s/\*/.*/g; s/?/./g'; }

# unmet_patterns PROGRAM PATTERNS: those that no case has.
unmet_patterns() {
  local pattern patterns
  IFS=, read -ra patterns <<<"$2"
  for pattern in "${patterns[@]}"; do
    grep -qixE -e "$(matching "$pattern")" -- "$scratch/$1.cases" || printf "'%s' " "$pattern"
  done
}

# unnamed_cases PROGRAM PATTERNS: whether there are cases without any of them, as far as known.
unnamed_cases() {
  local patterns
  IFS=, read -ra patterns <<<"$2"
  [[ -e $scratch/$1.cases ]] && grep -qvixEf <(matching "${patterns[@]}") -- "$scratch/$1.cases"
}
