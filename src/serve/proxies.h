// SPDX-License-Identifier: Apache-2.0
// Proxies whose word about their clients is taken: X-Forwarded-For of anybody else means nothing.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/framing.h"

namespace brim::serve {

// An IPv4 or IPv6 address; IPv4 in IPv6's way of writing it is IPv4.
struct IpAddress {
  std::array<uint8_t, 16> bytes{};  // as IPv6
  bool four = false;

  static std::optional<IpAddress> read(std::string_view text);
  std::string text() const;
  bool is_loopback() const;
};

class TrustedProxies {
 public:
  TrustedProxies() = default;
  // "10.0.0.7,192.168.0.0/16,fd00::/8,unix", spaces allowed; "unix" is whoever comes by a socket in the file system.
  // Fails with a usage error.
  explicit TrustedProxies(std::string_view list);

  bool empty() const { return networks_.empty() && !unix_; }
  bool trusts(std::string_view peer) const;  // an address, or "unix"

  struct Client {
    std::string address;   // empty: the peer itself
    bool unclear = false;  // a proxy's word could not be read
  };
  // Whom a request comes from: the last of X-Forwarded-For that is not a proxy of these. What stands before it was
  // written by that client, or by proxies nobody vouches for.
  Client client_of(std::string_view peer, const RequestHead& head) const;

 private:
  struct Network {
    IpAddress address;
    int bits;  // of 128
  };
  bool trusts(const IpAddress& address) const;

  std::vector<Network> networks_;
  bool unix_ = false;
};

}  // namespace brim::serve
