#!/usr/bin/env bash
# tools/try_package.sh PACKAGE FOLDER: installs a Debian package (./lockstep package) in a bare
# Debian 12 and uses it there as a newcomer would: the README's program in a CMake project of its
# own on two ranks, and another program by pkg-config. FOLDER holds that Debian; if it does not
# exist, debootstrap makes it. Needs root and a Debian mirror: not part of the test suite.
set -euo pipefail
if (( $# != 2 || EUID != 0 )); then
  echo "usage, as root: tools/try_package.sh PACKAGE FOLDER" >&2
  exit 2
fi
root=$(dirname -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")")
package=$1 debian=$2
[[ -d $debian ]] || debootstrap --variant=minbase bookworm "$debian"

project=$debian/root/project
rm -rf -- "$project"
mkdir -p -- "$project/samples/data"
cp -r -- "$root/samples/data/digits" "$project/samples/data"
cp -- "$root/samples/first_program.cpp" "$root/test/consumer/main.cpp" "$project"
cp -- "$package" "$debian/root/lockstep.deb"
cat >"$project/CMakeLists.txt" <<'TEXT'
cmake_minimum_required(VERSION 3.25)
project(my_project LANGUAGES CXX)
find_package(lockstep 0.1 REQUIRED)
add_executable(my_program first_program.cpp)
target_link_libraries(my_program PRIVATE lockstep::lockstep)
TEXT
cat >"$debian/root/try.sh" <<'TEXT'
set -eux
mount -t proc proc /proc
mkdir -p /dev/shm
mount -t tmpfs tmpfs /dev/shm
export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install -y --no-install-recommends /root/lockstep.deb g++ cmake make pkg-config
cd /root/project
cmake -B build -DCMAKE_BUILD_TYPE=Release
cmake --build build
lockstep-run -n 2 build/my_program
g++ -O3 main.cpp $(pkg-config --cflags --libs lockstep) -o build/main
lockstep-run -n 2 build/main
TEXT
# The mounts and whatever is still running end with the namespaces.
unshare --mount --pid --fork chroot "$debian" sh /root/try.sh
