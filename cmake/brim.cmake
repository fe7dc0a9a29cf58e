# Helper functions for the CMakeLists.txt of all folders.

find_program(BRIM_CCACHE ccache)
if(BRIM_CCACHE)  # relative paths, so that several checkouts share the cache
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${BRIM_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${launcher})
endif()

# fmt 9 disables constexpr under nvcc, which breaks its own consteval functions; hence FMT_USE_CONSTEXPR.
add_library(brim_flags INTERFACE)
target_compile_options(brim_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict;-Wno-psabi> -Wno-missing-field-initializers -Werror -fno-math-errno>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra -Werror=all-warnings --expt-relaxed-constexpr --expt-extended-lambda
    -DFMT_USE_CONSTEXPR=1>)
target_include_directories(brim_flags INTERFACE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
if(BRIM_SANITIZE)
  # GCC 12 has false warnings in <regex> and <functional> under sanitizers (bug 105562). UBSan's null checks take a quarter of
  # the compile time, and null dereferences crash anyway.
  target_compile_options(brim_flags INTERFACE -fsanitize=${BRIM_SANITIZE} -fno-sanitize=null,vptr -fno-omit-frame-pointer
    -fno-sanitize-recover=all $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>
    # Tests are compiled without UBSan, which saves a fifth of their compile time. Header functions that tests also
    # instantiate are linked from the tests, so UBSan covers them only where they are inlined.
    $<$<BOOL:$<TARGET_PROPERTY:BRIM_TEST>>:-fno-sanitize=undefined>)
  target_link_options(brim_flags INTERFACE -fsanitize=${BRIM_SANITIZE})
endif()

# Hardening flags for everything except kernels (src/ops), whose indices are validated when a batch is packed. Not with
# sanitizers, which have their own checks; _FORTIFY_SOURCE requires optimization.
add_library(brim_hardening INTERFACE)
if(NOT BRIM_SANITIZE AND NOT BRIM_FUZZ)
  target_compile_options(brim_hardening INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fstack-protector-strong
    $<$<CONFIG:Release,RelWithDebInfo>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=2> -D_GLIBCXX_ASSERTIONS>)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    target_compile_options(brim_hardening INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fcf-protection>)
  elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
    target_compile_options(brim_hardening INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-mbranch-protection=standard>)
  endif()
  target_link_options(brim_flags INTERFACE -Wl,-z,relro,-z,now)
endif()

if(BRIM_FUZZ AND CMAKE_CXX_COMPILER_ID MATCHES Clang)  # the libraries must report coverage too, not only the fuzz targets
  target_compile_options(brim_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# Unity build with four sources per translation unit, because the JSON, fmt and CLI headers dominate compile time (283 s to
# 195 s for `brim` on two cores; precompiled headers gained only 10 %). Names in unnamed namespaces must not collide within a
# folder. The debug preset compiles files separately, which detects missing includes.
option(BRIM_UNITY "unity build of the libraries" ON)
set(BRIM_UNITY_BATCH 4 CACHE STRING "sources per translation unit in unity builds")
option(BRIM_UNITY_TESTS "unity build of the tests" ON)
function(brim_unity target)
  if(BRIM_UNITY OR (BRIM_UNITY_TESTS AND target MATCHES "_test$"))
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${BRIM_UNITY_BATCH})
    target_compile_options(${target} PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-subobject-linkage>)
  endif()
endfunction()

# ctest starts tests with the highest cost (index in this list) first, so that no long test runs last and alone.
set(brim_long_tests forecast text rows engine ops serve plan train)

# brim_unit(name [SOURCES …] [CUDA …] [CUDA_AWARE …] [DEPS …] [TESTS …] [TEST_DEPS …] [SLOW_TESTS …])
# Adds the library brim_<name> of a folder and, if TESTS are given, its test binary <name>_test.
# SLOW_TESTS: GoogleTest patterns that run as <name>_slow with the label "slow" (minutes under a sanitizer). In folders that
# CI tests under TSan: tests that compute much on few threads.
# DEPS: folder names (linked as brim_<dep>) or imported targets (with ::).
# CUDA: sources compiled only with the CUDA backend. CUDA_AWARE: the only sources compiled with BRIM_WITH_CUDA; all others
# give the same object files with and without CUDA.
function(brim_unit name)
  cmake_parse_arguments(U "" "" "SOURCES;CUDA;CUDA_AWARE;DEPS;TESTS;TEST_DEPS;SLOW_TESTS" ${ARGN})
  set(sources ${U_SOURCES} ${U_CUDA_AWARE})
  set_source_files_properties(${U_CUDA_AWARE} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  if(BRIM_CUDA)
    set_property(SOURCE ${U_CUDA_AWARE} APPEND PROPERTY COMPILE_DEFINITIONS BRIM_WITH_CUDA=1)
    list(APPEND sources ${U_CUDA})
    set_source_files_properties(${U_CUDA} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)  # kernels define tile constants with equal names
  endif()
  set(links brim_flags)
  foreach(dep ${U_DEPS})
    if(dep MATCHES "::" OR dep STREQUAL "yaml-cpp")
      list(APPEND links ${dep})
    else()
      list(APPEND links brim_${dep})
    endif()
  endforeach()
  if(sources)
    add_library(brim_${name} STATIC ${sources})
    set_target_properties(brim_${name} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
    target_link_libraries(brim_${name} PUBLIC ${links})
    if(NOT name STREQUAL "ops")
      target_link_libraries(brim_${name} PRIVATE brim_hardening)
    endif()
    brim_unity(brim_${name})
  else()
    add_library(brim_${name} INTERFACE)
    target_link_libraries(brim_${name} INTERFACE ${links})
  endif()
  if(BRIM_TESTS AND U_TESTS)
    add_executable(${name}_test ${U_TESTS})
    target_link_libraries(${name}_test PRIVATE brim_${name} ${U_TEST_DEPS} GTest::gtest GTest::gtest_main)
    brim_unity(${name}_test)
    set_target_properties(${name}_test PROPERTIES BRIM_TEST ON)
    if(NOT BRIM_SANITIZE AND NOT name STREQUAL "ops")  # -O3 helps only the reference loops in tests of ops
      # -Og compiles tests 40 % faster than -O1.
      target_compile_options(${name}_test PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-Og>)
    endif()
    target_compile_definitions(${name}_test PRIVATE BRIM_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
    list(FIND brim_long_tests ${name} cost)
    set(command ${name}_test)
    if(U_SLOW_TESTS)
      list(JOIN U_SLOW_TESTS ":" slow)
      list(APPEND command --gtest_filter=-${slow})
      add_test(NAME ${name}_slow COMMAND ${name}_test --gtest_filter=${slow} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
      set_tests_properties(${name}_slow PROPERTIES LABELS "slow" COST ${cost})
    endif()
    add_test(NAME ${name} COMMAND ${command} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    if(name STREQUAL "model" OR name STREQUAL "serve")  # minutes under a sanitizer: two halves that run in parallel
      add_test(NAME ${name}_2 COMMAND ${command} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
      set_tests_properties(${name}_2 PROPERTIES LABELS "unit" COST ${cost} ENVIRONMENT "GTEST_TOTAL_SHARDS=2;GTEST_SHARD_INDEX=1")
      set_tests_properties(${name} PROPERTIES ENVIRONMENT "GTEST_TOTAL_SHARDS=2;GTEST_SHARD_INDEX=0")
    endif()
    set_tests_properties(${name} PROPERTIES LABELS "unit" COST ${cost})
  endif()
endfunction()

# brim_gpu_test(name target): registers a test that is skipped without a GPU; excludes it from the build if BRIM_GPU_TESTS is off.
function(brim_gpu_test name target)
  if(BRIM_GPU_TESTS)
    add_test(NAME ${name} COMMAND ${target} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(${name} PROPERTIES LABELS "cuda" SKIP_REGULAR_EXPRESSION "SKIPPED")
  else()
    set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
endfunction()

# brim_isa(target FILE ISA FLAGS…): adds FILE to TARGET once more, compiled with FLAGS and BRIM_ISA=<ISA>, so that one kernel
# source supports several instruction sets. The symbols of FILE are in namespace brim::BRIM_ISA.
function(brim_isa target file isa)
  get_filename_component(stem ${file} NAME_WE)
  add_library(${target}_${stem}_${isa} OBJECT ${file})
  set_target_properties(${target}_${stem}_${isa} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_link_libraries(${target}_${stem}_${isa} PRIVATE brim_flags fmt::fmt)
  target_compile_options(${target}_${stem}_${isa} PRIVATE ${ARGN})
  target_compile_definitions(${target}_${stem}_${isa} PRIVATE BRIM_ISA=${isa})
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_${stem}_${isa}>)
endfunction()

# brim_fuzz(name FILE DEPS…): adds a fuzz target if BRIM_FUZZ is on, with libFuzzer (clang) or base/fuzz_main.cc. The tests of
# the folder always run the same entry point over seeds and mutations (base/fuzz_driver.h). `tests/fuzz` builds and runs them,
# with a link to tests/data in the current folder, so that they also run on machines without the sources.
function(brim_fuzz name file)
  if(BRIM_FUZZ)
    add_executable(fuzz_${name} ${file})
    target_link_libraries(fuzz_${name} PRIVATE ${ARGN})
    target_compile_definitions(fuzz_${name} PRIVATE BRIM_SOURCE_DIR=".")
    if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
      target_compile_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
      target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
    else()
      target_sources(fuzz_${name} PRIVATE ${CMAKE_SOURCE_DIR}/src/base/fuzz_main.cc)
    endif()
  endif()
endfunction()
