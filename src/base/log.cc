// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <mutex>

namespace brim {
namespace {
std::mutex mutex;
LogSink current = [](LogLevel, std::string_view) {};
}  // namespace

LogSink set_log_sink(LogSink sink) {
  std::lock_guard lock(mutex);
  return std::exchange(current, std::move(sink));
}

void log_message(LogLevel level, std::string_view message) {
  std::lock_guard lock(mutex);
  current(level, message);
}

}  // namespace brim
