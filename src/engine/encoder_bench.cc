// SPDX-License-Identifier: Apache-2.0
// Benchmarks the encoder alone: N sequences of L tokens with random ids, computing every token's hidden state. Prints
// one JSON line per shape; measures neither tokenization nor heads.
// Usage: encoder_bench MODEL_DIR PRECISION DEVICE THREADS SECONDS 32x32 32x128 1x32 …
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "base/clock.h"
#include "base/error.h"
#include "engine/engine.h"
#include "rows/metrics.h"

namespace {

int run(int argc, char** argv) {
  using namespace brim;
  using namespace brim::engine;
  if (argc < 7) fail(ErrorCode::usage, "encoder_bench MODEL_DIR PRECISION DEVICE THREADS SECONDS NxL …");
  EngineOptions options;
  options.model_dir = argv[1];
  options.precision = plan::read_precision(argv[2]);
  options.device = device::read_device(argv[3]);
  options.threads = std::atoi(argv[4]);
  options.output = model::Output::mean_hidden;
  const double seconds = std::atof(argv[5]);
  const auto engine = Engine::open(options);
  for (int a = 6; a < argc; ++a) {
    int sequences = 0, length = 0;
    if (std::sscanf(argv[a], "%dx%d", &sequences, &length) != 2 || sequences < 1 || length < 1 ||
        int64_t{sequences} * length > engine->plan().token_budget)
      fail(ErrorCode::usage, "{}: write sequences x tokens, at most {} tokens", argv[a], engine->plan().token_budget);
    std::mt19937 random(1);
    std::vector<int32_t> ids(static_cast<size_t>(length));
    batch::PackedBatch made;
    for (int s = 0; s < sequences; ++s) {
      for (auto& id : ids) id = static_cast<int32_t>(random() % static_cast<uint32_t>(engine->shape().vocab));
      made.add({ids.data(), length, static_cast<uint64_t>(s)}, engine->shape().position_offset);
    }
    made.finish();
    double sum = 0;  // checksum of the last results; reveals a benchmark that computes nothing
    const auto bulk = engine->bulk([&](const batch::PackedBatch& done, const float* result) {
      sum = 0;
      for (int64_t i = 0; i < done.sequences() * engine->width(); ++i) sum += std::abs(static_cast<double>(result[i]));
    });
    std::vector<double> times;
    batch::PackedBatch batch;
    for (int64_t begin = now_ns(), warm = 3; warm > 0 || seconds_since(begin) < seconds;
         warm > 0 ? (--warm, begin = now_ns()) : 0) {
      batch = made;
      const int64_t since = now_ns();
      bulk->submit(batch);
      bulk->finish();
      if (warm == 0) times.push_back(seconds_since(since));
    }
    if (!(sum > 0)) fail(ErrorCode::internal, "the encoder's output is {}", sum);
    std::sort(times.begin(), times.end());
    const double median = rows::percentile(times, 0.5), n = sequences;
    fmt::print(
        "{{\"who\": \"brim\", \"precision\": \"{}\", \"shape\": \"{}\", \"seconds\": {:.6g}, \"p10\": {:.6g}, \"p90\": "
        "{:.6g}, \"sequences_per_second\": {:.5g}, \"mean_abs\": {:.6g}}}\n",
        precision_name(engine->precision()), argv[a], median, rows::percentile(times, 0.1),
        rows::percentile(times, 0.9), n / median, sum / (n * static_cast<double>(engine->width())));
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const brim::Error& e) {
    fmt::print(stderr, "{}\n", e.what());
    return brim::exit_code(e.code());
  }
}
