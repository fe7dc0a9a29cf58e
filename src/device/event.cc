// SPDX-License-Identifier: Apache-2.0
#include "device/event.h"

#include "base/clock.h"
#include "base/env.h"
#include "base/error.h"
#include "device/cuda_backend.h"
#include "device/graph.h"

namespace brim::device {
namespace {

class ClockEvent final : public Event {
 public:
  void record(Stream& stream) override {
    stream.synchronize();
    at_ns_ = now_ns();
  }
  void wait(Stream&) override {}
  void synchronize() override {}
  bool done() override { return true; }
  double ms_since(Event& earlier) override {
    return static_cast<double>(at_ns_ - static_cast<ClockEvent&>(earlier).at_ns_) * 1e-6;
  }

 private:
  int64_t at_ns_ = 0;
};

}  // namespace

std::unique_ptr<Event> make_event(Device& device, [[maybe_unused]] bool timing) {
#if defined(BRIM_WITH_CUDA)
  if (device.kind() == DeviceKind::cuda) return make_cuda_event(device, timing);
#endif
  BRIM_CHECK(device.kind() == DeviceKind::cpu, "events are not supported on a {} device",
             device_kind_name(device.kind()));
  return std::make_unique<ClockEvent>();
}

DeviceClock::DeviceClock(Device& device, Stream& stream) : base_(make_event(device, true)) {
  stream.synchronize();
  base_->record(stream);
  base_->synchronize();
  base_ns_ = now_ns();
}
int64_t DeviceClock::host_ns(Event& event) { return base_ns_ + static_cast<int64_t>(event.ms_since(*base_) * 1e6); }

bool can_capture(const Stream& stream) { return stream.kind() == DeviceKind::cuda && !env_flag("BRIM_SYNC"); }

#if !defined(BRIM_WITH_CUDA)
void begin_capture(Stream& stream) {
  fail(ErrorCode::internal, "a {} stream cannot capture a graph", device_kind_name(stream.kind()));
}
std::unique_ptr<Graph> end_capture(Stream& stream) {
  fail(ErrorCode::internal, "a {} stream cannot capture a graph", device_kind_name(stream.kind()));
}
void abort_capture(Stream&) noexcept {}
const CudaInfo& cuda_info(const Device& device) { fail(ErrorCode::internal, "{} is not a CUDA device", device.name()); }
#endif

}  // namespace brim::device
