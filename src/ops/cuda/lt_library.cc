// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/lt_library.h"

#include <dlfcn.h>

#include <filesystem>
#include <vector>

#include "base/env.h"
#include "base/log.h"
#include "device/cuda/cuda_stream.h"
#include "ops/gemm_tuner.h"

namespace brim::ops {
namespace {

// Location of the PyPI package relative to a wheel: SITE/brim/lib and SITE/brim/bin hold this code, SITE/nvidia cuBLAS.
std::vector<std::string> beside_a_wheel(int major) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  std::vector<fs::path> files = {fs::read_symlink("/proc/self/exe", ignored)};
  Dl_info code{};
  if (::dladdr(reinterpret_cast<const void*>(&beside_a_wheel), &code) != 0 && code.dli_fname != nullptr)
    files.push_back(fs::absolute(code.dli_fname, ignored));
  std::vector<std::string> names;
  for (const fs::path& file : files)
    for (const std::string& folder : {fmt::format("cu{}", major), std::string("cublas")})
      names.push_back(file.parent_path().parent_path().parent_path() / "nvidia" / folder / "lib" /
                      fmt::format("libcublasLt.so.{}", major));
  return names;
}

constexpr int kMajor = CUDART_VERSION / 1000;

// Any major version fits: the functions in use are the same in 12 and 13. The version of the build comes first.
std::vector<std::string> library_names() {
  std::vector<std::string> names;
  if (const auto forced = env("BRIM_CUBLASLT")) names.push_back(*forced);
  for (const int major : {kMajor, 13, 12}) {
    names.push_back(fmt::format("libcublasLt.so.{}", major));
    for (const std::string& name : beside_a_wheel(major)) names.push_back(name);
    for (const char* folder : {BRIM_CUDA_LIBRARIES, "/usr/local/cuda/lib64"})  // build-time path; system default
      names.push_back(fmt::format("{}/libcublasLt.so.{}", folder, major));
  }
  return names;
}

}  // namespace

LtLibrary load_lt_library(const std::vector<std::string>& names) {
  void* so = nullptr;
  for (const std::string& name : names)
    if ((so = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) != nullptr) break;
  if (so == nullptr)
    fail(ErrorCode::device_lost,
         "cuBLASLt was not found (libcublasLt.so.{0}); install the CUDA libraries (for a wheel: pip install "
         "'brim[cuda{0}]'), set LD_LIBRARY_PATH, or set BRIM_CUBLASLT to the file",
         kMajor);
  LtLibrary l;
#define BRIM_LT_LOOKUP(name)                                                         \
  if ((l.name = reinterpret_cast<decltype(&::name)>(::dlsym(so, #name))) == nullptr) \
    fail(ErrorCode::device_lost, "cuBLASLt has no {}: it is too old for this build", #name);
  BRIM_LT_FUNCTIONS(BRIM_LT_LOOKUP)
#undef BRIM_LT_LOOKUP
  Dl_info found{};
  if (::dladdr(reinterpret_cast<const void*>(l.cublasLtCreate), &found) != 0 && found.dli_fname != nullptr)
    l.file = found.dli_fname;
  return l;
}

const LtLibrary& lt_library() {
  static const LtLibrary loaded = [] {
    LtLibrary l = load_lt_library(library_names());
    log_debug("cuBLASLt {} loaded from {}", l.cublasLtGetVersion(), l.file);
    return l;
  }();
  return loaded;
}

void preload_gemm_library() {
  // Load after driver initialisation, in parallel with context creation: loading in parallel with the former slowed it
  // down by as much (175 ms instead of 100 on an H200).
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    static_cast<void>(cudaGetLastError());
    return;
  }
  lt_library();
}

void check_lt(cublasStatus_t status, const char* call, const std::string& problem) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  // The error may come from an earlier kernel and only surface here.
  if (const cudaError_t earlier = cudaDeviceSynchronize(); device::cuda_kernel_failed(earlier))
    device::cuda_failed(earlier, call, BRIM_FILE_NAME, __LINE__);
  fail(ErrorCode::device_lost, "{}: {}: {} ({})", device::cuda_current_op, call,
       lt_library().cublasLtGetStatusString(status), problem);
}

}  // namespace brim::ops
