# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034  # variables of gpu.sh and commands.sh
#
# For bench/gpu.sh: the build folder, and which commit and device its programs are of.
#
# The caller sets: root, build, device, commit, deps, python.

# The nvcc that CMake takes: what CUDACXX names, by a path or with options after it.
nvcc=${CUDACXX-}
[[ -x $nvcc ]] || nvcc=${nvcc%% *}
nvcc=${nvcc:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
nvcc=$(command -v -- "$nvcc" || echo "$nvcc")

# --- Which programs there are ---------------------------------------------------------------------

programs=(test/test_cuda test/test_kernels test/test_autograd
          bin/train_mlp bin/bench_step bin/bench_kernels bin/lockstep-run)
# "DEVICE COMMIT": of all these programs that there are. It is newer than they are.
note=$build/built-by-gpu-sh

# Says why the programs must not be run: their results would be told of another device or commit.
build_problem() {
  local kind program
  kind=$(sed -nE 's/^LOCKSTEP_CUDA:[A-Z]*=//p' "$build/CMakeCache.txt" 2>/dev/null)
  if [[ -z $kind ]]; then
    echo "there is no build in $build (the stage build makes one)"
  elif [[ $device/$kind != @(cuda/ON|sim/SIM) ]]; then
    echo "--device $device: $build is built for another (LOCKSTEP_CUDA=$kind)"
  elif [[ $(cat -- "$note" 2>/dev/null) != "$device "* ]]; then
    echo "the stage build has not finished a build for $device in $build"
  else
    for program in "${programs[@]}"; do
      [[ $build/$program -nt $note ]] || continue
      echo "$build/$program is newer than what the stage build has built"
      return
    done
  fi
}
built_from() { sed 's/^[a-z]* //' "$note" 2>/dev/null; }

stage_build() {
  local program
  rm -f -- "$note"
  telling='GPU backend|NCCL: '
  run configure 90 "${configure[@]}" || return
  if ! run build 400 cmake --build "$build" --parallel "$(nproc)" \
      --target "${programs[@]##*/}" -- -k 0; then
    # Those that are complete may run: to build them again takes no time. The others may be of
    # another commit.
    for program in "${programs[@]}"; do
      ((!interrupted)) || return
      run "${program##*/}" 5 cmake --build "$build" --target "${program##*/}" ||
        rm -f -- "$build/$program"
    done
  fi
  echo "$device $commit" >"$note"
}

# --- Libraries that have no place in the system ---------------------------------------------------

# They are linked into one folder, with the plain names that linkers look for. cuBLAS only if the
# toolkit has none.
link_libraries() {
  local plain=$build/libraries names=nccl folder name file folders=()
  [[ -e $(readlink -m -- "$nvcc/../../lib64/libcublas.so") ]] || names='nccl cublas cublasLt'
  mapfile -t folders < <(timeout -k 2 20 "$python" -c \
    'import nvidia; print(*nvidia.__path__, sep="\n")' 2>/dev/null)
  [[ -z $deps ]] || folders+=("$deps" "$deps/usr")
  mkdir -p "$plain/lib" "$plain/include"
  for folder in "${folders[@]}"; do
    for name in $names; do
      for file in "$folder"/{,*/}include/"$name"*; do
        [[ ! -e $file ]] || link_as "$file" "$plain/include/${file##*/}"
      done
      # The newest last, which the plain name then means.
      while read -r file; do
        link_as "$file" "$plain/lib/${file##*/}" "$plain/lib/lib$name.so"
      done < <(by_version "$folder"/{,*/}{lib,lib64}/{,*/}"lib$name".so.*)
    done
  done
  use_library LOCKSTEP_NCCL_LIBRARY libnccl.so LOCKSTEP_NCCL_INCLUDE
  use_library CUDA_cublas_LIBRARY libcublas.so
  use_library CUDA_cublasLt_LIBRARY libcublasLt.so
}
# by_version FILE...: those that exist, by what their names end with: 2.9.9 before 2.20.5.
by_version() {
  local file
  for file; do [[ ! -e $file ]] || printf '%s\t%s\n' "${file##*/}" "$file"; done |
    LC_ALL=C sort -V | cut -f 2
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
