// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/cublas_lt.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <filesystem>
#include <map>
#include <mutex>
#include <random>
#include <unordered_map>

#include "base/clock.h"
#include "base/env.h"
#include "base/log.h"
#include "device/cuda/cuda_stream.h"

namespace brim::ops {

using device::CudaStream;
using tensor::DType;

namespace {

// The functions used, found by name in the library.
// clang-format off
#define BRIM_LT_FUNCTIONS(X) \
  X(cublasLtCreate) \
  X(cublasLtGetVersion) \
  X(cublasLtGetStatusString) \
  X(cublasLtMatmul) \
  X(cublasLtMatmulDescInit_internal) \
  X(cublasLtMatmulDescSetAttribute) \
  X(cublasLtMatrixLayoutInit_internal) \
  X(cublasLtMatrixLayoutSetAttribute) \
  X(cublasLtMatmulPreferenceInit_internal) \
  X(cublasLtMatmulPreferenceSetAttribute) \
  X(cublasLtMatmulAlgoGetHeuristic) \
  X(cublasLtMatmulAlgoGetIds) \
  X(cublasLtMatmulAlgoInit) \
  X(cublasLtMatmulAlgoCheck) \
  X(cublasLtMatmulAlgoCapGetAttribute) \
  X(cublasLtMatmulAlgoConfigSetAttribute) \
  X(cublasLtMatmulAlgoConfigGetAttribute)
// clang-format on

struct Library {
#define BRIM_LT_MEMBER(name) decltype(&::name) name = nullptr;
  BRIM_LT_FUNCTIONS(BRIM_LT_MEMBER)
#undef BRIM_LT_MEMBER
};

// Where PyPI's package is, seen from a wheel: SITE/brim/lib and SITE/brim/bin hold this code, SITE/nvidia cuBLAS.
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

const Library& library() {
  static const Library loaded = [] {
    constexpr int kMajor = CUDART_VERSION / 1000;
    std::vector<std::string> names;
    if (const auto forced = env("BRIM_CUBLASLT")) names.push_back(*forced);
    for (const int major : {kMajor, 13, 12}) {
      names.push_back(fmt::format("libcublasLt.so.{}", major));
      for (const std::string& name : beside_a_wheel(major)) names.push_back(name);
      for (const char* folder : {BRIM_CUDA_LIBRARIES, "/usr/local/cuda/lib64"})  // built with; a machine's usual one
        names.push_back(fmt::format("{}/libcublasLt.so.{}", folder, major));
    }
    void* so = nullptr;
    for (const std::string& name : names)
      if ((so = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) != nullptr) break;
    if (so == nullptr)
      fail(ErrorCode::device_lost,
           "cuBLASLt was not found (libcublasLt.so.{}); install CUDA's libraries, set LD_LIBRARY_PATH, or name the "
           "file in BRIM_CUBLASLT",
           kMajor);
    Library l;
#define BRIM_LT_LOOKUP(name)                                                         \
  if ((l.name = reinterpret_cast<decltype(&::name)>(::dlsym(so, #name))) == nullptr) \
    fail(ErrorCode::device_lost, "cuBLASLt has no {}: it is older than this build needs", #name);
    BRIM_LT_FUNCTIONS(BRIM_LT_LOOKUP)
#undef BRIM_LT_LOOKUP
    return l;
  }();
  return loaded;
}

void check_status(cublasStatus_t status, const char* call, const std::string& problem) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  // The product may only be where an earlier kernel's failure came out.
  if (const cudaError_t earlier = cudaDeviceSynchronize(); device::cuda_kernel_failed(earlier))
    device::cuda_failed(earlier, call, __FILE__, __LINE__);
  fail(ErrorCode::device_lost, "{}: {}: {} ({})", device::cuda_current_op, call,
       library().cublasLtGetStatusString(status), problem);
}

cudaDataType_t data_type(DType t) {
  switch (t) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::f16:
      return CUDA_R_16F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f8e4m3:
      return CUDA_R_8F_E4M3;
    default:
      fail(ErrorCode::internal, "cuBLASLt: no products of {}", dtype_name(t));
  }
}
cublasLtEpilogue_t epilogue_type(LtEpilogue e) {
  switch (e) {
    case LtEpilogue::none:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case LtEpilogue::bias:
      return CUBLASLT_EPILOGUE_BIAS;
    case LtEpilogue::gelu:
      return CUBLASLT_EPILOGUE_GELU;
    case LtEpilogue::gelu_bias:
      return CUBLASLT_EPILOGUE_GELU_BIAS;
    case LtEpilogue::relu:
      return CUBLASLT_EPILOGUE_RELU;
    case LtEpilogue::relu_bias:
      return CUBLASLT_EPILOGUE_RELU_BIAS;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}
bool has_bias(LtEpilogue e) {
  return e == LtEpilogue::bias || e == LtEpilogue::gelu_bias || e == LtEpilogue::relu_bias;
}

// Enough for the heuristic to name the tiles that full batches want.
constexpr int64_t kFullTokens = 16384;

int64_t tokens_of(const LtProblem& p) { return p.tokens_in_k ? p.k : p.n; }
int64_t class_of(int64_t tokens) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(tokens, 16))));
}
LtProblem with_tokens(LtProblem p, int64_t tokens) {
  (p.tokens_in_k ? p.k : p.n) = tokens;
  return p;
}

// Descriptors live on the stack; making them costs about a microsecond a call.
struct Description {
  cublasLtMatmulDescOpaque_t desc;
  cublasLtMatrixLayoutOpaque_t a, b, c, d;

