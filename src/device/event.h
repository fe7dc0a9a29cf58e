// SPDX-License-Identifier: Apache-2.0
// Events mark points of a stream: for one stream to wait for another (copy before compute), for the host to wait, and
// for time measured on the device itself. On the CPU, whose streams run at once, an event is a clock reading.
#pragma once
#include <memory>

#include "device/device.h"

namespace brim::device {

class Event {
 public:
  virtual ~Event() = default;
  virtual void record(Stream& stream) = 0;  // marks the stream's current end; may be recorded again
  virtual void wait(Stream& stream) = 0;    // work queued on `stream` from here on starts after the mark
  virtual void synchronize() = 0;           // the host waits for the mark
  virtual bool done() = 0;
  virtual double ms_since(Event& earlier) = 0;  // both must have passed and have been made with timing
};

// `timing` off makes a cheaper event that only orders.
std::unique_ptr<Event> make_event(Device& device, bool timing);

// Places device times on the host's clock, for the timeline's device_busy lane.
class DeviceClock {
 public:
  DeviceClock(Device& device, Stream& stream);  // waits for the stream once
  int64_t host_ns(Event& event);                // when a passed, timed event happened, as now_ns() counts

 private:
  std::unique_ptr<Event> base_;
  int64_t base_ns_ = 0;
};

}  // namespace brim::device
