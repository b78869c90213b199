# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034  # variables of gpu.sh and stages.sh
#
# For bench/gpu.sh: runs commands within limits and writes down how they ended. A stage calls run,
# skip and attach; begin_stage and end_stage stand around it.
#
# The caller sets: out, device, commit, all_stages, limit and each (in seconds).

# What the last command was and how it ended; its output is in the file $output.
command_line='' code=0 elapsed=0 most=0 remark=''
# A stage that knows which line of its output tells most sets this pattern before run or tests.
telling=''
running=''  # the process whose group the command is
failed=0

scratch=$(mktemp -d)
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

# --- A command ------------------------------------------------------------------------------------

least() { local result=$1 one; for one; do ((one >= result)) || result=$one; done; echo "$result"; }

# execute SECONDS COMMAND...: at most for so long, and as long as the stage and the whole may take.
execute() {
  local began time
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
  printf '\n=== %s: %s\n' "$stage" "$command_line" >>"$out/log.txt"
  # timeout makes a process group and ends all of it. lockstep-run takes two seconds to end its
  # ranks after SIGTERM: SIGKILL comes later.
  timeout --kill-after=5 "$(seconds "$most")" "$@" >"$output" 2>&1 </dev/null &
  running=$!
  ((!interrupted)) || kill -TERM "$running" 2>/dev/null
  # A signal to this script also ends `wait`, before the command has ended.
  while { wait "$running"; code=$?; } 2>/dev/null; kill -0 "$running" 2>/dev/null; do :; done
  kill -KILL -- "-$running" 2>/dev/null  # what the command left behind
  running='' elapsed=$(($(now) - began))
  cat -- "$output" >>"$out/log.txt"
}

# not_run CODE REMARK [COMMAND...]: as if it had ended so; -1 for one that is skipped.
not_run() {
  code=$1 remark=$2 command_line="${*:3}" elapsed=0 most=0
  rm -f -- "$figures"
  : >"$output"
}

# record NAME: how the command ended, as an element of the stage's JSON and a row of its table.
record() {
  local result=failed
  case $code in
    0) result=passed ;;
    -1) result=skipped ;;
    124 | 137) ((elapsed < most)) || result=stopped ;;  # earlier it is the system that kills
  esac
  ((!interrupted || code <= 0)) || result=stopped
  [[ -n $remark ]] || remark=$(remark_of "$result")
  ((code <= 0 || code == 124)) || remark="exit code $code: $remark"
  results+=" $result"
  local json
  json=$(printf '{"name": %s, "result": "%s", "code": %d, "seconds": %s, "limit": %s,' \
    "$(quoted "$1")" "$result" "$code" "$(seconds "$elapsed")" "$(seconds "$most")")
  json+=$(printf '\n    "remark": %s,\n    "command": %s' "$(quoted "$remark")" \
    "$(quoted "$command_line")")
  # A program that was stopped may have written half of it.
  [[ $(tail -c 2 -- "$figures" 2>/dev/null) != '}' ]] || json+=$',\n    "figures": '$(<"$figures")
  commands_json+=${commands_json:+,}$'\n   '$json'}'
  table+="| ${1//|/\\|} | $result | $(seconds "$elapsed") | ${remark//|/\\|} |"$'\n'
  printf '%-9s %-34s %-8s %6s s  %s\n' "$stage" "$1" "$result" "$(seconds "$elapsed")" "$remark"
  telling=''
  [[ $result == passed ]]
}

# What the output tells: its first error if it failed, else its last line, or that of `telling`.
remark_of() {
  local line=''
  [[ $1 != passed ]] && line=$(grep -av '^\[doctest\] ' -- "$output" |
    grep -a -m 1 -iE '(^|[^a-z])error|^\[[a-z_ ]+\] ')
  [[ -z $line && -n $telling ]] && line=$(grep -aE -- "$telling" "$output" | tail -n 1)
  [[ -n $line ]] || line=$(grep -av '^[[:space:]]*$' -- "$output" | tail -n 1)
  printable "$line" | cut -c -160
}
printable() {
  local text
  text=$(printf '%s' "$1" | LC_ALL=C tr -s '\0-\40' ' ' | LC_ALL=C tr -s '\177-\377' '?')
  echo "${text% }"
}

# A JSON string.
quoted() {
  local text
  text=$(printable "$1")
  text=${text//\\/\\\\}
  printf '"%s"' "${text//\"/\\\"}"
}

# run NAME SECONDS COMMAND...
run() { execute "${@:2}"; record "$1"; }

# skip NAME WHY
skip() { not_run -1 "$2"; record "$1" || true; }

# attach [FENCE]: puts the last command's output below the stage's table; '' if it is a table.
attach() {
  local fence=${1-'```'}
  attached+=$'\n'${fence:+$fence$'\n'}$(LC_ALL=C tr -cd '\11\12\40-\176' <"$output")$'\n'$fence$'\n'
}

# --- A stage --------------------------------------------------------------------------------------

begin_stage() {
  stage=$1 stage_limit=$(($2 * 1000)) stage_began=$(now)
  results='' commands_json='' table='' attached=''
}

# Its result: failed before stopped before passed; skipped if all of it was.
stage_result() {
  local result
  for result in failed stopped passed; do
    [[ $results != *" $result"* ]] || { echo "$result"; return; }
  done
  echo skipped
}

end_stage() {
  local result took
  result=$(stage_result) took=$(seconds $(($(now) - stage_began)))
  [[ $result == @(passed|skipped) ]] || failed=1
  {
    printf '{"stage": "%s", "result": "%s", "seconds": %s, "limit": %d,\n' \
      "$stage" "$result" "$took" $((stage_limit / 1000))
    printf ' "device": "%s", "commit": %s, "ended": "%s",\n "commands": [%s]}\n' "$device" \
      "$(quoted "$commit")" "$(date -u '+%Y-%m-%dT%H:%M:%SZ')" "$commands_json"
  } >"$scratch/json"
  {
    printf '## %s: %s, %s s of %d s\n\n' "$stage" "$result" "$took" $((stage_limit / 1000))
    printf '| command | result | seconds | remark |\n|---|---|---:|---|\n%s%s' "$table" "$attached"
  } >"$scratch/md"
  replace "$scratch/json" "$out/$stage.json"
  replace "$scratch/md" "$out/$stage.md"
  write_summary
}

# Whoever reads the file while it is written, or after this script was killed, finds all of it.
replace() { cp -- "$1" "$2.part" && mv -f -- "$2.part" "$2"; }

# Stages of former calls belong to it.
write_summary() {
  local name present=()
  for name in "${all_stages[@]}"; do
    [[ ! -e $out/$name.md ]] || present+=("$out/$name.md")
  done
  {
    printf '# bench/gpu.sh --device %s, commit %s\n\n' "$device" "$commit"
    printf '| stage | result | seconds | limit |\n|---|---|---:|---:|\n'
    sed -nsE '1s/^## (.*): (.*), (.*) s of (.*) s$/| \1 | \2 | \3 | \4 |/p' -- "${present[@]}"
    for name in "${present[@]}"; do echo; cat -- "$name"; done
  } >"$scratch/summary"
  replace "$scratch/summary" "$out/summary.md"
}
