// SPDX-License-Identifier: Apache-2.0
// Sockets that listen, and what an address says: 127.0.0.1:8080, [::1]:8080, name:8080, :8080, unix:PATH.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace brim::serve {

struct ListenAddress {
  std::string host;  // empty: every address of the machine
  uint16_t port = 0;
  std::string unix_path;  // not empty: a socket in the file system, and nothing else
  int descriptor = -1;    // not negative: this socket, which listens there already

  bool is_loopback() const;  // reached from this machine alone
  std::string text() const;
};

// Fails with a usage error that says how an address is written.
ListenAddress parse_listen_address(std::string_view text);

// The socket that who started this process hands over (systemd's LISTEN_PID and LISTEN_FDS: descriptors from `first`
// on), and its address; none where there is none. Fails for several, and for what is no listening socket.
std::optional<ListenAddress> inherited_socket(int first = 3);

// A socket that is bound and listens; it closes with its owner, which removes a file it made.
class Listener {
 public:
  explicit Listener(const ListenAddress& address);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int descriptor() const { return descriptor_; }
  int family() const { return family_; }
  uint16_t port() const { return port_; }  // the one it was given where 0 was asked for

 private:
  int descriptor_ = -1, family_ = 0;
  uint16_t port_ = 0;
  std::string unix_path_;
};

}  // namespace brim::serve
