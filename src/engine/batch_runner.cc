// SPDX-License-Identifier: Apache-2.0
#include "engine/batch_runner.h"

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/error.h"
#include "device/graph.h"
#include "memory/placement.h"
#include "model/staging.h"

namespace brim::engine {

struct BatchRunner::Slot {
  batch::PackedBatch batch;
  device::DeviceBuffer host, result;  // staged integers; the result's host copy
  char* device = nullptr;             // the same integers there
  std::unique_ptr<device::Event> copying, copied, begin, end, collected;
  Collect collect;
  bool graph = false;
  int64_t launched_ns = 0;  // of a graph
};

BatchRunner::BatchRunner(device::Device& device, device::Stream& compute, model::ForwardRunner& forward,
                         const model::BatchLimits& limits, int depth, int64_t result_rows, int64_t width,
                         memory::PlannedMemory* planned)
    : device_(device), compute_(compute), forward_(forward), limits_(limits), width_(width), planned_(planned) {
  if (device.kind() == device::DeviceKind::cpu) return;
  copy_ = device.make_stream();
  const int64_t bytes = staged_batch_bytes(limits);
  block_ = memory::Ledger::allocate(device, planned, memory::Tag::staging, "batches in flight", depth * bytes);
  for (int i = 0; i < depth; ++i) {
    auto slot = std::make_unique<Slot>();
    slot->host = device.allocate_host(static_cast<size_t>(bytes));
    slot->device = static_cast<char*>(block_.data()) + i * bytes;
    slot->result = device.allocate_host(static_cast<size_t>(result_rows * width * 4));
    slot->copying = make_event(device, true);
    slot->copied = make_event(device, true);
    slot->collected = make_event(device, true);
    slot->begin = make_event(device, true);
    slot->end = make_event(device, true);
    slots_.push_back(std::move(slot));
  }
}

BatchRunner::~BatchRunner() = default;

void BatchRunner::prepare_small(model::Output output) {
  if (!slots_.empty() && !small_ && can_capture(compute_))
    small_ = std::make_unique<SmallBatches>(device_, compute_, forward_, limits_, output, width_, planned_);
}

void BatchRunner::submit(batch::PackedBatch& batch, Collect collect, Launch launch) {
  if (slots_.empty()) {
    const int64_t since = now_ns();
    tensor::TensorView result;
    {
      ScopedZone zone(Zone::compute, batch.tokens());
      result = forward_.run(compute_, batch.view());
    }
    collect(batch, result.as<float>(), seconds_since(since));
    return;
  }
  compute_.name_ops(batch.tokens() >= named_from_);
  // Here nothing is in flight yet, so that setting the clock makes no batch wait.
  if (Timeline::enabled() && in_flight_ == 0) start_lanes();
  const bool graph = launch == Launch::graph && small_ && small_->takes(batch);
  while (!has_room(graph ? Launch::graph : Launch::ops)) collect_one();
  Slot& slot = *slots_[next_];
  next_ = (next_ + 1) % slots_.size();
  ++in_flight_;
  std::swap(slot.batch, batch);
  slot.collect = std::move(collect);
  slot.graph = graph;
  if (graph) {
    slot.launched_ns = now_ns();
    small_->launch(slot.batch);
    return;
  }
  ops::BatchView view = slot.batch.view();
  {
    // All integers of a batch travel in one copy; each array starts aligned.
    ScopedZone zone(Zone::stage, view.T);
    auto* host = static_cast<char*>(slot.host.data());
    char* device = slot.device;
    int64_t at = 0;
    for (tensor::TensorView* v : {&view.ids, &view.positions, &view.starts, &view.order}) {
      std::memcpy(host + at, v->data, static_cast<size_t>(v->bytes()));
      v->data = device + at;
      at += memory::align_up(v->bytes());
    }
    slot.copying->record(*copy_);
    copy_->copy(device, host, static_cast<size_t>(at));
    slot.copied->record(*copy_);
  }
  ScopedZone zone(Zone::compute, view.T);
  slot.copied->wait(compute_);
  slot.begin->record(compute_);
  const tensor::TensorView result = forward_.run(compute_, view);
  slot.end->record(compute_);
  compute_.copy(slot.result.data(), result.data, static_cast<size_t>(result.bytes()));
  slot.collected->record(compute_);
}

void BatchRunner::start_lanes() {
  if (clock_) return;
  clock_ = std::make_unique<device::DeviceClock>(device_, compute_);
  device_lane_ = Timeline::add_lane("device");
  copy_lane_ = Timeline::add_lane("copy");
  back_lane_ = Timeline::add_lane("copy back");
}

bool BatchRunner::collect_one() {
  if (in_flight_ == 0) return false;
  Slot& slot = *slots_[(next_ + slots_.size() - in_flight_) % slots_.size()];
  const auto* result = static_cast<const float*>(slot.result.data());
  double busy = 0;
  {
    ScopedZone zone(Zone::wait_device);  // and asking when things happened, which keeps the host as waiting does
    if (slot.graph) {
      result = small_->wait();
      const int64_t done = now_ns(), begin = std::max(slot.launched_ns, last_done_ns_);
      busy = static_cast<double>(done - begin) * 1e-9;
      if (clock_ && Timeline::enabled())
        Timeline::record(device_lane_, Zone::device_busy, begin, done, slot.batch.tokens());
    } else {
      slot.collected->synchronize();
      busy = slot.end->ms_since(*slot.begin) * 1e-3;
      if (clock_ && Timeline::enabled()) {
        const int64_t end_ns = clock_->host_ns(*slot.end);
        Timeline::record(device_lane_, Zone::device_busy, clock_->host_ns(*slot.begin), end_ns, slot.batch.tokens());
        Timeline::record(copy_lane_, Zone::copy, clock_->host_ns(*slot.copying), clock_->host_ns(*slot.copied),
                         slot.batch.tokens());
        Timeline::record(back_lane_, Zone::copy, end_ns, clock_->host_ns(*slot.collected), slot.batch.tokens());
      }
    }
  }
  last_done_ns_ = now_ns();
  --in_flight_;
  const Collect collect = std::move(slot.collect);
  collect(slot.batch, result, busy);
  return true;
}

}  // namespace brim::engine
