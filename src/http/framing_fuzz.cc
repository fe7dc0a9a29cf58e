// SPDX-License-Identifier: Apache-2.0
// Fuzz target: the input of a connection; the first byte selects the size of the pieces. The parsed requests must not
// depend on the pieces, and must end where a lenient parser by RFC 9112 says they end.
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "http/framing.h"

namespace brim::http::framing_fuzz {

struct Message {
  size_t end;
  std::string head, body;
  bool operator==(const Message&) const = default;
};

inline std::vector<Message> read_messages(std::string_view bytes, size_t piece, int& rejected_status) {
  RequestReader reader({.line = 256, .head = 1024, .fields = 8, .body = 4096});
  std::vector<Message> messages;
  rejected_status = 0;
  for (size_t at = 0; at < bytes.size();) {
    const size_t used = reader.feed(bytes.substr(at, piece));
    at += used;
    if (reader.state() == RequestReader::State::rejected) {
      rejected_status = reader.status();
      if (rejected_status < 400 || rejected_status > 505 || reader.problem().empty()) std::abort();
      break;
    }
    if (reader.state() == RequestReader::State::complete) {
      std::string head(reader.head().method);
      head += " " + std::string(reader.head().target);
      for (const HeadField& f : reader.head().fields) head += "\n" + std::string(f.name) + ":" + std::string(f.value);
      messages.push_back({at, head, reader.body()});
      reader.reset();
    } else if (used == 0) {
      std::abort();  // no progress
    }
  }
  return messages;
}

inline std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  return out;
}

// End of the first request by a lenient reading of RFC 9112: LF may end a line, chunks may have extensions and
// trailers, equal lengths may repeat. nullopt: incomplete or malformed.
inline std::optional<size_t> reference_end(std::string_view bytes, std::string& body) {
  size_t at = 0;
  const auto line = [&]() -> std::optional<std::string> {
    const size_t newline = bytes.find('\n', at);
    if (newline == std::string_view::npos) return std::nullopt;
    std::string text(bytes.substr(at, newline - at));
    at = newline + 1;
    if (!text.empty() && text.back() == '\r') text.pop_back();
    return text;
  };
  if (!line()) return std::nullopt;
  std::optional<uint64_t> length;
  bool chunked = false;
  for (;;) {
    const auto field = line();
    if (!field) return std::nullopt;
    if (field->empty()) break;
    const size_t colon = field->find(':');
    if (colon == std::string::npos) return std::nullopt;
    std::string name = lower_case(field->substr(0, colon)), value = field->substr(colon + 1);
    value.erase(0, value.find_first_not_of(" \t"));
    value.erase(value.find_last_not_of(" \t") + 1);
    if (name == "content-length") {
      if (value.empty() || value.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
      const uint64_t given = std::strtoull(value.c_str(), nullptr, 10);
      if (length && *length != given) return std::nullopt;
      length = given;
    } else if (name == "transfer-encoding") {
      chunked = lower_case(value).ends_with("chunked");
      if (!chunked) return std::nullopt;
    }
  }
  body.clear();
  if (!chunked) {
    if (bytes.size() - at < length.value_or(0)) return std::nullopt;
    body = bytes.substr(at, length.value_or(0));
    return at + length.value_or(0);
  }
  for (;;) {
    const auto size_line = line();
    if (!size_line) return std::nullopt;
    char* end = nullptr;
    const uint64_t size = std::strtoull(size_line->c_str(), &end, 16);
    if (end == size_line->c_str() || (*end != '\0' && *end != ';' && *end != ' ')) return std::nullopt;
    if (size == 0) break;
    if (bytes.size() - at < size) return std::nullopt;
    body += bytes.substr(at, size);
    at += size;
    const auto after = line();
    if (!after || !after->empty()) return std::nullopt;
  }
  for (;;) {
    const auto trailer = line();
    if (!trailer) return std::nullopt;
    if (trailer->empty()) return at;
  }
}

}  // namespace brim::http::framing_fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace brim::http::framing_fuzz;
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  int status = 0, status_in_pieces = 0;
  const std::vector<Message> whole = read_messages(bytes, std::string_view::npos, status);
  if (whole != read_messages(bytes, 1 + data[0] % 37, status_in_pieces) || status != status_in_pieces) std::abort();
  size_t begin = 0;
  for (const Message& message : whole) {
    std::string body;
    const auto end = reference_end(bytes.substr(begin), body);
    if (!end || begin + *end != message.end || body != message.body) std::abort();
    begin = message.end;
  }
  return 0;
}
