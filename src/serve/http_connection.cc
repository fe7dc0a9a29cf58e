// SPDX-License-Identifier: Apache-2.0
// The bytes of one connection: a request is read, handed over and answered, each within its time; with TLS and without.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "serve/answers.h"
#include "serve/http_loop.h"

namespace brim::serve {
namespace {

constexpr size_t kReadBytes = 16 << 10;
constexpr size_t kAheadBytes = 64 << 10;  // of later requests, while one is worked on
constexpr size_t kLingerBytes = 1 << 20;  // of a refused body, so that the answer is read and not reset
constexpr double kLingerSeconds = 2;
constexpr size_t kSealedBytes = 64 << 10;  // of an answer under TLS, at one time
constexpr size_t kJoinedBytes = 32 << 10;  // answers up to this size are one piece
constexpr int64_t kNever = INT64_MAX;

int64_t in_seconds(double seconds) { return now_ns() + static_cast<int64_t>(seconds * 1e9); }

class Connection final : public Exchange, public OpenConnection, public std::enable_shared_from_this<Connection> {
 public:
  Connection(IoLoop& loop, Socket socket, std::shared_ptr<ConnectionSlot> slot)
      : Exchange(loop.server.options.framing, loop.index),
        loop_(loop),
        socket_(std::move(socket)),
        slot_(std::move(slot)) {
    remote_ = slot_->remote;
    if (auto tls = loop.server.tls()) tls_ = TlsSession::begin(std::move(tls));
  }

  void begin() override {
    Failure failure;
    socket_.non_blocking(true, failure);
    const int on = 1;
    ::setsockopt(socket_.native_handle(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    deadline_ns_ = in_seconds(tls_ != nullptr ? options().tls_seconds : options().head_seconds);
    slot_->waiting_since_ns = now_ns();
    read();
  }

  void answer(Response&& response) override {
    if (phase_ == Phase::closed) return;
    begin_head(response, response.body.size(), reader_.state() == RequestReader::State::complete);
    if (head().method != "HEAD") {
      if (response.body.size() <= kJoinedBytes)
        out_ += response.body;
      else
        body_ = std::move(response.body);
    }
    // Who does not read keeps others' bodies out, and takes no memory beyond the bound.
    count_body(counted_ + static_cast<int64_t>(body_.size()));
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
    begin_head(response, length, streams_ || reader_.state() == RequestReader::State::complete);
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

  void expire(int64_t now) override {
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
  bool is_idle() const override { return phase_ == Phase::idle; }

  void close() override {
    if (phase_ == Phase::closed) return;
    const auto self = shared_from_this();  // the loop lets go of it
    set_busy(false);
    phase_ = Phase::closed;
    if (std::exchange(admitted_, false)) loop_.server.handler.gone(*this);
    count_body(0);
    say_goodbye();
    Failure failure;
    socket_.close(failure);
    slot_->connection = nullptr;
    loop_.server.table.remove(slot_);
    loop_.open.erase(this);
  }

 private:
  enum class Phase : uint8_t { idle, head, body, handling, writing, lingering, closed };

  const HttpOptions& options() const { return loop_.server.options; }

  // Into out_, to be written from its beginning. Not `whole`: what is left of the request will not be read, so that
  // nothing can follow it.
  void begin_head(const Response& response, std::optional<uint64_t> length, bool whole) {
    BRIM_CHECK(!streaming_ && (phase_ == Phase::handling || phase_ == Phase::head || phase_ == Phase::body),
               "a request answered in phase {}", static_cast<int>(phase_));
    slot_->waiting_since_ns = ConnectionSlot::kBusy;
    close_after_ =
        response.close || !head().keep_alive || loop_.server.closing || !whole || (!length && head().minor == 0);
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
    if (!was_ready && tls_->ready()) deadline_ns_ = in_seconds(options().head_seconds);
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
        client_ = {};
        streams_ = streaming_ = answer_ended_ = chunked_ = false;
        total_written_ = 0;
        begun_ns_ = now_ns();
        slot_->waiting_since_ns = begun_ns_;
        deadline_ns_ = begun_ns_ + static_cast<int64_t>(options().head_seconds * 1e9);
        set_busy(true);
      }
      const bool had_head = phase_ == Phase::body;
      bytes.remove_prefix(reader_.feed(bytes));
      if (reader_.state() == RequestReader::State::refused) return refuse(reader_.status(), reader_.problem());
      if (reader_.state() == RequestReader::State::head) continue;
      if (!had_head && !take_head(bytes.empty())) {
        ahead_.assign(bytes);
        return;
      }
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
    slot_->waiting_since_ns = ConnectionSlot::kBusy;
    body_begun_ns_ = now_ns();
    deadline_ns_ = body_begun_ns_ + static_cast<int64_t>(options().body_seconds * 1e9);
    const std::string_view target = head().target;
    const size_t question = std::min(target.find('?'), target.size());
    path_ = target.substr(0, question);
    query_ = question == target.size() ? std::string_view() : target.substr(question + 1);
    received_ns_ = body_begun_ns_;
    client_ = options().proxies.client_of(remote_, head());
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
      if (bytes == 0)  // nothing is pushed then, so that nothing would report its end
        return asio::post(loop_.io, [self = shared_from_this()] { self->on_write(Failure(), 0); });
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
    slot_->waiting_since_ns = now_ns();
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
    slot_->waiting_since_ns = now_ns();
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
  const std::shared_ptr<ConnectionSlot> slot_;
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

std::shared_ptr<OpenConnection> make_connection(IoLoop& loop, Socket socket, std::shared_ptr<ConnectionSlot> slot) {
  return std::make_shared<Connection>(loop, std::move(socket), std::move(slot));
}

void turn_away(Socket& socket, const Response& response) {
  std::string bytes = fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n{}\r\n{}", response.status,
      reason_phrase(response.status), response.content_type, response.body.size(), response.fields, response.body);
  Failure failure;
  socket.non_blocking(true, failure);
  socket.write_some(asio::buffer(bytes), failure);
}

}  // namespace brim::serve
