// SPDX-License-Identifier: Apache-2.0
// Selects algorithms for products of lanes that give the same bits alone and in a batch, and the fastest among them.
#include <algorithm>

#include "ops/cuda/lt_choice.h"

namespace brim::ops {

using device::CudaStream;
using tensor::DType;

namespace {

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

// The lane alone, as in a run with one lane.
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

}  // namespace

// Returns the first heuristic result whose output does not depend on the number of lanes computed together, verified
// with the operands of this call. Restores D.
cublasLtMatmulAlgo_t lt_choose_for_lanes(CudaStream& stream, LtChoices& choices, const LtProblem& p,
                                         const LtOperands& o) {
  constexpr int64_t kLanesAsked = 16;
  constexpr int kAnswers = 16;
  BRIM_CHECK(!stream.capturing(), "{}: no algorithm selected for {}; run once before capturing",
             device::cuda_current_op, lt_key_text(p));
  LtProblem asked = p, alone = p;
  asked.lanes = kLanesAsked;
  alone.lanes = 1;
  const LtAnswers answers = choices.heuristic(asked, o, kAnswers);
  LaneResults before, together, apart;
  before.copy(stream, p, o, cudaMemcpyDeviceToHost);
  const auto run = [&](const LtProblem& problem, const LtOperands& operands, const cublasLtMatmulAlgo_t& algo) {
    LtDescription d(problem, operands);
    return lt_try_run(stream, choices.handle(), problem, operands, d, algo) == CUBLAS_STATUS_SUCCESS;
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
    choices.keep_for_lanes(p, answer.algo, tried);
    return answer.algo;
  }
  fail(ErrorCode::device_lost, "{}: cuBLASLt has no batch-invariant algorithm for {}", device::cuda_current_op,
       lt_key_text(p));
}

// The fastest tile size depends on how lanes divide among the multiprocessors: 18 lanes with an algorithm chosen for 16
// leave a quarter of an H200 idle. Times the heuristic's results for this number of lanes and returns the fastest one
// with the same bits as `algo` on the operands of this call. Restores D.
cublasLtMatmulAlgo_t lt_fastest_alike(CudaStream& stream, LtChoices& choices, const LtProblem& p, const LtOperands& o,
                                      const cublasLtMatmulAlgo_t& algo) {
  constexpr double kWorthTiming = 4e9;  // flops
  constexpr double kFaster = 0.97;
  constexpr int kAnswers = 16, kRuns = 4, kMostCompared = 4;
  const double flops = 2 * static_cast<double>(p.lanes * p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
  if (flops < kWorthTiming) return algo;
  LaneResults before, wanted, got;
  before.copy(stream, p, o, cudaMemcpyDeviceToHost);
  LtDescription d(p, o);
  LtStopwatch watch(stream);
  const auto run = [&](const cublasLtMatmulAlgo_t& one) {
    return lt_try_run(stream, choices.handle(), p, o, d, one) == CUBLAS_STATUS_SUCCESS;
  };
  const auto time = [&](const cublasLtMatmulAlgo_t& one) {
    return run(one) ? watch.us(kRuns, [&] { return run(one); }) : 1e30;
  };
  std::vector<std::pair<double, cublasLtMatmulAlgo_t>> timed;
  for (const auto& answer : choices.heuristic(p, o, kAnswers)) timed.emplace_back(time(answer.algo), answer.algo);
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

}  // namespace brim::ops
