// SPDX-License-Identifier: Apache-2.0
#include "http/listen.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/env.h"
#include "base/error.h"

namespace brim::http {
namespace {

[[noreturn]] void cannot_listen(const ListenAddress& address, const std::string& why) {
  fail(ErrorCode::usage, Remedy{"use another `listen` address, or stop the process that uses it"},
       "{}: cannot listen: {}", address.text(), why);
}

// Removes the file of a unix socket on which no process listens.
void remove_stale(const ListenAddress& address, const sockaddr_un& name) {
  struct stat info {};
  if (::lstat(name.sun_path, &info) != 0) return;
  if (!S_ISSOCK(info.st_mode)) cannot_listen(address, "the file exists and is not a socket");
  const int probe = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool alive = ::connect(probe, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0;
  ::close(probe);
  if (alive) cannot_listen(address, "another server listens on it");
  ::unlink(name.sun_path);
}

}  // namespace

bool ListenAddress::is_loopback() const {
  if (!unix_path.empty() || host == "localhost") return true;
  in_addr v4{};
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6{};
  return ::inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

std::string ListenAddress::text() const {
  if (!unix_path.empty()) return "unix:" + unix_path;
  return fmt::format("{}:{}", host.find(':') != std::string::npos ? "[" + host + "]" : host, port);
}

ListenAddress parse_listen_address(std::string_view text) {
  ListenAddress address;
  if (text.starts_with("unix:")) {
    address.unix_path = text.substr(5);
    if (address.unix_path.empty() || address.unix_path.size() >= sizeof(sockaddr_un::sun_path))
      fail(ErrorCode::usage, "`listen={}`: the path of a unix socket must have 1 to {} bytes", text,
           sizeof(sockaddr_un::sun_path) - 1);
    return address;
  }
  const size_t colon = text.rfind(':');
  const std::string_view digits = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  std::string_view host = text.substr(0, colon == std::string_view::npos ? 0 : colon);
  if (host.starts_with('[') && host.ends_with(']'))
    host = host.substr(1, host.size() - 2);
  else if (host.find(':') != std::string_view::npos)
    host = "?";
  const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), address.port);
  if (digits.empty() || problem != std::errc() || end != digits.data() + digits.size() || host == "?")
    fail(ErrorCode::usage, "`listen={}`: invalid address; expected 127.0.0.1:8080, [::1]:8080, :8080 or unix:PATH",
         text);
  address.host = host;
  return address;
}

std::optional<ListenAddress> inherited_socket(int first) {
  const auto number = [](const char* name) -> int64_t {
    const std::string text = env(name).value_or("");
    int64_t value = -1;
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
    return problem == std::errc() && end == text.data() + text.size() ? value : -1;
  };
  const int64_t sockets = number("LISTEN_FDS");
  if (sockets < 1 || number("LISTEN_PID") != ::getpid()) return std::nullopt;
  if (sockets > 1)
    fail(ErrorCode::usage, Remedy{"in a systemd drop-in, put an empty ListenStream= before the new address"},
         "LISTEN_FDS={}: only one socket is supported", sockets);
  ListenAddress address;
  address.descriptor = first;
  int listens = 0;
  sockaddr_storage bound{};
  socklen_t size = sizeof listens, length = sizeof bound;
  if (::getsockopt(first, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0 ||
      ::getsockname(first, reinterpret_cast<sockaddr*>(&bound), &length) != 0)
    fail(ErrorCode::usage, "LISTEN_FDS: descriptor {} is not a listening socket", first);
  ::fcntl(first, F_SETFD, FD_CLOEXEC);
  if (bound.ss_family == AF_UNIX) {
    address.unix_path = reinterpret_cast<const sockaddr_un&>(bound).sun_path;
    if (address.unix_path.empty()) address.unix_path = "(unnamed)";
    return address;
  }
  char host[NI_MAXHOST] = "", port[NI_MAXSERV] = "";
  ::getnameinfo(reinterpret_cast<sockaddr*>(&bound), length, host, sizeof host, port, sizeof port,
                NI_NUMERICHOST | NI_NUMERICSERV);
  address.host = host;
  address.port = static_cast<uint16_t>(std::atoi(port));
  return address;
}

Listener::Listener(const ListenAddress& address) {
  if (address.descriptor >= 0)
    adopt(address);
  else if (!address.unix_path.empty())
    listen_on_file(address);
  else
    listen_on_port(address);
}

// The file of an inherited unix socket belongs to the process that created it.
void Listener::adopt(const ListenAddress& address) {
  descriptor_ = address.descriptor;
  port_ = address.port;
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  ::getsockname(descriptor_, reinterpret_cast<sockaddr*>(&bound), &size);
  family_ = bound.ss_family;
}

void Listener::listen_on_file(const ListenAddress& address) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, address.unix_path.data(), address.unix_path.size());
  remove_stale(address, name);
  if (!bind_and_listen(AF_UNIX, reinterpret_cast<const sockaddr*>(&name), sizeof name, false))
    cannot_listen(address, std::strerror(errno));
  unix_path_ = address.unix_path;
}

void Listener::listen_on_port(const ListenAddress& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(address.port);
  const bool any_address = address.host.empty();
  const int error = ::getaddrinfo(any_address ? nullptr : address.host.c_str(), port.c_str(), &hints, &found);
  if (error != 0) cannot_listen(address, ::gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, ::freeaddrinfo);
  // The IPv6 wildcard address also accepts IPv4, so it comes first. A host name uses its first address that can be
  // bound.
  for (const int family : {any_address ? AF_INET6 : AF_UNSPEC, AF_UNSPEC})
    for (const addrinfo* a = found; a != nullptr && descriptor_ < 0; a = a->ai_next)
      if (family == AF_UNSPEC || a->ai_family == family)
        bind_and_listen(a->ai_family, a->ai_addr, a->ai_addrlen, any_address);
  if (descriptor_ < 0) cannot_listen(address, std::strerror(errno));
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  ::getsockname(descriptor_, reinterpret_cast<sockaddr*>(&bound), &size);
  port_ = ntohs(family_ == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                                    : reinterpret_cast<const sockaddr_in&>(bound).sin_port);
}

// False with errno set if it fails.
bool Listener::bind_and_listen(int family, const sockaddr* name, socklen_t size, bool any_address) {
  family_ = family;
  descriptor_ = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor_ < 0) return false;
  const int on = 1;
  ::setsockopt(descriptor_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (family == AF_INET6 && any_address) {
    const int off = 0;
    ::setsockopt(descriptor_, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  }
  if (::bind(descriptor_, name, size) == 0 && ::listen(descriptor_, SOMAXCONN) == 0) return true;
  const int error = errno;
  ::close(descriptor_);
  descriptor_ = -1;
  errno = error;
  return false;
}

Listener::~Listener() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!unix_path_.empty()) ::unlink(unix_path_.c_str());
}

}  // namespace brim::http
