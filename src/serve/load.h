// SPDX-License-Identifier: Apache-2.0
// Load generator: sends requests over many connections from a few threads, either as fast as responses arrive or at
// random times with a given rate. At a rate, latency counts from the intended send time, even if all connections are
// busy, so that a stalled server cannot hide its latency (coordinated omission).
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
  std::vector<std::string> requests;  // complete requests, sent in turn …
  size_t first_request = 0;           // … starting here
  int connections = 64;
  int threads = 1;  // connections and rate are divided among them
  double rate = 0;  // requests per second as a Poisson process; 0: as fast as responses arrive
  double seconds = 10;
  uint64_t seed = 1;
  // Checks a response body, on any of the threads; false counts it as wrong.
  std::function<bool(size_t request, std::string_view body)> check;
};

struct LoadResult {
  uint64_t answered = 0, refused = 0, failed = 0, wrong = 0;  // 200; 429 and 503; anything else; failed `check`
  int failed_status = 0;                                      // last error status; 0: connections closed or timed out
  double seconds = 0;
  std::vector<double> ms, refused_ms;  // latency of each 200 response, of each refusal
};

LoadResult run_load(const LoadOptions& options);

}  // namespace brim::serve
