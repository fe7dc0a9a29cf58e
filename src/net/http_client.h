// SPDX-License-Identifier: Apache-2.0
// A small HTTP client for streamed responses: passes on bytes as they arrive, with limits on every wait and on the
// response size. Does not follow redirects. Uses libcurl, loaded on the first call.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace brim::net {

struct HttpAnswer;

struct HttpRequest {
  std::string url;                   // http:// or https://
  std::string body;                  // empty for GET, else POST as JSON
  std::vector<std::string> headers;  // "Name: value"
  double connect_s = 5;
  // Until the first byte of the body, or the condition of first_seen; also the longest pause after it.
  double first_s = 30;
  std::function<bool()> first_seen;
  double total_s = 120;  // 0: no limit
  size_t most_bytes = size_t{16} << 20;
  const std::atomic<bool>* stop = nullptr;
  std::function<bool(const HttpAnswer&)> on_head = {};  // status and headers before the body; false ends the transfer
};

enum class HttpEnd {
  complete,
  cut,            // a callback returned false, or most_bytes was reached
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
  std::string why;   // explanation if not `complete`; empty if a callback returned false
  std::string text;  // the body, if there is no on_bytes or the status is neither 200 nor 206
  std::map<std::string, std::string> headers = {};    // from the last response; names in lower case
  bool is_lasting = false;                            // a retry cannot help: unknown host, untrusted certificate
  std::string header(const std::string& name) const;  // empty if missing
};

// `on_bytes` receives the body of a response with status 200 or 206 as it arrives; returning false ends the transfer.
HttpAnswer http_fetch(const HttpRequest& request, const std::function<bool(std::string_view)>& on_bytes = nullptr);

}  // namespace brim::net
