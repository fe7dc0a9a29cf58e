// SPDX-License-Identifier: Apache-2.0
// A small HTTP client for streamed responses: passes on bytes as they arrive, with limits on every wait and on the
// response size. Uses libcurl, loaded on the first call.
#pragma once
#include <atomic>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace brim::report {

struct HttpRequest {
  std::string url;                   // http:// or https://
  std::string body;                  // empty for GET, else POST as JSON
  std::vector<std::string> headers;  // "Name: value"
  double connect_s = 5;
  double first_s =
      30;  // until the first byte of the body, or the condition of first_seen; also the longest pause after it
  std::function<bool()> first_seen;
  double total_s = 120;
  size_t most_bytes = size_t{16} << 20;
  const std::atomic<bool>* stop = nullptr;
};

enum class HttpEnd {
  complete,
  cut,            // on_bytes returned false, or most_bytes was reached
  no_connection,  // DNS failure, refused, unreachable
  connect_timeout,
  first_timeout,
  total_timeout,
  broken,  // connection closed early, or not HTTP
  stopped,
  unavailable,  // libcurl could not be loaded
};

struct HttpAnswer {
  HttpEnd end = HttpEnd::broken;
  int status = 0;    // 0 if none was received
  std::string why;   // explanation if not `complete` or `cut`
  std::string text;  // the body, if there is no on_bytes or the status is not 200
};

// `on_bytes` receives the body of a 200 response as it arrives; returning false ends the transfer.
HttpAnswer http_fetch(const HttpRequest& request, const std::function<bool(std::string_view)>& on_bytes = nullptr);

}  // namespace brim::report
