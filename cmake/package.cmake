# The Debian package, by `./lockstep package` (preset `package`): the library, its headers and
# CMake files, lockstep-run, and the documents. Programs are linked with the static library, so it
# depends on the packages that linking needs.

math(EXPR next "${fmt_VERSION_MAJOR} + 1")
set(depends "libfmt-dev (>= ${fmt_VERSION_MAJOR}), libfmt-dev (<< ${next})" libssl-dev zlib1g-dev
  libzip-dev)
if(LOCKSTEP_HAVE_ONEDNN)
  list(APPEND depends libdnnl-dev)
endif()
if(LOCKSTEP_HAVE_MPI)
  list(APPEND depends libopenmpi-dev)
endif()
list(JOIN depends ", " CPACK_DEBIAN_PACKAGE_DEPENDS)
set(CPACK_GENERATOR DEB)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "The Lockstep project <lockstep@localhost>")
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "g++ (>= 4:12), cmake (>= 3.25)")
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)  # of lockstep-run
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_PACKAGE_CONTACT ${CPACK_DEBIAN_PACKAGE_MAINTAINER})
set(CPACK_PACKAGE_VENDOR Lockstep)
set(CPACK_STRIP_FILES ON)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright)
include(CPack)
