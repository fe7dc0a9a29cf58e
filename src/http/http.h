// SPDX-License-Identifier: Apache-2.0
// HTTP/1.1 server: connections, limits and timeouts. A Handler processes the requests.
//
// Each connection belongs to one thread. Every wait has an absolute deadline: a slow head, a slow body, an unread
// response, an unused connection. At the connection limit a new client replaces the connection that has waited longest
// for its client. The handler is notified if a client disconnects before its response.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "http/framing.h"
#include "http/listen.h"
#include "http/proxies.h"
#include "http/tls.h"

namespace brim::http {

struct HttpOptions {
  int threads = 1;
  FramingLimits framing;
  std::shared_ptr<const TlsContext> tls = {};  // null: plaintext
  double tls_seconds = 5;                      // for the TLS handshake
  double head_seconds = 5;     // until the first request begins, and from the first byte to the end of a head
  double body_seconds = 10;    // for a body, plus one second per least_bytes_per_second received
  double answer_seconds = 30;  // for the client to read a response, plus one second per least_bytes_per_second sent
  double least_bytes_per_second = 8192;
  double idle_seconds = 75;              // between requests
  size_t connections = 1024;             // when full, a new one replaces the one that waited longest
  size_t connections_for_loopback = 16;  // reserved for this machine (health checks); at most a quarter of all
  size_t connections_per_address = 256;  // does not apply to unix sockets and trusted proxies
  TrustedProxies proxies = {};
  int64_t body_bytes = int64_t{256} << 20;  // limit for all unfinished requests and unsent responses
};

struct Response {
  int status = 200;
  std::string body;
  const char* content_type = "application/json";
  std::string fields = {};  // further header fields, each "Name: value\r\n"
  bool close = false;       // close the connection after this response
};

// One request, from the end of its head to the end of its response. Used only on its thread.
class Exchange {
 public:
  virtual ~Exchange() = default;
  const RequestHead& head() const { return reader_.head(); }
  std::string_view path() const { return path_; }    // not percent-decoded
  std::string_view query() const { return query_; }  // after the question mark
  std::string& body() { return reader_.body(); }
  uint64_t body_bytes() const { return reader_.body_bytes(); }
  const std::string& remote() const { return remote_; }  // address of the peer; "unix" for a unix socket
  // Address of the client: that of the peer unless it is a trusted proxy that names another one.
  const std::string& client() const { return client_.address.empty() ? remote_ : client_.address; }
  bool client_unclear() const { return client_.unclear; }
  int thread() const { return thread_; }
  int64_t begun_ns() const { return begun_ns_; }        // time of the first byte
  int64_t received_ns() const { return received_ns_; }  // time of the last byte

  // Call exactly once per request, from handle() or later.
  virtual void answer(Response&& response) = 0;

  // Call from admit() only: the body is passed to Handler::take() in pieces instead of body().
  void stream_body() { streams_ = true; }
  // Deliver no further pieces until resume(), which must not be called from take().
  virtual void pause() = 0;
  virtual void resume() = 0;
  // Streamed response, instead of answer(); allowed before the end of the request body. `head.body` is the first piece.
  // Without a length the pieces are sent as chunks. Unsent pieces stay in memory: see unsent() and Handler::sent().
  virtual void begin_answer(Response&& head, std::optional<uint64_t> length) = 0;
  virtual void send(std::string_view bytes) = 0;
  virtual void end_answer() = 0;
  virtual size_t unsent() const = 0;
  virtual void drop() = 0;  // closes the connection at once and calls gone() before it returns

  uint64_t tag = 0;    // for the handler; 0 for every new request
  std::string fields;  // header fields of every response to this request, each "Name: value\r\n"

 protected:
  Exchange(const FramingLimits& limits, int thread) : reader_(limits), thread_(thread) {}
  RequestReader reader_;
  std::string_view path_, query_;
  std::string remote_;
  TrustedProxies::Client client_;
  bool streams_ = false;
  const int thread_;
  int64_t begun_ns_ = 0, received_ns_ = 0;
};

// Processes requests. Calls for one exchange come from its thread; several threads call at the same time.
class Handler {
 public:
  virtual ~Handler() = default;
  // Called after the head and before the body. A response rejects the request without reading its body. Each admitted
  // request ends with either answered() or gone().
  virtual std::optional<Response> admit(Exchange& exchange) = 0;
  virtual void handle(Exchange& exchange) = 0;
  // A piece of a streamed body; handle() follows the last one.
  virtual void take(Exchange& exchange, std::string_view bytes);
  // The system has taken all pieces of a streamed response so far; not called after end_answer().
  virtual void sent(Exchange& exchange);
  // Largest body of a request with this head; nullopt: the limit of HttpOptions::framing.
  virtual std::optional<uint64_t> body_limit(const RequestHead& head) const;
  // The client disconnected before its response was sent. The exchange ends with this call.
  virtual void gone(Exchange& exchange) noexcept = 0;
  // Response to a malformed or slow request.
  virtual Response refused(int status, const std::string& problem) = 0;
  // The system has taken a whole response; also called for requests that were never admitted.
  virtual void answered(Exchange& exchange, int status, size_t bytes) noexcept = 0;
};

class HttpServer {
 public:
  // Listens at once and throws if it cannot; start() begins to accept.
  HttpServer(const ListenAddress& address, const HttpOptions& options, Handler& handler);
  ~HttpServer();  // closes all connections
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  void start();
  uint16_t port() const;
  int threads() const;
  // Runs `work` soon on an I/O thread. May be called by any thread; nothing runs after stop() has returned.
  void post(int thread, std::function<void()> work);

  void set_tls(std::shared_ptr<const TlsContext> tls);  // for new connections; requires HttpOptions::tls

  void close_after_answers();  // each response from now on closes its connection
  void stop_accepting();       // returns once no thread accepts; open connections stay
  void stop_listening();       // also closes idle connections; does not wait
  size_t connections() const;
  size_t busy() const;  // connections with an unfinished request
  uint64_t refused_connections() const;
  void stop();

 private:
  friend struct IoLoop;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace brim::http
