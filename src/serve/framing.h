// SPDX-License-Identifier: Apache-2.0
// Where one HTTP/1.1 request ends and the next begins, read more strictly than RFC 9112 asks, so that no proxy in front
// can see another boundary: one Content-Length of digits or one `Transfer-Encoding: chunked` on HTTP/1.1, never both;
// no chunk extensions, no trailers, one Host, no folded lines, CRLF alone ends a line, targets in origin form or
// absolute form. Anything else is refused, and the caller closes the connection.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace brim::serve {

struct HeadField {
  std::string_view name, value;
};

// Views into the reader that read it; they stay until its next().
struct RequestHead {
  std::string_view method;
  std::string_view target;  // in origin form, "/path?query"
  std::string_view host;    // of the target in absolute form, else of Host; empty for HTTP/1.0 without either
  int minor = 1;            // of HTTP/1.x
  bool keep_alive = true;
  bool expects_continue = false;
  bool chunked = false;
  bool has_length = false;
  uint64_t length = 0;  // of the body, where it is said
  std::vector<HeadField> fields;

  // The value of the first such field, whatever its case; empty where there is none.
  std::string_view find(std::string_view name) const;
};

struct FramingLimits {
  size_t line = 8 << 10;   // the request line, in bytes
  size_t head = 16 << 10;  // all of the head
  size_t fields = 64;
  uint64_t body = 16 << 20;
  std::function<uint64_t(const RequestHead& head)> body_of = {};  // set: of one request, instead of `body`
};

// The host of HOST or HOST:PORT, an IPv6 address without its brackets; empty if it is malformed.
std::string_view host_of(std::string_view authority);

bool same_ignoring_case(std::string_view a, std::string_view b);  // of ASCII letters

// Bytes in, one request at a time out.
class RequestReader {
 public:
  enum class State : uint8_t { head, body, complete, refused };

  explicit RequestReader(const FramingLimits& limits);
  RequestReader(const RequestReader&) = delete;
  RequestReader& operator=(const RequestReader&) = delete;

  // Takes bytes up to the end of the head, or, after it, up to the end of the body; says how many.
  size_t feed(std::string_view bytes);
  State state() const { return state_; }
  bool begun() const { return !head_bytes_.empty(); }  // some bytes of a request are there
  const RequestHead& head() const { return head_; }
  std::string& body() { return body_; }
  uint64_t body_bytes() const { return taken_bytes_ + body_.size(); }
  // What is there of the body; what comes later is appended to nothing.
  std::string take_body();

  // Of a request that was refused: what to answer, before the connection is closed.
  int status() const { return status_; }
  const std::string& problem() const { return problem_; }

  void next();  // begins another request

 private:
  enum class Chunk : uint8_t { size, size_end, data, data_cr, data_lf, last_cr, last_lf };

  size_t feed_head(std::string_view bytes);
  size_t feed_length(std::string_view bytes);
  size_t feed_chunks(std::string_view bytes);
  bool read_request_line(std::string_view line);
  bool split_absolute_target();
  bool read_field(std::string_view line);
  bool finish_head();
  bool refuse(int status, std::string problem);  // always false

  const FramingLimits limits_;
  State state_ = State::head;
  std::string head_bytes_;  // never grows beyond what was reserved, so that views stay
  size_t line_begin_ = 0;
  RequestHead head_;
  std::string_view authority_;  // of a target in absolute form
  int hosts_ = 0, lengths_ = 0, encodings_ = 0;
  bool says_close_ = false, says_keep_alive_ = false;
  std::string body_;
  uint64_t body_limit_ = 0, taken_bytes_ = 0;
  Chunk chunk_ = Chunk::size;
  uint64_t left_ = 0;  // of the body or the chunk
  int digits_ = 0;     // of the chunk's size so far
  int status_ = 0;
  std::string problem_;
};

}  // namespace brim::serve
