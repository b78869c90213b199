# The library as other projects see it: one target, lockstep::lockstep, and one file, liblockstep.a
# or, with BUILD_SHARED_LIBS=ON, liblockstep.so. It has the objects of all folders. Their flags (of
# the processor, of warnings) stay with them: users get the headers, C++20 and what to link with.

set(folders core kernels autograd dist launch nn data)
if(LOCKSTEP_GPU STREQUAL "sim")
  list(APPEND folders simt)
endif()
if(TARGET lockstep_hopper)
  list(APPEND folders hopper)
endif()
list(TRANSFORM folders REPLACE "(.+)" "$<TARGET_OBJECTS:lockstep_\\1>" OUTPUT_VARIABLE objects)

add_library(lockstep ${objects})
add_library(lockstep::lockstep ALIAS lockstep)
set_target_properties(lockstep PROPERTIES LINKER_LANGUAGE CXX
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
target_compile_features(lockstep PUBLIC cxx_std_20)
target_include_directories(lockstep INTERFACE "$<BUILD_INTERFACE:${LOCKSTEP_INCLUDE}>")

# Those without a CMake package of their own, as files or names for the linker. An installed library
# wants the very files that it was built with.
set(LOCKSTEP_PLAIN_LIBRARIES ${LOCKSTEP_ZIP_LIBRARY})
if(LOCKSTEP_HAVE_ONEDNN)
  list(APPEND LOCKSTEP_PLAIN_LIBRARIES ${LOCKSTEP_ONEDNN_LIBRARY} ${OpenMP_CXX_LIB_NAMES})
endif()
if(LOCKSTEP_HAVE_MPI)
  list(APPEND LOCKSTEP_PLAIN_LIBRARIES ${MPI_C_LIBRARIES})
endif()
if(LOCKSTEP_HAVE_NCCL)
  list(APPEND LOCKSTEP_PLAIN_LIBRARIES ${LOCKSTEP_NCCL_LIBRARY})
endif()
target_link_libraries(lockstep PUBLIC ${LOCKSTEP_FMT}
  PRIVATE OpenSSL::Crypto ZLIB::ZLIB Threads::Threads ${LOCKSTEP_PLAIN_LIBRARIES})
if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  target_link_libraries(lockstep PRIVATE fmt::fmt)  # for our objects, whoever compiles a program
endif()
if(LOCKSTEP_GPU STREQUAL "cuda")
  target_link_libraries(lockstep PRIVATE CUDA::cudart_static $<TARGET_NAME_IF_EXISTS:CUDA::cublas>)
endif()
if(LOCKSTEP_SANITIZE AND NOT LOCKSTEP_SANITIZE STREQUAL "races")
  target_link_options(lockstep PUBLIC -fsanitize=${LOCKSTEP_SANITIZE})
endif()
