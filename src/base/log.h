// SPDX-License-Identifier: Apache-2.0
// Logging for the libraries, which never print. The program installs a sink that writes to stderr; tests install one
// that turns warnings into failures.
#pragma once
#include <fmt/format.h>

#include <functional>
#include <string_view>
#include <utility>

namespace brim {

enum class LogLevel { debug, info, warning };
using LogSink = std::function<void(LogLevel, std::string_view)>;

// Replaces the sink and returns the previous one. The default sink drops everything.
LogSink set_log_sink(LogSink sink);
void log_message(LogLevel level, std::string_view message);

template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::info, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::warning, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::debug, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace brim
