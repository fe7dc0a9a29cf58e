// SPDX-License-Identifier: Apache-2.0
// Loading of cuBLASLt; needs the library but no GPU.
#include "ops/cuda/lt_library.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"

namespace brim::ops {
namespace {

std::string problem_with(const std::vector<std::string>& names) {
  try {
    load_lt_library(names);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(LtLibrary, LoadsEveryMajorVersionWithAllFunctions) {
  int loaded = 0;
  for (const char* major : {"12", "13"}) {
    const std::string file = std::string(BRIM_CUDA_LIBRARIES) + "/libcublasLt.so." + major;
    if (::access(file.c_str(), R_OK) != 0) continue;
    const LtLibrary library = load_lt_library({"/nowhere/libcublasLt.so.12", file});
    EXPECT_EQ(std::to_string(library.cublasLtGetVersion() / 10000), major);
    EXPECT_NE(library.file.find("libcublasLt.so."), std::string::npos);
    ++loaded;
  }
  if (loaded == 0) GTEST_SKIP() << "no cuBLASLt in " << BRIM_CUDA_LIBRARIES;
}

TEST(LtLibrary, NamesTheMissingLibraryAndTheRemedy) {
  const std::string text = problem_with({"/nowhere/libcublasLt.so.12", "libnowhere.so.13"});
  EXPECT_EQ(text.find("cuBLASLt was not found (libcublasLt.so."), 0U) << text;
  EXPECT_NE(text.find("BRIM_CUBLASLT"), std::string::npos) << text;
}

TEST(LtLibrary, RejectsALibraryWithoutItsFunctions) {
  EXPECT_EQ(problem_with({"libc.so.6"}), "cuBLASLt has no cublasLtCreate: it is too old for this build");
}

}  // namespace
}  // namespace brim::ops
