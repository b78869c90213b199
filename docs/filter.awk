# What doxygen reads of a header: awk -f docs/filter.awk EXAMPLES... HEADER. The sources stay short,
# and the reference is complete:
# - A header's first comment is about the file; an indented line of a comment is code.
# - A comment is about all declarations below it, up to the next comment or empty line.
# - An operation, a layer, an optimizer, ... gets examples: lines of test/vocabulary/*.inc, which
#   are compiled, and compared with PyTorch.
function trimmed(text) { gsub(/^ +| +$/, "", text); return text }

# --- EXAMPLES: pairs (PyTorch's text, ours) ---
function keep() {
  if (theirs != "" && ours != "") { texts[++pairs] = ours; torch[pairs] = theirs }
  theirs = ours = state = ""
}
FILENAME ~ /\.inc$/ {
  if (state == "theirs" && /^\)", \{$/) { state = "ours"; next }
  if (state == "ours" && /^\}\)$/) { keep(); next }
  if (state == "theirs") { theirs = theirs "\n" $0; next }
  if (state == "ours") { ours = ours "\n" substr($0, 3); next }
  if (/^(PROGRAM|RANKS|COMPILED)\(R"\($/) { state = "theirs"; next }
  if (match($0, /^(SAME|MEAN|PAIR|FILLS)\("/)) {
    theirs = substr($0, RLENGTH + 1)
    end = match(theirs, /",/)
    ours = trimmed(substr(theirs, end + 2))
    theirs = substr(theirs, 1, end - 1)
    if (ours ~ /\)$/ && ours !~ /&\] \{/) { sub(/\)$/, "", ours); keep() } else theirs = ours = ""
  }
  next
}

# --- HEADER ---
# Whether an example uses a name: as a call, a type, or between two operands.
function uses(text, name,   at, front, back) {
  if (name ~ /^operator/) {
    name = substr(name, 9)
    if (name == "~") return index(text, "~") > 0
    if (name ~ /^[-+*\/]=$/ && text ~ /(double|int) [a-z]+ = 0;/) return 0  # of a number
    return index(text, " " name " ") > 0
  }
  while (at = index(text, name)) {
    front = at > 1 ? substr(text, at - 1, 1) : ""
    back = substr(text, at + length(name), 1)
    if (front !~ /[A-Za-z0-9_.]/ && back ~ /[({ <>]/) return 1
    text = substr(text, at + 1)
  }
  return 0
}
# Up to three expressions; or else a program.
function examples(name, pad,   k, many, program, lines, n, i) {
  for (k = 1; k <= pairs && many < 3; ++k) {
    if (!uses(texts[k], name)) continue
    if (substr(texts[k], 1, 1) == "\n") {
      if (!program) program = k
      continue
    }
    if (!many++) print pad "/// @par Examples\n" pad "/// @code"
    print pad "/// " texts[k] "  // PyTorch: " torch[k]
  }
  if (!many && program) {
    print pad "/// @par Example\n" pad "/// @code"
    n = split(substr(texts[program], 2), lines, "\n")
    for (i = 1; i <= n; ++i) print pad "/// " lines[i]
  }
  if (many || program) print pad "/// @endcode"
}
# The name of what a line declares, if it is to have examples.
function shown(line,   name) {
  if (line ~ /= delete;/) return ""
  name = line
  if (header ~ /^autograd\/(ops|checkpoint)|^nn\/(initialize|optim\/clip)|^data\//) {
    if (match(line, /^(inline )?[A-Za-z][A-Za-z:<>]*&? (operator[^a-z(]+|[a-z_0-9]+)\(/)) {
      name = substr(line, RSTART, RLENGTH - 1)
      sub(/.* /, "", name)
      return name
    }
  }
  if (header ~ /^(nn|data|dist|core\/gpu\/graph)/ && line !~ /;$/ &&
      match(line, /^(struct|class) (\[\[nodiscard\]\] )?[A-Z][A-Za-z]+/)) {
    name = substr(line, RSTART, RLENGTH)
    sub(/.* /, "", name)
    return name
  }
  if (header == "nn/activations.h" && match(line, /^using [A-Za-z]+ =/))
    return substr(line, 7, RLENGTH - 8)
  return ""
}
FNR == 1 {
  header = FILENAME
  sub(".*/lockstep/", "", header)
  n = split("core autograd dist launch nn data kernels", rooms, " ")
  for (k = 1; k <= n; ++k)
    if (at = index(FILENAME, "/" rooms[k] "/")) header = substr(FILENAME, at + 1)
  head = ""; headed = 0
  if ($0 == "#pragma once") { print "/// @file"; next }
}
{ sub(/^ *\/\/\/   /, "&  ") }
/^ *\/\/\/( |$)/ {
  if (!headed) head = head "\n" $0
  comment = fresh ? comment "\n" $0 : $0
  fresh = 1
  next
}
/^ *$/ || /^ *(public|private|protected):/ {
  if (fresh) print comment
  if (head != "") headed = 1
  comment = ""; fresh = 0
  print
  next
}
{
  match($0, /^ */)
  pad = substr($0, 1, RLENGTH)
  match(comment, /^ */)
  here = pad == substr(comment, 1, RLENGTH)
  name = open ? "" : shown($0)
  if (fresh) {
    print comment
  } else if (!open && here && comment != "" && $0 !~ /\/\/\/<|^ *\/\// &&
             /^ *template|\(/ && !/= delete/) {
    print comment
  }
  fresh = 0
  # What the head of the file says is also about the first class that has no comment.
  if (!open && comment == "" && head != "" && /^(struct|class) .*\{$/ && !/detail/) {
    print substr(head, 2)
    head = ""
  }
  if (name != "" && match($0, / +\/\/\/< /)) {
    print pad "/// " substr($0, RSTART + RLENGTH)
    $0 = substr($0, 1, RSTART - 1)
  }
  if (name != "") examples(name, pad)
  print
  line = $0
  sub(/ *\/\/.*/, "", line)
  if (line == "") next
  if (open == 2) {  # in a body
    if (pad == start && line ~ /^ *\}/) open = 0
    next
  }
  if (!open) start = pad
  scope = line ~ /\{$/ && line ~ /^ *(struct|class|namespace|enum)/
  open = scope || line ~ /[;}]$/ || line ~ /^#/ ? 0 : line ~ /\{$/ ? 2 : 1
}
