// SPDX-License-Identifier: Apache-2.0
// Names and addresses of a Hugging Face-compatible hub: repository names, file names that are safe to create, and which
// requests may carry the access token.
#pragma once
#include <string>
#include <string_view>

namespace brim::net {

struct RepositoryName {
  std::string id;                 // ORG/NAME, or NAME
  std::string revision = "main";  // branch, tag or commit
};
// Parses ORG/NAME[@REVISION]. Throws usage.
RepositoryName parse_repository(std::string_view text);

// Whether a file of that name may be created below a directory: relative, without empty, "." or ".." parts, backslashes
// or control characters.
bool is_safe_file_name(std::string_view name);

// Percent-encodes everything but unreserved characters, and '/' unless `keep_slashes`.
std::string encode_url(std::string_view text, bool keep_slashes);

struct Url {
  std::string scheme, host, path;  // host with port; path with query
  bool is_https() const { return scheme == "https"; }
};
// Parses an absolute http(s) address; throws usage.
Url parse_url(std::string_view text);
// Resolves a Location header against the address it came from.
Url resolve_location(const Url& from, std::string_view location);
std::string to_text(const Url& url);

// Whether an address names this machine: localhost, 127.0.0.0/8 or ::1.
bool is_loopback(std::string_view url);

// The token goes only over HTTPS and only to the host of the endpoint.
bool may_send_token(const Url& endpoint, const Url& to);

}  // namespace brim::net
