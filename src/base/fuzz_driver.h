// SPDX-License-Identifier: Apache-2.0
// A small deterministic substitute for libFuzzer, so that the fuzz target of every parser also runs in the unit tests:
// each seed unchanged, then mutations (bit flips, truncation, growth, splicing, wrong numbers). The same seed gives the
// same inputs.
#pragma once
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace brim {

using FuzzEntry = int (*)(const uint8_t* data, size_t size);

inline std::string mutate(std::string input, const std::vector<std::string>& seeds, std::mt19937_64& random) {
  auto below = [&](size_t n) { return n == 0 ? size_t{0} : static_cast<size_t>(random() % n); };
  const size_t steps = 1 + below(4);
  for (size_t step = 0; step < steps; ++step) {
    const size_t at = below(input.size() + 1);
    switch (below(8)) {
      case 0:  // flip a bit
        if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << below(8)));
        break;
      case 1:  // any byte
        if (at < input.size()) input[at] = static_cast<char>(below(256));
        break;
      case 2:  // cut the tail
        input.resize(at);
        break;
      case 3:  // remove a run
        input.erase(at, 1 + below(16));
        break;
      case 4: {  // repeat a run
        const std::string run = input.substr(at, 1 + below(32));
        input.insert(at, run);
        break;
      }
      case 5:  // bytes that parsers treat specially
        input.insert(at, 1, "\0\xFF\x80\n\r\"\\,{}[]:0-"[below(16)]);
        break;
      case 6: {  // a wrong little-endian number
        static constexpr uint64_t kNumbers[] = {0,    1, 0x7F, 0x80, 0xFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF,
                                                ~0ULL};
        const uint64_t number = kNumbers[below(9)];
        const size_t width = size_t{1} << below(4);
        for (size_t i = 0; i < width && at + i < input.size(); ++i)
          input[at + i] = static_cast<char>(number >> (8 * i));
        break;
      }
      default: {  // the head of this input, the tail of another
        const std::string& other = seeds[below(seeds.size())];
        input = input.substr(0, at) + other.substr(below(other.size() + 1));
        break;
      }
    }
    if (input.size() > (size_t{1} << 20)) input.resize(size_t{1} << 20);
  }
  return input;
}

// Runs `entry` on every seed and on `rounds` mutations. `entry` must return 0 and must not throw; a crash is a finding.
inline void drive_fuzz(FuzzEntry entry, const std::vector<std::string>& seeds, size_t rounds, uint64_t seed = 1) {
#ifdef __SANITIZE_THREAD__
  rounds /= 10;  // TSan slows parsers down tenfold, and most of them start no threads
#endif
  const std::vector<std::string> all = seeds.empty() ? std::vector<std::string>{""} : seeds;
  auto call = [&](const std::string& input) { entry(reinterpret_cast<const uint8_t*>(input.data()), input.size()); };
  for (const std::string& input : all) call(input);
  std::mt19937_64 random(seed);
  for (size_t i = 0; i < rounds; ++i) call(mutate(all[random() % all.size()], all, random));
}

}  // namespace brim
