// SPDX-License-Identifier: Apache-2.0
#include "device/device_spans.h"

namespace brim::device {

std::unique_ptr<DeviceSpans> DeviceSpans::make(Device& device, Stream& stream, const std::string& lane, Zone zone) {
  if (!Timeline::enabled()) return nullptr;
  return std::unique_ptr<DeviceSpans>(new DeviceSpans(device, stream, lane, zone));
}

DeviceSpans::DeviceSpans(Device& device, Stream& stream, const std::string& lane, Zone zone)
    : device_(device), stream_(stream), zone_(zone), lane_(Timeline::add_lane(lane)) {
  set_clock();
}

void DeviceSpans::begin() {
  Span span;
  if (free_.empty()) {
    span.begin = make_event(device_, true);
    span.end = make_event(device_, true);
  } else {
    span = std::move(free_.back());
    free_.pop_back();
  }
  span.ended = false;
  span.begin->record(stream_);
  open_.push_back(std::move(span));
}

void DeviceSpans::end(int64_t detail) {
  open_.back().detail = detail;
  open_.back().ended = true;
  open_.back().end->record(stream_);
}

void DeviceSpans::record_completed() {
  for (; !open_.empty() && open_.front().ended && open_.front().end->done(); open_.pop_front()) {
    Span& s = open_.front();
    Timeline::record(lane_, zone_, clock_->host_ns(*s.begin), clock_->host_ns(*s.end), s.detail);
    free_.push_back(std::move(s));
  }
}

void DeviceSpans::set_clock() {
  record_completed();
  clock_ = std::make_unique<DeviceClock>(device_, stream_);
}

}  // namespace brim::device
