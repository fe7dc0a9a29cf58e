// SPDX-License-Identifier: Apache-2.0
// Benchmark of an N-BEATS training step: milliseconds per lane and step, TFLOP/s, and whether the losses are finite. On
// a GPU the step is a captured graph; --eager launches each op.
//   nbeats_bench [--device cpu|cuda] [--precision fp32|bf16|…] [--lanes 16] [--blocks 30] [--layers 4] [--width 512]
//                [--windows 1024] [--lookback 65] [--horizon 13] [--steps 20] [--threads 1] [--eager 1] [--recompute 1]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "base/clock.h"
#include "device/graph.h"
#include "forecast/nbeats_testing.h"
#include "ops/bench.h"

namespace brim::forecast {
namespace {

using Flags = std::map<std::string, std::string>;

int64_t number(const Flags& flags, const char* name, int64_t otherwise) {
  const auto it = flags.find(name);
  return it == flags.end() ? otherwise : std::atoll(it->second.c_str());
}
std::string word(const Flags& flags, const char* name, const char* otherwise) {
  const auto it = flags.find(name);
  return it == flags.end() ? otherwise : it->second;
}

int bench(const Flags& flags) {
  const auto threads = static_cast<int>(number(flags, "threads", 1));
  const auto device = device::open_device(word(flags, "device", "cpu"), threads);
  const auto precision = ops::precision_from_name(word(flags, "precision", "fp32"));
  NbeatsShape shape;
  shape.horizon = number(flags, "horizon", 13);
  shape.lookback = number(flags, "lookback", 65);
  shape.layers = number(flags, "layers", 4);
  shape.stacks = {{StackKind::generic, number(flags, "blocks", 30), number(flags, "width", 512)}};
  std::vector<ops::LaneSpec> lanes;
  for (int64_t g = 0; g < number(flags, "lanes", 16); ++g) {
    ops::LaneSpec lane{.seed = static_cast<uint64_t>(g), .lookback = static_cast<int32_t>(shape.lookback)};
    lane.history = static_cast<int32_t>(10 * shape.horizon);
    lane.loss = static_cast<ops::ForecastLoss>(g % 3);
    lanes.push_back(lane);
  }
  NbeatsOptions options;
  options.windows = number(flags, "windows", 1024);
  options.recompute = number(flags, "recompute", 0) != 0;
  const testing::Walks walks(std::vector<int64_t>(359, 1000));
  testing::TestWave wave(*device, shape, lanes, {}, walks.values, walks.begin, options, 1e-3f, *precision, threads);
  wave.step();
  wave.stream->synchronize();
  std::unique_ptr<device::Graph> graph;
  if (can_capture(*wave.stream) && number(flags, "eager", 0) == 0) {
    begin_capture(*wave.stream);
    wave.step();
    graph = end_capture(*wave.stream);
  }
  const int64_t steps = number(flags, "steps", 20);
  std::vector<double> times;
  for (int round = 0; round < 5; ++round) {
    // Thread CPU time excludes time taken by other processes on the core.
    const auto clock = device->kind() == device::DeviceKind::cpu && threads == 1 ? ops::bench::thread_ns : now_ns;
    const int64_t begin = clock();
    for (int64_t i = 0; i < steps; ++i) {
      if (graph)
        graph->launch(*wave.stream);
      else
        wave.step();
    }
    wave.stream->synchronize();
    times.push_back(static_cast<double>(clock() - begin) * 1e-9 / static_cast<double>(steps));
  }
  std::sort(times.begin(), times.end());
  const double median = times[2], per_lane = median / static_cast<double>(lanes.size());
  const memory::TagBytes held =
      nbeats_state_bytes(shape, wave.state.lanes(), NbeatsTask::train, *precision, device->kind());
  std::printf("%s, %s, %zu lanes, %lld parameters each%s\n", device->name().c_str(), ops::precision_name(*precision),
              lanes.size(), static_cast<long long>(wave.state.layout().elements), graph ? ", captured" : "");
  std::printf("%.3f ms a step (%.3f to %.3f), %.4f ms a lane and step, %.2f TFLOP/s\n", median * 1e3,
              times.front() * 1e3, times.back() * 1e3, per_lane * 1e3, wave.plan.flops / median * 1e-12);
  std::printf("state %.2f GB, arena %.2f GB\n", static_cast<double>(held.total()) * 1e-9,
              static_cast<double>(wave.plan.placement.peak_bytes) * 1e-9);
  for (const auto& [name, total] : wave.plan.ops)
    std::printf("  %-12s %5lld calls %10.3f GFLOP %10.3f GB\n", name.c_str(), static_cast<long long>(total.calls),
                total.flops * 1e-9, total.bytes * 1e-9);
  for (const float loss : wave.state.losses(*wave.stream, 0, 1))
    if (!std::isfinite(loss)) {
      std::printf("a loss is not a number\n");
      return 1;
    }
  return 0;
}

}  // namespace
}  // namespace brim::forecast

int main(int argc, char** argv) {
  brim::forecast::Flags flags;
  for (int i = 1; i + 1 < argc; i += 2) flags[std::string(argv[i]).substr(2)] = argv[i + 1];
  return brim::forecast::bench(flags);
}
