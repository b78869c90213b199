# Facts about kernels (docs/kernels.md) come from the very build that compiles them: a launcher in
# front of nvcc keeps what it says. Builds with a launcher of their own, and those without tests, go
# without.
set(LOCKSTEP_FACTS OFF)
if(LOCKSTEP_GPU STREQUAL "cuda" AND LOCKSTEP_TESTS AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(LOCKSTEP_FACTS ON)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CURRENT_LIST_DIR}/nvcc_facts.sh)
endif()
