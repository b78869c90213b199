# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034  # variables of gpu.sh and stages.sh
#
# For bench/gpu.sh: runs commands within limits. A stage calls run, skip and attach; what they write
# is in results.sh.
#
# The caller sets: limit and each (in seconds), out.

# What the last command was and how it ended; its output is in the file $output.
command_line='' code=0 elapsed=0 most=0 remark=''
# A stage that knows which line of its output tells most sets this pattern before run or tests.
telling=''
running=''  # the process whose group the command is
failed=0

scratch=$(mktemp -d) || exit 1
trap 'rm -rf -- "$scratch"' EXIT
output=$scratch/output figures=$scratch/figures.json

# Milliseconds; `limit` and `each` are in them from here on.
now() { local us=${EPOCHREALTIME//[.,]/}; echo $((us / 1000)); }
seconds() { echo "$(($1 / 1000)).$(($1 % 1000 / 100))"; }
script_began=$(now)
limit=$((10#$limit * 1000)) each=$((10#$each * 1000))

# A signal ends the command that runs. As no time is left then, all others end at once, too, and
# each stage writes what it has.
# shellcheck disable=SC2329,SC2317  # traps call it
end_early() { limit=0 interrupted=$1; [[ -z $running ]] || kill -TERM "$running" 2>/dev/null; }
interrupted=0
trap 'end_early 143' TERM
trap 'end_early 130' INT HUP
trap : PIPE  # whoever reads what this prints may leave; what runs gets the signal as usual

# --- A command ------------------------------------------------------------------------------------

least() { local result=$1 one; for one; do ((one >= result)) || result=$one; done; echo "$result"; }

# What a command may print, in bytes: the disk is not to be filled by a loop.
most_output=20000000

# execute SECONDS COMMAND...: at most for so long, and as long as the stage and the whole may take.
execute() {
  local began time pipe reader mark=$$.$RANDOM$RANDOM
  began=$(now)
  time=$(least $(($1 * 1000)) "$each" $((stage_began + stage_limit - began)) \
    $((script_began + limit - began)))
  shift
  if ((time < 100)); then
    not_run 124 'no time left' "$@"
    return
  fi
  not_run 0 '' "$@"
  most=$time
  append "$out/log.txt" printf '\n=== %s: %s\n' "$stage" "$command_line"
  exec {pipe}> >(trap '' INT HUP TERM; exec head -c "$most_output" >"$output")
  reader=$!
  # timeout makes a process group and ends all of it. lockstep-run takes two seconds to end its
  # ranks after SIGTERM: SIGKILL comes later.
  LOCKSTEP_GPU_COMMAND=$mark timeout --kill-after=5 "$(seconds "$most")" "$@" >&"$pipe" 2>&1 \
    {pipe}>&- &
  running=$!
  exec {pipe}>&-
  ((!interrupted)) || kill -TERM "$running" 2>/dev/null
  # A signal to this script also ends `wait`, before the command has ended.
  while { wait "$running"; code=$?; } 2>/dev/null; kill -0 "$running" 2>/dev/null; do :; done
  kill -KILL -- "-$running" 2>/dev/null  # what the command left behind
  running='' elapsed=$(($(now) - began))
  kill_marked "$mark"
  end_reader "$reader"
  if (($(stat -c %s -- "$output") >= most_output)); then
    remark="printed more than $((most_output / 1000000)) MB" code=$((code ? code : 1))
  fi
  append "$out/log.txt" cat -- "$output"
}

# kill_marked MARK: what the command left behind in a process group of its own. What has cleared its
# environment, or belongs to another user, is not found.
kill_marked() {
  local files file try
  for try in 1 2 3 4 5 6 7 8 9; do
    mapfile -t files < <(LC_ALL=C grep -lszxF -- "LOCKSTEP_GPU_COMMAND=$1" /proc/[0-9]*/environ)
    ((${#files[@]})) || return 0
    for file in "${files[@]}"; do kill -KILL "${file//[!0-9]/}" 2>/dev/null; done
    sleep 0.05
  done
}

# end_reader PROCESS: it ends when nothing holds the pipe any more.
end_reader() {
  local try
  for ((try = 0; try < 40; try++)); do
    kill -0 "$1" 2>/dev/null || return 0
    sleep 0.02
  done
  kill -KILL "$1" 2>/dev/null
}

# not_run CODE REMARK [COMMAND...]: as if it had ended so; -1 for one that is skipped.
not_run() {
  code=$1 remark=$2 command_line="${*:3}" elapsed=0 most=0
  rm -f -- "$figures"
  : >"$output"
}

# run NAME SECONDS COMMAND...
run() { execute "${@:2}"; record "$1"; }

# skip NAME WHY
skip() { not_run -1 "$2"; record "$1" || true; }
