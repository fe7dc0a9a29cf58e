// SPDX-License-Identifier: Apache-2.0
#include "net/http_client.h"

#include <curl/curl.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <optional>

#include "base/clock.h"
#include "base/env.h"
#include "base/units.h"
#include "net/hub_url.h"

namespace brim::net {
namespace {

// libcurl, loaded on first use: linking it and the 27 libraries behind it would double the startup time of every
// command (4.4 to 9.5 ms).
struct Curl {
  decltype(&::curl_easy_init) easy_init = nullptr;
  decltype(&::curl_easy_setopt) easy_setopt = nullptr;
  decltype(&::curl_easy_perform) easy_perform = nullptr;
  decltype(&::curl_easy_getinfo) easy_getinfo = nullptr;
  decltype(&::curl_easy_cleanup) easy_cleanup = nullptr;
  decltype(&::curl_easy_strerror) easy_strerror = nullptr;
  decltype(&::curl_slist_append) slist_append = nullptr;
  decltype(&::curl_slist_free_all) slist_free_all = nullptr;
  bool ready = false;

  Curl() {
    void* so = ::dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
    if (so == nullptr) return;
    decltype(&::curl_global_init) global_init = nullptr;
    ready = take(so, "curl_global_init", global_init) && take(so, "curl_easy_init", easy_init) &&
            take(so, "curl_easy_setopt", easy_setopt) && take(so, "curl_easy_perform", easy_perform) &&
            take(so, "curl_easy_getinfo", easy_getinfo) && take(so, "curl_easy_cleanup", easy_cleanup) &&
            take(so, "curl_easy_strerror", easy_strerror) && take(so, "curl_slist_append", slist_append) &&
            take(so, "curl_slist_free_all", slist_free_all) && global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
  }
  template <class Call>
  static bool take(void* so, const char* name, Call& call) {
    call = reinterpret_cast<Call>(::dlsym(so, name));
    return call != nullptr;
  }
};

const Curl& curl() {
  static const Curl library;
  return library;
}

constexpr size_t kMostErrorBytes = size_t{1} << 20;  // body of a response with another status than 200 or 206

struct Transfer {
  const HttpRequest& request;
  const std::function<bool(std::string_view)>& on_bytes;
  CURL* handle;
  HttpAnswer answer;
  int64_t started_ns = now_ns(), last_ns = started_ns;
  size_t received = 0;
  bool body_begun = false, cut = false, first_late = false, silent = false, stopped = false;
};

size_t take_header(char* data, size_t size, size_t count, void* user) {
  Transfer& t = *static_cast<Transfer*>(user);
  const std::string_view line(data, size * count);
  const size_t colon = line.find(':');
  if (line.starts_with("HTTP/")) {
    t.answer.headers.clear();  // an interim response or a proxy's response came first
  } else if (colon != std::string_view::npos) {
    std::string name(line.substr(0, colon));
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    const size_t first = line.find_first_not_of(" \t", colon + 1), last = line.find_last_not_of(" \t\r\n");
    t.answer.headers[name] = first == std::string_view::npos || last < first
                                 ? std::string()
                                 : std::string(line.substr(first, last - first + 1));
  }
  return size * count;
}

size_t take_bytes(char* data, size_t size, size_t count, void* user) {
  Transfer& t = *static_cast<Transfer*>(user);
  const size_t bytes = size * count;
  long status = 0;
  curl().easy_getinfo(t.handle, CURLINFO_RESPONSE_CODE, &status);
  t.answer.status = static_cast<int>(status);
  t.received += bytes;
  t.last_ns = now_ns();
  const bool is_body = status == 200 || status == 206;
  const size_t most = is_body ? t.request.most_bytes : std::min(t.request.most_bytes, kMostErrorBytes);
  bool more = t.received <= most;
  if (!more) t.answer.why = fmt::format("the response exceeds {}", format_bytes(static_cast<int64_t>(most)));
  if (!t.body_begun && t.request.on_head) more = t.request.on_head(t.answer) && more;
  t.body_begun = true;
  if (more && is_body && t.on_bytes)
    more = t.on_bytes({data, bytes});
  else if (more)
    t.answer.text.append(data, bytes);
  if (more) return bytes;
  t.cut = true;
  return 0;  // aborts the transfer
}

// Called by libcurl about once per second and for each piece of data.
int watch(void* user, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  Transfer& t = *static_cast<Transfer*>(user);
  if (t.request.stop != nullptr && t.request.stop->load(std::memory_order_relaxed)) return t.stopped = true;
  const bool seen = t.request.first_seen ? t.request.first_seen() : t.received > 0;
  if (!seen && seconds_since(t.started_ns) > t.request.first_s) return t.first_late = true;
  if (seen && seconds_since(t.last_ns) > t.request.first_s) return t.silent = true;
  return 0;
}

HttpEnd end_of(CURLcode code, const Transfer& t, CURL* handle) {
  if (t.stopped) return HttpEnd::stopped;
  if (t.first_late) return HttpEnd::first_timeout;
  if (t.silent) return HttpEnd::broken;
  if (t.cut) return HttpEnd::cut;
  double connected = 0;
  curl().easy_getinfo(handle, CURLINFO_CONNECT_TIME, &connected);
  switch (code) {
    case CURLE_OK:
      return HttpEnd::complete;
    case CURLE_UNSUPPORTED_PROTOCOL:
      return connected > 0 ? HttpEnd::broken : HttpEnd::no_connection;  // not an HTTP response, or unsupported scheme
    case CURLE_URL_MALFORMAT:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PEER_FAILED_VERIFICATION:
      return HttpEnd::no_connection;
    case CURLE_OPERATION_TIMEDOUT:
      return connected == 0 ? HttpEnd::connect_timeout : HttpEnd::total_timeout;
    default:
      return HttpEnd::broken;
  }
}

// File of trusted certificates: as set in the environment, or the first one that exists. The libcurl of a wheel knows
// only Debian's path.
std::optional<std::string> ca_file() {
  for (const char* name : {"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"})
    if (const auto file = env(name)) return *file;
  for (const char* path : {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
                           "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"})
    if (::access(path, R_OK) == 0) return path;
  return std::nullopt;  // libcurl's default
}

bool cannot_succeed(CURLcode code) {
  return code == CURLE_URL_MALFORMAT || code == CURLE_COULDNT_RESOLVE_PROXY || code == CURLE_COULDNT_RESOLVE_HOST ||
         code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE;
}

void set_options(CURL* handle, const HttpRequest& request, Transfer& t, curl_slist* headers, char* problem) {
  curl().easy_setopt(handle, CURLOPT_URL, request.url.c_str());
  curl().easy_setopt(handle, CURLOPT_PROTOCOLS_STR, "http,https");
  curl().easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
  curl().easy_setopt(handle, CURLOPT_HTTPHEADER, headers);
  curl().easy_setopt(handle, CURLOPT_ERRORBUFFER, problem);
  curl().easy_setopt(handle, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(request.connect_s * 1e3));
  curl().easy_setopt(handle, CURLOPT_TIMEOUT_MS, static_cast<long>(request.total_s * 1e3));
  curl().easy_setopt(handle, CURLOPT_WRITEFUNCTION, take_bytes);
  curl().easy_setopt(handle, CURLOPT_WRITEDATA, &t);
  curl().easy_setopt(handle, CURLOPT_HEADERFUNCTION, take_header);
  curl().easy_setopt(handle, CURLOPT_HEADERDATA, &t);
  curl().easy_setopt(handle, CURLOPT_XFERINFOFUNCTION, watch);
  curl().easy_setopt(handle, CURLOPT_XFERINFODATA, &t);
  curl().easy_setopt(handle, CURLOPT_NOPROGRESS, 0L);
  curl().easy_setopt(handle, CURLOPT_TCP_NODELAY, 1L);
  if (const auto file = ca_file()) curl().easy_setopt(handle, CURLOPT_CAINFO, file->c_str());
  if (is_loopback(request.url)) curl().easy_setopt(handle, CURLOPT_NOPROXY, "*");
  if (!request.body.empty()) {
    curl().easy_setopt(handle, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
    curl().easy_setopt(handle, CURLOPT_POSTFIELDS, request.body.data());
  }
}

// Reason of a transfer without a complete response. `problem`: libcurl's message, or empty.
std::string reason(const Transfer& t, CURLcode code, const char* problem) {
  switch (t.answer.end) {
    case HttpEnd::complete:
    case HttpEnd::cut:
      return t.answer.why;
    case HttpEnd::connect_timeout:
      return fmt::format("no connection within {:g} s", t.request.connect_s);
    case HttpEnd::first_timeout:
      return fmt::format("no response within {:g} s", t.request.first_s);
    case HttpEnd::total_timeout:
      return fmt::format("the response did not end within {:g} s", t.request.total_s);
    case HttpEnd::stopped:
      return "interrupted";
    default:
      break;
  }
  if (t.silent) return fmt::format("no data for {:g} s", t.request.first_s);
  std::string why = *problem ? problem : curl().easy_strerror(code);
  if (code == CURLE_SSL_CACERT_BADFILE) why += "; install ca-certificates, or set SSL_CERT_FILE";
  return why;
}

}  // namespace

std::string HttpAnswer::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

HttpAnswer http_fetch(const HttpRequest& request, const std::function<bool(std::string_view)>& on_bytes) {
  if (!curl().ready) return {HttpEnd::unavailable, 0, "cannot load libcurl.so.4; run apt-get install libcurl4", ""};
  CURL* handle = curl().easy_init();
  if (handle == nullptr) return {HttpEnd::unavailable, 0, "cannot initialize libcurl", ""};
  Transfer t{request, on_bytes, handle, {}};
  curl_slist* headers = nullptr;
  if (!request.body.empty()) headers = curl().slist_append(headers, "Content-Type: application/json");
  for (const auto& h : request.headers) headers = curl().slist_append(headers, h.c_str());
  char problem[CURL_ERROR_SIZE] = "";
  set_options(handle, request, t, headers, problem);
  const CURLcode code = curl().easy_perform(handle);
  t.answer.end = end_of(code, t, handle);
  t.answer.is_lasting = t.answer.end != HttpEnd::complete && cannot_succeed(code);
  long status = 0;
  curl().easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &status);
  t.answer.status = static_cast<int>(status);
  t.answer.why = reason(t, code, problem);
  curl().slist_free_all(headers);
  curl().easy_cleanup(handle);
  return t.answer;
}

}  // namespace brim::net
