// SPDX-License-Identifier: Apache-2.0
#include "engine/small_batches.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/timeline.h"
#include "memory/placement.h"

namespace brim::engine {
namespace {

struct Size {
  int64_t tokens, sequences, longest = 0;  // longest: 0 means the model's maximum
};
// Typical calls: one text, a few texts, a client's batch of tweets. Buckets of many texts only take short ones, because
// a graph's attention has blocks for its longest possible sequence.
constexpr int64_t kTweet = 128;
constexpr Size kSizes[] = {{16, 1},
                           {32, 1},
                           {48, 1},
                           {64, 1},
                           {96, 1},
                           {128, 1},
                           {192, 1},
                           {256, 1},
                           {384, 1},
                           {512, 1},
                           {64, 16},
                           {128, 16},
                           {256, 16},
                           {512, 16},
                           {768, 64, kTweet},
                           {1024, 64, kTweet},
                           {1280, 64, kTweet},
                           {1536, 64, kTweet},
                           {1792, 64, kTweet},
                           {2048, 64, kTweet}};

}  // namespace

struct SmallBatches::Bucket {
  Size size{};
  ops::BatchView view;          // on the device
  std::array<int64_t, 4> at{};  // offsets of ids, positions, starts and order in the staged bytes
  int64_t bytes = 0;
  std::unique_ptr<device::Graph> graph;
  bool without_graph = false;  // its graph could not be captured
};

SmallBatches::SmallBatches(device::Device& device, device::Stream& stream, model::ForwardRunner& forward,
                           const model::BatchLimits& limits, model::Output output, int64_t width,
                           memory::PlannedMemory* planned, bool loaded, const std::function<void()>& between)
    : stream_(stream), forward_(forward), done_(make_event(device, false)) {
  int64_t bytes = 0, rows = 0;
  for (const Size& size : kSizes) {
    if (size.tokens > limits.tokens || size.sequences > limits.sequences) continue;
    auto bucket = std::make_unique<Bucket>();
    bucket->size = size;
    ops::BatchView& v = bucket->view;
    v.T = size.tokens;
    v.B = size.sequences;
    v.S = std::min({size.tokens, limits.longest, size.longest > 0 ? size.longest : size.tokens});
    v.n_long = v.S > ops::kShortTokens ? v.B : 0;
    const std::array<int64_t, 4> counts = {size.tokens, size.tokens, size.sequences + 1, size.sequences};
    for (size_t i = 0; i < counts.size(); ++i) {
      bucket->at[i] = bucket->bytes;
      bucket->bytes += memory::align_up(counts[i] * 4);
    }
    bytes = std::max(bytes, bucket->bytes);
    rows = std::max(rows, is_per_token(output) ? size.tokens : size.sequences);
    buckets_.push_back(std::move(bucket));
  }
  host_ = device.allocate_host(static_cast<size_t>(bytes));
  device_ = memory::Ledger::allocate(device, planned, memory::Tag::graphs, "small batches", bytes);
  result_ = device.allocate_host(static_cast<size_t>(rows * width * 4));
  std::memset(host_.data(), 0, host_.bytes());
  for (const auto& bucket : buckets_) {
    ops::BatchView& v = bucket->view;
    const auto view = [&](size_t i, int64_t n) {
      return tensor::TensorView(static_cast<char*>(device_.data()) + bucket->at[i], tensor::DType::i32, {n});
    };
    v.ids = view(0, v.T);
    v.positions = view(1, v.T);
    v.starts = view(2, v.B + 1);
    v.order = view(3, v.B);
    if (loaded) continue;
    {
      ScopedZone zone(Zone::warm_up, v.T);
      run(*bucket);  // loads everything that must not be loaded during a capture, here with sequences of no tokens
      stream_.synchronize();
    }
    try_capture(*bucket);
    if (between) between();
  }
  stream_.synchronize();
}

SmallBatches::~SmallBatches() = default;

void SmallBatches::run(const Bucket& bucket) {
  stream_.copy(device_.data(), host_.data(), static_cast<size_t>(bucket.bytes));
  const tensor::TensorView result = forward_.run(stream_, bucket.view);
  stream_.copy(result_.data(), result.data, static_cast<size_t>(result.bytes()));
}

void SmallBatches::capture(Bucket& bucket) {
  ScopedZone zone(Zone::warm_up, bucket.size.tokens);
  begin_capture(stream_);
  try {
    run(bucket);
  } catch (...) {
    abort_capture(stream_);
    throw;
  }
  bucket.graph = end_capture(stream_);
}

// Without a graph that size runs op by op, which is only slower.
bool SmallBatches::try_capture(Bucket& bucket) {
  try {
    capture(bucket);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::device_lost) throw;
    bucket.without_graph = true;
    if (!std::exchange(warned_, true))
      log_warning("batches of {} tokens and others without a graph run op by op: {}", bucket.size.tokens, error.what());
  }
  return !bucket.without_graph;
}

bool SmallBatches::takes(const batch::PackedBatch& batch) {
  Bucket* const bucket = find(batch);
  if (bucket == nullptr || bucket->without_graph) return false;
  return bucket->graph != nullptr || try_capture(*bucket);
}

SmallBatches::Bucket* SmallBatches::find(const batch::PackedBatch& batch) const {
  for (const auto& b : buckets_) {
    // An absent sequence starts behind the last token, so that row must exist.
    const int64_t tokens = batch.tokens() + (batch.sequences() < b->size.sequences ? 1 : 0);
    if (tokens <= b->size.tokens && batch.sequences() <= b->size.sequences && batch.sequences() > 0 &&
        batch.longest <= b->view.S)
      return b.get();
  }
  return nullptr;
}

int64_t SmallBatches::launch(const batch::PackedBatch& batch) {
  const Bucket& b = *find(batch);
  auto* host = static_cast<char*>(host_.data());
  const auto put = [&](size_t i, const std::vector<int32_t>& from, int64_t count, int32_t rest) {
    auto* to = reinterpret_cast<int32_t*>(host + b.at[i]);
    std::copy(from.begin(), from.end(), to);
    std::fill(to + from.size(), to + count, rest);
  };
  put(0, batch.ids, b.size.tokens, 0);
  put(1, batch.positions, b.size.tokens, 0);
  put(2, batch.starts, b.size.sequences + 1, static_cast<int32_t>(batch.tokens()));
  put(3, batch.order, b.size.sequences, 0);
  auto* order = reinterpret_cast<int32_t*>(host + b.at[3]);
  std::iota(order + batch.sequences(), order + b.size.sequences, static_cast<int32_t>(batch.sequences()));
  ScopedZone zone(Zone::compute, batch.tokens());
  b.graph->launch(stream_);
  done_->record(stream_);
  running_ = true;
  return b.size.tokens - batch.tokens();
}

const float* SmallBatches::wait() {
  done_->synchronize();
  running_ = false;
  return static_cast<const float*>(result_.data());
}

}  // namespace brim::engine
