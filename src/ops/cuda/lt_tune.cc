// SPDX-License-Identifier: Apache-2.0
// Finds the fastest algorithm of a shape class by measurement.
#include <algorithm>
#include <array>
#include <random>

#include "base/clock.h"
#include "base/log.h"
#include "ops/cuda/lt_choice.h"

namespace brim::ops {

using device::CudaStream;
using tensor::DType;

namespace {

// First rows of D computed by an algorithm, as floats, for comparing two algorithms. They are filled with NaN (or
// zeros, if accumulated) first, so that unwritten rows are detected.
std::vector<float> first_rows(CudaStream& stream, const LtChoices& choices, const LtProblem& p, const LtOperands& o,
                              LtDescription& d, const cublasLtMatmulAlgo_t& algo) {
  const auto rows = static_cast<size_t>(std::min<int64_t>(p.n, 64)), width = static_cast<size_t>(p.m),
             bytes = static_cast<size_t>(dtype_bytes(p.d)), pitch = static_cast<size_t>(p.ldd) * bytes;
  const int before = p.add_c && o.c == o.d ? 0 : 0xFF;
  BRIM_CUDA_CHECK(cudaMemset2DAsync(o.d, pitch, before, width * bytes, rows, stream.handle()));
  if (lt_try_run(stream, choices.handle(), p, o, d, algo) != CUBLAS_STATUS_SUCCESS) return {};
  std::vector<char> raw(rows * width * bytes);
  BRIM_CUDA_CHECK(cudaMemcpy2DAsync(raw.data(), width * bytes, o.d, pitch, width * bytes, rows, cudaMemcpyDeviceToHost,
                                    stream.handle()));
  stream.synchronize();
  std::vector<float> values(rows * width);
  convert_elements(raw.data(), p.d, values.data(), DType::f32, static_cast<int64_t>(values.size()));
  return values;
}

// All configurations of all algorithms for this problem type, shuffled, because random search works better.
std::vector<cublasLtMatmulAlgo_t> configurations(const LtChoices& choices, const LtProblem& p,
                                                 const cublasLtMatmulAlgo_t& like, int capability) {
  const LtLibrary& l = lt_library();
  const cublasComputeType_t compute = lt_compute_type(p);
  const cudaDataType_t ab = lt_data_type(p.ab), c = lt_data_type(p.c), d = lt_data_type(p.d);
  std::array<int, 64> ids{};
  int count = 0;
  if (l.cublasLtMatmulAlgoGetIds(choices.handle(), compute, CUDA_R_32F, ab, ab, c, d, static_cast<int>(ids.size()),
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
    if (l.cublasLtMatmulAlgoInit(choices.handle(), compute, CUDA_R_32F, ab, ab, c, d, ids[static_cast<size_t>(i)],
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
    std::vector<uint32_t> stages(1);  // Hopper kernels use the heuristic's automatic value; older ones list theirs
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

}  // namespace

GemmChoice lt_tune(CudaStream& stream, const LtProblem& p, const LtOperands& o, double seconds) {
  LtChoices& choices = lt_choices_of(stream);
  LtDescription d(p, o);
  LtStopwatch watch(stream);
  // Few rows compute faster than they launch; the smallest are timed as graphs.
  constexpr int64_t kFewRows = 4096;
  const auto time = [&](const cublasLtMatmulAlgo_t& algo, int runs) {
    const auto run = [&] { return lt_try_run(stream, choices.handle(), p, o, d, algo) == CUBLAS_STATUS_SUCCESS; };
    return p.n <= kFewRows ? watch.us_in_graph(4 * runs, run) : watch.us(runs, run);
  };
  LtAnswers answers = choices.heuristic(p, o, 64);
  if (answers.empty()) fail(ErrorCode::device_lost, "tune: cuBLASLt has no algorithm for {}", lt_key_text(p));
  for (auto& a : answers) static_cast<void>(time(a.algo, 1));  // loads each kernel
  // Medians over interleaved rounds, because a GPU at its power limit changes clocks during the run.
  constexpr int kRounds = 5;
  std::vector<std::array<double, kRounds>> times(answers.size());
  for (int round = 0; round < kRounds; ++round)
    for (size_t i = 0; i < answers.size(); ++i) times[i][static_cast<size_t>(round)] = time(answers[i].algo, 6);
  size_t best = 0;
  for (size_t i = 0; i < answers.size(); ++i) {
    std::sort(times[i].begin(), times[i].end());
    if (times[i][kRounds / 2] < times[best][kRounds / 2]) best = i;
  }
  GemmChoice choice{lt_key_text(lt_with_tokens(p, lt_class_of(lt_tokens_of(p)))), "", times[best][kRounds / 2],
                    times[0][kRounds / 2], static_cast<int>(answers.size())};
  cublasLtMatmulAlgo_t algo = answers[best].algo;
  const int64_t begin = now_ns();
  if (seconds > 0)
    for (const cublasLtMatmulAlgo_t& candidate :
         configurations(choices, p, answers[0].algo, stream.info().capability)) {
      if (seconds_since(begin) > seconds) break;
      cublasLtMatmulHeuristicResult_t found;
      if (lt_library().cublasLtMatmulAlgoCheck(choices.handle(), &d.desc, &d.a, &d.b, &d.c, &d.d, &candidate, &found) !=
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
  // Accept the fastest only if its result matches that of the heuristic's first choice. A different summation order may
  // occasionally round to the next fp8 step.
  const double allowed = p.d == DType::f8e4m3 ? 0.05 : 0.02;
  const std::vector<float> expected = first_rows(stream, choices, p, o, d, answers[0].algo);
  const auto trusted = [&](const cublasLtMatmulAlgo_t& candidate) {
    const double apart = product_distance(expected, first_rows(stream, choices, p, o, d, candidate));
    if (apart <= allowed) return true;
    log_warning("tune: {}: rejected an algorithm with an error of {:.3g}", choice.key, apart);
    return false;
  };
  for (const size_t fallback : {best, size_t{0}}) {
    if (trusted(algo)) break;
    algo = answers[fallback].algo;
    choice.us = times[fallback][kRounds / 2];
  }
  choice.algorithm = lt_algo_hex(algo);
  choices.keep(p, choice);
  return choice;
}

}  // namespace brim::ops
