// SPDX-License-Identifier: Apache-2.0
#include "http/framing.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace brim::http {
namespace {

constexpr size_t kMaxMethodBytes = 16;
constexpr int kMaxChunkDigits = 8;

constexpr std::array<bool, 256> token_table() {
  std::array<bool, 256> is{};
  for (int c = '0'; c <= '9'; ++c) is[static_cast<size_t>(c)] = true;
  for (int c = 'a'; c <= 'z'; ++c) is[static_cast<size_t>(c)] = true;
  for (int c = 'A'; c <= 'Z'; ++c) is[static_cast<size_t>(c)] = true;
  for (const char c : std::string_view("!#$%&'*+-.^_`|~")) is[static_cast<size_t>(c)] = true;
  return is;
}
constexpr std::array<bool, 256> kToken = token_table();

bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return kToken[static_cast<uint8_t>(c)]; });
}

// Printable ASCII without spaces.
bool is_visible(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7F; });
}

// No control characters except tab.
bool is_value(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return c == '\t' || (static_cast<uint8_t>(c) >= 0x20 && c != 0x7F); });
}

bool is_host_name(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' || c == '-' ||
           c == '_';
  });
}

bool is_ipv6(std::string_view text) {
  in6_addr address{};
  return text.size() < INET6_ADDRSTRLEN && ::inet_pton(AF_INET6, std::string(text).c_str(), &address) == 1;
}

// Empty, or a colon and an optional number (RFC 3986, 3.2.3).
bool is_port_suffix(std::string_view text) {
  if (text.empty()) return true;
  if (text[0] != ':' || text.size() > 6) return false;
  int port = 0;
  for (const char c : text.substr(1)) {
    if (c < '0' || c > '9') return false;
    port = port * 10 + (c - '0');
  }
  return port <= 65535;
}

std::string_view trim_blanks(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char l = lower(c);
  return l >= 'a' && l <= 'f' ? l - 'a' + 10 : -1;
}

}  // namespace

std::string_view host_of(std::string_view authority) {
  const bool bracketed = authority.starts_with('[');
  const size_t end = std::min(authority.find(bracketed ? ']' : ':'), authority.size());
  if (bracketed && end == authority.size()) return {};
  const std::string_view host = authority.substr(bracketed ? 1 : 0, end - (bracketed ? 1 : 0));
  const std::string_view rest = authority.substr(end + (bracketed ? 1 : 0));
  return (bracketed ? is_ipv6(host) : is_host_name(host)) && is_port_suffix(rest) ? host : std::string_view();
}

bool same_ignoring_case(std::string_view a, std::string_view b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) { return lower(x) == lower(y); });
}

std::string_view RequestHead::find(std::string_view name) const {
  for (const HeadField& field : fields)
    if (same_ignoring_case(field.name, name)) return field.value;
  return {};
}

RequestReader::RequestReader(const FramingLimits& limits) : limits_(limits) { head_bytes_.reserve(limits.head); }

void RequestReader::reset() {
  state_ = State::head;
  head_bytes_.clear();
  line_begin_ = 0;
  head_.method = head_.target = head_.host = authority_ = {};
  head_.minor = 1;
  head_.keep_alive = true;
  head_.expects_continue = head_.chunked = head_.has_length = false;
  head_.length = 0;
  head_.fields.clear();
  hosts_ = lengths_ = encodings_ = 0;
  wants_close_ = wants_keep_alive_ = false;
  body_.clear();
  body_limit_ = taken_bytes_ = 0;
  if (body_.capacity() > (64 << 10)) body_.shrink_to_fit();  // do not keep the memory of a large request
  chunk_ = Chunk::size;
  left_ = 0;
  digits_ = 0;
  status_ = 0;
  problem_.clear();
}

bool RequestReader::reject(int status, std::string problem) {
  state_ = State::rejected;
  status_ = status;
  problem_ = std::move(problem);
  return false;
}

std::string RequestReader::take_body() {
  taken_bytes_ += body_.size();
  return std::exchange(body_, {});
}

size_t RequestReader::feed(std::string_view bytes) {
  switch (state_) {
    case State::head:
      return feed_head(bytes);
    case State::body:
      return head_.chunked ? feed_chunks(bytes) : feed_length(bytes);
    default:
      return 0;
  }
}