  Description(const LtProblem& p, const LtOperands& o) {
    const Library& l = library();
    const cublasComputeType_t compute =
        p.ab == DType::f32 && p.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    check_status(l.cublasLtMatmulDescInit_internal(&desc, sizeof desc, compute, CUDA_R_32F), "cublasLtMatmulDescInit",
                 "");
    set(CUBLASLT_MATMUL_DESC_TRANSA, p.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, p.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_type(p.epilogue));
    if (has_bias(p.epilogue)) {
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, o.bias);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, data_type(p.bias));
      if (p.lanes > 0) set(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, p.stride_bias);
    }
    if (p.ab == DType::f8e4m3) {
      set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{1});
      if (o.a_scale != nullptr) set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, o.a_scale);
      if (o.b_scale != nullptr) set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, o.b_scale);
      if (o.d_scale != nullptr) set(CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, o.d_scale);
    }
    layout(a, p.ab, p.trans_a ? p.k : p.m, p.trans_a ? p.m : p.k, p.lda);
    layout(b, p.ab, p.trans_b ? p.n : p.k, p.trans_b ? p.k : p.n, p.ldb);
    layout(c, p.c, p.m, p.n, p.add_c ? p.ldc : p.ldd);
    layout(d, p.d, p.m, p.n, p.ldd);
    if (p.lanes == 0) return;
    batch(a, p.lanes, p.stride_a);
    batch(b, p.lanes, p.stride_b);
    batch(c, p.lanes, p.stride_d);
    batch(d, p.lanes, p.stride_d);
  }

 private:
  template <class V>
  void set(cublasLtMatmulDescAttributes_t what, const V& value) {
    check_status(library().cublasLtMatmulDescSetAttribute(&desc, what, &value, sizeof value),
                 "cublasLtMatmulDescSetAttribute", "");
  }
  static void layout(cublasLtMatrixLayoutOpaque_t& to, DType type, int64_t rows, int64_t cols, int64_t ld) {
    check_status(library().cublasLtMatrixLayoutInit_internal(
                     &to, sizeof to, data_type(type), static_cast<uint64_t>(rows), static_cast<uint64_t>(cols), ld),
                 "cublasLtMatrixLayoutInit", "");
  }
  static void batch(cublasLtMatrixLayoutOpaque_t& to, int64_t lanes, int64_t stride) {
    const auto count = static_cast<int32_t>(lanes);
    check_status(
        library().cublasLtMatrixLayoutSetAttribute(&to, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
        "cublasLtMatrixLayoutSetAttribute", "");
    check_status(library().cublasLtMatrixLayoutSetAttribute(&to, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                                            sizeof stride),
                 "cublasLtMatrixLayoutSetAttribute", "");
  }
};

std::string hex_of(const cublasLtMatmulAlgo_t& algo) {
  std::string text;
  for (const uint64_t word : algo.data) text += fmt::format("{:016x}", word);
  return text;
}
std::optional<cublasLtMatmulAlgo_t> algo_from_hex(const std::string& text) {
  cublasLtMatmulAlgo_t algo;
  if (text.size() != 16 * std::size(algo.data) || text.find_first_not_of("0123456789abcdef") != std::string::npos)
    return std::nullopt;
  for (size_t i = 0; i < std::size(algo.data); ++i) algo.data[i] = std::stoull(text.substr(16 * i, 16), nullptr, 16);
  return algo;
}

std::string key_text(const LtProblem& p) {
  static const char* const epilogues[] = {"", " bias", " gelu", " gelu+bias", " relu", " relu+bias"};
  return fmt::format("{}{} m {} n {} k {} {}{}>{}{}{}{}", p.trans_a ? "t" : "n", p.trans_b ? "t" : "n", p.m, p.n, p.k,
                     dtype_name(p.ab), p.tf32 ? "(tf32)" : "", dtype_name(p.d), epilogues[static_cast<int>(p.epilogue)],
                     p.add_c ? " + c" : "", p.lanes > 0 ? " lanes" : "");
}

