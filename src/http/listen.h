// SPDX-License-Identifier: Apache-2.0
// Listening sockets and their addresses: 127.0.0.1:8080, [::1]:8080, name:8080, :8080, unix:PATH.
#pragma once
#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace brim::http {

struct ListenAddress {
  std::string host;  // empty: all addresses of this machine
  uint16_t port = 0;
  std::string unix_path;  // if not empty: a unix socket; host and port are unused
  int descriptor = -1;    // if not negative: an inherited socket that already listens

  bool is_loopback() const;  // reachable only from this machine
  std::string text() const;
};

// Throws a usage error with the accepted formats.
ListenAddress parse_listen_address(std::string_view text);

// Socket activation by systemd (LISTEN_PID, LISTEN_FDS): the socket at descriptor `first` and its address; nullopt if
// there is none. Throws for several sockets or one that does not listen.
std::optional<ListenAddress> inherited_socket(int first = 3);

// Owns a listening socket. The destructor closes it and removes the file of a unix socket that it created.
class Listener {
 public:
  explicit Listener(const ListenAddress& address);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int descriptor() const { return descriptor_; }
  int family() const { return family_; }
  uint16_t port() const { return port_; }  // the assigned port if the address had port 0

 private:
  void adopt(const ListenAddress& address);
  void listen_on_file(const ListenAddress& address);
  void listen_on_port(const ListenAddress& address);
  bool bind_and_listen(int family, const sockaddr* name, socklen_t size, bool any_address);

  int descriptor_ = -1, family_ = 0;
  uint16_t port_ = 0;
  std::string unix_path_;
};

}  // namespace brim::http
