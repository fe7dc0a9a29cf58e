// SPDX-License-Identifier: Apache-2.0
// Writing of responses, with and without TLS.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "http/connection.h"
#include "http/status.h"

namespace brim::http {
namespace {

constexpr double kLingerSeconds = 2;
constexpr size_t kTlsWriteBytes = 64 << 10;  // response bytes encrypted at once
constexpr size_t kJoinedBytes = 32 << 10;    // a body up to this size is appended to its head

}  // namespace

void Connection::answer(Response&& response) {
  if (phase_ == Phase::closed) return;
  start_response(response, response.body.size(), reader_.state() == RequestReader::State::complete);
  if (head().method != "HEAD") {
    if (response.body.size() <= kJoinedBytes)
      out_ += response.body;
    else
      body_ = std::move(response.body);
  }
  // Unread responses count against the same limit as request bodies, which bounds memory.
  count_body(counted_bytes_ + static_cast<int64_t>(body_.size()));
  phase_ = Phase::writing;
  deadline_ns_ = kNever;
  write();
}

void Connection::begin_answer(Response&& response, std::optional<uint64_t> length) {
  if (phase_ == Phase::closed) return;
  start_response(response, length, streams_ || reader_.state() == RequestReader::State::complete);
  streaming_ = true;
  chunked_ = !length && head().minor > 0;
  queued_ = std::move(out_);
  out_.clear();
  send(response.body);
  if (!writing_) write_queued();
}

void Connection::send(std::string_view bytes) {
  if (phase_ == Phase::closed || bytes.empty() || head().method == "HEAD") return;
  if (chunked_)
    fmt::format_to(std::back_inserter(queued_), "{:x}\r\n{}\r\n", bytes.size(), bytes);
  else
    queued_ += bytes;
  if (!writing_) write_queued();
}

void Connection::end_answer() {
  if (phase_ == Phase::closed) return;
  if (chunked_ && head().method != "HEAD") queued_ += "0\r\n\r\n";
  answer_ended_ = true;
  close_after_ = close_after_ || reader_.state() != RequestReader::State::complete;
  phase_ = Phase::writing;
  deadline_ns_ = kNever;
  if (!writing_) write_queued();
}

// Puts the head of the response into out_. Unless `request_is_read`, the rest of the request will not be read, so no
// other request can follow on this connection.
void Connection::start_response(const Response& response, std::optional<uint64_t> length, bool request_is_read) {
  BRIM_CHECK(!streaming_ && (phase_ == Phase::handling || phase_ == Phase::head || phase_ == Phase::body),
             "a response in phase {}", static_cast<int>(phase_));
  slot_->waiting_since_ns = ConnectionSlot::kBusy;
  close_after_ = response.close || !head().keep_alive || loop_.server.closing || !request_is_read ||
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

void Connection::write_queued() {
  out_.swap(queued_);
  queued_.clear();
  body_.clear();
  written_ = 0;
  write_begun_ns_ = now_ns();
  write();
}

void Connection::write() {
  writing_ = true;
  write_deadline_ns_ = write_begun_ns_ + static_cast<int64_t>((options().answer_seconds + seconds_of(written_)) * 1e9);
  std::array<asio::const_buffer, 2> pieces;
  if (written_ < out_.size())
    pieces = {asio::buffer(out_.data() + written_, out_.size() - written_), asio::buffer(body_)};
  else
    pieces = {asio::buffer(body_.data() + (written_ - out_.size()), body_.size() - (written_ - out_.size())),
              asio::const_buffer()};
  if (tls_ == nullptr)
    return socket_.async_write_some(
        pieces, [self = shared_from_this()](const IoError& error, size_t bytes) { self->on_write(error, bytes); });
  const asio::const_buffer& next = pieces[0].size() > 0 ? pieces[0] : pieces[1];
  write_encrypted({static_cast<const char*>(next.data()), std::min(next.size(), kTlsWriteBytes)});
}

void Connection::write_encrypted(std::string_view bytes) {
  if (!tls_->encrypt(bytes)) {
    asio::post(loop_.io, [self = shared_from_this()] { self->close(); });  // not now, the handler may be in answer()
    return;
  }
  if (bytes.empty())  // nothing is written, so no completion would follow
    return asio::post(loop_.io, [self = shared_from_this()] { self->on_write(IoError(), 0); });
  plain_bytes_ = bytes.size();
  flush_tls();
}

void Connection::on_write(const IoError& error, size_t bytes) {
  if (phase_ == Phase::closed) return;
  if (error) return close();
  written_ += bytes;
  if (written_ < out_.size() + body_.size()) return write();
  writing_ = false;
  write_deadline_ns_ = kNever;
  total_written_ += written_;
  written_ = 0;
  out_.clear();
  if (streaming_ && !queued_.empty()) return write_queued();
  if (streaming_ && !answer_ended_) return loop_.server.handler.sent(*this);
  finish_response();
}

// Closes the connection or continues with the next request.
void Connection::finish_response() {
  const bool request_is_read = reader_.state() == RequestReader::State::complete;
  admitted_ = paused_ = streaming_ = false;
  loop_.server.handler.answered(*this, status_, total_written_);
  set_busy(false);
  count_body(0);
  if (client_ended_ || (close_after_ && request_is_read && pending_.empty())) return close();
  if (close_after_) return linger();
  reader_.reset();
  phase_ = Phase::idle;
  slot_->waiting_since_ns = now_ns();
  deadline_ns_ = in_seconds(options().idle_seconds);
  if (pending_.empty()) return read();
  const std::string bytes = std::exchange(pending_, {});
  process(bytes);
}

// Closing a socket with unread bytes resets the connection, and the client may lose the response.
void Connection::linger() {
  shut_down_tls();
  IoError ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
  phase_ = Phase::lingering;
  slot_->waiting_since_ns = now_ns();
  lingered_ = 0;
  deadline_ns_ = in_seconds(kLingerSeconds);
  read();
}

// Writes what the TLS session has produced: handshake messages and encrypted response bytes, in order.
void Connection::flush_tls() {
  if (tls_writing_ || tls_->outgoing().empty()) return;
  tls_writing_ = true;
  ciphertext_ = std::exchange(tls_->outgoing(), {});
  tls_written_ = 0;
  write_ciphertext();
}

void Connection::write_ciphertext() {
  socket_.async_write_some(asio::buffer(ciphertext_.data() + tls_written_, ciphertext_.size() - tls_written_),
                           [self = shared_from_this()](const IoError& error, size_t bytes) {
                             if (self->phase_ == Phase::closed) return;
                             if (error) return self->close();
                             self->tls_written_ += bytes;
                             if (self->tls_written_ < self->ciphertext_.size()) return self->write_ciphertext();
                             self->tls_writing_ = false;
                             self->flush_tls();
                             if (!self->tls_writing_ && self->plain_bytes_ > 0)
                               self->on_write(IoError(), std::exchange(self->plain_bytes_, 0));
                           });
}

void Connection::shut_down_tls() {
  if (tls_ == nullptr || tls_writing_) return;
  tls_->shut_down();
  IoError ignored;  // a few bytes for an empty socket buffer
  socket_.write_some(asio::buffer(tls_->outgoing()), ignored);
  tls_->outgoing().clear();
}

void send_rejection(Socket& socket, const Response& response) {
  const std::string bytes = fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n{}\r\n{}", response.status,
      reason_phrase(response.status), response.content_type, response.body.size(), response.fields, response.body);
  IoError ignored;
  socket.non_blocking(true, ignored);
  socket.write_some(asio::buffer(bytes), ignored);
}

}  // namespace brim::http
