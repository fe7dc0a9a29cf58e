# Helpers used by every folder's list.

find_program(BRIM_CCACHE ccache)
if(BRIM_CCACHE)  # paths below the checkout count as relative, so that a second clone finds what the first compiled
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${BRIM_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${launcher})
endif()

# fmt 9 turns constexpr off under nvcc and then trips over its own consteval, hence the definition.
add_library(brim_flags INTERFACE)
target_compile_options(brim_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict;-Wno-psabi> -Wno-missing-field-initializers -Werror -fno-math-errno>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra -Werror=all-warnings --expt-relaxed-constexpr --expt-extended-lambda
    -DFMT_USE_CONSTEXPR=1>)
target_include_directories(brim_flags INTERFACE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
if(BRIM_SANITIZE)
  # GCC 12 warns inside its own <regex> and <functional> under sanitizers (bug 105562). Null pointers end at the address
  # they reach: UBSan's own test before every access is a quarter of the compiling and finds them no sooner.
  target_compile_options(brim_flags INTERFACE -fsanitize=${BRIM_SANITIZE} -fno-sanitize=null,vptr -fno-omit-frame-pointer
    -fno-sanitize-recover=all $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>
    # The libraries keep UBSan, the tests have ASan alone: a fifth of a test's compiling, for arithmetic that nobody ships.
    # A header's function that both instantiate is linked from the test; UBSan then sees it only where it was inlined.
    $<$<BOOL:$<TARGET_PROPERTY:BRIM_TEST>>:-fno-sanitize=undefined>)
  target_link_options(brim_flags INTERFACE -fsanitize=${BRIM_SANITIZE})
endif()

# Hardening of everything but kernels (src/ops): they index raw arrays in loops that were checked when a batch was packed.
# Sanitizers bring checks of their own, and -O0 cannot have _FORTIFY_SOURCE.
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

if(BRIM_FUZZ AND CMAKE_CXX_COMPILER_ID MATCHES Clang)  # the parsers themselves must report coverage, not only their entry points
  target_compile_options(brim_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# Four sources a translation unit: the JSON, format and flag headers cost more than the sources themselves (283 s to 195 s
# for `brim` on two cores; precompiled headers gained a tenth). Helpers in unnamed namespaces share names' space then; the
# debug preset builds file by file, which shows a missing include.
option(BRIM_UNITY "compile several sources of a folder together" ON)
set(BRIM_UNITY_BATCH 4 CACHE STRING "how many of them")
option(BRIM_UNITY_TESTS "compile several tests of a folder together" ON)
function(brim_unity target)
  if(BRIM_UNITY OR (BRIM_UNITY_TESTS AND target MATCHES "_test$"))
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${BRIM_UNITY_BATCH})
    target_compile_options(${target} PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-subobject-linkage>)
  endif()
endfunction()

# ctest starts the tests with the highest place first, so that none of the long ones runs last and alone.
set(brim_long_tests forecast text rows engine ops serve plan train)

# brim_unit(name [SOURCES …] [CUDA …] [CUDA_AWARE …] [DEPS …] [TESTS …] [TEST_DEPS …] [SLOW_TESTS …])
# A folder's library brim_<name>, and, if TESTS are given, its test binary <name>_test.
# SLOW_TESTS are GoogleTest patterns that run as <name>_slow with the label "slow": minutes under a sanitizer.
# DEPS are folder names (linked as brim_<dep>) or imported targets (with ::).
# CUDA sources join the library only where the CUDA backend is built. CUDA_AWARE sources are the only ones that see
# BRIM_WITH_CUDA, so that all others are the same object files in both trees.
function(brim_unit name)
  cmake_parse_arguments(U "" "" "SOURCES;CUDA;CUDA_AWARE;DEPS;TESTS;TEST_DEPS;SLOW_TESTS" ${ARGN})
  set(sources ${U_SOURCES} ${U_CUDA_AWARE})
  set_source_files_properties(${U_CUDA_AWARE} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  if(BRIM_CUDA)
    set_property(SOURCE ${U_CUDA_AWARE} APPEND PROPERTY COMPILE_DEFINITIONS BRIM_WITH_CUDA=1)
    list(APPEND sources ${U_CUDA})
    set_source_files_properties(${U_CUDA} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)  # kernels' tile constants share names
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
    if(NOT BRIM_SANITIZE AND NOT name STREQUAL "ops")  # whose references are loops over matrices; the others gain nothing from -O3
      target_compile_options(${name}_test PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
    endif()
    target_compile_definitions(${name}_test PRIVATE BRIM_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
    list(FIND brim_long_tests ${name} place)
    if(U_SLOW_TESTS)
      list(JOIN U_SLOW_TESTS ":" slow)
      add_test(NAME ${name} COMMAND ${name}_test --gtest_filter=-${slow} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
      add_test(NAME ${name}_slow COMMAND ${name}_test --gtest_filter=${slow} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
      set_tests_properties(${name}_slow PROPERTIES LABELS "slow" COST ${place})
    else()
      add_test(NAME ${name} COMMAND ${name}_test WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    endif()
    set_tests_properties(${name} PROPERTIES LABELS "unit" COST ${place})
  endif()
endfunction()

# brim_gpu_test(name target): registers a test that skips itself without a GPU, or leaves it unbuilt if BRIM_GPU_TESTS is off.
function(brim_gpu_test name target)
  if(BRIM_GPU_TESTS)
    add_test(NAME ${name} COMMAND ${target} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(${name} PROPERTIES LABELS "cuda" SKIP_REGULAR_EXPRESSION "SKIPPED")
  else()
    set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
endfunction()

# brim_isa(target FILE ISA FLAGS…): compiles FILE into TARGET once more with FLAGS and BRIM_ISA=<ISA>,
# so one kernel source serves several instruction sets. FILE's symbols live in namespace brim::BRIM_ISA.
function(brim_isa target file isa)
  get_filename_component(stem ${file} NAME_WE)
  add_library(${target}_${stem}_${isa} OBJECT ${file})
  set_target_properties(${target}_${stem}_${isa} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_link_libraries(${target}_${stem}_${isa} PRIVATE brim_flags fmt::fmt)
  target_compile_options(${target}_${stem}_${isa} PRIVATE ${ARGN})
  target_compile_definitions(${target}_${stem}_${isa} PRIVATE BRIM_ISA=${isa})
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_${stem}_${isa}>)
endfunction()

# brim_fuzz(name FILE DEPS…): a fuzz target where BRIM_FUZZ is on, with libFuzzer where the compiler is clang, else with a
# main() of our own. Otherwise the same entry point is driven over seeds and mutations by the folder's tests
# (base/fuzz_driver.h), so no parser goes unfuzzed. `tests/fuzz` builds and runs them.
function(brim_fuzz name file)
  if(BRIM_FUZZ)
    add_executable(fuzz_${name} ${file})
    target_link_libraries(fuzz_${name} PRIVATE ${ARGN})
    target_compile_definitions(fuzz_${name} PRIVATE BRIM_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
    if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
      target_compile_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
      target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
    else()
      target_sources(fuzz_${name} PRIVATE ${CMAKE_SOURCE_DIR}/src/base/fuzz_main.cc)
    endif()
  endif()
endfunction()