// A shape class as numbers: what is looked up on every call.
struct ClassKey {
  std::array<int64_t, 4> v;
  bool operator==(const ClassKey&) const = default;
};
struct ClassHash {
  size_t operator()(const ClassKey& k) const {
    uint64_t h = 0;
    for (const int64_t x : k.v) {
      h = (h ^ static_cast<uint64_t>(x)) * 0x9E3779B97F4A7C15ULL;
      h ^= h >> 29;
    }
    return h;
  }
};
ClassKey class_key(const LtProblem& p) {
  const int64_t bits = static_cast<int64_t>(p.ab) | static_cast<int64_t>(p.c) << 4 | static_cast<int64_t>(p.d) << 8 |
                       static_cast<int64_t>(p.bias) << 12 | static_cast<int64_t>(p.epilogue) << 16 |
                       static_cast<int64_t>(p.trans_a) << 20 | static_cast<int64_t>(p.trans_b) << 21 |
                       static_cast<int64_t>(p.tf32) << 22 | static_cast<int64_t>(p.add_c) << 23 |
                       static_cast<int64_t>(p.tokens_in_k) << 24 | static_cast<int64_t>(p.lanes > 0) << 25;
  return {{p.m, p.n, p.k, bits}};
}

// Of one number of lanes.
ClassKey lanes_key(const LtProblem& p) {
  ClassKey key = class_key(p);
  key.v[3] |= p.lanes << 32;
  return key;
}

using Answers = std::vector<cublasLtMatmulHeuristicResult_t>;

// One per device; never destroyed, since the runtime may go first.
class Context {
 public:
  explicit Context(int device) : device_(device) {
    check_status(library().cublasLtCreate(&handle_), "cublasLtCreate", fmt::format("cuda:{}", device));
  }
  cublasLtHandle_t handle() const { return handle_; }

  cublasLtMatmulAlgo_t algorithm(const LtProblem& p, const LtOperands& o) {
    const LtProblem whole = with_tokens(p, class_of(tokens_of(p)));
    const std::lock_guard lock(mutex_);
    const auto [it, fresh] = chosen_.try_emplace(class_key(whole));
    if (fresh) {
      if (const auto known = choices_.find(key_text(whole)); known != choices_.end()) {
        it->second = *algo_from_hex(known->second.algorithm);
      } else {
        // What it names for larger batches is slower: RoBERTa-base on an H200 117 k tweets/s in bf16 against 121 k.
        const Answers answers = heuristic(p.tokens_in_k ? whole : with_tokens(p, std::min(whole.n, kFullTokens)), o, 1);
        if (answers.empty()) {
          chosen_.erase(it);
          return exact_locked(p, o);
        }
        it->second = answers[0].algo;
      }
    }
    return it->second;
  }
  // One for any number of tokens: the heuristic's for `tokens` of them.
  cublasLtMatmulAlgo_t fixed(const LtProblem& p, const LtOperands& o, int64_t tokens) {
    const LtProblem whole = with_tokens(p, tokens);
    const std::lock_guard lock(mutex_);
    const auto [it, fresh] = fixed_.try_emplace(class_key(whole));
    if (fresh) {
      const Answers answers = heuristic(whole, o, 1);
      if (answers.empty()) {
        fixed_.erase(it);
        fail(ErrorCode::device_lost, "{}: cuBLASLt has no algorithm for {}", device::cuda_current_op, key_text(whole));
      }
      it->second = answers[0].algo;
    }
    return it->second;
  }
  // Of a product of lanes: nothing before keep_for_lanes. The shape is taken as it is, not rounded to a class.
  std::optional<cublasLtMatmulAlgo_t> for_lanes(const LtProblem& p) {
    const std::lock_guard lock(mutex_);
    if (const auto it = chosen_.find(class_key(p)); it != chosen_.end()) return it->second;
    const auto known = choices_.find(key_text(p));
    if (known == choices_.end()) return std::nullopt;
    return chosen_[class_key(p)] = *algo_from_hex(known->second.algorithm);
  }
  void keep_for_lanes(const LtProblem& p, const cublasLtMatmulAlgo_t& algo, int tried) {
    const std::lock_guard lock(mutex_);
    chosen_[class_key(p)] = algo;
    choices_[key_text(p)] = {key_text(p), hex_of(algo), 0, 0, tried};
  }
  // The one that is run for this number of lanes: it gives the same bits as for_lanes's.
  std::optional<cublasLtMatmulAlgo_t> for_so_many_lanes(const LtProblem& p) {
    const std::lock_guard lock(mutex_);
    const auto it = by_lanes_.find(lanes_key(p));
    return it == by_lanes_.end() ? std::nullopt : std::optional(it->second);
  }
  void keep_for_so_many_lanes(const LtProblem& p, const cublasLtMatmulAlgo_t& algo) {
    const std::lock_guard lock(mutex_);
    by_lanes_[lanes_key(p)] = algo;
  }
  // For a problem its class's algorithm refused.
  cublasLtMatmulAlgo_t exact(const LtProblem& p, const LtOperands& o) {
    const std::lock_guard lock(mutex_);
    return exact_locked(p, o);
  }