size_t RequestReader::feed_head(std::string_view bytes) {
  size_t used = 0;
  while (used < bytes.size() && state_ == State::head) {
    const size_t newline = bytes.find('\n', used);
    const size_t end = newline == std::string_view::npos ? bytes.size() : newline + 1;
    const bool first = line_begin_ == 0;
    const size_t length = head_bytes_.size() - line_begin_ + (end - used);
    if (first && length > limits_.line + 2) {
      reject(414, fmt::format("request line exceeds {} bytes", limits_.line));
      break;
    }
    if (head_bytes_.size() + (end - used) > limits_.head) {
      reject(431, fmt::format("request head exceeds {} bytes", limits_.head));
      break;
    }
    head_bytes_.append(bytes.substr(used, end - used));
    used = end;
    if (newline == std::string_view::npos) break;
    std::string_view line = std::string_view(head_bytes_).substr(line_begin_);
    if (line.size() < 2 || line[line.size() - 2] != '\r') {
      reject(400, "a line of the request head does not end with CRLF");
      break;
    }
    line.remove_suffix(2);
    line_begin_ = head_bytes_.size();
    if (first)
      read_request_line(line);
    else if (line.empty())
      finish_head();
    else
      read_field(line);
  }
  return used;
}

bool RequestReader::read_request_line(std::string_view line) {
  const size_t space = line.find(' ');
  const size_t last = line.rfind(' ');
  if (space == std::string_view::npos || space == last)
    return reject(400, "malformed request line; expected METHOD TARGET HTTP/1.1");
  const std::string_view version = line.substr(last + 1);
  head_.method = line.substr(0, space);
  head_.target = line.substr(space + 1, last - space - 1);
  if (!is_token(head_.method) || head_.method.size() > kMaxMethodBytes) return reject(400, "invalid request method");
  if (!is_visible(head_.target) || head_.target.find('#') != std::string_view::npos)
    return reject(400, "request target contains a space, a control character, a non-ASCII character or '#'");
  if (!head_.target.starts_with('/') && !split_absolute_target()) return false;
  if (version == "HTTP/1.1" || version == "HTTP/1.0") {
    head_.minor = version.back() - '0';
    return true;
  }
  const bool other = version.size() == 8 && version.starts_with("HTTP/") && version[6] == '.';
  return reject(other ? 505 : 400, "only HTTP/1.0 and HTTP/1.1 are supported");
}

// Reduces "http://host:80/path" to "/path"; the authority replaces Host (RFC 9112, 3.2.2).
bool RequestReader::split_absolute_target() {
  const auto has_scheme = [&](std::string_view scheme) {
    return same_ignoring_case(head_.target.substr(0, scheme.size()), scheme);
  };
  const size_t scheme = has_scheme("http://") ? 7 : has_scheme("https://") ? 8 : 0;
  if (scheme == 0) return reject(400, "request target must be a path or an http URL");
  const std::string_view rest = head_.target.substr(scheme);
  const size_t end = std::min(rest.find_first_of("/?"), rest.size());
  authority_ = rest.substr(0, end);
  if (host_of(authority_).empty()) return reject(400, "request target has an invalid host");
  head_.target = rest.substr(end);
  if (head_.target.starts_with('/')) return true;
  // An empty path means "/". Move the authority one byte to the left, over the scheme, to make space for it.
  char* const begin = head_bytes_.data() + (authority_.data() - head_bytes_.data()) - 1;
  std::memmove(begin, begin + 1, end);
  begin[end] = '/';
  authority_ = {begin, end};
  head_.target = {begin + end, head_.target.size() + 1};
  return true;
}

bool RequestReader::read_field(std::string_view line) {
  if (head_.fields.size() == limits_.fields)
    return reject(431, fmt::format("request head has more than {} fields", limits_.fields));
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos || !is_token(line.substr(0, colon)))
    return reject(400, "malformed header field; expected NAME: VALUE");
  const HeadField field{line.substr(0, colon), trim_blanks(line.substr(colon + 1))};
  if (!is_value(field.value)) return reject(400, "header field contains a control character");
  head_.fields.push_back(field);
  return read_known_field(field);
}

// Fields that decide the end of the request or of the connection.
bool RequestReader::read_known_field(const HeadField& field) {
  const auto is = [&](std::string_view name) { return same_ignoring_case(field.name, name); };
  if (is("host")) {
    if (++hosts_ > 1) return reject(400, "more than one Host");
    if (host_of(field.value).empty()) return reject(400, "invalid Host; expected HOST or HOST:PORT");
    head_.host = field.value;
  } else if (is("content-length")) {
    return read_content_length(field.value);
  } else if (is("transfer-encoding")) {
    if (++encodings_ > 1) return reject(400, "more than one Transfer-Encoding");
    if (!same_ignoring_case(field.value, "chunked")) return reject(400, "only Transfer-Encoding: chunked is supported");
    head_.chunked = true;
  } else if (is("connection")) {
    read_connection(field.value);
  } else if (is("expect")) {
    if (!same_ignoring_case(field.value, "100-continue")) return reject(417, "only Expect: 100-continue is supported");
    head_.expects_continue = true;
  }
  return true;
}

