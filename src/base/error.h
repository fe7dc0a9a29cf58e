// SPDX-License-Identifier: Apache-2.0
// Helpers for brim::Error. Errors that end a command or a job are thrown; errors of one row or one request are returned
// as Result<T>; programming errors use BRIM_CHECK. Each code maps to one exit code.
#pragma once
#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>

#include "brim/error.h"

namespace brim {

int exit_code(ErrorCode code);
const char* error_name(ErrorCode code);

// fail(ErrorCode::bad_model, "{}: tensor {} has {} bytes, its header says {}", path, name, a, b)
template <class... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

// The same with a suggested fix: fail(ErrorCode::bad_data, Remedy{"set `long_text=truncate`"}, "the text has {} …", n)
template <class... Args>
[[noreturn]] void fail(ErrorCode code, const Remedy& remedy, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...), remedy);
}

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);

// File name without its folders: these differ between clones and would cause misses in a compiler cache.
#ifdef __FILE_NAME__
#define BRIM_FILE_NAME __FILE_NAME__
#else
#define BRIM_FILE_NAME __FILE__
#endif

// Also enabled in release builds; put both values in the message.
#define BRIM_CHECK(condition, ...)                                                            \
  do {                                                                                        \
    if (!(condition)) [[unlikely]]                                                            \
      ::brim::check_failed(BRIM_FILE_NAME, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
  } while (0)

// A value or an Error, for failures that the caller is expected to handle (one bad row, one rejected request).
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}      // NOLINT: implicit on purpose
  Result(Error error) : error_(std::move(error)) {}  // NOLINT
  explicit operator bool() const { return value_.has_value(); }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  const Error& error() const { return *error_; }
  T value() && {
    if (!value_) throw *error_;
    return std::move(*value_);
  }

 private:
  std::optional<T> value_;
  std::optional<Error> error_;
};

}  // namespace brim
