#!/usr/bin/env bash
# nvcc_facts.sh NVCC ARGUMENTS...: compiles as it is told to, and keeps what says what became of the
# kernels next to the object file, in OBJECT.facts: the name of the source, what ptxas reports of
# each kernel (registers, spills, ...), and the PTX of each architecture. See tools/facts.
set -euo pipefail

object='' source='' previous=''
for argument in "$@"; do
  case $previous in
    -o) object=$argument ;;
    -c) source=$argument ;;
  esac
  previous=$argument
done
[[ $object && $source ]] || exec "$@"

facts=$object.facts
rm -rf -- "$facts"
mkdir -p -- "$facts"
if ! "$@" -Xptxas=-v --keep --keep-dir "$facts" 2>"$facts/messages"; then
  cat -- "$facts/messages" >&2
  rm -rf -- "$facts"
  exit 1
fi
# Warnings are for the one who builds, not for the report.
report='^ptxas info|bytes stack frame'
grep -vE "$report" "$facts/messages" >&2 || true
grep -E "$report" "$facts/messages" >"$facts/ptxas.txt" || true
find "$facts" -type f ! -name '*.ptx' ! -name ptxas.txt -delete
printf '%s\n' "$source" >"$facts/source.txt"