  Answers heuristic(const LtProblem& p, const LtOperands& o, int wanted) const {
    const Library& l = library();
    Description d(p, o);
    cublasLtMatmulPreferenceOpaque_t preference;
    check_status(l.cublasLtMatmulPreferenceInit_internal(&preference, sizeof preference),
                 "cublasLtMatmulPreferenceInit", key_text(p));
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t what, auto value) {
      check_status(l.cublasLtMatmulPreferenceSetAttribute(&preference, what, &value, sizeof value),
                   "cublasLtMatmulPreferenceSetAttribute", key_text(p));
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(o.workspace_bytes));
    // Split-k only through fp32 partial sums in the workspace: in place, blocks would add in whatever order they
    // finish. Lanes fill a card without it.
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        static_cast<uint32_t>(p.lanes > 0 ? CUBLASLT_REDUCTION_SCHEME_NONE : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    const auto alignment = [](const void* q) {
      return std::min<uint32_t>(16, 1u << std::min(31, std::countr_zero(reinterpret_cast<uintptr_t>(q) | 256)));
    };
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(o.a));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(o.b));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(p.add_c ? o.c : o.d));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(o.d));
    Answers answers(static_cast<size_t>(wanted));
    int found = 0;
    const cublasStatus_t status = l.cublasLtMatmulAlgoGetHeuristic(handle_, &d.desc, &d.a, &d.b, &d.c, &d.d,
                                                                   &preference, wanted, answers.data(), &found);
    answers.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<size_t>(found) : 0);
    std::erase_if(answers, [](const auto& a) { return a.state != CUBLAS_STATUS_SUCCESS; });
    return answers;
  }

  void keep(const LtProblem& p, const GemmChoice& choice) {
    const std::lock_guard lock(mutex_);
    choices_[choice.key] = choice;
    chosen_[class_key(with_tokens(p, class_of(tokens_of(p))))] = *algo_from_hex(choice.algorithm);
  }
  void use(const std::vector<GemmChoice>& choices) {
    const std::lock_guard lock(mutex_);
    chosen_.clear();
    by_lanes_.clear();
    for (const GemmChoice& c : choices) {
      if (algo_from_hex(c.algorithm))
        choices_[c.key] = c;
      else
        log_warning("GEMM choice for {} is not readable; the library's own choice is used", c.key);
    }
  }
  std::vector<GemmChoice> all() {
    const std::lock_guard lock(mutex_);
    std::vector<GemmChoice> list;
    for (const auto& [key, choice] : choices_) list.push_back(choice);
    return list;
  }

 private:
  cublasLtMatmulAlgo_t exact_locked(const LtProblem& p, const LtOperands& o) {
    const auto [it, fresh] = exact_.try_emplace(class_key(p));
    if (fresh) {
      const Answers answers = heuristic(p, o, 1);
      if (answers.empty()) {
        exact_.erase(it);
        fail(ErrorCode::device_lost, "{}: cuBLASLt has no algorithm for {}", device::cuda_current_op, key_text(p));
      }
      it->second = answers[0].algo;
    }
    return it->second;
  }

  int device_;
  cublasLtHandle_t handle_ = nullptr;
  std::mutex mutex_;
  std::unordered_map<ClassKey, cublasLtMatmulAlgo_t, ClassHash> chosen_, fixed_, exact_, by_lanes_;
  std::map<std::string, GemmChoice> choices_;
};

Context& context_of(const CudaStream& stream) {
  static std::mutex mutex;
  static auto* contexts = new std::map<int, Context*>;
  const std::lock_guard lock(mutex);
  Context*& context = (*contexts)[stream.device_index()];
  if (context == nullptr) {
    stream.bind();
    context = new Context(stream.device_index());
  }
  return *context;
}

cublasStatus_t try_run(CudaStream& stream, const Context& context, const LtProblem& p, const LtOperands& o,
                       Description& d, const cublasLtMatmulAlgo_t& algo) {
  const float one = 1.0f, beta = p.add_c ? 1.0f : 0.0f;
  // Unread when beta is 0, but it must be a valid pointer, and with an fp8 result not D.
  const void* c = p.add_c ? o.c : p.c == p.d ? o.d : o.workspace;
  return library().cublasLtMatmul(context.handle(), &d.desc, &one, o.a, &d.a, o.b, &d.b, &beta, c, &d.c, o.d, &d.d,
                                  &algo, o.workspace, o.workspace_bytes, stream.handle());
}

