// SPDX-License-Identifier: Apache-2.0
#include "serve/load.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <future>
#include <random>
#include <utility>

#include "base/clock.h"
#include "base/error.h"

namespace brim::serve {
namespace {

// A connection with at most one request in flight.
struct LoadConnection {
  int descriptor = -1;
  size_t request = 0, sent = 0;
  int64_t intended_ns = 0;
  bool busy = false;
  std::string in;
};

class LoadRun {
 public:
  explicit LoadRun(const LoadOptions& options) : options_(options), random_(options.seed), poll_(::epoll_create1(0)) {
    connections_.resize(static_cast<size_t>(options.connections));
    for (size_t i = 0; i < connections_.size(); ++i) {
      open(i);
      idle_.push_back(i);
    }
  }
  ~LoadRun() {
    for (const LoadConnection& c : connections_)
      if (c.descriptor >= 0) ::close(c.descriptor);
    ::close(poll_);
  }

  LoadResult run() {
    const int64_t begun = now_ns(), end = begun + static_cast<int64_t>(options_.seconds * 1e9);
    std::exponential_distribution<double> gap(std::max(1e-9, options_.rate));
    int64_t next = begun;
    if (options_.rate > 0) next += static_cast<int64_t>(gap(random_) * 1e9);
    const int64_t give_up = end + 30'000'000'000;
    for (int64_t now = begun; now < give_up; now = now_ns()) {
      if (options_.rate > 0) {
        for (; next <= now && next < end; next += static_cast<int64_t>(gap(random_) * 1e9)) due_.push_back(next);
        for (; !due_.empty() && !idle_.empty(); due_.pop_front()) begin(due_.front());
      } else {
        while (now < end && !idle_.empty()) begin(now_ns());
      }
      if (now >= end && due_.empty() && idle_.size() == connections_.size()) break;
      const int64_t until = options_.rate > 0 && next < end ? next : now + 10'000'000;
      wait(std::max<int64_t>(0, until - now));
    }
    result_.failed += due_.size() + (connections_.size() - idle_.size());  // never answered
    result_.seconds = static_cast<double>(last_ns_ - begun) * 1e-9;
    return std::move(result_);
  }

