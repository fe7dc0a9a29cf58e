// SPDX-License-Identifier: Apache-2.0
// Trusted proxies: X-Forwarded-For from other peers is ignored.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "http/framing.h"

namespace brim::http {

// An IPv4 or IPv6 address. IPv4-mapped IPv6 addresses count as IPv4.
struct IpAddress {
  std::array<uint8_t, 16> bytes{};  // IPv4 is stored as IPv4-mapped IPv6
  bool is_v4 = false;

  static std::optional<IpAddress> read(std::string_view text);
  std::string text() const;
  bool is_loopback() const;
};

class TrustedProxies {
 public:
  TrustedProxies() = default;
  // "10.0.0.7,192.168.0.0/16,fd00::/8,unix", spaces allowed; "unix" is every peer of a unix socket. Throws a
  // usage error.
  explicit TrustedProxies(std::string_view list);

  bool empty() const { return networks_.empty() && !unix_; }
  bool trusts(std::string_view peer) const;  // an address, or "unix"

  struct Client {
    std::string address;   // empty: the peer itself
    bool unclear = false;  // forwarded by an untrusted proxy, or with a malformed X-Forwarded-For
  };
  // The client is the last address of X-Forwarded-For that is not a trusted proxy. Earlier ones come from that client
  // or from untrusted proxies.
  Client client_of(std::string_view peer, const RequestHead& head) const;

 private:
  struct Network {
    IpAddress address;
    int bits;  // prefix length in IPv6, 0 to 128
  };
  bool trusts(const IpAddress& address) const;

  std::vector<Network> networks_;
  bool unix_ = false;
};

}  // namespace brim::http
