// SPDX-License-Identifier: Apache-2.0
#include "engine/window_queue.h"

#include <algorithm>

#include "base/clock.h"
#include "base/timeline.h"

namespace brim::engine {

WindowQueue::WindowQueue(Engine& engine, std::function<void(const WindowResults&)> collect)
    : engine_(engine), packer_(engine.pack_limits(), engine.shape().position_offset) {
  const auto width = static_cast<size_t>(engine.row_width());
  const bool per_token = is_per_token(engine.output()), average = engine.pools_on_host();
  bulk_ = engine.bulk([=, collect = std::move(collect)](const batch::PackedBatch& batch, const float* result) {
    ScopedZone zone(Zone::collect, batch.tokens());
    collect(WindowResults(batch, result, width, per_token, average));
  });
}

void WindowQueue::pack() {
  ScopedZone zone(Zone::pack);
  const int64_t since = now_ns();
  packer_.pop(batch_);
  pack_seconds_ += seconds_since(since);
  ++batches_;
  tokens_ += batch_.tokens();
  sum_squares_ += batch_.sum_squares;
}

bool WindowQueue::submit(const std::atomic<bool>* stop, Launch launch) {
  if (!bulk_->wait_room(stop)) return false;
  pack();
  bulk_->submit(batch_, launch);
  return true;
}

void WindowQueue::submit_all(Launch single) {
  for (bool first = true; !packer_.empty(); first = false) {
    bulk_->wait_room();
    pack();
    bulk_->submit(batch_, first && packer_.empty() ? single : Launch::ops);
  }
}

std::optional<uint64_t> WindowQueue::take_back() {
  std::optional<uint64_t> lowest;
  const auto take = [&](uint64_t ticket) { lowest = std::min(lowest.value_or(ticket), ticket); };
  for (const batch::PackedBatch& batch : bulk_->take_back()) {
    --batches_;
    tokens_ -= batch.tokens();
    sum_squares_ -= batch.sum_squares;
    for (const uint64_t ticket : batch.tickets) take(ticket);
  }
  if (!packer_.empty()) take(packer_.next_ticket());
  return lowest;
}

}  // namespace brim::engine
