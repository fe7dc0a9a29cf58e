// SPDX-License-Identifier: Apache-2.0
// Lifetime of a connection and the reading of requests.
#include "http/connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace brim::http {
namespace {

constexpr size_t kPendingBytes = 64 << 10;  // limit of later requests while one is processed
constexpr size_t kLingerBytes =
    1 << 20;  // limit of a rejected body that is read, so that the client can read the response

}  // namespace

Connection::Connection(IoLoop& loop, Socket socket, std::shared_ptr<ConnectionSlot> slot)
    : Exchange(loop.server.options.framing, loop.index),
      loop_(loop),
      socket_(std::move(socket)),
      slot_(std::move(slot)) {
  remote_ = slot_->remote;
  if (auto tls = loop.server.tls()) tls_ = TlsSession::begin(std::move(tls));
}

void Connection::begin() {
  IoError ignored;
  socket_.non_blocking(true, ignored);
  const int on = 1;
  ::setsockopt(socket_.native_handle(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  deadline_ns_ = in_seconds(tls_ != nullptr ? options().tls_seconds : options().head_seconds);
  slot_->waiting_since_ns = now_ns();
  read();
}

void Connection::expire(int64_t now) {
  if (now >= write_deadline_ns_) return close();
  if (now < deadline_ns_) return;
  if (streaming_)
    close();
  else if (phase_ == Phase::head || phase_ == Phase::body)
    reject(408,
           phase_ == Phase::head ? "timeout while reading the request head" : "timeout while reading the request body");
  else
    close();
}

void Connection::close() {
  if (phase_ == Phase::closed) return;
  const auto self = shared_from_this();  // outlives the removal from the event loop
  set_busy(false);
  phase_ = Phase::closed;
  if (std::exchange(admitted_, false)) loop_.server.handler.gone(*this);
  count_body(0);
  shut_down_tls();
  IoError ignored;
  socket_.close(ignored);
  slot_->connection = nullptr;
  loop_.server.table.remove(slot_);
  loop_.connections.erase(this);
}

void Connection::pause() {
  if (phase_ != Phase::body || std::exchange(paused_, true)) return;
  deadline_ns_ = kNever;
  paused_since_ns_ = now_ns();
}

void Connection::resume() {
  if (!std::exchange(paused_, false)) return;
  body_begun_ns_ += now_ns() - paused_since_ns_;  // the pause does not count against the client
  if (phase_ != Phase::body) return;
  set_body_deadline();
  const std::string bytes = std::exchange(pending_, {});
  process(bytes);
}

void Connection::read() {
  if (reading_ || client_ended_ || phase_ == Phase::closed) return;
  reading_ = true;
  socket_.async_read_some(asio::buffer(in_), [self = shared_from_this()](const IoError& error, size_t bytes) {
    self->reading_ = false;
    self->on_read(error, bytes);
  });
}

void Connection::on_read(const IoError& error, size_t bytes) {
  if (phase_ == Phase::closed) return;
  if (error) {
    client_ended_ = true;
    if (phase_ != Phase::writing) close();
    return;
  }
  std::string_view received(in_.data(), bytes);
  if (tls_ != nullptr && !decrypt(received)) return;
  if (paused_) {
    pending_ += received;
    return;
  }
  if (phase_ == Phase::lingering) {
    lingered_ += bytes;
    if (lingered_ > kLingerBytes)
      close();
    else
      read();
  } else if (phase_ == Phase::handling || phase_ == Phase::writing) {
    pending_ += received;
    if (pending_.size() < kPendingBytes) read();
  } else {
    process(received);
  }
}

// Replaces the ciphertext by its plaintext. False if there is none yet or the session has ended.
bool Connection::decrypt(std::string_view& bytes) {
  const bool was_ready = tls_->ready();
  if (!was_ready && !tls_started_ && bytes.front() >= 'A' && bytes.front() <= 'Z') {  // a plaintext request
    tls_.reset();
    begun_ns_ = received_ns_ = now_ns();
    reject(400, "this port requires TLS (https://)");
    return false;
  }
  tls_started_ = true;
  plaintext_.clear();
  const bool open = tls_->decrypt(bytes, plaintext_);
  flush_tls();
  if (!was_ready && tls_->ready()) deadline_ns_ = in_seconds(options().head_seconds);
  bytes = plaintext_;
  if (open && bytes.empty()) {
    read();
    return false;
  }
  if (open) return true;
  client_ended_ = true;  // the client ended the session; plaintext received with its end is dropped
  if (phase_ != Phase::writing || tls_->broken()) close();
  return false;
}

// Reads requests from received bytes while none is being handled.
void Connection::process(std::string_view bytes) {
  while (!bytes.empty()) {
    if (paused_) {
      pending_.assign(bytes);
      return;
    }
    if (phase_ == Phase::writing) break;  // answered before the end of its body
    if (phase_ == Phase::idle) begin_request();
    const bool had_head = phase_ == Phase::body;
    bytes.remove_prefix(reader_.feed(bytes));
    if (reader_.state() == RequestReader::State::rejected) return reject(reader_.status(), reader_.problem());
    if (reader_.state() == RequestReader::State::head) continue;
    if (!had_head && !on_head(bytes.empty())) {
      pending_.assign(bytes);
      return;
    }
    if (streams_) {
      if (!deliver_piece()) return;
    } else if (!count_body(static_cast<int64_t>(reader_.body_bytes()))) {
      return reject(503, "too many request bodies in memory");
    }
    if (reader_.state() == RequestReader::State::complete) {
      pending_.assign(bytes);
      return call_handler();
    }
    set_body_deadline();
  }
  if (!paused_) read();
}

void Connection::begin_request() {
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

// False if the request was rejected or the connection closed. `body_missing`: no byte after the head was received yet.
bool Connection::on_head(bool body_missing) {
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
    reject(500, e.what());
    return false;
  }
  const bool wants_continue = head().expects_continue && body_missing && reader_.state() == RequestReader::State::body;
  return !wants_continue || send_continue();
}

// False if the connection was closed.
bool Connection::send_continue() {
  constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  if (tls_ == nullptr) {
    IoError ignored;  // the socket buffer is empty: the system has taken all earlier responses
    socket_.write_some(asio::buffer(kContinue), ignored);
    return true;
  }
  if (!tls_->encrypt(kContinue)) {
    close();
    return false;
  }
  flush_tls();
  return true;
}

// Passes received bytes of a streamed body to the handler. False if the connection was closed.
bool Connection::deliver_piece() {
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

void Connection::set_body_deadline() {
  if (phase_ != Phase::body || paused_) return;
  deadline_ns_ =
      body_begun_ns_ + static_cast<int64_t>((options().body_seconds + seconds_of(reader_.body_bytes())) * 1e9);
}

void Connection::call_handler() {
  if (phase_ == Phase::writing) return;  // answered before the end of its body
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
  if (phase_ == Phase::handling && pending_.size() < kPendingBytes) read();  // to notice a disconnect
}

void Connection::reject(int status, const std::string& problem) {
  if (streaming_) return close();  // the head of the response was already sent
  Response response = loop_.server.handler.refused(status, problem);
  response.close = true;
  if (phase_ == Phase::idle) phase_ = Phase::head;
  answer(std::move(response));
}

void Connection::set_busy(bool busy) {
  if (busy == busy_) return;
  busy_ = busy;
  if (busy)
    ++loop_.server.busy;
  else
    --loop_.server.busy;
}

// Sets this connection's share of the bytes of all bodies. False if they now exceed the limit.
bool Connection::count_body(int64_t bytes) {
  const int64_t more = bytes - counted_bytes_;
  if (more == 0) return true;
  counted_bytes_ = bytes;
  return loop_.server.body_bytes.fetch_add(more) + more <= options().body_bytes || more < 0;
}

std::shared_ptr<OpenConnection> make_connection(IoLoop& loop, Socket socket, std::shared_ptr<ConnectionSlot> slot) {
  return std::make_shared<Connection>(loop, std::move(socket), std::move(slot));
}

}  // namespace brim::http