bool RequestReader::read_content_length(std::string_view value) {
  if (++lengths_ > 1) return reject(400, "more than one Content-Length");
  const bool digits = !value.empty() && value.size() <= 18 &&
                      std::all_of(value.begin(), value.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!digits) return reject(400, "invalid Content-Length; expected at most 18 digits");
  for (const char c : value) head_.length = head_.length * 10 + static_cast<uint64_t>(c - '0');
  head_.has_length = true;
  return true;
}

void RequestReader::read_connection(std::string_view value) {
  while (!value.empty()) {
    const size_t comma = std::min(value.find(','), value.size());
    const std::string_view option = trim_blanks(value.substr(0, comma));
    wants_close_ = wants_close_ || same_ignoring_case(option, "close");
    wants_keep_alive_ = wants_keep_alive_ || same_ignoring_case(option, "keep-alive");
    value.remove_prefix(std::min(value.size(), comma + 1));
  }
}

bool RequestReader::finish_head() {
  if (hosts_ == 0 && head_.minor == 1) return reject(400, "Host is missing");
  if (!authority_.empty()) head_.host = authority_;
  if (head_.chunked && head_.has_length) return reject(400, "both Content-Length and Transfer-Encoding are given");
  if (head_.chunked && head_.minor == 0) return reject(400, "Transfer-Encoding requires HTTP/1.1");
  body_limit_ = limits_.body_limit ? limits_.body_limit(head_) : limits_.body;
  if (head_.length > body_limit_)
    return reject(413, fmt::format("request body has {} bytes, the limit is {}", head_.length, body_limit_));
  head_.keep_alive = !wants_close_ && (head_.minor == 1 || wants_keep_alive_);
  head_.expects_continue = head_.expects_continue && head_.minor == 1;
  left_ = head_.length;
  const bool more = head_.chunked || head_.length > 0;
  state_ = more ? State::body : State::complete;
  if (head_.length > 0) body_.reserve(std::min<uint64_t>(head_.length, 64 << 10));  // a larger one grows as it arrives
  return true;
}

size_t RequestReader::feed_length(std::string_view bytes) {
  const size_t taken = static_cast<size_t>(std::min<uint64_t>(left_, bytes.size()));
  body_.append(bytes.substr(0, taken));
  left_ -= taken;
  if (left_ == 0) state_ = State::complete;
  return taken;
}

bool RequestReader::read_chunk_size(char c) {
  const int digit = hex_digit(c);
  if (digit < 0) {
    if (digits_ == 0 || c != '\r') return reject(400, "invalid chunk size; expected hexadecimal digits and CRLF");
    chunk_ = Chunk::size_end;
    return true;
  }
  if (++digits_ > kMaxChunkDigits)
    return reject(400, fmt::format("chunk size has more than {} digits", kMaxChunkDigits));
  left_ = left_ * 16 + static_cast<uint64_t>(digit);
  return true;
}

size_t RequestReader::feed_chunks(std::string_view bytes) {
  size_t used = 0;
  const auto expect = [&](char wanted, Chunk then) {
    if (bytes[used] != wanted) return reject(400, "malformed chunk; expected CRLF");
    ++used;
    chunk_ = then;
    return true;
  };
  while (used < bytes.size() && state_ == State::body) {
    switch (chunk_) {
      case Chunk::size:
        if (read_chunk_size(bytes[used])) ++used;
        break;
      case Chunk::size_end:
        if (!expect('\n', left_ == 0 ? Chunk::last_cr : Chunk::data)) break;
        digits_ = 0;
        if (body_bytes() + left_ > body_limit_) reject(413, fmt::format("request body exceeds {} bytes", body_limit_));
        break;
      case Chunk::data: {
        const size_t taken = static_cast<size_t>(std::min<uint64_t>(left_, bytes.size() - used));
        body_.append(bytes.substr(used, taken));
        used += taken;
        left_ -= taken;
        if (left_ == 0) chunk_ = Chunk::data_cr;
        break;
      }
      case Chunk::data_cr:
        expect('\r', Chunk::data_lf);
        break;
      case Chunk::data_lf:
        expect('\n', Chunk::size);
        break;
      case Chunk::last_cr:  // the position of a trailer
        expect('\r', Chunk::last_lf);
        break;
      case Chunk::last_lf:
        if (expect('\n', Chunk::size)) state_ = State::complete;
        break;
    }
  }
  return used;
}

}  // namespace brim::http