// Timing on the stream by events: the mean of `runs`.
class Stopwatch {
 public:
  explicit Stopwatch(CudaStream& stream) : stream_(stream) {
    BRIM_CUDA_CHECK(cudaEventCreate(begin_.out()));
    BRIM_CUDA_CHECK(cudaEventCreate(end_.out()));
  }
  template <class F>
  double us(int runs, F&& f) {
    BRIM_CUDA_CHECK(cudaEventRecord(begin_.get(), stream_.handle()));
    for (int i = 0; i < runs; ++i)
      if (!f()) return 1e30;
    BRIM_CUDA_CHECK(cudaEventRecord(end_.get(), stream_.handle()));
    BRIM_CUDA_CHECK(cudaEventSynchronize(end_.get()));
    float ms = 0;
    BRIM_CUDA_CHECK(cudaEventElapsedTime(&ms, begin_.get(), end_.get()));
    return static_cast<double>(ms) * 1e3 / runs;
  }

 private:
  CudaStream& stream_;
  device::CudaEventHandle begin_, end_;
};

// What an algorithm makes of D's first rows, as floats: enough to see that two compute the same. They hold no numbers
// before (or zeros, where they are added to), so that rows which were not written show.
std::vector<float> first_rows(CudaStream& stream, const Context& context, const LtProblem& p, const LtOperands& o,
                              Description& d, const cublasLtMatmulAlgo_t& algo) {
  const auto rows = static_cast<size_t>(std::min<int64_t>(p.n, 64)), width = static_cast<size_t>(p.m),
             bytes = static_cast<size_t>(dtype_bytes(p.d)), pitch = static_cast<size_t>(p.ldd) * bytes;
  const int before = p.add_c && o.c == o.d ? 0 : 0xFF;
  BRIM_CUDA_CHECK(cudaMemset2DAsync(o.d, pitch, before, width * bytes, rows, stream.handle()));
  if (try_run(stream, context, p, o, d, algo) != CUBLAS_STATUS_SUCCESS) return {};
  std::vector<char> raw(rows * width * bytes);
  BRIM_CUDA_CHECK(cudaMemcpy2DAsync(raw.data(), width * bytes, o.d, pitch, width * bytes, rows, cudaMemcpyDeviceToHost,
                                    stream.handle()));
  stream.synchronize();
  std::vector<float> values(rows * width);
  convert_elements(raw.data(), p.d, values.data(), DType::f32, static_cast<int64_t>(values.size()));
  return values;
}

