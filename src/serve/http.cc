// SPDX-License-Identifier: Apache-2.0
// The only file that sees Boost. Asio brings sockets and the event loop; its HTTP parser is not used, since two parsers
// of one message are what request smuggling lives on.
#include "serve/http.h"

#if defined(__SANITIZE_THREAD__)  // it does not know fences; the queues' locks order what they would
#define BOOST_ASIO_DISABLE_FENCED_BLOCK 1
#endif

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/basic_waitable_timer.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <latch>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "serve/answers.h"

namespace brim::serve {
namespace {

namespace asio = boost::asio;
using Executor = asio::io_context::executor_type;
using Protocol = asio::generic::stream_protocol;
using Socket = asio::basic_stream_socket<Protocol, Executor>;
using Acceptor = asio::basic_socket_acceptor<Protocol, Executor>;
using Timer =
    asio::basic_waitable_timer<std::chrono::steady_clock, asio::wait_traits<std::chrono::steady_clock>, Executor>;
using Failure = boost::system::error_code;

constexpr size_t kReadBytes = 16 << 10;
constexpr size_t kAheadBytes = 64 << 10;  // of later requests, while one is worked on
constexpr size_t kLingerBytes = 1 << 20;  // of a refused body, so that the answer is read and not reset
constexpr double kLingerSeconds = 2;
constexpr size_t kSealedBytes = 64 << 10;  // of an answer under TLS, at one time
constexpr size_t kJoinedBytes = 32 << 10;  // answers up to this size are one piece
constexpr std::chrono::milliseconds kTick(100);
constexpr int64_t kNever = INT64_MAX;

int64_t in_seconds(double seconds) { return now_ns() + static_cast<int64_t>(seconds * 1e9); }

std::string address_text(const Protocol::endpoint& peer) {
  char text[INET6_ADDRSTRLEN] = "";
  const sockaddr* name = peer.data();
  if (name->sa_family == AF_INET)
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(name)->sin_addr, text, sizeof text);
  else if (name->sa_family == AF_INET6)
    ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(name)->sin6_addr, text, sizeof text);
  return text[0] == '\0' ? "unix" : text;
}

class Connection;

}  // namespace

// One thread and its connections.
struct IoLoop {
  IoLoop(HttpServer::Impl& owner, int number) : server(owner), index(number) {}
  void run();
  void accept();
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
  std::unordered_map<Connection*, std::shared_ptr<Connection>> open;
  std::string date_text;
  std::time_t date_second = 0;
  std::thread thread;
};

struct HttpServer::Impl {
  Impl(const ListenAddress& address, const HttpOptions& o, Handler& h) : options(o), handler(h), listener(address) {
    options.framing.body_of = [this](const RequestHead& head) {
      return handler.body_limit(head).value_or(options.framing.body);
    };
  }

  // False: there are too many, of all or of this address.
  bool take_place(const std::string& remote) {
    std::lock_guard lock(places_mutex);
    int& held = places[remote];
    if (connections >= options.connections ||
        (remote != "unix" && held >= static_cast<int>(options.connections_per_address))) {
      if (held == 0) places.erase(remote);
      ++refused_connections;
      return false;
    }
    ++held;
    ++connections;
    return true;
  }
  void leave_place(const std::string& remote) {
    std::lock_guard lock(places_mutex);
    if (--places[remote] == 0) places.erase(remote);
    --connections;
  }

  std::shared_ptr<const TlsContext> tls() {
    std::lock_guard lock(places_mutex);
    return options.tls;
  }

  HttpOptions options;
  Handler& handler;
  Listener listener;
  std::vector<std::unique_ptr<IoLoop>> loops;
  std::mutex places_mutex;
  std::map<std::string, int> places;
  std::atomic<size_t> connections{0}, busy{0};
  std::atomic<int64_t> body_bytes{0};
  std::atomic<uint64_t> refused_connections{0};
  std::atomic<bool> closing{false}, deaf{false};
  std::atomic<int64_t> warned_ns{0};
};

namespace {

class Connection final : public Exchange, public std::enable_shared_from_this<Connection> {
 public:
  Connection(IoLoop& loop, Socket socket, std::string remote)
      : Exchange(loop.server.options.framing, loop.index), loop_(loop), socket_(std::move(socket)) {
    remote_ = std::move(remote);
    if (auto tls = loop.server.tls()) tls_ = TlsSession::begin(std::move(tls));
  }

