// SPDX-License-Identifier: Apache-2.0
// The I/O threads of an HttpServer, for http.cc (threads, the listener) and http_connection.cc (bytes of one client),
// which alone see Boost. Asio brings sockets and the event loop; its HTTP parser is not used, since two parsers of one
// message are what request smuggling lives on.
#pragma once
#if defined(__SANITIZE_THREAD__)  // it does not know fences; the queues' locks order what they would
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

#include "serve/connection_table.h"
#include "serve/http.h"

namespace brim::serve {

namespace asio = boost::asio;
using Executor = asio::io_context::executor_type;
using Protocol = asio::generic::stream_protocol;
using Socket = asio::basic_stream_socket<Protocol, Executor>;
using Acceptor = asio::basic_socket_acceptor<Protocol, Executor>;
using Timer =
    asio::basic_waitable_timer<std::chrono::steady_clock, asio::wait_traits<std::chrono::steady_clock>, Executor>;
using Failure = boost::system::error_code;

// One client, as its thread sees it.
class OpenConnection {
 public:
  virtual ~OpenConnection() = default;
  virtual void begin() = 0;
  virtual bool is_idle() const = 0;
  virtual void expire(int64_t now_ns) = 0;  // ends what has taken too long
  virtual void close() = 0;
};

// One thread and its connections.
struct IoLoop {
  IoLoop(HttpServer::Impl& owner, int number) : server(owner), index(number) {}
  void run();
  void accept();
  void admit_newcomer(int evictions_left);
  bool make_place(int evictions_left);                         // false: no connection is idle
  void settle_newcomer(std::shared_ptr<ConnectionSlot> slot);  // null: refuses it
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
  Timer pause{io};  // after an accept that failed
  bool accepting = false;
  // An accepted socket that is not admitted yet. Nothing else is accepted until then, so that no more than one socket
  // per thread exceeds the limit.
  std::optional<Socket> newcomer;
  std::string newcomer_remote;
  std::unordered_map<OpenConnection*, std::shared_ptr<OpenConnection>> open;
  std::string date_text;
  std::time_t date_second = 0;
  std::thread thread;
};

struct HttpServer::Impl {
  Impl(const ListenAddress& address, const HttpOptions& o, Handler& h)
      : options(o), handler(h), listener(address), table(limits_of(o), o.proxies) {
    options.framing.body_of = [this](const RequestHead& head) {
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
  std::atomic<bool> closing{false}, deaf{false};
  std::atomic<int64_t> warned_ns{0}, warned_full_ns{0};
};

std::shared_ptr<OpenConnection> make_connection(IoLoop& loop, Socket socket, std::shared_ptr<ConnectionSlot> slot);
// Sends the response to a client over the limit, as far as the socket takes it at once.
void turn_away(Socket& socket, const Response& response);

}  // namespace brim::serve
