// SPDX-License-Identifier: Apache-2.0
#include "base/env.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "base/error.h"

namespace brim {
namespace {

bool is_name(std::string_view text) {
  if (text.empty() || std::isdigit(static_cast<unsigned char>(text[0]))) return false;
  for (const char c : text)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_') return false;
  return true;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r')) text.remove_suffix(1);
  return text;
}

char unescape(char c) { return c == 'n' ? '\n' : c == 't' ? '\t' : c; }

// The value after the =, without quotes and comment; nullopt if a quote is unterminated or followed by text.
std::optional<std::string> env_value(std::string_view text) {
  if (text.empty() || (text[0] != '"' && text[0] != '\'')) {
    for (size_t i = 0; i < text.size(); ++i)
      if (text[i] == '#' && (i == 0 || text[i - 1] == ' ' || text[i - 1] == '\t')) text = text.substr(0, i);
    return std::string(trim(text));
  }
  const char quote = text[0];
  std::string value;
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == quote) {
      const std::string_view rest = trim(text.substr(i + 1));
      if (!rest.empty() && rest[0] != '#') return std::nullopt;
      return value;
    }
    if (quote == '"' && text[i] == '\\' && i + 1 < text.size())
      value += unescape(text[++i]);
    else
      value += text[i];
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> env(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

bool env_flag(const char* name) {
  const auto value = env(name);
  return value && *value != "0" && *value != "false" && *value != "no" && *value != "off";
}

std::filesystem::path home_dir() { return env("HOME").value_or("/"); }

std::filesystem::path cache_dir() {
  if (auto dir = env("BRIM_CACHE")) return *dir;
  if (auto dir = env("XDG_CACHE_HOME")) return std::filesystem::path(*dir) / "brim";
  return home_dir() / ".cache" / "brim";
}

std::filesystem::path runtime_dir() {
  if (auto dir = env("XDG_RUNTIME_DIR")) return std::filesystem::path(*dir) / "brim";
  return "/tmp/brim-" + std::to_string(getuid());
}

std::vector<EnvEntry> parse_env_text(std::string_view text, const std::string& where) {
  std::vector<EnvEntry> entries;
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trim(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line[0] == '#') continue;
    const auto bad = [&](const char* why) { fail(ErrorCode::usage, "{}:{}: {}: {}", where, number, line, why); };
    if (line.find('\0') != std::string_view::npos)
      fail(ErrorCode::usage, "{}:{}: contains a zero byte; not a text file", where, number);
    std::string_view rest = line;
    if (rest.starts_with("export ") || rest.starts_with("export\t")) rest = trim(rest.substr(7));
    const size_t equals = rest.find('=');
    if (equals == std::string_view::npos) bad("missing '='; write KEY=value");
    const std::string_view name = trim(rest.substr(0, equals));
    if (!is_name(name)) bad("invalid key; use letters, digits and _, and do not start with a digit");
    auto value = env_value(trim(rest.substr(equals + 1)));
    if (!value) bad("unterminated quote, or text after the closing quote");
    entries.push_back({std::string(name), std::move(*value), number});
  }
  return entries;
}

void set_env_default(const std::string& name, const std::string& value) { ::setenv(name.c_str(), value.c_str(), 0); }

}  // namespace brim
