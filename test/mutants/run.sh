#!/usr/bin/env bash
# Plants the slips of the tables beside this script, one at a time, and demands that the test that
# an entry names notices it. ./lockstep mutants calls it with a build folder that is up to date:
#
#     run.sh BUILD [--races] [--list] [--pick N] [--seed TEXT] [NAME or PATTERN...]
#
# No changed file touches the source tree or the build's own objects. For each slip a folder of its
# own gets the changed source, an object of it, and the test program linked with that object before
# the libraries, so that theirs is not taken. A source is compiled as the build compiles it, with
# its neighbours of a unity unit: no copy of the old code is left in them.
#
# An entry of a table:
#
#     [name] FILE           of the source; the old text occurs in it exactly once
#     [name] FILE of SOURCE a header, and a source that includes it and has its functions made
#     - old text            of one line or more
#     + new text            "+" alone: nothing
#     test_FOLDER: CASE     the test case that must fail
#     program NAME          it starts this program of bin/, which is linked with the slip too
#     races                 it is for the build that watches simulated kernels (--races), no other
#     report TEXT           the test must fail with this text
#     with NAME=VALUE       in the test's environment
#     may hang              running into the time limit counts as noticed
#     equivalent: WHY       no test can see it; it has no test case
set -uo pipefail
export LC_ALL=C LOCKSTEP_TEST_DEVICE=cpu LOCKSTEP_SIM_CAPABILITY=9.0  # so that all kernels run

tables=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
root=${tables%/test/mutants}
time_limit=60  # seconds for a test case

say() { echo "mutants: $*" >&2; }
misuse() { say "$@"; exit 2; }

# --- The tables -----------------------------------------------------------------------------------

declare -A file source_of old new program test case may_hang equivalent of_races report with
names=()

read_tables() {
  local name="" line table
  for table in "$tables"/*.txt; do
    while IFS= read -r line; do
      case $line in
        '['*'] '*)
          name=${line%%]*} name=${name#[}
          [[ -z ${file[$name]-} ]] || misuse "${table##*/}: two entries are named '$name'"
          names+=("$name")
          file[$name]=${line#*] }
          source_of[$name]=${file[$name]#* of } file[$name]=${file[$name]% of *} ;;
        '- '*) old[$name]+=${old[$name]+$'\n'}${line#- } ;;
        '+ '*) new[$name]+=${new[$name]+$'\n'}${line#+ } ;;
        '+') new[$name]+= ;;
        test_*': '*) test[$name]=${line%%: *} case[$name]=${line#*: } ;;
        'program '*) program[$name]=${line#program } ;;
        'may hang') may_hang[$name]=yes ;;
        races) of_races[$name]=yes ;;
        'report '*) report[$name]=${line#report } ;;
        'with '*) with[$name]+="${line#with } " ;;
        'equivalent: '*) equivalent[$name]=${line#equivalent: } ;;
        ''|'#'*) ;;
        *) misuse "${table##*/}: what does '$line' mean?" ;;
      esac
    done <"$table"
  done
}

# --- One slip -------------------------------------------------------------------------------------

# Writes the source FILE with the slip NAME to COPY. Fails if the old text is not there just once.
change() {
  local name=$1 copy=$2 source before
  source=$(<"$root/${file[$name]}") || return
  before=${source%%"${old[$name]}"*}
  local after=${source#"$before${old[$name]}"}
  [[ $after != "$source" && $after != *"${old[$name]}"* ]] || return
  printf '%s\n' "$before${new[$name]-}$after" >"$copy"
}

# compile NAME FOLDER: the changed source, as the build compiles it, but as fast as tests (-O1), and
# a slip may leave a name unused. A changed header lies in a folder that is looked through first.
compile() {
  local folder=$2 source=$root/${source_of[$1]} changed=$2/changed.cpp unit command
  if [[ ${file[$1]} =~ \.(h|cuh)$ ]]; then
    changed=$folder/lockstep/${file[$1]}
    mkdir -p "${changed%/*}"
  fi
  change "$1" "$changed" || { echo "its old text is not there once" >&2; return 1; }
  [[ $changed == *.cpp ]] || changed=$source
  unit=$(grep -lF "\"$source\"" "$build"/*/CMakeFiles/*/Unity/*.cxx | head -n 1)
  if [[ -n $unit ]]; then
    sed "s#\"$source\"#\"$changed\"#" "$unit" >"$folder/unit.cxx"
  else
    unit=$source
    echo "#include \"$changed\"" >"$folder/unit.cxx"
  fi
  command=$(grep -F -- " -c $unit" "$scratch/commands" | head -n 1)
  grep -oE -- ' -o [^ ]+' <<<"$command" | cut -d ' ' -f 3 >"$folder/object"
  command=$(sed -E "s# -M[TF] [^ ]+##g; s# -MD##; s# -Werror##; s# -o [^ ]+# -o $folder/unit.o#" \
    <<<"${command/" -c $unit"/" -c $folder/unit.cxx -O1 -w"}")
  command=${command/ -/" -I$folder -"}
  (cd -- "$build" && bash -c "$command")
}

# link PROGRAM FOLDER: build/PROGRAM with the changed object before the libraries, and without the
# object that was made of the old source, if it is the program's own.
link() {
  local command
  command=$(grep -F -- " -o $1 " "$scratch/commands" | head -n 1)
  command=${command/" $(<"$2/object") "/ }
  (cd -- "$build" && bash -c "${command/" -o $1 "/" $2/unit.o -o $2/${1##*/} "}")
}

