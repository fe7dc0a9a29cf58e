// SPDX-License-Identifier: Apache-2.0
// I/O threads of an HttpServer. Internal: only event_loop.cc, http.cc and connection*.cc include this header and Boost.
//
// Asio provides sockets and the event loop. Boost.Beast is not used, because two parsers that disagree about a message
// make request smuggling possible.
#pragma once
#if defined(__SANITIZE_THREAD__)  // ThreadSanitizer does not support fences; the locks of the queues order everything
#define BOOST_ASIO_DISABLE_FENCED_BLOCK 1
#endif

#include <algorithm>
#include <atomic>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/basic_waitable_timer.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <ctime>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "http/connection_table.h"
#include "http/http.h"

namespace brim::http {

namespace asio = boost::asio;
using Executor = asio::io_context::executor_type;
using Protocol = asio::generic::stream_protocol;
using Socket = asio::basic_stream_socket<Protocol, Executor>;
using Acceptor = asio::basic_socket_acceptor<Protocol, Executor>;
using Timer =
    asio::basic_waitable_timer<std::chrono::steady_clock, asio::wait_traits<std::chrono::steady_clock>, Executor>;
using IoError = boost::system::error_code;

// Interface of a connection for its event loop.
class OpenConnection {
 public:
  virtual ~OpenConnection() = default;
  virtual void begin() = 0;
  virtual bool is_idle() const = 0;
  virtual void expire(int64_t now_ns) = 0;  // enforces the timeouts
  virtual void close() = 0;
};

// One thread and its connections.
struct IoLoop {
  IoLoop(HttpServer::Impl& owner, int number) : server(owner), index(number) {}
  void run();
  void accept();
  void on_accept_error(const IoError& error);
  void admit_pending(int evictions_left);
  bool evict_idle(int evictions_left);                        // false if no connection is idle
  void finish_pending(std::shared_ptr<ConnectionSlot> slot);  // null: reject
  void open_connection(Socket socket, std::shared_ptr<ConnectionSlot> slot);
  void tick();
  const std::string& date();

  HttpServer::Impl& server;
  const int index;
  asio::io_context io{1};
  asio::executor_work_guard<Executor> work{io.get_executor()};
  Acceptor acceptor{io};
  Protocol::endpoint peer;
  Timer timer{io};
  Timer retry_timer{io};  // after a failed accept
  bool accepting = false;
  // An accepted socket that is not admitted yet. Nothing else is accepted until then, so each thread exceeds the limit
  // by at most one socket.
  std::optional<Socket> pending_socket;
  std::string pending_remote;
  std::unordered_map<OpenConnection*, std::shared_ptr<OpenConnection>> connections;
  std::string date_text;
  std::time_t date_second = 0;
  std::thread thread;
};

struct HttpServer::Impl {
  Impl(const ListenAddress& address, const HttpOptions& o, Handler& h)
      : options(o), handler(h), listener(address), table(limits_of(o), o.proxies) {
    options.framing.body_limit = [this](const RequestHead& head) {
      return handler.body_limit(head).value_or(options.framing.body);
    };
  }

  static ConnectionTable::Limits limits_of(const HttpOptions& o) {
    return {o.connections, o.connections_per_address, std::min(o.connections_for_loopback, o.connections / 4)};
  }

  std::shared_ptr<const TlsContext> tls() {
    std::lock_guard lock(tls_mutex);
    return options.tls;
  }

  HttpOptions options;
  Handler& handler;
  Listener listener;
  std::vector<std::unique_ptr<IoLoop>> loops;
  ConnectionTable table;
  std::mutex tls_mutex;
  std::atomic<size_t> busy{0};
  std::atomic<int64_t> body_bytes{0};
  std::atomic<uint64_t> refused_connections{0};
  std::atomic<bool> closing{false};            // close each connection after its next response
  std::atomic<bool> stopped_listening{false};  // accept nothing and close idle connections
  std::atomic<int64_t> warned_accept_ns{0}, warned_full_ns{0};
};

std::shared_ptr<OpenConnection> make_connection(IoLoop& loop, Socket socket, std::shared_ptr<ConnectionSlot> slot);
// Sends a response to a client above the connection limit, as far as the socket buffer takes it.
void send_rejection(Socket& socket, const Response& response);

}  // namespace brim::http
