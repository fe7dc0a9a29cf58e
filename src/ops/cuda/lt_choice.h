// SPDX-License-Identifier: Apache-2.0
// Selects the algorithm of a product: by shape class, from the library's heuristic, or from a measurement.
#pragma once
#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "ops/cuda/lt_run.h"

namespace brim::ops {

// A class covers all token counts up to the next power of two.
int64_t lt_class_of(int64_t tokens);
int64_t lt_tokens_of(const LtProblem& p);
LtProblem lt_with_tokens(LtProblem p, int64_t tokens);

std::string lt_algo_hex(const cublasLtMatmulAlgo_t& algo);

// Large enough for the heuristic to return tiles suited to full batches.
constexpr int64_t kFullTokens = 16384;

// A shape class as numbers, looked up on every call.
struct LtClassKey {
  std::array<int64_t, 4> v;
  bool operator==(const LtClassKey&) const = default;
};
struct LtClassHash {
  size_t operator()(const LtClassKey& k) const {
    uint64_t h = 0;
    for (const int64_t x : k.v) {
      h = (h ^ static_cast<uint64_t>(x)) * 0x9E3779B97F4A7C15ULL;
      h ^= h >> 29;
    }
    return h;
  }
};

using LtAnswers = std::vector<cublasLtMatmulHeuristicResult_t>;

// One per device; never destroyed, because the runtime may be unloaded first.
class LtChoices {
 public:
  void open_handle(int device);  // no-op if already open
  void release_handle();         // choices are kept
  cublasLtHandle_t handle() const { return handle_; }

  cublasLtMatmulAlgo_t algorithm(const LtProblem& p, const LtOperands& o);
  // One algorithm for any number of tokens: the heuristic's result for `tokens`.
  cublasLtMatmulAlgo_t fixed(const LtProblem& p, const LtOperands& o, int64_t tokens);
  // For a problem rejected by the algorithm of its class.
  cublasLtMatmulAlgo_t exact(const LtProblem& p, const LtOperands& o);
  // For a product of lanes; nullopt before keep_for_lanes. The exact shape is used, not a class.
  std::optional<cublasLtMatmulAlgo_t> for_lanes(const LtProblem& p);
  void keep_for_lanes(const LtProblem& p, const cublasLtMatmulAlgo_t& algo, int tried);
  // Algorithm used for this number of lanes; gives the same bits as that of for_lanes.
  std::optional<cublasLtMatmulAlgo_t> for_so_many_lanes(const LtProblem& p);
  void keep_for_so_many_lanes(const LtProblem& p, const cublasLtMatmulAlgo_t& algo);

  LtAnswers heuristic(const LtProblem& p, const LtOperands& o, int wanted) const;

  void keep(const LtProblem& p, const GemmChoice& choice);
  void use(const std::vector<GemmChoice>& choices);
  std::vector<GemmChoice> all();

 private:
  cublasLtMatmulAlgo_t exact_locked(const LtProblem& p, const LtOperands& o);

  cublasLtHandle_t handle_ = nullptr;
  std::mutex mutex_;
  std::unordered_map<LtClassKey, cublasLtMatmulAlgo_t, LtClassHash> chosen_, fixed_, exact_, by_lanes_;
  std::map<std::string, GemmChoice> choices_;
};

LtChoices& lt_choices_of(const device::CudaStream& stream);

// lt_lanes.cc: selects an algorithm for a product of lanes by running it on the operands of this call. Restores D.
cublasLtMatmulAlgo_t lt_choose_for_lanes(device::CudaStream& stream, LtChoices& choices, const LtProblem& p,
                                         const LtOperands& o);
// The fastest algorithm for this number of lanes with the same bits as `algo`.
cublasLtMatmulAlgo_t lt_fastest_alike(device::CudaStream& stream, LtChoices& choices, const LtProblem& p,
                                      const LtOperands& o, const cublasLtMatmulAlgo_t& algo);

}  // namespace brim::ops
