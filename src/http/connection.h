// SPDX-License-Identifier: Apache-2.0
// One connection of an HttpServer, with or without TLS: reads a request, passes it to the handler and writes the
// response, each before a deadline. Internal, like event_loop.h.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "http/event_loop.h"

namespace brim::http {

class Connection final : public Exchange, public OpenConnection, public std::enable_shared_from_this<Connection> {
 public:
  Connection(IoLoop& loop, Socket socket, std::shared_ptr<ConnectionSlot> slot);

  void begin() override;
  bool is_idle() const override { return phase_ == Phase::idle; }
  void expire(int64_t now) override;
  void close() override;

  void answer(Response&& response) override;
  void pause() override;
  void resume() override;
  void begin_answer(Response&& head, std::optional<uint64_t> length) override;
  void send(std::string_view bytes) override;
  void end_answer() override;
  size_t unsent() const override { return queued_.size() + (writing_ ? out_.size() - written_ : 0); }
  void drop() override { close(); }

 private:
  enum class Phase : uint8_t { idle, head, body, handling, writing, lingering, closed };
  static constexpr size_t kReadBytes = 16 << 10;
  static constexpr int64_t kNever = INT64_MAX;

  const HttpOptions& options() const { return loop_.server.options; }
  static int64_t in_seconds(double seconds) { return now_ns() + static_cast<int64_t>(seconds * 1e9); }
  // Extra time that a slow client gets for this many bytes.
  double seconds_of(uint64_t bytes) const { return static_cast<double>(bytes) / options().least_bytes_per_second; }

  // Reading (connection.cc).
  void read();
  void on_read(const IoError& error, size_t bytes);
  bool decrypt(std::string_view& bytes);
  void process(std::string_view bytes);
  void begin_request();
  bool on_head(bool body_missing);
  bool send_continue();
  bool deliver_piece();
  void set_body_deadline();
  void call_handler();
  void reject(int status, const std::string& problem);

  // Writing (connection_write.cc).
  void start_response(const Response& response, std::optional<uint64_t> length, bool request_is_read);
  void write_queued();
  void write();
  void write_encrypted(std::string_view bytes);
  void on_write(const IoError& error, size_t bytes);
  void finish_response();
  void linger();
  void flush_tls();
  void write_ciphertext();
  void shut_down_tls();

  void set_busy(bool busy);
  bool count_body(int64_t bytes);

  IoLoop& loop_;
  Socket socket_;
  const std::shared_ptr<ConnectionSlot> slot_;
  Phase phase_ = Phase::idle;
  bool reading_ = false;       // an asynchronous read is under way
  bool writing_ = false;       // an asynchronous write of response bytes is under way
  bool client_ended_ = false;  // end of file or a read error
  bool close_after_ = false;   // close after the current response
  bool busy_ = false;          // counted in HttpServer::busy()
  bool admitted_ = false;      // the handler expects answered() or gone()
  bool paused_ = false;        // the handler takes no pieces of the body
  bool streaming_ = false;     // begin_answer() was called
  bool answer_ended_ = false;  // end_answer() was called
  bool chunked_ = false;       // the streamed response uses chunks
  int status_ = 0;
  int64_t deadline_ns_ = kNever, write_deadline_ns_ = kNever;
  int64_t body_begun_ns_ = 0, write_begun_ns_ = 0, paused_since_ns_ = 0;
  int64_t counted_bytes_ = 0;  // this connection's share of HttpServer::Impl::body_bytes
  size_t written_ = 0;         // bytes of out_ and body_
  size_t total_written_ = 0;   // bytes of the whole response
  size_t lingered_ = 0;
  std::string pending_;     // received and not processed yet
  std::string queued_;      // streamed pieces that follow out_
  std::string out_, body_;  // being written, in this order

  std::unique_ptr<TlsSession> tls_;
  bool tls_started_ = false;  // bytes of a TLS handshake were received
  bool tls_writing_ = false;  // an asynchronous write of ciphertext_ is under way
  size_t tls_written_ = 0;    // bytes of ciphertext_
  size_t plain_bytes_ = 0;    // response bytes contained in ciphertext_
  std::string plaintext_, ciphertext_;
  std::array<char, kReadBytes> in_;
};

}  // namespace brim::http
