// SPDX-License-Identifier: Apache-2.0
// HTTP/1.1 on sockets: a few threads, each with connections of its own that never move to another. It knows bytes,
// limits and time; what a request means is the Handler's. Requests are read by serve/framing, one parser and no other.
//
// Every wait has an absolute end: a head that trickles in, a body that crawls, an answer nobody reads, a connection
// nobody uses. At the connection limit a new client replaces the connection that waited longest for its client. A
// client that leaves while its request is worked on is reported.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "serve/framing.h"
#include "serve/listen.h"
#include "serve/proxies.h"
#include "serve/tls.h"

namespace brim::serve {

struct HttpOptions {
  int threads = 1;
  FramingLimits framing;
  std::shared_ptr<const TlsContext> tls = {};  // none: bytes as they are
  double tls_seconds = 5;                      // until hands are shaken
  double head_seconds = 5;                     // to begin a connection's first request; from the first byte of a
                                               // request to the end of its head
  double body_seconds = 10;                    // for its body, and a second more for each …
  double least_bytes_per_second = 8192;        // … of these that came; answers likewise
  double answer_seconds = 30;                  // until the client has read its answer
  double idle_seconds = 75;                    // between requests; before the first one head_seconds
  size_t connections = 1024;                   // when full, the one that waited longest for its client is closed
  size_t connections_for_loopback = 16;        // of these, at most a quarter: health checks get in whoever else comes
  size_t connections_per_address = 256;        // unlimited for unix sockets and trusted proxies
  TrustedProxies proxies = {};
  int64_t body_bytes = int64_t{256} << 20;  // of all requests that are being read or worked on, and of their answers
};

struct Response {
  int status = 200;
  std::string body;
  const char* content_type = "application/json";
  std::string fields = {};  // further ones, each "Name: value\r\n"
  bool close = false;       // the connection, after it
};

// One request, from the end of its head to the end of its answer. Its thread's alone.
class Exchange {
 public:
  virtual ~Exchange() = default;
  const RequestHead& head() const { return reader_.head(); }
  std::string_view path() const { return path_; }    // of the target, not decoded
  std::string_view query() const { return query_; }  // behind its question mark
  std::string& body() { return reader_.body(); }
  uint64_t body_bytes() const { return reader_.body_bytes(); }
  // Who is at the other end, "unix" for a socket in the file system; and whose request it is, which may be another
  // where that is a trusted proxy.
  const std::string& remote() const { return remote_; }
  const std::string& client() const { return client_.address.empty() ? remote_ : client_.address; }
  bool client_unclear() const { return client_.unclear; }
  int thread() const { return thread_; }
  int64_t begun_ns() const { return begun_ns_; }        // its first byte
  int64_t received_ns() const { return received_ns_; }  // its last

  // Once for each request, on its thread, from handle() or later.
  virtual void answer(Response&& response) = 0;

  // From admit() alone: the body goes to Handler::take() piece by piece, and not into body().
  void stream_body() { streams_ = true; }
  // No further pieces until resume(), which is not called from within take().
  virtual void pause() = 0;
  virtual void resume() = 0;
  // Instead of answer(), also before the body has ended: a head (its body is the first piece), pieces, an end. Without
  // a length the pieces are chunks. What is sent is kept until the client reads it: see unsent(), Handler::sent().
  virtual void begin_answer(Response&& head, std::optional<uint64_t> length) = 0;
  virtual void send(std::string_view bytes) = 0;
  virtual void end_answer() = 0;
  virtual size_t unsent() const = 0;
  virtual void drop() = 0;  // ends the connection as it is; gone() comes from within

  uint64_t tag = 0;    // the handler's own; 0 for every new request
  std::string fields;  // of its answer's head, whatever that is; each "Name: value\r\n"

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

// What is done with requests. Calls of one exchange come from its thread; several threads call at once.
class Handler {
 public:
  virtual ~Handler() = default;
  // The head is there, the body is not: an answer refuses the request before its body is read. What was admitted ends
  // with answered() or gone(), and with one of them alone.
  virtual std::optional<Response> admit(Exchange& exchange) = 0;
  virtual void handle(Exchange& exchange) = 0;
  // A piece of a body that is streamed; handle() comes after the last.
  virtual void take(Exchange& exchange, std::string_view bytes);
  // The pieces of an answer so far were handed to the system, and its end was not given yet.
  virtual void sent(Exchange& exchange);
  // The longest body a request of this head may have, where it is not that of the framing's limits.
  virtual std::optional<uint64_t> body_limit(const RequestHead& head) const;
  // The client left before it had its answer; the exchange ends with this call.
  virtual void gone(Exchange& exchange) noexcept = 0;
  // What to answer to bytes that are no request, or come too slowly.
  virtual Response refused(int status, const std::string& problem) = 0;
  // An answer was handed to the system whole; also one to bytes that were never admitted.
  virtual void answered(Exchange& exchange, int status, size_t bytes) noexcept = 0;
};

class HttpServer {
 public:
  // Listens at once and fails if it cannot; start() begins to accept.
  HttpServer(const ListenAddress& address, const HttpOptions& options, Handler& handler);
  ~HttpServer();  // ends what is open
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  void start();
  uint16_t port() const;
  int threads() const;
  // Runs `work` on a thread, soon. Any thread; nothing is run once stop() has returned.
  void post(int thread, std::function<void()> work);

  void set_tls(std::shared_ptr<const TlsContext> tls);  // for connections to come, of a server that has TLS

  void close_after_answers();  // every answer from now on ends its connection
  void stop_accepting();       // waits for it, once started; connections that are open stay
  void stop_listening();       // and closes connections that are idle
  size_t connections() const;
  size_t busy() const;  // those with a request on its way
  uint64_t refused_connections() const;
  void stop();

 private:
  friend struct IoLoop;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace brim::serve