# link_test NAME FOLDER: its test. A changed source of a program does not go in: it has a main().
link_test() {
  if [[ $(<"$2/object") == */"${program[$1]-}".dir/* ]]; then
    ln -s -- "$build/test/${test[$1]}" "$2"
  else
    link "test/${test[$1]}" "$2"
  fi
}

# run_case NAME FOLDER: its case, of FOLDER's test program. doctest takes a comma for the end of a
# pattern; a template's case is one for each type, CASE<T>.
run_case() {
  local pattern=${case[$1]//,/\\,}
  # shellcheck disable=SC2086  # words
  cd -- "$2" && env ${with[$1]-} timeout -k 5 "$time_limit" "./${test[$1]}" \
    --test-case="$pattern,$pattern<*"
}

# sound NAME: whether its case passes without a slip. Asked once for each case.
sound() {
  local memo
  memo=$scratch/sound/$(sha256sum <<<"${with[$1]-} ${test[$1]} ${case[$1]}" | cut -d ' ' -f 1)
  [[ -s $memo ]] || { (run_case "$1" "$build/test") >/dev/null 2>&1 </dev/null; echo $? >"$memo"; }
  [[ $(<"$memo") == 0 ]]
}

# Prints the verdict on the slip NAME.
try() {
  local name=$1 folder=$scratch/$1 code begin=$SECONDS verdict
  if [[ -n ${equivalent[$name]-} ]]; then
    echo "$name equivalent 0 s"
    return
  fi
  rm -rf -- "$folder"
  mkdir -p "$folder"
  if ! { compile "$name" "$folder" && link_test "$name" "$folder" &&
      { [[ -z ${program[$name]-} ]] || link "bin/${program[$name]}" "$folder"; }
  } >"$folder/build.log" 2>&1; then
    echo "$name stale: $(grep -m 1 -E 'error|not' "$folder/build.log")"
    return
  fi
  # The shell says what crashed: into the log.
  (export LOCKSTEP_PROGRAMS=$folder; run_case "$name" "$folder" || exit
  ) >"$folder/test.log" 2>&1 </dev/null
  code=$?
  verdict=caught
  grep -q '^\[doctest\] test cases: *0 ' "$folder/test.log" && verdict="stale: no such test case,"
  (( code != 0 )) || [[ $verdict != caught ]] || verdict=SURVIVED
  [[ $verdict != caught ]] || grep -qF -- "${report[$name]-}" "$folder/test.log" ||
    verdict="SURVIVED (another failure)"
  (( code != 124 && code != 137 )) || [[ -n ${may_hang[$name]-} ]] || verdict="SURVIVED (hangs)"
  [[ $verdict != caught ]] || sound "$name" || verdict="stale: its case fails without it, too,"
  echo "$name $verdict $((SECONDS - begin)) s"
  [[ $verdict != caught ]] || rm -rf -- "$folder"
}

# --- All of them ----------------------------------------------------------------------------------

build=$1 list='' pick='' seed='' races='' chosen=()
shift
while (( $# )); do
  case $1 in
    --pick) pick=${2-}; shift; [[ $pick =~ ^[0-9]+$ ]] || misuse "--pick takes a number" ;;
    --seed) seed=${2-}; shift; [[ -n $seed ]] || misuse "--seed takes a text" ;;
    --list) list=yes ;;
    --races) races=yes LOCKSTEP_TEST_DEVICE=sim time_limit=180 ;;  # watched kernels are slow
    -*) misuse "mutants takes --races, --list, --pick, --seed and names, not '$1'" ;;
    *) chosen+=("$1") ;;
  esac
  shift
done
read_tables
wanted=()
for name in "${names[@]}"; do
  [[ ${of_races[$name]-} == "$races" ]] || continue
  for pattern in "${chosen[@]-*}"; do
    # shellcheck disable=SC2053  # it is a pattern
    [[ $name != $pattern ]] || { wanted+=("$name"); break; }
  done
done
(( ${#wanted[@]} )) || misuse "no mutant is named like '${chosen[*]}'"
if [[ -n $pick ]]; then  # a function of the seed and the names
  mapfile -t wanted < <(for name in "${wanted[@]}"; do
    echo "$(sha256sum <<<"$seed $name") $name"
  done | sort | head -n "$pick" | sed 's/.* //')
fi

if [[ -n $list ]]; then
  for name in "${wanted[@]}"; do
    echo "$name  ${file[$name]}  ${case[$name]+${test[$name]}: ${case[$name]}}${equivalent[$name]-}"
  done
  exit
fi

scratch=$build/mutants
rm -rf -- "$scratch/sound"
mkdir -p "$scratch/sound"
ninja -C "$build" -t commands all >"$scratch/commands" || exit 1
: >"$scratch/verdicts"
for name in "${wanted[@]}"; do
  while (( $(jobs -rp | wc -l) >= $(nproc) )); do wait -n; done
  try "$name" | tee -a "$scratch/verdicts" &
done
wait
count() { grep -cE "^[^ ]+ $1" "$scratch/verdicts"; }
(( ${#wanted[@]} == 1 )) && noun=mutant || noun=mutants
echo "${#wanted[@]} $noun: $(count caught) caught, $(count equivalent) equivalent," \
  "$(count SURVIVED) survived$( (( $(count stale) == 0 )) || echo ", $(count stale) stale")"
(( $(count caught) + $(count equivalent) == ${#wanted[@]} ))
