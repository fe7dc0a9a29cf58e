// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <memory>
#include <mutex>
#include <utility>

namespace brim {
namespace {
std::mutex mutex;
std::shared_ptr<const LogSink> current = std::make_shared<const LogSink>([](LogLevel, std::string_view) {});
}  // namespace

LogSink set_log_sink(LogSink sink) {
  auto next = std::make_shared<const LogSink>(std::move(sink));
  std::lock_guard lock(mutex);
  return *std::exchange(current, std::move(next));
}

void log_message(LogLevel level, std::string_view message) {
  std::shared_ptr<const LogSink> sink;
  {
    std::lock_guard lock(mutex);
    sink = current;
  }
  (*sink)(level, message);  // outside the lock: a sink may log, or wait for a thread that does
}

}  // namespace brim
