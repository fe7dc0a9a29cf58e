// SPDX-License-Identifier: Apache-2.0
// Plaintext HTTP client for tests that sends the given bytes unchanged and reads one response at a time.
#pragma once
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace brim::http {

struct RawAnswer {
  int status = 0;  // 0: the connection ended
  std::string head, body;
  std::map<std::string, std::string> fields;  // names in lowercase
};

class RawClient {
 public:
  explicit RawClient(uint16_t port, int receive_bytes = 0) : descriptor_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_bytes > 0) ::setsockopt(descriptor_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connect(reinterpret_cast<const sockaddr*>(&address), sizeof address);
  }
  explicit RawClient(const std::string& unix_path) : descriptor_(::socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, unix_path.c_str(), sizeof address.sun_path - 1);
    connect(reinterpret_cast<const sockaddr*>(&address), sizeof address);
  }
  ~RawClient() { close(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool connected() const { return connected_; }
  void close() {
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = -1;
  }
  // False once the server has closed the connection.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;  // a libFuzzer timer
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  bool get(std::string_view path, std::string_view fields = "") {
    return send("GET " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\n" + std::string(fields) + "\r\n");
  }
  bool post(std::string_view path, std::string_view body, std::string_view fields = "") {
    return send("POST " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" +
                "Content-Length: " + std::to_string(body.size()) + "\r\n" + std::string(fields) + "\r\n" +
                std::string(body));
  }
  RawAnswer read_head() {
    RawAnswer answer;
    size_t end;
    while ((end = in_.find("\r\n\r\n")) == std::string::npos)
      if (!more()) return answer;
    answer.head = in_.substr(0, end + 2);
    in_.erase(0, end + 4);
    answer.status = std::stoi(answer.head.substr(9, 3));
    for (size_t at = answer.head.find("\r\n") + 2; at < answer.head.size();) {
      const size_t line_end = answer.head.find("\r\n", at), colon = answer.head.find(": ", at);
      std::string name = answer.head.substr(at, colon - at);
      for (char& c : name) c = static_cast<char>(std::tolower(c));
      answer.fields[name] = answer.head.substr(colon + 2, line_end - colon - 2);
      at = line_end + 2;
    }
    return answer;
  }
  // `body_expected`: false for a response to HEAD.
  RawAnswer read(bool body_expected = true) {
    RawAnswer answer = read_head();
    if (answer.status == 0 || !body_expected) return answer;
    if (answer.fields.count("transfer-encoding")) {
      std::string chunk;
      while (read_chunk(chunk))
        if (chunk.empty())
          return answer;
        else
          answer.body += chunk;
      return {};
    }
    const size_t length = answer.fields.count("content-length") ? std::stoul(answer.fields["content-length"]) : 0;
    if (!take(answer.body, length)) return {};
    return answer;
  }
  // The last chunk of a response is empty. False if the connection ended.
  bool read_chunk(std::string& chunk) {
    size_t end;
    while ((end = in_.find("\r\n")) == std::string::npos)
      if (!more()) return false;
    const size_t length = std::stoul(in_.substr(0, end), nullptr, 16);
    in_.erase(0, end + 2);
    std::string line_end;
    return take(chunk, length) && take(line_end, 2) && line_end == "\r\n";
  }
  std::string rest() {  // until the server closes the connection
    while (more()) {
    }
    return std::exchange(in_, {});
  }
  bool at_end() { return in_.empty() && !more(); }  // waits for the server to close

 private:
  void connect(const sockaddr* address, socklen_t size) {
    const timeval timeout{60, 0};  // a hanging test fails
    for (const int option : {SO_RCVTIMEO, SO_SNDTIMEO})
      ::setsockopt(descriptor_, SOL_SOCKET, option, &timeout, sizeof timeout);
    connected_ = ::connect(descriptor_, address, size) == 0;
  }
  bool take(std::string& bytes, size_t length) {
    while (in_.size() < length)
      if (!more()) return false;
    bytes = in_.substr(0, length);
    in_.erase(0, length);
    return true;
  }
  bool more() {
    char buffer[65536];
    ssize_t n;
    do n = ::recv(descriptor_, buffer, sizeof buffer, 0);
    while (n < 0 && errno == EINTR);  // a libFuzzer timer
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) ADD_FAILURE() << "received nothing for a minute";
    if (n <= 0) return false;
    in_.append(buffer, static_cast<size_t>(n));
    return true;
  }

  int descriptor_;
  bool connected_ = false;
  std::string in_;
};

}  // namespace brim::http
