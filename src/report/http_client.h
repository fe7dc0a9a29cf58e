// SPDX-License-Identifier: Apache-2.0
// A small HTTP client for streamed answers: bytes are handed on as they arrive, every wait has a limit, every answer a
// largest size. Made of libcurl, which is opened on the first call.
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
  std::string body;                  // empty: GET, else POST as JSON
  std::vector<std::string> headers;  // "Name: value"
  double connect_s = 5;
  double first_s =
      30;  // to the first byte of the body, or to what first_seen waits for; and the longest silence after it
  std::function<bool()> first_seen;
  double total_s = 120;
  size_t most_bytes = size_t{16} << 20;
  const std::atomic<bool>* stop = nullptr;
};

enum class HttpEnd {
  complete,
  cut,            // on_bytes wanted no more, or most_bytes was reached
  no_connection,  // name, refused, unreachable
  connect_timeout,
  first_timeout,
  total_timeout,
  broken,  // the connection ended in the middle, or is no HTTP
  stopped,
  unavailable,  // libcurl cannot be opened
};

struct HttpAnswer {
  HttpEnd end = HttpEnd::broken;
  int status = 0;    // 0: none came
  std::string why;   // in words, where the end is not `complete` or `cut`
  std::string text;  // the body, where no on_bytes was given or the status is not 200
};

// `on_bytes` gets the body of a 200 as it arrives; false ends the transfer.
HttpAnswer http_fetch(const HttpRequest& request, const std::function<bool(std::string_view)>& on_bytes = nullptr);

}  // namespace brim::report
