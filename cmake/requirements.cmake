# Finds the packages that Brim is built with. Reports all missing ones together with the command that installs them.
# tools/setup has the complete list.
set(prebuilt "Without root rights, install a prebuilt wheel instead (docs/packages.md).")
file(STRINGS tools/setup debian_packages REGEX "^packages=")
string(REGEX REPLACE "^packages=\\((.*)\\)$" "\\1" debian_packages "${debian_packages}")

if(NOT CMAKE_CXX_COMPILER)
  set(compilers c++ g++ clang++)
  if(NOT "$ENV{CXX}" STREQUAL "")  # pip sets it to the compiler of Python, which may be missing
    separate_arguments(compilers UNIX_COMMAND "$ENV{CXX}")
    list(GET compilers 0 compilers)
  endif()
  find_program(BRIM_COMPILER NAMES ${compilers})
  if(NOT BRIM_COMPILER)
    message(FATAL_ERROR "Brim is built from source, but there is no C++ compiler. On Debian and Ubuntu:\n"
      "  apt-get install ${debian_packages}\n"
      "`brim serve` also needs Boost 1.81 or newer (libboost1.81-dev or libboost1.83-dev). ${prebuilt}")
  endif()
endif()
enable_language(CXX)

find_package(Threads REQUIRED)
set(missing)
foreach(requirement "fmt libfmt-dev" "nlohmann_json nlohmann-json3-dev" "CLI11 libcli11-dev" "yaml-cpp libyaml-cpp-dev" "ZLIB zlib1g-dev" "CURL libcurl4-openssl-dev")
  separate_arguments(requirement)
  list(POP_FRONT requirement package debian)
  set(version)
  if(package STREQUAL "CURL")
    set(version 7.85)  # CURLOPT_PROTOCOLS_STR
  endif()
  find_package(${package} ${version} QUIET)
  if(NOT ${package}_FOUND)
    list(APPEND missing ${debian})
  endif()
endforeach()
find_library(BRIM_ZSTD_LIBRARY zstd)
find_path(BRIM_ZSTD_INCLUDE zstd.h)
if(NOT BRIM_ZSTD_LIBRARY OR NOT BRIM_ZSTD_INCLUDE)
  list(APPEND missing libzstd-dev)
endif()
if(missing)
  list(JOIN missing " " missing)
  message(FATAL_ERROR "Brim needs libraries that are not installed or too old. On Debian and Ubuntu:\n"
    "  apt-get install ${missing}\n${prebuilt}")
endif()
