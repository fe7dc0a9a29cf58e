// SPDX-License-Identifier: Apache-2.0
// Incremental parser for HTTP/1.1 requests. It is stricter than RFC 9112, so that a proxy in front of the server cannot
// see another boundary between two requests: one Content-Length of digits or one `Transfer-Encoding: chunked` on
// HTTP/1.1, never both; no chunk extensions, no trailers, one Host, no folded lines, lines end with CRLF, targets in
// origin form or absolute form. Everything else is rejected, and the caller closes the connection.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace brim::http {

struct HeadField {
  std::string_view name, value;
};

// Views into a RequestReader, valid until its reset().
struct RequestHead {
  std::string_view method;
  std::string_view target;  // in origin form, "/path?query"
  std::string_view host;    // from an absolute target, else from Host; empty for HTTP/1.0 without either
  int minor = 1;            // the x of HTTP/1.x
  bool keep_alive = true;
  bool expects_continue = false;
  bool chunked = false;
  bool has_length = false;
  uint64_t length = 0;  // Content-Length
  std::vector<HeadField> fields;

  // Value of the first field with this name, ignoring case; empty if missing.
  std::string_view find(std::string_view name) const;
};

struct FramingLimits {
  size_t line = 8 << 10;   // bytes of the request line
  size_t head = 16 << 10;  // bytes of the whole head
  size_t fields = 64;
  uint64_t body = 16 << 20;
  std::function<uint64_t(const RequestHead& head)> body_limit = {};  // optional; replaces `body`
};

// Host of HOST or HOST:PORT, IPv6 addresses without brackets; empty if malformed.
std::string_view host_of(std::string_view authority);

bool same_ignoring_case(std::string_view a, std::string_view b);  // ASCII only

class RequestReader {
 public:
  enum class State : uint8_t { head, body, complete, rejected };

  explicit RequestReader(const FramingLimits& limits);
  RequestReader(const RequestReader&) = delete;
  RequestReader& operator=(const RequestReader&) = delete;

  // Consumes bytes up to the end of the head, or, after it, up to the end of the body; returns how many.
  size_t feed(std::string_view bytes);
  State state() const { return state_; }
  bool begun() const { return !head_bytes_.empty(); }  // the request has at least one byte
  const RequestHead& head() const { return head_; }
  std::string& body() { return body_; }
  uint64_t body_bytes() const { return taken_bytes_ + body_.size(); }
  std::string take_body();  // removes the bytes received so far

  int status() const { return status_; }                   // response status of a rejected request
  const std::string& problem() const { return problem_; }  // why it was rejected

  void reset();  // for the next request

 private:
  enum class Chunk : uint8_t { size, size_end, data, data_cr, data_lf, last_cr, last_lf };

  size_t feed_head(std::string_view bytes);
  size_t feed_length(std::string_view bytes);
  size_t feed_chunks(std::string_view bytes);
  bool read_request_line(std::string_view line);
  bool split_absolute_target();
  bool read_field(std::string_view line);
  bool finish_head();
  bool read_known_field(const HeadField& field);
  bool read_content_length(std::string_view value);
  void read_connection(std::string_view value);
  bool read_chunk_size(char c);
  bool reject(int status, std::string problem);  // returns false

  const FramingLimits limits_;
  State state_ = State::head;
  std::string head_bytes_;  // never exceeds its reserved capacity, so views stay valid
  size_t line_begin_ = 0;
  RequestHead head_;
  std::string_view authority_;  // from a target in absolute form
  int hosts_ = 0, lengths_ = 0, encodings_ = 0;
  bool wants_close_ = false, wants_keep_alive_ = false;  // from Connection
  std::string body_;
  uint64_t body_limit_ = 0, taken_bytes_ = 0;
  Chunk chunk_ = Chunk::size;
  uint64_t left_ = 0;  // missing bytes of the body or chunk
  int digits_ = 0;     // received digits of the chunk size
  int status_ = 0;
  std::string problem_;
};

}  // namespace brim::http
