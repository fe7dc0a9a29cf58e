// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/lt_choice.h"

#include <algorithm>
#include <bit>

#include "base/log.h"

namespace brim::ops {
namespace {

std::optional<cublasLtMatmulAlgo_t> lt_algo_from_hex(const std::string& text) {
  cublasLtMatmulAlgo_t algo;
  if (text.size() != 16 * std::size(algo.data) || text.find_first_not_of("0123456789abcdef") != std::string::npos)
    return std::nullopt;
  for (size_t i = 0; i < std::size(algo.data); ++i) algo.data[i] = std::stoull(text.substr(16 * i, 16), nullptr, 16);
  return algo;
}

LtClassKey class_key(const LtProblem& p) {
  const int64_t bits = static_cast<int64_t>(p.ab) | static_cast<int64_t>(p.c) << 4 | static_cast<int64_t>(p.d) << 8 |
                       static_cast<int64_t>(p.bias) << 12 | static_cast<int64_t>(p.epilogue) << 16 |
                       static_cast<int64_t>(p.trans_a) << 20 | static_cast<int64_t>(p.trans_b) << 21 |
                       static_cast<int64_t>(p.tf32) << 22 | static_cast<int64_t>(p.add_c) << 23 |
                       static_cast<int64_t>(p.tokens_in_k) << 24 | static_cast<int64_t>(p.lanes > 0) << 25 |
                       static_cast<int64_t>(p.exact_sums) << 26;
  return {{p.m, p.n, p.k, bits}};
}

// Key for one number of lanes.
LtClassKey lanes_key(const LtProblem& p) {
  LtClassKey key = class_key(p);
  key.v[3] |= p.lanes << 32;
  return key;
}

}  // namespace

int64_t lt_tokens_of(const LtProblem& p) { return p.tokens_in_k ? p.k : p.n; }
// Classes of 256 tokens up to 2,048 would make a call with 64 texts 4 % faster (0.98 instead of 1.02 ms on an H200),
// but kernels would be loaded while batches run.
int64_t lt_class_of(int64_t tokens) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(tokens, 16))));
}
LtProblem lt_with_tokens(LtProblem p, int64_t tokens) {
  (p.tokens_in_k ? p.k : p.n) = tokens;
  if (p.tokens_in_k && p.trans_a) p.lda = std::max(p.lda, tokens);  // row length, within the capacity of the class
  if (p.tokens_in_k && !p.trans_b) p.ldb = std::max(p.ldb, tokens);
  return p;
}

std::string lt_algo_hex(const cublasLtMatmulAlgo_t& algo) {
  std::string text;
  for (const uint64_t word : algo.data) text += fmt::format("{:016x}", word);
  return text;
}

void LtChoices::open_handle(int device) {
  if (handle_ == nullptr)
    check_lt(lt_library().cublasLtCreate(&handle_), "cublasLtCreate", fmt::format("cuda:{}", device));
}

void LtChoices::release_handle() {
  if (handle_ != nullptr) static_cast<void>(lt_library().cublasLtDestroy(std::exchange(handle_, nullptr)));
}

cublasLtMatmulAlgo_t LtChoices::algorithm(const LtProblem& p, const LtOperands& o) {
  const LtProblem whole = lt_with_tokens(p, lt_class_of(lt_tokens_of(p)));
  const std::lock_guard lock(mutex_);
  const auto [it, fresh] = chosen_.try_emplace(class_key(whole));
  if (fresh) {
    if (const auto known = choices_.find(lt_key_text(whole)); known != choices_.end()) {
      it->second = *lt_algo_from_hex(known->second.algorithm);
    } else {
      // The heuristic's results for larger batches are slower: RoBERTa-base in bf16 on an H200 scores 117 k instead of
      // 121 k tweets/s.
      const LtAnswers answers =
          heuristic(p.tokens_in_k ? whole : lt_with_tokens(p, std::min(whole.n, kFullTokens)), o, 1);
      if (answers.empty()) {
        chosen_.erase(it);
        return exact_locked(p, o);
      }
      it->second = answers[0].algo;
    }
  }
  return it->second;
}

cublasLtMatmulAlgo_t LtChoices::fixed(const LtProblem& p, const LtOperands& o, int64_t tokens) {
  const LtProblem whole = lt_with_tokens(p, tokens);
  const std::lock_guard lock(mutex_);
  const auto [it, fresh] = fixed_.try_emplace(class_key(whole));
  if (fresh) {
    const LtAnswers answers = heuristic(whole, o, 1);
    if (answers.empty()) {
      fixed_.erase(it);
      fail(ErrorCode::device_lost, "{}: cuBLASLt has no algorithm for {}", device::cuda_current_op, lt_key_text(whole));
    }
    it->second = answers[0].algo;
  }
  return it->second;
}

std::optional<cublasLtMatmulAlgo_t> LtChoices::for_lanes(const LtProblem& p) {
  const std::lock_guard lock(mutex_);
  if (const auto it = chosen_.find(class_key(p)); it != chosen_.end()) return it->second;
  const auto known = choices_.find(lt_key_text(p));
  if (known == choices_.end()) return std::nullopt;
  return chosen_[class_key(p)] = *lt_algo_from_hex(known->second.algorithm);
}

