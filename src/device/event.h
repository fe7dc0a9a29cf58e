// SPDX-License-Identifier: Apache-2.0
// Events mark points in a stream: to make one stream wait for another (copy before compute), to make the host wait, and
// to measure device time. On the CPU, where streams are synchronous, an event is a clock reading.
#pragma once
#include <memory>

#include "device/device.h"

namespace brim::device {

class Event {
 public:
  virtual ~Event() = default;
  virtual void record(Stream& stream) = 0;  // marks the current end of the stream; may be recorded again
  virtual void wait(Stream& stream) = 0;    // later work on `stream` starts after the mark
  virtual void synchronize() = 0;           // blocks the host until the mark is reached
  virtual bool done() = 0;
  virtual double ms_since(Event& earlier) = 0;  // both must be completed and created with timing
};

// Without `timing` the event is cheaper and only orders work.
std::unique_ptr<Event> make_event(Device& device, bool timing);

// Maps device times to the host clock, for the device_busy lane of the timeline.
class DeviceClock {
 public:
  DeviceClock(Device& device, Stream& stream);  // waits for the stream once
  int64_t host_ns(Event& event);                // time of a completed, timed event on the now_ns() clock

 private:
  std::unique_ptr<Event> base_;
  int64_t base_ns_ = 0;
};

}  // namespace brim::device
