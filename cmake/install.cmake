# cmake --install: headers, library, program, the bundled model, and a CMake package for find_package(stet).

include(CMakePackageConfigHelpers)

install(TARGETS stet EXPORT stet-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET stet_cli)
  install(TARGETS stet_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/stet DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.hpp")

# The program looks for its default model in ../share/stet/models, seen from its own folder.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/models/shakespeare-char DESTINATION ${CMAKE_INSTALL_DATADIR}/stet/models)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/stet)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/stet)
install(EXPORT stet-targets NAMESPACE stet:: DESTINATION ${package_dir})
configure_package_config_file(cmake/stet-config.cmake.in ${PROJECT_BINARY_DIR}/stet-config.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
# Before 1.0 every minor version may change the API.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/stet-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/stet-config.cmake ${PROJECT_BINARY_DIR}/stet-config-version.cmake
  DESTINATION ${package_dir})
