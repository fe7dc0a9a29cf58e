// SPDX-License-Identifier: Apache-2.0
#include "http/proxies.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "base/error.h"

namespace brim::http {
namespace {

constexpr int kV4PrefixBits = 96;  // before the IPv4 part of an IPv4-mapped address

std::string_view trim(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") + 1 - first);
}

bool is_port(std::string_view text) {
  uint16_t port = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), port);
  return problem == std::errc() && end == text.data() + text.size();
}

// Formats that proxies use: 192.0.2.1, 192.0.2.1:80, 2001:db8::1, [2001:db8::1], [2001:db8::1]:80.
std::optional<IpAddress> forwarded_address(std::string_view text) {
  if (text.starts_with('[')) {
    const size_t end = text.find(']');
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view rest = text.substr(end + 1);
    if (!rest.empty() && !(rest.starts_with(':') && is_port(rest.substr(1)))) return std::nullopt;
    return IpAddress::read(text.substr(1, end - 1));
  }
  if (const size_t colon = text.find(':'); colon != std::string_view::npos && colon == text.rfind(':'))
    return is_port(text.substr(colon + 1)) ? IpAddress::read(text.substr(0, colon)) : std::nullopt;
  return IpAddress::read(text);
}

bool same_bits(const IpAddress& a, const IpAddress& b, int bits) {
  const auto whole = static_cast<size_t>(bits / 8);
  if (std::memcmp(a.bytes.data(), b.bytes.data(), whole) != 0) return false;
  if (bits % 8 == 0) return true;
  return (a.bytes[whole] ^ b.bytes[whole]) >> (8 - bits % 8) == 0;
}

}  // namespace

std::optional<IpAddress> IpAddress::read(std::string_view text) {
  if (text.empty() || text.size() >= INET6_ADDRSTRLEN) return std::nullopt;
  const std::string terminated(text);
  IpAddress address;
  if (::inet_pton(AF_INET, terminated.c_str(), address.bytes.data() + 12) == 1) {
    address.bytes[10] = address.bytes[11] = 0xFF;
    address.is_v4 = true;
    return address;
  }
  in6_addr v6{};
  if (::inet_pton(AF_INET6, terminated.c_str(), &v6) != 1) return std::nullopt;
  std::memcpy(address.bytes.data(), &v6, sizeof v6);
  address.is_v4 = IN6_IS_ADDR_V4MAPPED(&v6);
  return address;
}

std::string IpAddress::text() const {
  char out[INET6_ADDRSTRLEN] = "";
  ::inet_ntop(is_v4 ? AF_INET : AF_INET6, bytes.data() + (is_v4 ? 12 : 0), out, sizeof out);
  return out;
}

bool IpAddress::is_loopback() const {
  if (is_v4) return bytes[12] == 127;
  static constexpr std::array<uint8_t, 16> kOne = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  return bytes == kOne;
}

TrustedProxies::TrustedProxies(std::string_view list) {
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    const std::string_view entry = trim(list.substr(0, comma));
    list.remove_prefix(std::min(list.size(), comma + 1));
    if (entry == "unix") {
      unix_ = true;
      continue;
    }
    const size_t slash = std::min(entry.find('/'), entry.size());
    const std::optional<IpAddress> address = IpAddress::read(entry.substr(0, slash));
    const int max_bits = address && address->is_v4 ? 32 : 128;
    int bits = max_bits;
    if (slash < entry.size()) {
      const std::string_view digits = entry.substr(slash + 1);
      const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), bits);
      if (problem != std::errc() || end != digits.data() + digits.size()) bits = -1;
    }
    if (!address || bits < 0 || bits > max_bits)
      fail(ErrorCode::usage, Remedy{"give addresses, networks or unix: 10.0.0.7,192.168.0.0/16,fd00::/8,unix"},
           "`trusted_proxy`: invalid address '{}'", entry);
    Network network{*address, bits + (address->is_v4 ? kV4PrefixBits : 0)};
    IpAddress first = *address;  // with all host bits zero
    for (int bit = network.bits; bit < 128; ++bit)
      first.bytes[static_cast<size_t>(bit / 8)] &= static_cast<uint8_t>(~(0x80 >> bit % 8));
    if (first.bytes != address->bytes)
      fail(ErrorCode::usage, Remedy{fmt::format("use {0}/{1} or {2}", first.text(), bits, address->text())},
           "`trusted_proxy`: {} has bits set after its prefix of {} bits", entry, bits);
    networks_.push_back(network);
  }
}

bool TrustedProxies::trusts(const IpAddress& address) const {
  return std::any_of(networks_.begin(), networks_.end(), [&](const Network& network) {
    return network.address.is_v4 == address.is_v4 && same_bits(network.address, address, network.bits);
  });
}

bool TrustedProxies::trusts(std::string_view peer) const {
  if (peer == "unix") return unix_;
  if (networks_.empty()) return false;
  const std::optional<IpAddress> address = IpAddress::read(peer);
  return address && trusts(*address);
}

TrustedProxies::Client TrustedProxies::client_of(std::string_view peer, const RequestHead& head) const {
  // The peer may be an untrusted proxy on this machine with remote clients.
  if (!trusts(peer))
    return {.unclear = std::ranges::any_of(head.fields, [](const auto& field) {
              return same_ignoring_case(field.name, "x-forwarded-for") || same_ignoring_case(field.name, "forwarded") ||
                     same_ignoring_case(field.name, "x-real-ip") || same_ignoring_case(field.name, "via");
            })};
  for (auto field = head.fields.rbegin(); field != head.fields.rend(); ++field) {
    if (!same_ignoring_case(field->name, "x-forwarded-for")) continue;
    std::string_view list = field->value;
    for (bool more = true; more;) {
      const size_t comma = list.rfind(',');
      more = comma != std::string_view::npos;
      const std::optional<IpAddress> address = forwarded_address(trim(more ? list.substr(comma + 1) : list));
      if (!address) return {.unclear = true};
      if (!trusts(*address)) return {.address = address->text()};
      list = list.substr(0, more ? comma : 0);
    }
  }
  return {};
}

}  // namespace brim::http
