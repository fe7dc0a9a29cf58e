// SPDX-License-Identifier: Apache-2.0
// main() for fuzz targets built without libFuzzer: runs the seeds and mutations of them (base/fuzz_driver.h).
// Supports only the libFuzzer flags that tests/fuzz uses:
//   -max_total_time=SECONDS -runs=N -max_len=BYTES -seed=N -artifact_prefix=PATH FOLDER…
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/fuzz_driver.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" [[gnu::weak]] void __sanitizer_set_death_callback(void (*callback)());

namespace {

std::string current, artifact = "crash";

// Saves the current input after a crash.
void keep_current() {
  const int file = ::open(artifact.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0644);
  if (file >= 0 && ::write(file, current.data(), current.size()) >= 0)
    std::fprintf(stderr, "kept %s\n", artifact.c_str());
}

void on_abort(int) {
  keep_current();
  std::signal(SIGABRT, SIG_DFL);
  std::raise(SIGABRT);
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = 10;
  uint64_t seed = 1;
  long runs = -1;
  size_t longest = SIZE_MAX;
  std::vector<std::string> seeds;
  for (int i = 1; i < argc; ++i) {
    const std::string_view given = argv[i];
    const auto value = [&](std::string_view name) { return given.starts_with(name) ? argv[i] + name.size() : nullptr; };
    if (const char* time = value("-max_total_time=")) {
      seconds = std::atof(time);
    } else if (const char* number = value("-seed=")) {
      seed = std::strtoull(number, nullptr, 10);
    } else if (const char* count = value("-runs=")) {
      runs = std::atol(count);
    } else if (const char* bytes = value("-max_len=")) {
      longest = std::strtoull(bytes, nullptr, 10);
    } else if (const char* prefix = value("-artifact_prefix=")) {
      artifact = std::string(prefix) + "crash-" + std::to_string(seed);
    } else if (!given.starts_with("-")) {
      for (const auto& entry : std::filesystem::directory_iterator(given)) {
        std::ifstream file(entry.path(), std::ios::binary);
        seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
      }
    }
  }
  if (seeds.empty()) seeds.emplace_back();
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(keep_current);
  std::signal(SIGABRT, on_abort);
  std::mt19937_64 random(seed);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  uint64_t inputs = 0;
  const auto wanted = [&] {
    if (runs >= 0 && inputs >= static_cast<uint64_t>(runs)) return false;
    return inputs < seeds.size() || std::chrono::steady_clock::now() < end;
  };
  while (wanted()) {
    current = inputs < seeds.size() ? seeds[inputs] : brim::mutate(seeds[random() % seeds.size()], seeds, random);
    for (size_t more = random() % 4; inputs >= seeds.size() && more > 0; --more)
      current = brim::mutate(std::move(current), seeds, random);
    if (current.size() > longest) current.resize(longest);
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(current.data()), current.size());
    ++inputs;
  }
  std::fprintf(stderr, "stat::number_of_executed_units: %llu\n", static_cast<unsigned long long>(inputs));
  return 0;
}
