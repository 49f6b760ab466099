# `cmake --install`: the libraries, exactly the public headers, the command line, and a package for find_package(accelerate).
if(NOT PROJECT_IS_TOP_LEVEL)
  return()
endif()
include(CMakePackageConfigHelpers)
set(accelerate_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/accelerate)

set(accelerate_installed accelerate_core)
if(ACCELERATE_WITH_TORCH)
  list(APPEND accelerate_installed accelerate)
endif()
install(TARGETS ${accelerate_installed} EXPORT accelerateTargets FILE_SET HEADERS)
install(EXPORT accelerateTargets NAMESPACE accelerate:: DESTINATION ${accelerate_package_dir})
# cli/ and self_test/ install their programs themselves.
if(ACCELERATE_BUILD_CLI)
  list(APPEND accelerate_installed accelerate_cli)
endif()
if(TARGET accelerate_self_test)
  list(APPEND accelerate_installed accelerate_self_test)
endif()

# An installed file does not tell where its source tree was; messages that name a source line say src/..., wherever it was built.
foreach(target IN LISTS accelerate_installed)
  target_compile_options(${target} PRIVATE -ffile-prefix-map=${PROJECT_SOURCE_DIR}/=)
endforeach()

configure_package_config_file(cmake/accelerateConfig.cmake.in ${PROJECT_BINARY_DIR}/accelerateConfig.cmake
  INSTALL_DESTINATION ${accelerate_package_dir} NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/accelerateConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/accelerateConfig.cmake ${PROJECT_BINARY_DIR}/accelerateConfigVersion.cmake cmake/accelerateTorch.cmake
  DESTINATION ${accelerate_package_dir})
