// SPDX-License-Identifier: Apache-2.0
// Benchmarks vader_scores on one thread over texts given as one JSON string per line; --scores prints the scores, so
// that bench/vader_peer.py can compare speed and values with the reference. Measures CPU time, so that other load does
// not affect the comparison.
//   vader_bench FILE [--rounds N] [--scores]
#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "text/vader/vader.h"

int main(int argc, char** argv) {
  std::string file;
  int rounds = 15;
  bool print = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--scores") {
      print = true;
    } else if (argument == "--rounds" && i + 1 < argc) {
      rounds = std::max(1, std::atoi(argv[++i]));
    } else {
      file = argument;
    }
  }
  std::ifstream in(file);
  if (!in) {
    std::cerr << "vader_bench: " << file << ": cannot read; give a file with one JSON string a line\n";
    return 2;
  }
  std::vector<std::string> texts;
  size_t bytes = 0;
  for (std::string line; std::getline(in, line);) {
    texts.push_back(nlohmann::json::parse(line).get<std::string>());
    bytes += texts.back().size();
  }
  if (print) {
    for (const std::string& text : texts) {
      const brim::text::VaderScores s = brim::text::vader_scores(text);
      std::cout << nlohmann::json{s.neg, s.neu, s.pos, s.compound}.dump() << '\n';
    }
    return 0;
  }

  std::vector<double> seconds;
  double checksum = 0;
  for (int round = 0; round < rounds; ++round) {
    const std::clock_t start = std::clock();
    for (const std::string& text : texts) checksum += brim::text::vader_scores(text).compound;
    seconds.push_back(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
  std::sort(seconds.begin(), seconds.end());
  const nlohmann::json result = {{"texts", texts.size()},
                                 {"bytes", bytes},
                                 {"median_s", seconds[seconds.size() / 2]},
                                 {"best_s", seconds.front()},
                                 {"worst_s", seconds.back()},
                                 {"compound_sum", checksum / rounds}};
  std::cout << result.dump() << '\n';
}