// Every configuration of every algorithm this problem type has, shuffled: random search beats order.
std::vector<cublasLtMatmulAlgo_t> configurations(const Context& context, const LtProblem& p,
                                                 const cublasLtMatmulAlgo_t& like, int capability) {
  const Library& l = library();
  const cublasComputeType_t compute = p.ab == DType::f32 && p.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  const cudaDataType_t ab = data_type(p.ab), c = data_type(p.c), d = data_type(p.d);
  std::array<int, 64> ids{};
  int count = 0;
  if (l.cublasLtMatmulAlgoGetIds(context.handle(), compute, CUDA_R_32F, ab, ab, c, d, static_cast<int>(ids.size()),
                                 ids.data(), &count) != CUBLAS_STATUS_SUCCESS)
    return {};
  const std::vector<uint16_t> clusters =
      capability >= 90 ? std::vector<uint16_t>{CUBLASLT_CLUSTER_SHAPE_1x1x1, CUBLASLT_CLUSTER_SHAPE_2x1x1,
                                               CUBLASLT_CLUSTER_SHAPE_1x2x1, CUBLASLT_CLUSTER_SHAPE_4x1x1,
                                               CUBLASLT_CLUSTER_SHAPE_2x2x1, CUBLASLT_CLUSTER_SHAPE_1x4x1}
                       : std::vector<uint16_t>{CUBLASLT_CLUSTER_SHAPE_AUTO};
  std::vector<cublasLtMatmulAlgo_t> all;
  constexpr size_t kMost = 400000;
  for (int i = 0; i < count && all.size() < kMost; ++i) {
    cublasLtMatmulAlgo_t base;
    if (l.cublasLtMatmulAlgoInit(context.handle(), compute, CUDA_R_32F, ab, ab, c, d, ids[static_cast<size_t>(i)],
                                 &base) != CUBLAS_STATUS_SUCCESS)
      continue;
    size_t written = 0;
    const auto list = [&](cublasLtMatmulAlgoCapAttributes_t what) {
      std::vector<uint32_t> values;
      if (l.cublasLtMatmulAlgoCapGetAttribute(&base, what, nullptr, 0, &written) == CUBLAS_STATUS_SUCCESS)
        values.resize(written / sizeof(uint32_t));
      if (!values.empty()) l.cublasLtMatmulAlgoCapGetAttribute(&base, what, values.data(), written, &written);
      if (values.empty()) values.push_back(0);
      return values;
    };
    const std::vector<uint32_t> tiles = list(CUBLASLT_ALGO_CAP_TILE_IDS);
    std::vector<uint32_t> stages(1);  // Hopper's kernels take the heuristic's automatic value; older ones list theirs
    if (capability < 90)
      stages = list(CUBLASLT_ALGO_CAP_STAGES_IDS);
    else
      l.cublasLtMatmulAlgoConfigGetAttribute(&like, CUBLASLT_ALGO_CONFIG_STAGES_ID, stages.data(), sizeof(uint32_t),
                                             &written);
    int32_t custom_most = 0;
    uint32_t swizzles = 0;
    l.cublasLtMatmulAlgoCapGetAttribute(&base, CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX, &custom_most, sizeof custom_most,
                                        &written);
    l.cublasLtMatmulAlgoCapGetAttribute(&base, CUBLASLT_ALGO_CAP_CTA_SWIZZLING_SUPPORT, &swizzles, sizeof swizzles,
                                        &written);
    for (const uint32_t tile : tiles)
      for (const uint32_t stage : stages)
        for (uint32_t custom = 0; custom <= static_cast<uint32_t>(std::clamp(custom_most, 0, 15)); ++custom)
          for (uint32_t swizzle = 0; swizzle <= swizzles; ++swizzle)
            for (const uint16_t cluster : clusters) {
              if (all.size() >= kMost) break;
              cublasLtMatmulAlgo_t a = base;
              l.cublasLtMatmulAlgoConfigSetAttribute(&a, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile, sizeof tile);
              l.cublasLtMatmulAlgoConfigSetAttribute(&a, CUBLASLT_ALGO_CONFIG_STAGES_ID, &stage, sizeof stage);
              l.cublasLtMatmulAlgoConfigSetAttribute(&a, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, &custom, sizeof custom);
              l.cublasLtMatmulAlgoConfigSetAttribute(&a, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, &swizzle, sizeof swizzle);
              l.cublasLtMatmulAlgoConfigSetAttribute(&a, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &cluster,
                                                     sizeof cluster);
              all.push_back(a);
            }
  }
  std::shuffle(all.begin(), all.end(), std::mt19937(1));
  return all;
}

// D of every lane, row by row, to or from the host.
struct LaneResults {
  std::vector<char> bytes;
  void copy(CudaStream& stream, const LtProblem& p, const LtOperands& o, cudaMemcpyKind kind) {
    const auto size = static_cast<size_t>(dtype_bytes(p.d)), width = static_cast<size_t>(p.m) * size,
               pitch = static_cast<size_t>(p.ldd) * size, rows = static_cast<size_t>(p.n);
    bytes.resize(width * rows * static_cast<size_t>(p.lanes));
    for (int64_t g = 0; g < p.lanes; ++g) {
      char *host = bytes.data() + static_cast<size_t>(g) * width * rows,
           *device = static_cast<char*>(o.d) + static_cast<size_t>(g * p.stride_d) * size;
      const bool up = kind == cudaMemcpyHostToDevice;
      BRIM_CUDA_CHECK(cudaMemcpy2DAsync(up ? device : host, up ? pitch : width, up ? host : device, up ? width : pitch,
                                        width, rows, kind, stream.handle()));
    }
    stream.synchronize();
  }
};

// The lane alone, as a run of one lane would ask for it.
LtOperands operands_of(const LtProblem& p, LtOperands o, int64_t lane) {
  const auto past = [&](const void* q, int64_t stride, DType type) {
    return static_cast<const char*>(q) + lane * stride * dtype_bytes(type);
  };
  o.a = past(o.a, p.stride_a, p.ab);
  o.b = past(o.b, p.stride_b, p.ab);
  if (o.c != nullptr) o.c = past(o.c, p.stride_d, p.c);
  o.d = static_cast<char*>(o.d) + lane * p.stride_d * dtype_bytes(p.d);
  if (o.bias != nullptr) o.bias = past(o.bias, p.stride_bias, p.bias);
  return o;
}

