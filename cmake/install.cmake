# What `cmake --install` and the Debian package hold. Another project finds it with
# find_package(lockstep) or with pkg-config.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# Public is every header of the library's folders, but not those of backends: they are included
# by sources alone, and need headers of Eigen, CUDA, MPI, zlib or libzip.
set(headers lockstep.h)
foreach(folder core kernels autograd dist launch nn data)
  file(GLOB_RECURSE found RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS ${folder}/*.h)
  list(APPEND headers ${found})
endforeach()
list(FILTER headers EXCLUDE REGEX "/(backend|cpu|cuda|formulas|mpi|simulated)/|^dist/gpu/")
list(FILTER headers EXCLUDE REGEX "^(data/input|dist/world/fabrics|nn/optim/groups|kernels/checks|\
autograd/(rerun|tape_pass|ops/broadcasting|ops/in_f32))\\.h$")
foreach(header IN LISTS headers)
  cmake_path(GET header PARENT_PATH folder)
  install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/lockstep/${folder})
endforeach()
install(FILES ${PROJECT_BINARY_DIR}/generated/lockstep/version.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/lockstep)

# find_package(lockstep)
set(config ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)
install(TARGETS lockstep lockstep-run EXPORT lockstep
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
set_target_properties(lockstep-run PROPERTIES EXPORT_NAME run)
install(EXPORT lockstep NAMESPACE lockstep:: FILE lockstep-targets.cmake DESTINATION ${config})
get_target_property(LOCKSTEP_TYPE lockstep TYPE)
set(LOCKSTEP_PLAIN_FILES ${LOCKSTEP_PLAIN_LIBRARIES})
list(FILTER LOCKSTEP_PLAIN_FILES INCLUDE REGEX "^/")
configure_package_config_file(cmake/lockstep-config.cmake.in lockstep-config.cmake
  INSTALL_DESTINATION ${config} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(lockstep-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/lockstep-config.cmake
  ${PROJECT_BINARY_DIR}/lockstep-config-version.cmake DESTINATION ${config})

# pkg-config lockstep: a static library needs the rest of the list, with --static or without.
set(plain ${LOCKSTEP_PLAIN_LIBRARIES})
list(TRANSFORM plain PREPEND -l REGEX "^[^/-]")
list(APPEND plain -pthread)
if(LOCKSTEP_GPU STREQUAL "cuda")
  list(APPEND plain -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt)
  if(TARGET CUDA::cublas)
    list(APPEND plain -lcublas)
  endif()
endif()
list(JOIN plain " " plain)
if(LOCKSTEP_TYPE STREQUAL "STATIC_LIBRARY")
  set(LOCKSTEP_PC_NEEDS "Requires: fmt libcrypto zlib\nLibs: -L\${libdir} -llockstep ${plain}")
else()
  set(LOCKSTEP_PC_NEEDS "Requires: fmt\nLibs: -L\${libdir} -llockstep")
endif()
file(RELATIVE_PATH LOCKSTEP_PC_PREFIX
  ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/lockstep.pc.in lockstep.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/lockstep.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(FILES README.md ARCHITECTURE.md CHANGELOG.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN *.md)

if(PROJECT_IS_TOP_LEVEL)
  include(cmake/package.cmake)
endif()
