// SPDX-License-Identifier: Apache-2.0
#include "rows/jsonl.h"

#include <charconv>
#include <cmath>

#include "base/utf8.h"
#include "io/scan.h"

namespace brim::rows {
namespace {

constexpr size_t kDeepest = 1000;  // maximum nesting depth, the same as in Python's reader

bool is_digit(char c) { return c >= '0' && c <= '9'; }
int hex_digit(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

class Scanner {
 public:
  explicit Scanner(std::string_view line) : begin_(line.data()), p_(line.data()), end_(line.data() + line.size()) {}

  JsonProblem object(std::vector<JsonMember>& members) {
    space();
    if (p_ == end_) return here("empty line");
    if (*p_ != '{') return here("not a JSON object");
    ++p_;
    space();
    if (p_ < end_ && *p_ == '}') {
      ++p_;
    } else {
      for (;;) {
        JsonMember& member = members.emplace_back();
        if (!key(member.key, member.key_escaped) || !value(member)) return problem_;
        space();
        if (p_ == end_) return here("unterminated object");
        if (*p_ == ',') {
          ++p_;
          space();
          continue;
        }
        if (*p_ != '}') return here("expected ',' or '}'");
        ++p_;
        break;
      }
    }
    space();
    if (p_ != end_) return here("unexpected bytes after the object");
    return {};
  }

 private:
  JsonProblem here(const char* what) const { return {what, static_cast<size_t>(p_ - begin_)}; }
  bool stop(const char* what) {
    problem_ = here(what);
    return false;
  }
  void space() {
    while (p_ < end_ && (*p_ == ' ' || *p_ == '\t' || *p_ == '\r' || *p_ == '\n')) ++p_;
  }

  bool key(std::string_view& text, bool& escaped) {
    if (p_ == end_ || *p_ != '"') return stop("expected a key in double quotes");
    if (!string(text, escaped)) return false;
    space();
    if (p_ == end_ || *p_ != ':') return stop("expected ':'");
    ++p_;
    space();
    return true;
  }

  bool value(JsonMember& member) {
    member.value_escaped = false;
    if (p_ == end_) return stop("expected a value");
    const char* start = p_;
    switch (*p_) {
      case '"':
        member.kind = JsonKind::string;
        return string(member.value, member.value_escaped);
      case '{':
      case '[':
        member.kind = *p_ == '{' ? JsonKind::object : JsonKind::array;
        if (!nested()) return false;
        break;
      default:
        if (!scalar(member.kind)) return false;
    }
    member.value = {start, static_cast<size_t>(p_ - start)};
    return true;
  }

  bool string(std::string_view& text, bool& escaped) {
    const char* start = ++p_;
    escaped = false;
    for (;;) {
      p_ = io::scan::find_json_special(p_, end_);
      if (p_ == end_) return stop("unterminated string");
      if (*p_ == '"') break;
      if (*p_ != '\\') return stop("a control character inside a string must be escaped");
      escaped = true;
      if (!escape()) return false;
    }
    text = {start, static_cast<size_t>(p_ - start)};
    ++p_;
    return true;
  }

  bool escape() {
    if (end_ - p_ < 2) return stop("truncated escape");
    switch (p_[1]) {
      case '"':
      case '\\':
      case '/':
      case 'b':
      case 'f':
      case 'n':
      case 'r':
      case 't':
        p_ += 2;
        return true;
      case 'u':
        if (end_ - p_ < 6) return stop("truncated escape");
        for (int i = 2; i < 6; ++i)
          if (hex_digit(p_[i]) < 0) return stop("\\u needs four hexadecimal digits");
        p_ += 6;
        return true;
      default:
        return stop("unknown escape");
    }
  }

  bool word(std::string_view wanted) {
    if (static_cast<size_t>(end_ - p_) < wanted.size() || std::string_view(p_, wanted.size()) != wanted)
      return stop("expected a value");
    p_ += wanted.size();
    return true;
  }

  bool scalar(JsonKind& kind) {
    switch (*p_) {
      case 'n':
        kind = JsonKind::null;
        return word("null");
      case 't':
        kind = JsonKind::boolean;
        return word("true");
      case 'f':
        kind = JsonKind::boolean;
        return word("false");
      default:
        kind = JsonKind::number;
        return number();
    }
  }

  bool digits() {
    const char* start = p_;
    while (p_ < end_ && is_digit(*p_)) ++p_;
    return p_ > start;
  }
  bool number() {
    const char* start = p_;
    if (*p_ == '-') ++p_;
    if (p_ < end_ && *p_ == '0') {
      ++p_;
    } else if (!digits()) {
      p_ = start;
      return stop("expected a value");
    }
    if (p_ < end_ && *p_ == '.') {
      ++p_;
      if (!digits()) return stop("expected a digit");
    }
    if (p_ < end_ && (*p_ == 'e' || *p_ == 'E')) {
      ++p_;
      if (p_ < end_ && (*p_ == '+' || *p_ == '-')) ++p_;
      if (!digits()) return stop("expected a digit");
    }
    return true;
  }

  // Skips an object or array without recursion, so that hostile nesting cannot overflow the stack.
  bool nested() {
    char open[kDeepest];
    size_t depth = 0;
    std::string_view text;
    bool escaped;
    for (;;) {
      // At the start of a value.
      if (p_ == end_) return stop("expected a value");
      if (*p_ == '{' || *p_ == '[') {
        if (depth == kDeepest) return stop("nesting depth exceeds 1000");
        const char bracket = open[depth++] = *p_ == '{' ? '}' : ']';
        ++p_;
        space();
        if (p_ < end_ && *p_ == bracket) {
          ++p_;
          --depth;
        } else {
          if (bracket == '}' && !key(text, escaped)) return false;
          continue;
        }
      } else if (*p_ == '"') {
        if (!string(text, escaped)) return false;
      } else {
        JsonKind kind;
        if (!scalar(kind)) return false;
      }
      // After a value: close the containers that end here, or continue with the next value.
      for (;;) {
        if (depth == 0) return true;
        space();
        if (p_ == end_) return stop(open[depth - 1] == '}' ? "unterminated object" : "unterminated array");
        if (*p_ == ',') {
          ++p_;
          space();
          if (open[depth - 1] == '}' && !key(text, escaped)) return false;
          break;
        }
        if (*p_ != open[depth - 1]) return stop(open[depth - 1] == '}' ? "expected ',' or '}'" : "expected ',' or ']'");
        ++p_;
        --depth;
      }
    }
  }

  const char *begin_, *p_, *end_;
  JsonProblem problem_;
};

unsigned hex4(const char* p) {
  unsigned value = 0;
  for (int i = 0; i < 4; ++i) value = value << 4 | static_cast<unsigned>(hex_digit(p[i]));
  return value;
}

// Decodes the \u escape at p, already validated; advances p past it (and past the second half of a surrogate pair).
char32_t unicode_escape(const char*& p, const char* end) {
  const unsigned high = hex4(p + 2);
  p += 6;
  if (high < 0xD800 || high > 0xDFFF) return high;
  if (high <= 0xDBFF && end - p >= 6 && p[0] == '\\' && p[1] == 'u') {
    const unsigned low = hex4(p + 2);
    if (low >= 0xDC00 && low <= 0xDFFF) {
      p += 6;
      return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
    }
  }
  return 0xFFFD;  // lone surrogate
}

}  // namespace

const char* json_kind_name(JsonKind kind) {
  switch (kind) {
    case JsonKind::null:
      return "null";
    case JsonKind::boolean:
      return "a boolean";
    case JsonKind::number:
      return "a number";
    case JsonKind::string:
      return "a string";
    case JsonKind::array:
      return "an array";
    case JsonKind::object:
      return "an object";
  }
  return "unknown";
}

JsonProblem scan_json_object(std::string_view line, std::vector<JsonMember>& members) {
  members.clear();
  return Scanner(line).object(members);
}

bool json_key_is(const JsonMember& member, std::string_view key) {
  return member.key_escaped ? json_unescape(member.key) == key : member.key == key;
}

void append_json_unescaped(std::string& out, std::string_view escaped) {
  const char* p = escaped.data();
  const char* end = p + escaped.size();
  while (p < end) {
    const char* slash = static_cast<const char*>(std::memchr(p, '\\', static_cast<size_t>(end - p)));
    out.append(p, slash == nullptr ? end : slash);
    if (slash == nullptr) return;
    p = slash;
    switch (p[1]) {
      case 'b':
        out += '\b';
        break;
      case 'f':
        out += '\f';
        break;
      case 'n':
        out += '\n';
        break;
      case 'r':
        out += '\r';
        break;
      case 't':
        out += '\t';
        break;
      case 'u':
        append_utf8(out, unicode_escape(p, end));
        continue;
      default:
        out += p[1];
    }
    p += 2;
  }
}

std::string json_unescape(std::string_view escaped) {
  std::string out;
  append_json_unescaped(out, escaped);
  return out;
}

void append_json_string(std::string& out, std::string_view value) {
  if (!is_valid_utf8(value)) return append_json_string(out, replace_invalid_utf8(value));
  out += '"';
  const char* p = value.data();
  const char* end = p + value.size();
  for (;;) {
    const char* special = io::scan::find_json_special(p, end);
    out.append(p, special);
    if (special == end) break;
    switch (*special) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default: {
        static constexpr char kHex[] = "0123456789abcdef";
        out += "\\u00";
        out += kHex[*special >> 4];
        out += kHex[*special & 15];
      }
    }
    p = special + 1;
  }
  out += '"';
}

void append_json_number(std::string& out, float value) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  char digits[32];
  out.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

void append_json_number(std::string& out, int64_t value) {
  char digits[24];
  out.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

}  // namespace brim::rows
