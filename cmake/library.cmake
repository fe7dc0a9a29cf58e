# libbrim.so, which exports only the declarations of include/brim/. `find_package(brim)` finds it after installation.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# References to the public functions, so that the linker pulls them and their dependencies from the static libraries.
file(CONFIGURE OUTPUT libbrim.cc CONTENT [==[
#include "brim/brim.h"
namespace {
[[gnu::used]] const void* const entries[] = {
    reinterpret_cast<const void*>(&brim::version), reinterpret_cast<const void*>(&brim::find_model),
    reinterpret_cast<const void*>(&brim::share_encoder), reinterpret_cast<const void*>(&brim::find_prompts),
    reinterpret_cast<const void*>(&brim::model_kind),
    reinterpret_cast<const void*>(&brim::set_log), reinterpret_cast<const void*>(&brim::Scorer::open),
    reinterpret_cast<const void*>(&brim::open_together)};
}  // namespace
]==])
add_library(brim_shared SHARED ${CMAKE_BINARY_DIR}/libbrim.cc ${CMAKE_SOURCE_DIR}/src/report/library.cc ${CMAKE_SOURCE_DIR}/src/report/library_runs.cc)
target_link_libraries(brim_shared PRIVATE brim_engine brim_forecast brim_jobs brim_monitor brim_report brim_train nlohmann_json::nlohmann_json brim_base brim_flags brim_hardening)
target_compile_features(brim_shared INTERFACE cxx_std_20)
target_include_directories(brim_shared INTERFACE $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
# Before 1.0, minor versions may break the ABI.
set(soversion ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
set(file_version ${PROJECT_VERSION})
if(SKBUILD)  # wheels cannot contain symlinks; each name would be a copy of the library
  set(file_version ${soversion})
endif()
set_target_properties(brim_shared PROPERTIES OUTPUT_NAME brim EXPORT_NAME brim LINKER_LANGUAGE CXX VERSION ${file_version}
  SOVERSION ${soversion})
# The version script hides all other symbols, including those of nvcc objects and linked libraries.
target_link_options(brim_shared PRIVATE -Wl,--no-undefined -Wl,--version-script=${CMAKE_SOURCE_DIR}/cmake/libbrim.map)
set_target_properties(brim_shared PROPERTIES LINK_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/libbrim.map)

file(WRITE ${CMAKE_BINARY_DIR}/brim-config.cmake "include(\${CMAKE_CURRENT_LIST_DIR}/brim-targets.cmake)\n")
write_basic_package_version_file(${CMAKE_BINARY_DIR}/brim-config-version.cmake COMPATIBILITY SameMinorVersion)

# brim_install_library(NAME LIBDIR …): installs library, headers, CMake package and brim.pc. NAME: of the files in the build
# directory; further arguments: for every install().
function(brim_install_library name libdir)
  # Relative to the file, so that an installation can be moved.
  file(RELATIVE_PATH to_prefix /${libdir}/pkgconfig /)
  file(CONFIGURE OUTPUT ${name}/brim.pc @ONLY CONTENT [==[
prefix=${pcfiledir}/@to_prefix@
Name: brim
Description: Scores texts with encoder models
Version: @PROJECT_VERSION@
Cflags: -I${prefix}/@CMAKE_INSTALL_INCLUDEDIR@
Libs: -L${prefix}/@libdir@ -lbrim
]==])
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${name}/brim.pc DESTINATION ${libdir}/pkgconfig ${ARGN})
  install(TARGETS brim_shared EXPORT ${name} LIBRARY DESTINATION ${libdir} ${ARGN})
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/brim DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} ${ARGN})
  install(EXPORT ${name} FILE brim-targets.cmake NAMESPACE brim:: DESTINATION ${libdir}/cmake/brim ${ARGN})
  install(FILES ${CMAKE_BINARY_DIR}/brim-config.cmake ${CMAKE_BINARY_DIR}/brim-config-version.cmake
    DESTINATION ${libdir}/cmake/brim ${ARGN})
endfunction()
brim_install_library(brim-targets ${CMAKE_INSTALL_LIBDIR})