  void begin() {
    Failure failure;
    socket_.non_blocking(true, failure);
    const int on = 1;
    ::setsockopt(socket_.native_handle(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    deadline_ns_ = in_seconds(tls_ != nullptr ? options().tls_seconds : options().idle_seconds);
    read();
  }

  // Too many are there already: says so and goes, without taking part.
  static void turn_away(Socket& socket, Response response) {
    std::string bytes = fmt::format(
        "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n{}\r\n{}", response.status,
        reason_phrase(response.status), response.content_type, response.body.size(), response.fields, response.body);
    Failure failure;
    socket.non_blocking(true, failure);
    socket.write_some(asio::buffer(bytes), failure);
  }

  void answer(Response&& response) override {
    if (phase_ == Phase::closed) return;
    begin_head(response, response.body.size());
    if (head().method != "HEAD") {
      if (response.body.size() <= kJoinedBytes)
        out_ += response.body;
      else
        body_ = std::move(response.body);
    }
    phase_ = Phase::writing;
    deadline_ns_ = kNever;
    write();
  }

  void pause() override {
    if (phase_ != Phase::body || std::exchange(paused_, true)) return;
    deadline_ns_ = kNever;
    paused_since_ns_ = now_ns();
  }
  void resume() override {
    if (!std::exchange(paused_, false)) return;
    body_begun_ns_ += now_ns() - paused_since_ns_;  // that time was ours
    if (phase_ != Phase::body) return;
    set_body_deadline();
    const std::string held = std::exchange(ahead_, {});
    take(held);
  }

  void begin_answer(Response&& response, std::optional<uint64_t> length) override {
    if (phase_ == Phase::closed) return;
    begin_head(response, length);
    streaming_ = true;
    chunked_ = !length && head().minor > 0;
    queued_ = std::move(out_);
    out_.clear();
    send(response.body);
    if (!writing_) write_queued();
  }
  void send(std::string_view bytes) override {
    if (phase_ == Phase::closed || bytes.empty() || head().method == "HEAD") return;
    if (chunked_)
      fmt::format_to(std::back_inserter(queued_), "{:x}\r\n{}\r\n", bytes.size(), bytes);
    else
      queued_ += bytes;
    if (!writing_) write_queued();
  }
  void end_answer() override {
    if (phase_ == Phase::closed) return;
    if (chunked_ && head().method != "HEAD") queued_ += "0\r\n\r\n";
    answer_ended_ = true;
    close_after_ = close_after_ || reader_.state() != RequestReader::State::complete;
    phase_ = Phase::writing;
    deadline_ns_ = kNever;
    if (!writing_) write_queued();
  }
  void drop() override { close(); }
  size_t unsent() const override { return queued_.size() + (writing_ ? out_.size() - written_ : 0); }

  void expire(int64_t now) {
    if (now >= write_deadline_ns_) return close();
    if (now < deadline_ns_) return;
    if (streaming_)
      close();
    else if (phase_ == Phase::head || phase_ == Phase::body)
      refuse(408, phase_ == Phase::head ? "the head of the request came too slowly"
                                        : "the body of the request came too slowly");
    else
      close();
  }
  bool is_idle() const { return phase_ == Phase::idle; }

  void close() {
    if (phase_ == Phase::closed) return;
    const auto self = shared_from_this();  // the loop lets go of it
    set_busy(false);
    phase_ = Phase::closed;
    if (std::exchange(admitted_, false)) loop_.server.handler.gone(*this);
    count_body(0);
    say_goodbye();
    Failure failure;
    socket_.close(failure);
    loop_.server.leave_place(remote_);
    loop_.open.erase(this);
  }

 private:
  enum class Phase : uint8_t { idle, head, body, handling, writing, lingering, closed };

  const HttpOptions& options() const { return loop_.server.options; }

  // Into out_, to be written from its beginning.
  void begin_head(const Response& response, std::optional<uint64_t> length) {
    BRIM_CHECK(!streaming_ && (phase_ == Phase::handling || phase_ == Phase::head || phase_ == Phase::body),
               "a request answered in phase {}", static_cast<int>(phase_));
    const bool whole = reader_.state() == RequestReader::State::complete;
    close_after_ = response.close || !head().keep_alive || loop_.server.closing || (!whole && !streams_) ||
                   (!length && head().minor == 0);
    status_ = response.status;
    out_.clear();
    body_.clear();
    written_ = 0;
    write_begun_ns_ = now_ns();
    fmt::format_to(std::back_inserter(out_), "HTTP/1.1 {} {}\r\nDate: {}\r\n", response.status,
                   reason_phrase(response.status), loop_.date());
    if (length)
      fmt::format_to(std::back_inserter(out_), "Content-Length: {}\r\n", *length);
    else if (head().minor > 0)
      out_ += "Transfer-Encoding: chunked\r\n";
    if (length.value_or(1) > 0) {
      out_ += "Content-Type: ";
      out_ += response.content_type;
      out_ += "\r\n";
    }
    out_ += response.fields;
    out_ += fields;
    if (close_after_)
      out_ += "Connection: close\r\n";
    else if (head().minor == 0)
      out_ += "Connection: keep-alive\r\n";
    out_ += "\r\n";
  }

  void read() {
    if (reading_ || ended_ || phase_ == Phase::closed) return;
    reading_ = true;
    socket_.async_read_some(asio::buffer(in_), [self = shared_from_this()](const Failure& failure, size_t bytes) {
      self->reading_ = false;
      self->on_read(failure, bytes);
    });
  }

  void on_read(const Failure& failure, size_t bytes) {
    if (phase_ == Phase::closed) return;
    if (failure) {
      ended_ = true;
      if (phase_ != Phase::writing) close();
      return;
    }
    std::string_view came(in_.data(), bytes);
    if (tls_ != nullptr && !decipher(came)) return;
    if (paused_) {
      ahead_ += came;
      return;
    }
    if (phase_ == Phase::lingering) {
      lingered_ += bytes;
      if (lingered_ > kLingerBytes)
        close();
      else
        read();
    } else if (phase_ == Phase::handling || phase_ == Phase::writing) {
      ahead_ += came;
      if (ahead_.size() < kAheadBytes) read();
    } else {
      take(came);
    }
  }

  // What the bytes say, in plain_. False: nothing yet, or never.
  bool decipher(std::string_view& came) {
    const bool was_ready = tls_->ready();
    if (!was_ready && !greeted_ && came.front() >= 'A' && came.front() <= 'Z') {  // a request, as it is
      tls_.reset();
      begun_ns_ = received_ns_ = now_ns();
      refuse(400, "this port speaks TLS: https://");
      return false;
    }
    greeted_ = true;
    plain_.clear();
    const bool goes_on = tls_->take(came, plain_);
    push();
    if (!was_ready && tls_->ready()) deadline_ns_ = in_seconds(options().idle_seconds);
    came = plain_;
    if (goes_on && came.empty()) {
      read();
      return false;
    }
    if (goes_on) return true;
    ended_ = true;  // what it said last came without its end: nobody waits for the answer
    if (phase_ != Phase::writing || tls_->broken()) close();
    return false;
  }

  // Bytes of the session itself, and sealed pieces of answers, in order.
  void push() {
    if (pushing_ || tls_->outgoing().empty()) return;
    pushing_ = true;
    sealed_ = std::exchange(tls_->outgoing(), {});
    pushed_ = 0;
    push_some();
  }
  void push_some() {
    socket_.async_write_some(asio::buffer(sealed_.data() + pushed_, sealed_.size() - pushed_),
                             [self = shared_from_this()](const Failure& failure, size_t bytes) {
                               if (self->phase_ == Phase::closed) return;
                               if (failure) return self->close();
                               self->pushed_ += bytes;
                               if (self->pushed_ < self->sealed_.size()) return self->push_some();
                               self->pushing_ = false;
                               self->push();
                               if (!self->pushing_ && self->piece_ > 0)
                                 self->on_write(Failure(), std::exchange(self->piece_, 0));
                             });
  }

  void say_goodbye() {
    if (tls_ == nullptr || pushing_) return;
    tls_->end();
    Failure failure;  // a few bytes, into a socket that is empty
    socket_.write_some(asio::buffer(tls_->outgoing()), failure);
    tls_->outgoing().clear();
  }

  // Bytes of requests, while none is worked on.
  void take(std::string_view bytes) {
    while (!bytes.empty()) {
      if (paused_) {
        ahead_.assign(bytes);
        return;
      }
      if (phase_ == Phase::writing) break;  // what is answered before its end
      if (phase_ == Phase::idle) {
        phase_ = Phase::head;
        tag = 0;
        fields.clear();
        streams_ = streaming_ = answer_ended_ = chunked_ = false;
        total_written_ = 0;
        begun_ns_ = now_ns();
        deadline_ns_ = begun_ns_ + static_cast<int64_t>(options().head_seconds * 1e9);
        set_busy(true);
      }
      const bool had_head = phase_ == Phase::body;
      bytes.remove_prefix(reader_.feed(bytes));
      if (reader_.state() == RequestReader::State::refused) return refuse(reader_.status(), reader_.problem());
      if (reader_.state() == RequestReader::State::head) continue;
      if (!had_head && !take_head(bytes.empty())) return;
      if (streams_) {
        if (!give_piece()) return;
      } else if (!count_body(static_cast<int64_t>(reader_.body_bytes()))) {
        return refuse(503, "too many bodies are being read");
      }
      if (reader_.state() == RequestReader::State::complete) {
        ahead_.assign(bytes);
        return handle();
      }
      set_body_deadline();
    }
    if (!paused_) read();
  }

  void set_body_deadline() {
    if (phase_ != Phase::body || paused_) return;
    deadline_ns_ =
        body_begun_ns_ + static_cast<int64_t>((options().body_seconds + seconds_of(reader_.body_bytes())) * 1e9);
  }

  // To the handler. False: the request is over.
  bool give_piece() {
    const std::string piece = reader_.take_body();
    if (piece.empty()) return true;
    try {
      loop_.server.handler.take(*this, piece);
    } catch (const std::exception& e) {
      log_warning("{}: {}", path_, e.what());
      close();
    }
    return phase_ != Phase::closed;
  }

  // False: it was answered.
  bool take_head(bool nothing_follows) {
    phase_ = Phase::body;
    body_begun_ns_ = now_ns();
    deadline_ns_ = body_begun_ns_ + static_cast<int64_t>(options().body_seconds * 1e9);
    const std::string_view target = head().target;
    const size_t question = std::min(target.find('?'), target.size());
    path_ = target.substr(0, question);
    query_ = question == target.size() ? std::string_view() : target.substr(question + 1);
    received_ns_ = body_begun_ns_;
    admitted_ = true;
    try {
      if (auto refusal = loop_.server.handler.admit(*this)) {
        answer(std::move(*refusal));
        return false;
      }
    } catch (const std::exception& e) {
      refuse(500, e.what());
      return false;
    }
    if (head().expects_continue && nothing_follows && reader_.state() == RequestReader::State::body) {
      constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
      if (tls_ != nullptr) {
        if (!tls_->seal(kContinue)) {
          close();
          return false;
        }
        push();
      } else {
        Failure failure;  // the socket is empty: every earlier answer was taken by the system
        socket_.write_some(asio::buffer(kContinue), failure);
      }
    }
    return true;
  }

  void handle() {
    if (phase_ == Phase::writing) return;  // answered before its end
    paused_ = false;
    phase_ = Phase::handling;
    deadline_ns_ = kNever;
    received_ns_ = now_ns();
    try {
      loop_.server.handler.handle(*this);
    } catch (const std::exception& e) {
      log_warning("{}: {}", path_, e.what());
      if (phase_ == Phase::handling) answer(loop_.server.handler.refused(500, "internal error"));
    }
    if (phase_ == Phase::handling && ahead_.size() < kAheadBytes) read();  // to see it leave
  }

  void refuse(int status, const std::string& problem) {
    if (streaming_) return close();  // its head is gone
    Response response = loop_.server.handler.refused(status, problem);
    response.close = true;
    if (phase_ == Phase::idle) phase_ = Phase::head;
    answer(std::move(response));
  }

  // The time a slow client is given for so many bytes.
  double seconds_of(uint64_t bytes) const { return static_cast<double>(bytes) / options().least_bytes_per_second; }

  // What has come together for an answer in pieces.
  void write_queued() {
    out_.swap(queued_);
    queued_.clear();
    body_.clear();
    written_ = 0;
    write_begun_ns_ = now_ns();
    write();
  }

  void write() {
    writing_ = true;
    write_deadline_ns_ =
        write_begun_ns_ + static_cast<int64_t>((options().answer_seconds + seconds_of(written_)) * 1e9);
    std::array<asio::const_buffer, 2> pieces;
    if (written_ < out_.size())
      pieces = {asio::buffer(out_.data() + written_, out_.size() - written_), asio::buffer(body_)};
    else
      pieces = {asio::buffer(body_.data() + (written_ - out_.size()), body_.size() - (written_ - out_.size())),
                asio::const_buffer()};
    if (tls_ != nullptr) {
      const std::string_view next(static_cast<const char*>(pieces[0].data()), pieces[0].size());
      const size_t bytes = std::min(next.size() > 0 ? next.size() : pieces[1].size(), kSealedBytes);
      if (!tls_->seal({next.empty() ? static_cast<const char*>(pieces[1].data()) : next.data(), bytes})) {
        asio::post(loop_.io, [self = shared_from_this()] { self->close(); });  // the handler may be in answer()
        return;
      }
      piece_ = bytes;
      return push();
    }
    socket_.async_write_some(
        pieces, [self = shared_from_this()](const Failure& failure, size_t bytes) { self->on_write(failure, bytes); });
  }

  void on_write(const Failure& failure, size_t bytes) {
    if (phase_ == Phase::closed) return;
    if (failure) return close();
    written_ += bytes;
    if (written_ < out_.size() + body_.size()) return write();
    writing_ = false;
    write_deadline_ns_ = kNever;
    total_written_ += written_;
    written_ = 0;
    out_.clear();
    if (streaming_ && !queued_.empty()) return write_queued();
    if (streaming_ && !answer_ended_) return loop_.server.handler.sent(*this);
    const bool whole = reader_.state() == RequestReader::State::complete;
    admitted_ = paused_ = streaming_ = false;
    loop_.server.handler.answered(*this, status_, total_written_);
    set_busy(false);
    count_body(0);
    if (ended_ || (close_after_ && whole && ahead_.empty())) return close();
    if (close_after_) return linger();
    reader_.next();
    phase_ = Phase::idle;
    deadline_ns_ = in_seconds(options().idle_seconds);
    if (ahead_.empty()) return read();
    const std::string bytes_ahead = std::move(ahead_);
    ahead_.clear();
    take(bytes_ahead);
  }

  // Closing with bytes unread would reset the connection, and the answer with it.
  void linger() {
    say_goodbye();
    Failure failure;
    socket_.shutdown(Socket::shutdown_send, failure);
    phase_ = Phase::lingering;
    lingered_ = 0;
    deadline_ns_ = in_seconds(kLingerSeconds);
    read();
  }

  void set_busy(bool busy) {
    if (busy == busy_) return;
    busy_ = busy;
    if (busy)
      ++loop_.server.busy;
    else
      --loop_.server.busy;
  }

  // False: all requests together have too many bytes.
  bool count_body(int64_t bytes) {
    const int64_t more = bytes - counted_;
    if (more == 0) return true;
    counted_ = bytes;
    return loop_.server.body_bytes.fetch_add(more) + more <= options().body_bytes || more < 0;
  }

  IoLoop& loop_;
  Socket socket_;
  Phase phase_ = Phase::idle;
  bool reading_ = false, ended_ = false, close_after_ = false, busy_ = false, admitted_ = false;
  bool paused_ = false;  // the handler takes no pieces of the body
  // an answer in pieces: begun; its end was given; its pieces are chunks; bytes are on their way
  bool streaming_ = false, answer_ended_ = false, chunked_ = false, writing_ = false;
  int status_ = 0;
  int64_t deadline_ns_ = kNever, write_deadline_ns_ = kNever;
  int64_t body_begun_ns_ = 0, write_begun_ns_ = 0, paused_since_ns_ = 0, counted_ = 0;
  size_t written_ = 0, total_written_ = 0, lingered_ = 0;
  std::string ahead_, queued_, out_, body_;
  // under TLS: something came; bytes are on their way, so many of them sent; of an answer, so many among them
  std::unique_ptr<TlsSession> tls_;
  bool greeted_ = false, pushing_ = false;
  size_t pushed_ = 0, piece_ = 0;
  std::string plain_, sealed_;
  std::array<char, kReadBytes> in_;
};

}  // namespace

void IoLoop::run() {
  for (;;) {
    try {
      io.run();
      return;
    } catch (const std::exception& e) {  // of one connection; the others go on
      log_warning("an I/O thread goes on after: {}", e.what());
    }
  }
}

void IoLoop::accept() {
  if (accepting || server.deaf) return;
  accepting = true;
  acceptor.async_accept(peer, [this](const Failure& failure, Socket socket) {
    accepting = false;
    if (failure == asio::error::operation_aborted || server.deaf) return;
    if (failure && !acceptor.is_open()) return;
    if (failure) {
      const bool scarce = failure.value() == EMFILE || failure.value() == ENFILE || failure.value() == ENOBUFS ||
                          failure.value() == ENOMEM;
      if (!scarce) return accept();  // a client that left at once
      if (const int64_t now = now_ns(); now - server.warned_ns.load() > 60'000'000'000) {
        server.warned_ns = now;
        log_warning("connections are not accepted for now: {}", failure.message());
      }
      pause.expires_after(kTick);
      pause.async_wait([this](const Failure& stopped) {
        if (!stopped) accept();
      });
      return;
    }
    std::string remote = address_text(peer);
    if (server.take_place(remote)) {
      const auto connection = std::make_shared<Connection>(*this, std::move(socket), std::move(remote));
      open.emplace(connection.get(), connection);
      connection->begin();
    } else if (server.tls() == nullptr) {  // to others the end of the connection says it
      Connection::turn_away(socket, server.handler.refused(503, "too many connections"));
    }
    accept();
  });
}

void IoLoop::tick() {
  timer.expires_after(kTick);
  timer.async_wait([this](const Failure& failure) {
    if (failure) return;
    const int64_t now = now_ns();
    std::vector<std::shared_ptr<Connection>> all;
    all.reserve(open.size());
    for (const auto& [raw, connection] : open) all.push_back(connection);
    for (const auto& connection : all) {
      if (server.deaf && connection->is_idle())
        connection->close();
      else
        connection->expire(now);
    }
    tick();
  });
}

const std::string& IoLoop::date() {
  const std::time_t now = std::time(nullptr);
  if (now != date_second || date_text.empty()) {
    date_second = now;
    std::tm utc{};
    ::gmtime_r(&now, &utc);
    char text[64];
    std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &utc);
    date_text = text;
  }
  return date_text;
}

void Handler::take(Exchange&, std::string_view) {}
void Handler::sent(Exchange&) {}
std::optional<uint64_t> Handler::body_limit(const RequestHead&) const { return std::nullopt; }

HttpServer::HttpServer(const ListenAddress& address, const HttpOptions& options, Handler& handler)
    : impl_(std::make_unique<Impl>(address, options, handler)) {
  BRIM_CHECK(options.threads >= 1, "{} threads", options.threads);
  for (int i = 0; i < options.threads; ++i) {
    auto& loop = impl_->loops.emplace_back(std::make_unique<IoLoop>(*impl_, i));
    const int descriptor = ::fcntl(impl_->listener.descriptor(), F_DUPFD_CLOEXEC, 0);
    if (descriptor < 0) fail(ErrorCode::internal, "cannot share a listening socket: {}", std::strerror(errno));
    loop->acceptor.assign(Protocol(impl_->listener.family(), 0), descriptor);
    loop->acceptor.non_blocking(true);
  }
}

HttpServer::~HttpServer() { stop(); }

void HttpServer::start() {
  for (auto& loop : impl_->loops) {
    loop->accept();
    loop->tick();
    loop->thread = std::thread([raw = loop.get()] { raw->run(); });
  }
}

uint16_t HttpServer::port() const { return impl_->listener.port(); }
int HttpServer::threads() const { return static_cast<int>(impl_->loops.size()); }
size_t HttpServer::connections() const { return impl_->connections; }
size_t HttpServer::busy() const { return impl_->busy; }
uint64_t HttpServer::refused_connections() const { return impl_->refused_connections; }

void HttpServer::post(int thread, std::function<void()> work) {
  asio::post(impl_->loops[static_cast<size_t>(thread)]->io, std::move(work));
}

void HttpServer::set_tls(std::shared_ptr<const TlsContext> tls) {
  std::lock_guard lock(impl_->places_mutex);
  impl_->options.tls = std::move(tls);
}

void HttpServer::close_after_answers() { impl_->closing = true; }

void HttpServer::stop_accepting() {
  std::latch closed(static_cast<std::ptrdiff_t>(impl_->loops.size()));
  for (auto& loop : impl_->loops)
    asio::post(loop->io, [raw = loop.get(), &closed] {
      Failure failure;
      raw->acceptor.close(failure);
      asio::post(raw->io, [&closed] { closed.count_down(); });  // behind what was accepted before
    });
  closed.wait();
}

void HttpServer::stop_listening() {
  if (impl_->deaf.exchange(true)) return;
  for (auto& loop : impl_->loops)
    asio::post(loop->io, [raw = loop.get()] {
      Failure failure;
      raw->acceptor.close(failure);
    });
}

void HttpServer::stop() {
  impl_->deaf = true;
  for (auto& loop : impl_->loops) {
    if (!loop->thread.joinable()) continue;
    asio::post(loop->io, [raw = loop.get()] {
      while (!raw->open.empty()) raw->open.begin()->second->close();
      raw->io.stop();
    });
    loop->thread.join();
  }
}

}  // namespace brim::serve