// The first of the heuristic's answers whose result does not depend on how many lanes are computed together, shown with
// the operands of this call. What D held is put back.
cublasLtMatmulAlgo_t choose_for_lanes(CudaStream& stream, Context& context, const LtProblem& p, const LtOperands& o) {
  constexpr int64_t kLanesAsked = 16;
  constexpr int kAnswers = 16;
  BRIM_CHECK(!stream.capturing(), "{}: the algorithm of {} is not chosen yet: run once before capturing",
             device::cuda_current_op, key_text(p));
  LtProblem asked = p, alone = p;
  asked.lanes = kLanesAsked;
  alone.lanes = 1;
  const Answers answers = context.heuristic(asked, o, kAnswers);
  LaneResults before, together, apart;
  before.copy(stream, p, o, cudaMemcpyDeviceToHost);
  const auto run = [&](const LtProblem& problem, const LtOperands& operands, const cublasLtMatmulAlgo_t& algo) {
    Description d(problem, operands);
    return try_run(stream, context, problem, operands, d, algo) == CUBLAS_STATUS_SUCCESS;
  };
  int tried = 0;
  for (const auto& answer : answers) {
    ++tried;
    before.copy(stream, p, o, cudaMemcpyHostToDevice);
    if (!run(p, o, answer.algo)) continue;
    together.copy(stream, p, o, cudaMemcpyDeviceToHost);
    before.copy(stream, p, o, cudaMemcpyHostToDevice);
    bool ran = true;
    for (int64_t g = 0; g < p.lanes && ran; ++g) ran = run(alone, operands_of(p, o, g), answer.algo);
    apart.copy(stream, p, o, cudaMemcpyDeviceToHost);
    before.copy(stream, p, o, cudaMemcpyHostToDevice);
    if (!ran || together.bytes != apart.bytes) continue;
    context.keep_for_lanes(p, answer.algo, tried);
    return answer.algo;
  }
  fail(ErrorCode::device_lost, "{}: cuBLASLt has no algorithm for {} whose result is the same alone and in a batch",
       device::cuda_current_op, key_text(p));
}

