// SPDX-License-Identifier: Apache-2.0
#include "net/hub_url.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "io/hub_names.h"
#include "io/quote_text.h"

namespace brim::net {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

}  // namespace

RepositoryName parse_repository(std::string_view text) {
  RepositoryName name;
  const size_t at = text.find('@');
  name.id = text.substr(0, at);
  if (at != std::string_view::npos) name.revision = text.substr(at + 1);
  if (!io::is_hub_name(name.id) || !io::is_hub_revision(name.revision))
    fail(ErrorCode::usage, Remedy{"use ORG/NAME or ORG/NAME@REVISION"}, "invalid repository name {}",
         io::quote_text(text));
  return name;
}

bool is_safe_file_name(std::string_view name) {
  if (name.empty() || name.size() > 1024) return false;
  const auto unsafe = [](unsigned char c) { return c < 0x20 || c == 0x7f || c == '\\'; };
  if (std::any_of(name.begin(), name.end(), unsafe)) return false;
  for (size_t from = 0; from <= name.size();) {
    const size_t slash = std::min(name.find('/', from), name.size());
    const std::string_view part = name.substr(from, slash - from);
    if (part.empty() || part == "." || part == ".." || part.size() > 255) return false;
    from = slash + 1;
  }
  return true;
}

std::string encode_url(std::string_view text, bool keep_slashes) {
  std::string out;
  for (const unsigned char c : text) {
    if (std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.' || c == '~' || (c == '/' && keep_slashes))
      out += static_cast<char>(c);
    else
      out += fmt::format("%{:02X}", c);
  }
  return out;
}

Url parse_url(std::string_view text) {
  const size_t colon = text.find("://");
  Url url;
  if (colon != std::string_view::npos) {
    url.scheme = lower(text.substr(0, colon));
    const std::string_view rest = text.substr(colon + 3);
    const size_t path = std::min(rest.find_first_of("/?#"), rest.size());
    url.host = lower(rest.substr(0, path));
    url.path = rest.substr(path);
  }
  const auto is_space = [](unsigned char c) { return c <= 0x20 || c == 0x7f; };
  if ((url.scheme != "https" && url.scheme != "http") || url.host.empty() || url.host.find('@') != std::string::npos ||
      std::any_of(text.begin(), text.end(), is_space))
    fail(ErrorCode::usage, "invalid address {}", io::quote_text(text));
  const std::string_view port = url.is_https() ? ":443" : ":80";
  if (url.host.ends_with(port)) url.host.resize(url.host.size() - port.size());
  return url;
}

Url resolve_location(const Url& from, std::string_view location) {
  if (location.starts_with("//")) return parse_url(from.scheme + ":" + std::string(location));
  if (location.find("://") != std::string_view::npos) return parse_url(location);
  if (!location.starts_with("/")) fail(ErrorCode::bad_data, "unsupported redirect to {}", io::quote_text(location));
  return parse_url(from.scheme + "://" + from.host + std::string(location));
}

std::string to_text(const Url& url) { return url.scheme + "://" + url.host + url.path; }

bool is_loopback(std::string_view url) {
  const size_t colon = url.find("://");
  if (colon == std::string_view::npos) return false;
  std::string_view host = url.substr(colon + 3);
  host = host.substr(0, host.find_first_of("/?#"));
  if (const size_t at = host.rfind('@'); at != std::string_view::npos) host.remove_prefix(at + 1);
  if (host.starts_with("[")) return host.substr(0, host.find(']')) == "[::1";
  const std::string name = lower(host.substr(0, host.find(':')));
  in_addr address{};
  return name == "localhost" || (::inet_pton(AF_INET, name.c_str(), &address) == 1 && name.starts_with("127."));
}

bool may_send_token(const Url& endpoint, const Url& to) {
  return endpoint.is_https() && to.is_https() && endpoint.host == to.host;
}

}  // namespace brim::net
