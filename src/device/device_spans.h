// SPDX-License-Identifier: Apache-2.0
// Spans of work on a stream, by the device's own clock, as a lane of the timeline. The host waits for none of them.
#pragma once
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/timeline.h"
#include "device/event.h"

namespace brim::device {

class DeviceSpans {
 public:
  // Waits for `stream` once. Null where the timeline is off: a run without a trace makes no events.
  static std::unique_ptr<DeviceSpans> make(Device& device, Stream& stream, const std::string& lane, Zone zone);
  void begin();
  void end(int64_t detail = 0);
  void tell();       // records the spans that have passed
  void set_clock();  // anew, while the stream is idle: device times are floats and grow coarse within the hour

 private:
  struct Span {
    std::unique_ptr<Event> begin, end;
    int64_t detail = 0;
    bool ended = false;
  };
  DeviceSpans(Device& device, Stream& stream, const std::string& lane, Zone zone);
  Device& device_;
  Stream& stream_;
  Zone zone_;
  Timeline::Lane* lane_;
  std::unique_ptr<DeviceClock> clock_;
  std::deque<Span> open_;
  std::vector<Span> free_;
};

}  // namespace brim::device
