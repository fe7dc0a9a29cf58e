// SPDX-License-Identifier: Apache-2.0
// Shared by tests: temporary directories, files in them, the message of an expected Error, and waiting for other
// threads.
#pragma once
#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>

#include "base/error.h"

namespace brim {

// Waits for another thread; fails after a timeout.
template <class Fn>
void wait_until(Fn&& is_so, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (!is_so()) {
    if (std::chrono::steady_clock::now() > end)
      throw std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": waited for two minutes");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

class TempDir {
 public:
  explicit TempDir(const std::filesystem::path& base = std::filesystem::temp_directory_path()) {
    std::string pattern = (base / "brim_test_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline void put_file(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

inline std::string get_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::span<const std::byte> as_bytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// Returns the message of the Error with `code` that `call` must throw.
template <class Call>
std::string error_of(ErrorCode code, Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error_name(error.code()), std::string(error_name(code))) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error was thrown";
  return "";
}

#define EXPECT_HAS(text, part) EXPECT_PRED_FORMAT2(has_part, text, part)
inline testing::AssertionResult has_part(const char*, const char*, const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << text << "\n  lacks: " << part;
}

}  // namespace brim
