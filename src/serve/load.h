// SPDX-License-Identifier: Apache-2.0
// Load for a server: requests over many connections from a few threads, either each connection as fast as it is
// answered, or at random times of a given rate whatever the answers do. Then a request that finds no free connection
// waits for one, and its time counts from when it should have been sent: a server that stalls cannot hide it.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace brim::serve {

struct LoadOptions {
  std::string host = "127.0.0.1";  // an IPv4 address
  uint16_t port = 8080;
  std::vector<std::string> requests;  // whole, as they are sent; taken in turn …
  size_t first_request = 0;           // … from this one on
  int connections = 64;
  int threads = 1;  // each has its share of the connections and of the rate
  double rate = 0;  // requests per second at Poisson's times; 0: as fast as they are answered
  double seconds = 10;
  uint64_t seed = 1;
  // What an answer says is judged here, by any of the threads: false counts it as wrong.
  std::function<bool(size_t request, std::string_view body)> check;
};

struct LoadResult {
  uint64_t answered = 0, refused = 0, failed = 0, wrong = 0;  // 200; 429 and 503; anything else; of the answered
  int failed_status = 0;  // of the last that failed with an answer; 0: connections ended, or nothing came
  double seconds = 0;
  std::vector<double> ms, refused_ms;  // each answer's, each refusal's
};

LoadResult run_load(const LoadOptions& options);

}  // namespace brim::serve
