// SPDX-License-Identifier: Apache-2.0
// Records spans of work on a stream, by device time, as a lane of the timeline. Never blocks the host, except once in
// make().
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
  // Waits for `stream` once. Returns null if the timeline is off, so that runs without a trace create no events.
  static std::unique_ptr<DeviceSpans> make(Device& device, Stream& stream, const std::string& lane, Zone zone);
  void begin();
  void end(int64_t detail = 0);
  void record_completed();  // records completed spans
  void set_clock();         // resynchronises an idle stream: device times are floats and lose precision within an hour

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
