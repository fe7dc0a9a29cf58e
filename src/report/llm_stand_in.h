// SPDX-License-Identifier: Apache-2.0
// For tests: an HTTP server on the loopback interface that imitates a language model server, well-behaved or faulty.
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace brim::report {

class LlmStandIn {
 public:
  struct Connection {
    int fd;
    const std::atomic<bool>& over;
    // False once the client has disconnected or the test is over.
    bool send(std::string_view bytes) const {
      while (!bytes.empty()) {
        if (over) return false;
        const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (n <= 0) return false;
        bytes.remove_prefix(static_cast<size_t>(n));
      }
      return true;
    }
    void answer(int status, const std::string& body) const {
      send("HTTP/1.1 " + std::to_string(status) + " X\r\nContent-Type: application/json\r\nContent-Length: " +
           std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n" + body);
    }
    void begin_stream() const {
      send(
          "HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\nConnection: "
          "close\r\n\r\n");
    }
    bool chunk(const std::string& bytes) const {
      char size[32];
      std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
      return send(size + bytes + "\r\n");
    }
    void end_stream() const { send("0\r\n\r\n"); }
    void wait_until_over() const {
      char byte;
      pollfd p{fd, POLLIN, 0};
      while (!over && !(::poll(&p, 1, 20) > 0 && ::recv(fd, &byte, 1, 0) <= 0)) {
      }
    }
  };
  using Handler = std::function<void(const Connection&, const std::string& path, const std::string& body)>;

  explicit LlmStandIn(Handler handler) : handler_(std::move(handler)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address);
    ::listen(listener_, 16);
    socklen_t length = sizeof address;
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { accept_all(); });
  }
  ~LlmStandIn() {
    over_ = true;
    thread_.join();
    for (auto& t : connections_) t.join();
    ::close(listener_);
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  int requests() const { return requests_; }

 private:
  void accept_all() {
    while (!over_) {
      pollfd p{listener_, POLLIN, 0};
      if (::poll(&p, 1, 20) <= 0) continue;
      const int fd = ::accept(listener_, nullptr, nullptr);
      if (fd >= 0) connections_.emplace_back([this, fd] { serve(fd); });
    }
  }
  void serve(int fd) {
    std::string request;
    char buffer[4096];
    size_t head = std::string::npos, length = 0;
    while (!over_ && (head == std::string::npos || request.size() < head + 4 + length)) {
      pollfd p{fd, POLLIN, 0};
      if (::poll(&p, 1, 20) <= 0) continue;
      const ssize_t n = ::recv(fd, buffer, sizeof buffer, 0);
      if (n <= 0) break;
      request.append(buffer, static_cast<size_t>(n));
      head = request.find("\r\n\r\n");
      const size_t field = request.find("Content-Length: ");
      if (head != std::string::npos && field < head) length = std::stoul(request.substr(field + 16));
    }
    if (head != std::string::npos) {
      ++requests_;
      const size_t at = request.find(' ') + 1;
      handler_({fd, over_}, request.substr(at, request.find(' ', at) - at), request.substr(head + 4));
    }
    ::close(fd);
  }

  Handler handler_;
  int listener_ = -1, port_ = 0;
  std::atomic<bool> over_{false};
  std::atomic<int> requests_{0};
  std::vector<std::thread> connections_;
  std::thread thread_;
};

// Both APIs, well-behaved: five tokens per response.
inline void good_llm(const LlmStandIn::Connection& c, const std::string& path, const std::string& body) {
  if (path == "/api/version") return c.answer(200, R"({"version":"0.5.0"})");
  if (path == "/v1/models") return c.answer(200, R"({"object":"list","data":[{"id":"mistral"}]})");
  if (body.find("mistral") == std::string::npos) return c.answer(404, R"({"error":"model 'nobody' not found"})");
  c.begin_stream();
  if (path == "/api/generate") {
    for (int i = 0; i < 5; ++i)
      c.chunk(R"({"model":"mistral","response":" word","done":false})"
              "\n");
    c.chunk(
        R"({"model":"mistral","response":"","done":true,"done_reason":"stop","load_duration":2000000000,"eval_count":6,"eval_duration":120000000})"
        "\n");
  } else {
    c.chunk("data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n: keep-alive\n\n");
    for (int i = 0; i < 5; ++i) c.chunk("data: {\"choices\":[{\"delta\":{\"content\":\" word\"}}]}\r\n\r\n");
    c.chunk("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":7}}\n\ndata: [DONE]\n\n");
  }
  c.end_stream();
}

}  // namespace brim::report
