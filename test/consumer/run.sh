#!/usr/bin/env bash
# run.sh BUILD WAY: another project (CMakeLists.txt beside this script) uses Lockstep.
#
#     find_package      what `cmake --install BUILD` installs: configure, build, run two ranks
#     pkg-config        the same without CMake
#     add_subdirectory  the source tree: configure only, or with --build also build and run
#     FetchContent      the same
#
# BUILD is an up-to-date build folder of Lockstep. Everything happens in a temporary folder.
set -euo pipefail
build=$1 way=$2 consumer=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
tree=${consumer%/test/consumer}
version=$(sed -nE 's/^project\(lockstep VERSION ([0-9.]+).*/\1/p' "$tree/CMakeLists.txt")
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT
cache() { sed -nE "s/^$1:[A-Z]+=//p" "$build/CMakeCache.txt"; }
compiler=$(cache CMAKE_CXX_COMPILER)

installed() { cmake --install "$build" --prefix "$scratch/usr" >"$scratch/install.log"; }

configure() {
  cmake -S "$consumer" -B "$scratch/build" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" -DHOW="$way" \
    -DLOCKSTEP_EXPECTED_VERSION="${version//./\\.}" -DCMAKE_EXPORT_COMPILE_COMMANDS=ON "$@"
  # A user's sources are compiled as C++20, and with no other flag of ours.
  local command source='-c [^"]*(main\.cpp|consumer\.dir/Unity/[^"]*)"'
  command=$(grep -E "\"command\":.*$source" "$scratch/build/compile_commands.json" || true)
  [[ $command == *-std=*20* && ! ${command/ -DFMT_SHARED/} =~ \ -[mWOfD] ]] ||
    { echo "main.cpp is compiled by: $command" >&2; exit 1; }
}

build_and_run() {
  cmake --build "$scratch/build"
  ctest --test-dir "$scratch/build" --output-on-failure
}

case $way in
  find_package)
    installed
    configure -DCMAKE_PREFIX_PATH="$scratch/usr" "${@:3}"
    build_and_run ;;
  pkg-config)
    installed
    PKG_CONFIG_PATH=$(dirname -- "$(find "$scratch/usr" -name lockstep.pc)")
    export PKG_CONFIG_PATH
    [[ $(pkg-config --modversion lockstep) == "$version" ]]
    # shellcheck disable=SC2046
    "$compiler" -c "$consumer/main.cpp" -o "$scratch/main.o" $(pkg-config --cflags lockstep)
    for static in '' --static; do
      # shellcheck disable=SC2046
      "$compiler" "$scratch/main.o" -o "$scratch/consumer" $(pkg-config --libs $static lockstep)
      got=$(LD_LIBRARY_PATH=${PKG_CONFIG_PATH%/pkgconfig} \
        "$scratch/usr/bin/lockstep-run" -n 2 "$scratch/consumer")
      echo "$got"
      [[ $got == "weight=2.8125 ranks=2 version=$version" ]]
    done ;;
  add_subdirectory | FetchContent)
    configure -DLOCKSTEP_TREE="$tree" -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=4 \
      -DLOCKSTEP_CUDA=OFF
    [[ ${3-} != --build ]] || build_and_run ;;
  *) echo "run.sh: no such way: '$way'" >&2; exit 2 ;;
esac
