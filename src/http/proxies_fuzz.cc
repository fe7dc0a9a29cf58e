// SPDX-License-Identifier: Apache-2.0
// Fuzz target, lines of: trusted proxies, a peer, X-Forwarded-For fields. The client must be an address that is not a
// trusted proxy, and untrusted peers must not name one.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "http/proxies.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace brim;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const auto line = [&] {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view text = rest.substr(0, end);
    rest.remove_prefix(std::min(rest.size(), end + 1));
    return text;
  };
  try {
    const http::TrustedProxies proxies(line());
    const std::string_view peer = line();
    http::RequestHead head;
    while (!rest.empty()) head.fields.push_back({"x-forwarded-for", line()});
    const auto client = proxies.client_of(peer, head);
    if (!proxies.trusts(peer) && (!client.address.empty() || client.unclear == head.fields.empty())) std::abort();
    if (client.unclear && !client.address.empty()) std::abort();
    if (client.address.empty()) return 0;
    const auto address = http::IpAddress::read(client.address);
    if (!address || address->text() != client.address || proxies.trusts(client.address)) std::abort();
  } catch (const Error& e) {
    if (e.code() != ErrorCode::usage) std::abort();
  }
  return 0;
}