 private:
  void open(size_t i) {
    LoadConnection& c = connections_[i];
    c.descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(options_.port);
    if (::inet_pton(AF_INET, options_.host.c_str(), &address.sin_addr) != 1)
      fail(ErrorCode::usage, "'{}' is not an IPv4 address", options_.host);
    if (::connect(c.descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      fail(ErrorCode::usage, "cannot connect to {}:{}: {}", options_.host, options_.port, std::strerror(errno));
    const int on = 1;
    ::setsockopt(c.descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    ::fcntl(c.descriptor, F_SETFL, ::fcntl(c.descriptor, F_GETFL) | O_NONBLOCK);
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = i;
    ::epoll_ctl(poll_, EPOLL_CTL_ADD, c.descriptor, &event);
    c.in.clear();
  }

  void watch(size_t i, bool writing) {
    epoll_event event{};
    event.events = writing ? EPOLLIN | EPOLLOUT : EPOLLIN;
    event.data.u64 = i;
    ::epoll_ctl(poll_, EPOLL_CTL_MOD, connections_[i].descriptor, &event);
  }

  void begin(int64_t intended_ns) {
    const size_t i = idle_.back();
    idle_.pop_back();
    LoadConnection& c = connections_[i];
    c.request = next_request_++ % options_.requests.size();
    c.sent = 0;
    c.intended_ns = intended_ns;
    c.busy = true;
    send(i);
  }

  void send(size_t i) {
    LoadConnection& c = connections_[i];
    const std::string& bytes = options_.requests[c.request];
    while (c.sent < bytes.size()) {
      const ssize_t n = ::send(c.descriptor, bytes.data() + c.sent, bytes.size() - c.sent, MSG_NOSIGNAL);
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return watch(i, true);
      if (n <= 0) return reconnect(i);
      c.sent += static_cast<size_t>(n);
    }
  }

  void reconnect(size_t i) {
    LoadConnection& c = connections_[i];
    if (c.busy) {
      ++result_.failed;
      last_ns_ = now_ns();
    }
    ::close(c.descriptor);
    open(i);
    if (std::exchange(c.busy, false)) idle_.push_back(i);
  }

  void receive(size_t i) {
    LoadConnection& c = connections_[i];
    char buffer[65536];
    for (;;) {
      const ssize_t n = ::recv(c.descriptor, buffer, sizeof buffer, 0);
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (n <= 0) return reconnect(i);
      c.in.append(buffer, static_cast<size_t>(n));
      if (c.busy && parse_response(i)) return;
    }
  }

  // Returns false while the response is incomplete.
  bool parse_response(size_t i) {
    LoadConnection& c = connections_[i];
    const size_t head = c.in.find("\r\n\r\n");
    if (head == std::string::npos) return false;
    std::string fields = c.in.substr(0, head + 2);
    for (char& letter : fields) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    const size_t field = fields.find("\r\ncontent-length: ");
    const size_t length = field == std::string::npos ? 0 : std::strtoul(fields.c_str() + field + 18, nullptr, 10);
    if (c.in.size() < head + 4 + length) return false;
    const int status = std::atoi(fields.c_str() + 9);
    last_ns_ = now_ns();
    const double ms = static_cast<double>(last_ns_ - c.intended_ns) * 1e-6;
    if (status == 200) {
      ++result_.answered;
      result_.ms.push_back(ms);
      if (options_.check && !options_.check(c.request, std::string_view(c.in).substr(head + 4, length)))
        ++result_.wrong;
    } else if (status == 429 || status == 503) {
      ++result_.refused;
      result_.refused_ms.push_back(ms);
    } else {
      ++result_.failed;
      result_.failed_status = status;
    }
    const bool closes = fields.find("\r\nconnection: close\r\n") != std::string::npos;
    c.in.erase(0, head + 4 + length);
    c.busy = false;
    if (closes) {
      ::close(c.descriptor);
      open(i);
    }
    idle_.push_back(i);
    return true;
  }

  void wait(int64_t ns) {
    epoll_event events[256];
    // epoll_wait has millisecond resolution, which would send late.
    pollfd ready{poll_, POLLIN, 0};
    const timespec timeout{ns / 1'000'000'000, ns % 1'000'000'000};
    ::ppoll(&ready, 1, &timeout, nullptr);
    const int n = ::epoll_wait(poll_, events, 256, 0);
    for (int e = 0; e < n; ++e) {
      const auto i = static_cast<size_t>(events[e].data.u64);
      if ((events[e].events & EPOLLOUT) != 0) {
        watch(i, false);
        send(i);
      }
      if ((events[e].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) receive(i);
    }
  }

  const LoadOptions& options_;
  size_t next_request_ = options_.first_request;
  std::mt19937_64 random_;
  const int poll_;
  std::vector<LoadConnection> connections_;
  std::vector<size_t> idle_;
  std::deque<int64_t> due_;
  int64_t last_ns_ = now_ns();
  LoadResult result_;
};

}  // namespace

LoadResult run_load(const LoadOptions& options) {
  if (options.requests.empty()) fail(ErrorCode::usage, "no requests to send");
  const int threads = std::clamp(options.threads, 1, options.connections);
  if (threads == 1) return LoadRun(options).run();
  std::vector<LoadOptions> shares(static_cast<size_t>(threads), options);
  std::vector<std::future<LoadResult>> runs;
  for (int t = 0; t < threads; ++t) {
    LoadOptions& share = shares[static_cast<size_t>(t)];
    share.connections = options.connections / threads + (t < options.connections % threads ? 1 : 0);
    share.rate = options.rate / threads;
    share.seed = options.seed + static_cast<uint64_t>(t);
    share.first_request = options.requests.size() * static_cast<size_t>(t) / static_cast<size_t>(threads);
    runs.push_back(std::async(std::launch::async, [&share] { return LoadRun(share).run(); }));
  }
  LoadResult all;
  for (auto& run : runs) {
    const LoadResult one = run.get();
    all.answered += one.answered;
    all.refused += one.refused;
    all.failed += one.failed;
    all.wrong += one.wrong;
    if (one.failed_status != 0) all.failed_status = one.failed_status;
    all.seconds = std::max(all.seconds, one.seconds);
    all.ms.insert(all.ms.end(), one.ms.begin(), one.ms.end());
    all.refused_ms.insert(all.refused_ms.end(), one.refused_ms.begin(), one.refused_ms.end());
  }
  return all;
}

}  // namespace brim::serve
