# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034  # variables of gpu.sh, commands.sh and stages.sh
#
# For bench/gpu.sh: writes down how commands and stages ended. begin_stage and end_stage stand
# around a stage.
#
# The caller sets: out, device, commit, all_stages.

# --- A command ------------------------------------------------------------------------------------

# record NAME: how the command ended, as an element of the stage's JSON and a row of its table.
record() {
  local result=failed
  case $code in
    0) result=passed ;;
    -1) result=skipped ;;
    # Earlier it is the system that kills. What never ran has no limit.
    *) ((elapsed < most || (most == 0 && code != 124))) || result=stopped ;;
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
  add_figures
  commands_json+=${commands_json:+,}$'\n   '$json'}'
  table+="| ${1//|/\\|} | $result | $(seconds "$elapsed") | ${remark//|/\\|} |"$'\n'
  printf '%-9s %-34s %-8s %6s s  %s\n' "$stage" "$1" "$result" "$(seconds "$elapsed")" "$remark" \
    2>/dev/null
  telling=''
  [[ $result == passed ]]
}

# A program that was stopped may have written half of them. What python3 does not take for JSON, or
# where there is none, becomes a file beside the stage's.
add_figures() {
  local file
  [[ -s $figures ]] || return
  file=$stage-figures-$(wc -w <<<"$results").json
  if timeout -k 2 20 python3 -c 'import json, sys
json.load(open(sys.argv[1]), parse_constant=int)' "$figures" 2>/dev/null; then
    json+=$',\n    "figures": '$(<"$figures")
  else
    replace "$figures" "$out/$file"
    json+=$',\n    "figures_unread": '$(quoted "$file")
  fi
}

# What the output tells: its first error if it failed, else its last line, or that of `telling`.
remark_of() {
  local line=''
  [[ $1 != passed ]] && line=$(lines -vE '^(\[doctest\] |TEST CASE: |[0-9.]+ s: )' |
    LC_ALL=C grep -a -m 1 -iE '(^|[^a-z])error|^\[[a-z_ ]+\] ')
  [[ -z $line && -n $telling ]] && line=$(lines -E -e "$telling" | tail -n 1)
  [[ -n $line ]] || line=$(lines -v '^[[:space:]]*$' | tail -n 1)
  printable "$line" | cut -c -160
}
# lines GREP'S OPTIONS...: those of the output, their beginnings.
lines() { LC_ALL=C grep -a "$@" -- "$output" | LC_ALL=C cut -b -1000; }
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

# attach [FENCE]: puts the last command's output below the stage's table; '' if it is a table.
attach() {
  local fence=${1-'```'}
  attached+=$'\n'${fence:+$fence$'\n'}
  attached+=$(head -c 200000 -- "$output" | LC_ALL=C tr -cd '\11\12\40-\176')
  attached+=$'\n'$fence$'\n'
}

# --- A stage --------------------------------------------------------------------------------------

# begin_stage NAME SECONDS. A stage that runs programs sets built_from, their commit.
begin_stage() {
  stage=$1 stage_limit=$(($2 * 1000)) stage_began=$(now)
  results='' commands_json='' table='' attached='' built_from=''
  rm -f -- "$out/$stage"-figures-*.json
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
  local result took ended of="commit $commit"
  result=$(stage_result) took=$(seconds $(($(now) - stage_began)))
  ended=$(date -u '+%Y-%m-%dT%H:%M:%SZ')
  [[ $result == @(passed|skipped) ]] || failed=1
  [[ -z $built_from ]] || of="built from $built_from"
  {
    printf '{"stage": "%s", "result": "%s", "seconds": %s, "limit": %d,\n' \
      "$stage" "$result" "$took" $((stage_limit / 1000))
    printf ' "device": "%s", "commit": %s, "built_from": %s, "ended": "%s",\n' "$device" \
      "$(quoted "$commit")" "$(quoted "$built_from")" "$ended"
    printf ' "commands": [%s]}\n' "$commands_json"
  } >"$scratch/json"
  {
    printf '## %s: %s, %s s of %d s; on %s, %s, ended %s\n\n' "$stage" "$result" "$took" \
      $((stage_limit / 1000)) "$device" "$of" "$ended"
    [[ $device != sim ]] || printf 'In the simulator: no figure is of a GPU.\n\n'
    printf '| command | result | seconds | remark |\n|---|---|---:|---|\n%s%s' "$table" "$attached"
  } >"$scratch/md"
  replace "$scratch/json" "$out/$stage.json"
  replace "$scratch/md" "$out/$stage.md"
  write_summary
}

# Stages of former calls belong to it, of whatever device and commit: each row says which.
write_summary() {
  local name present=()
  for name in "${all_stages[@]}"; do
    [[ ! -e $out/$name.md ]] || present+=("$out/$name.md")
  done
  {
    printf '# bench/gpu.sh\n\n| stage | result | seconds | limit | device | programs | ended |\n'
    printf '|---|---|---:|---:|---|---|---|\n'
    sed -nsE -e '1s/; on sim,/; on sim (no figure is of a GPU),/' \
      -e '1s/^## (.*): (.*), (.*) s of (.*) s; on /| \1 | \2 | \3 | \4 | /' \
      -e '1s/^(.*), (.*), ended (.*)$/\1 | \2 | \3 |/p' -- "${present[@]}"
    for name in "${present[@]}"; do echo; cat -- "$name"; done
  } >"$scratch/summary"
  replace "$scratch/summary" "$out/summary.md"
}

# --- Files ----------------------------------------------------------------------------------------

# Whoever reads the file while it is written, or after this script was killed, finds all of it.
replace() {
  # A full disk may have left nothing of the first.
  [[ -s $1 ]] && cp -- "$1" "$2.part" 2>/dev/null && mv -f -- "$2.part" "$2" 2>/dev/null && return
  unwritten "$2"
}

# append FILE COMMAND...
append() { "${@:2}" 2>/dev/null >>"$1" || unwritten "$1"; }

# unwritten FILE: results that cannot be read are a failure, which is said once.
unwritten() {
  [[ -n ${unwritten-} ]] || echo "gpu.sh: cannot write $1" >&2
  unwritten=yes failed=1
}