void LtChoices::keep_for_lanes(const LtProblem& p, const cublasLtMatmulAlgo_t& algo, int tried) {
  const std::lock_guard lock(mutex_);
  chosen_[class_key(p)] = algo;
  choices_[lt_key_text(p)] = {lt_key_text(p), lt_algo_hex(algo), 0, 0, tried};
}

std::optional<cublasLtMatmulAlgo_t> LtChoices::for_so_many_lanes(const LtProblem& p) {
  const std::lock_guard lock(mutex_);
  const auto it = by_lanes_.find(lanes_key(p));
  return it == by_lanes_.end() ? std::nullopt : std::optional(it->second);
}

void LtChoices::keep_for_so_many_lanes(const LtProblem& p, const cublasLtMatmulAlgo_t& algo) {
  const std::lock_guard lock(mutex_);
  by_lanes_[lanes_key(p)] = algo;
}

cublasLtMatmulAlgo_t LtChoices::exact(const LtProblem& p, const LtOperands& o) {
  const std::lock_guard lock(mutex_);
  return exact_locked(p, o);
}

LtAnswers LtChoices::heuristic(const LtProblem& p, const LtOperands& o, int wanted) const {
  const LtLibrary& l = lt_library();
  LtDescription d(p, o);
  cublasLtMatmulPreferenceOpaque_t preference;
  check_lt(l.cublasLtMatmulPreferenceInit_internal(&preference, sizeof preference), "cublasLtMatmulPreferenceInit",
           lt_key_text(p));
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t what, auto value) {
    check_lt(l.cublasLtMatmulPreferenceSetAttribute(&preference, what, &value, sizeof value),
             "cublasLtMatmulPreferenceSetAttribute", lt_key_text(p));
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(o.workspace_bytes));
  // Split-k only with fp32 partial sums in the workspace: in place, blocks would add in nondeterministic order.
  // Batches of lanes fill a GPU without it.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(p.lanes > 0 ? CUBLASLT_REDUCTION_SCHEME_NONE : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  const auto alignment = [](const void* q) {
    return std::min<uint32_t>(16, 1u << std::min(31, std::countr_zero(reinterpret_cast<uintptr_t>(q) | 256)));
  };
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(o.a));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(o.b));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(p.add_c ? o.c : o.d));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(o.d));
  LtAnswers answers(static_cast<size_t>(wanted));
  int found = 0;
  const cublasStatus_t status = l.cublasLtMatmulAlgoGetHeuristic(handle_, &d.desc, &d.a, &d.b, &d.c, &d.d, &preference,
                                                                 wanted, answers.data(), &found);
  answers.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<size_t>(found) : 0);
  std::erase_if(answers, [](const auto& a) { return a.state != CUBLAS_STATUS_SUCCESS; });
  return answers;
}

void LtChoices::keep(const LtProblem& p, const GemmChoice& choice) {
  const std::lock_guard lock(mutex_);
  choices_[choice.key] = choice;
  chosen_[class_key(lt_with_tokens(p, lt_class_of(lt_tokens_of(p))))] = *lt_algo_from_hex(choice.algorithm);
}

void LtChoices::use(const std::vector<GemmChoice>& choices) {
  const std::lock_guard lock(mutex_);
  chosen_.clear();
  by_lanes_.clear();
  for (const GemmChoice& c : choices) {
    if (lt_algo_from_hex(c.algorithm))
      choices_[c.key] = c;
    else
      log_warning("cannot read the GEMM choice for {}; using the library's default", c.key);
  }
}

std::vector<GemmChoice> LtChoices::all() {
  const std::lock_guard lock(mutex_);
  std::vector<GemmChoice> list;
  for (const auto& [key, choice] : choices_) list.push_back(choice);
  return list;
}

cublasLtMatmulAlgo_t LtChoices::exact_locked(const LtProblem& p, const LtOperands& o) {
  const auto [it, fresh] = exact_.try_emplace(class_key(p));
  if (fresh) {
    const LtAnswers answers = heuristic(p, o, 1);
    if (answers.empty()) {
      exact_.erase(it);
      fail(ErrorCode::device_lost, "{}: cuBLASLt has no algorithm for {}", device::cuda_current_op, lt_key_text(p));
    }
    it->second = answers[0].algo;
  }
  return it->second;
}

LtChoices& lt_choices_of(const device::CudaStream& stream) {
  static std::mutex mutex;
  static auto* of_devices = new std::map<int, LtChoices*>;
  const std::lock_guard lock(mutex);
  LtChoices*& choices = (*of_devices)[stream.device_index()];
  if (choices == nullptr) choices = new LtChoices;
  if (choices->handle() == nullptr) {
    stream.bind();
    choices->open_handle(stream.device_index());
  }
  return *choices;
}

}  // namespace brim::ops