// How lanes divide into a card's processors decides which tiles are fast: 18 lanes of an algorithm chosen for 16 leave
// a quarter of an H200 idle. So the heuristic's answers for this number of lanes are timed, and the fastest that gives
// `algo`'s bits on the operands of this call is taken. What D held is put back.
cublasLtMatmulAlgo_t fastest_alike(CudaStream& stream, Context& context, const LtProblem& p, const LtOperands& o,
                                   const cublasLtMatmulAlgo_t& algo) {
  constexpr double kWorthTiming = 4e9;  // flops
  constexpr double kFaster = 0.97;
  constexpr int kAnswers = 16, kRuns = 4, kMostCompared = 4;
  const double flops = 2 * static_cast<double>(p.lanes * p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
  if (flops < kWorthTiming) return algo;
  LaneResults before, wanted, got;
  before.copy(stream, p, o, cudaMemcpyDeviceToHost);
  Description d(p, o);
  Stopwatch watch(stream);
  const auto run = [&](const cublasLtMatmulAlgo_t& one) {
    return try_run(stream, context, p, o, d, one) == CUBLAS_STATUS_SUCCESS;
  };
  const auto time = [&](const cublasLtMatmulAlgo_t& one) {
    return run(one) ? watch.us(kRuns, [&] { return run(one); }) : 1e30;
  };
  std::vector<std::pair<double, cublasLtMatmulAlgo_t>> timed;
  for (const auto& answer : context.heuristic(p, o, kAnswers)) timed.emplace_back(time(answer.algo), answer.algo);
  const double most = kFaster * time(algo);
  std::stable_sort(timed.begin(), timed.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  before.copy(stream, p, o, cudaMemcpyHostToDevice);
  run(algo);
  wanted.copy(stream, p, o, cudaMemcpyDeviceToHost);
  cublasLtMatmulAlgo_t best = algo;
  for (size_t i = 0; i < timed.size() && i < kMostCompared && timed[i].first < most; ++i) {
    before.copy(stream, p, o, cudaMemcpyHostToDevice);
    run(timed[i].second);
    got.copy(stream, p, o, cudaMemcpyDeviceToHost);
    if (got.bytes != wanted.bytes) continue;
    best = timed[i].second;
    break;
  }
  before.copy(stream, p, o, cudaMemcpyHostToDevice);
  return best;
}

}  // namespace

void lt_matmul(CudaStream& stream, const LtProblem& p, const LtOperands& o) {
  Context& context = context_of(stream);
  if (p.lanes > 0) {
    std::optional<cublasLtMatmulAlgo_t> algo = context.for_so_many_lanes(p);
    if (!algo) {
      const auto known = context.for_lanes(p);
      algo = known ? *known : choose_for_lanes(stream, context, p, o);
      if (!stream.capturing()) {
        algo = fastest_alike(stream, context, p, o, *algo);
        context.keep_for_so_many_lanes(p, *algo);
      }
    }
    Description lanes(p, o);
    return check_status(try_run(stream, context, p, o, lanes, *algo), "cublasLtMatmul", key_text(p));
  }
  Description d(p, o);
  if (const int64_t tokens = stream.algorithm_tokens(); tokens > 0 && !p.tokens_in_k)
    return check_status(try_run(stream, context, p, o, d, context.fixed(p, o, tokens)), "cublasLtMatmul", key_text(p));
  const cublasStatus_t status = try_run(stream, context, p, o, d, context.algorithm(p, o));
  if (status == CUBLAS_STATUS_SUCCESS) return;
  if (status != CUBLAS_STATUS_NOT_SUPPORTED && status != CUBLAS_STATUS_INVALID_VALUE)
    check_status(status, "cublasLtMatmul", key_text(p));
  check_status(try_run(stream, context, p, o, d, context.exact(p, o)), "cublasLtMatmul", key_text(p));
}

GemmChoice lt_tune(CudaStream& stream, const LtProblem& p, const LtOperands& o, double seconds) {
  Context& context = context_of(stream);
  Description d(p, o);
  Stopwatch watch(stream);
  const auto time = [&](const cublasLtMatmulAlgo_t& algo, int runs) {
    return watch.us(runs, [&] { return try_run(stream, context, p, o, d, algo) == CUBLAS_STATUS_SUCCESS; });
  };
  Answers answers = context.heuristic(p, o, 64);
  if (answers.empty()) fail(ErrorCode::device_lost, "tune: cuBLASLt has no algorithm for {}", key_text(p));
  for (auto& a : answers) static_cast<void>(time(a.algo, 1));  // loads each kernel
  // Medians over interleaved rounds: a card at its power limit changes its clocks as it runs.
  constexpr int kRounds = 5;
  std::vector<std::array<double, kRounds>> times(answers.size());
  for (int round = 0; round < kRounds; ++round)
    for (size_t i = 0; i < answers.size(); ++i) times[i][static_cast<size_t>(round)] = time(answers[i].algo, 6);
  size_t best = 0;
  for (size_t i = 0; i < answers.size(); ++i) {
    std::sort(times[i].begin(), times[i].end());
    if (times[i][kRounds / 2] < times[best][kRounds / 2]) best = i;
  }
  GemmChoice choice{key_text(with_tokens(p, class_of(tokens_of(p)))), "", times[best][kRounds / 2],
                    times[0][kRounds / 2], static_cast<int>(answers.size())};
  cublasLtMatmulAlgo_t algo = answers[best].algo;
  const int64_t begin = now_ns();
  if (seconds > 0)
    for (const cublasLtMatmulAlgo_t& candidate :
         configurations(context, p, answers[0].algo, stream.info().capability)) {
      if (seconds_since(begin) > seconds) break;
      cublasLtMatmulHeuristicResult_t found;
      if (library().cublasLtMatmulAlgoCheck(context.handle(), &d.desc, &d.a, &d.b, &d.c, &d.d, &candidate, &found) !=
              CUBLAS_STATUS_SUCCESS ||
          found.workspaceSize > o.workspace_bytes)
        continue;
      ++choice.tried;
      if (time(candidate, 1) > 1e29 || time(candidate, 1) > 1.15 * choice.us) continue;
      const double us = time(candidate, 8);
      if (us < 0.99 * time(algo, 8) && time(candidate, 16) < 0.99 * time(algo, 16)) {
        choice.us = us;
        algo = candidate;
      }
    }
  static_cast<void>(cudaGetLastError());
  // What was fastest is only trusted if it computes what the library's own first choice does. Sums in another order
  // may round to fp8's next step now and then.
  const double allowed = p.d == DType::f8e4m3 ? 0.05 : 0.02;
  const std::vector<float> expected = first_rows(stream, context, p, o, d, answers[0].algo);
  const auto trusted = [&](const cublasLtMatmulAlgo_t& candidate) {
    const double apart = product_distance(expected, first_rows(stream, context, p, o, d, candidate));
    if (apart <= allowed) return true;
    log_warning("tune: {}: an algorithm is off by {:.3g} and is not used", choice.key, apart);
    return false;
  };
  for (const size_t fallback : {best, size_t{0}}) {
    if (trusted(algo)) break;
    algo = answers[fallback].algo;
    choice.us = times[fallback][kRounds / 2];
  }
  choice.algorithm = hex_of(algo);
  context.keep(p, choice);
  return choice;
}

void fix_gemm_algorithms_cuda(device::Stream& stream) { as_cuda(stream).set_algorithm_tokens(kFullTokens); }

std::vector<GemmChoice> gemm_choices_cuda(device::Stream& stream) { return context_of(as_cuda(stream)).all(); }
void use_gemm_choices_cuda(device::Stream& stream, const std::vector<GemmChoice>& choices) {
  context_of(as_cuda(stream)).use(choices);
}
std::string gemm_library_cuda(device::Stream& stream) {
  return fmt::format("{} driver {} cublaslt {}", as_cuda(stream).info().name, as_cuda(stream).info().driver_version,
                     library().cublasLtGetVersion());
}

}  // namespace brim::ops
