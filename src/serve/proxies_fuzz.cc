// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "serve/proxies.h"

// Lines: proxies, a peer, X-Forwarded-For field by field. Whatever they are, a client is an address that is none of the
// proxies, and who is not trusted names nobody: whose request it passes on is not clear.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace brim;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const auto line = [&] {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view taken = rest.substr(0, end);
    rest.remove_prefix(std::min(rest.size(), end + 1));
    return taken;
  };
  try {
    const serve::TrustedProxies proxies(line());
    const std::string_view peer = line();
    serve::RequestHead head;
    while (!rest.empty()) head.fields.push_back({"x-forwarded-for", line()});
    const auto client = proxies.client_of(peer, head);
    if (!proxies.trusts(peer) && (!client.address.empty() || client.unclear == head.fields.empty())) std::abort();
    if (client.unclear && !client.address.empty()) std::abort();
    if (client.address.empty()) return 0;
    const auto address = serve::IpAddress::read(client.address);
    if (!address || address->text() != client.address || proxies.trusts(client.address)) std::abort();
  } catch (const Error& e) {
    if (e.code() != ErrorCode::usage) std::abort();
  }
  return 0;
}
