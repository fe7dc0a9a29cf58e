// SPDX-License-Identifier: Apache-2.0
#include "net/hub_client.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <exception>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "io/json_text.h"
#include "io/quote_text.h"
#include "net/http_client.h"

namespace brim::net {
namespace {

constexpr int kRedirects = 5, kAttempts = 5;
constexpr int64_t kInvalidSize = -2;
constexpr int kLongestWaitSeconds = 60;  // longest Retry-After to wait for

void pause(double seconds, const std::atomic<bool>* stop) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < end) {
    if (stop != nullptr && *stop) fail(ErrorCode::interrupted, "interrupted");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

// Seconds to wait before a retry, after a rate limit or a server error; negative: do not retry.
int retry_seconds(const HttpAnswer& answer, int attempt) {
  if (answer.status != 429 && answer.status < 500) return -1;
  int seconds = attempt;
  if (const std::string after = answer.header("retry-after");
      !after.empty() && std::all_of(after.begin(), after.end(), [](char c) { return c >= '0' && c <= '9'; }))
    seconds = after.size() > 4 ? kLongestWaitSeconds + 1 : std::stoi(after);
  return seconds <= kLongestWaitSeconds ? seconds : -1;
}

[[noreturn]] void fail_status(const HttpAnswer& answer, const std::string& subject, bool has_token) {
  const std::string code = answer.header("x-error-code");
  const std::string token = has_token ? "check HF_TOKEN" : "set HF_TOKEN to a token that may read it";
  if (answer.status == 401)
    fail(ErrorCode::usage, Remedy{"check the name; for a private or gated repository " + token},
         "{}: not found or no access (HTTP 401)", subject);
  if (answer.status == 403 || code == "GatedRepo")
    fail(ErrorCode::usage, Remedy{"accept the terms on the repository's page and " + token},
         "{}: access denied (HTTP {})", subject, answer.status);
  if (code == "RevisionNotFound") fail(ErrorCode::usage, "{}: no such revision (HTTP {})", subject, answer.status);
  if (answer.status == 404) fail(ErrorCode::usage, Remedy{"check the name"}, "{}: not found (HTTP 404)", subject);
  if (answer.status == 429)
    fail(ErrorCode::bad_data, Remedy{"try again later" + std::string(has_token ? "" : ", or set HF_TOKEN")},
         "{}: rate limit of the hub reached (HTTP 429)", subject);
  fail(ErrorCode::bad_data, "{}: the hub returned HTTP {}", subject, answer.status);
}

[[noreturn]] void fail_transfer(const HttpAnswer& answer, const std::string& subject) {
  if (answer.end == HttpEnd::stopped) fail(ErrorCode::interrupted, "interrupted");
  fail(ErrorCode::bad_data, "{}: {}", subject, answer.why.empty() ? "unexpected response" : answer.why);
}

bool is_hex(std::string_view text, size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// First byte of "bytes 100-199/200"; -1 if malformed.
int64_t range_start(const std::string& content_range) {
  int64_t start = 0;
  const size_t space = content_range.find(' ');
  if (space == std::string::npos) return -1;
  const char* from = content_range.data() + space + 1;
  const auto [end, error] = std::from_chars(from, content_range.data() + content_range.size(), start);
  return error == std::errc() && end != from ? start : -1;
}

HubFile file_of(const nlohmann::json& entry) {
  HubFile file;
  entry.at("rfilename").get_to(file.name);
  if (const auto size = entry.find("size"); size != entry.end() && !size->is_null())
    file.bytes = size->is_number_unsigned() && size->get<uint64_t>() <= INT64_MAX ? size->get<int64_t>() : kInvalidSize;
  const auto lfs = entry.find("lfs");
  if (lfs != entry.end() && lfs->is_object())
    file.etag = lfs->value("sha256", "");
  else
    file.etag = entry.value("blobId", "");
  return file;
}

}  // namespace

struct HubClient::Reply {
  HttpAnswer answer;
  bool broken = false;  // the connection ended early
};

HubClient::HubClient(const std::string& endpoint, std::string token, const std::atomic<bool>* stop)
    : endpoint_(parse_url(endpoint)), token_(std::move(token)), stop_(stop) {
  while (endpoint_.path.ends_with('/')) endpoint_.path.pop_back();
}

// One request with its redirects. A `download` receives the body of the final response.
HubClient::Reply HubClient::get(Url url, const Download* download, const std::string& subject) const {
  for (int hop = 0; hop <= kRedirects; ++hop) {
    HttpRequest request;
    request.url = to_text(url);
    request.stop = stop_;
    request.connect_s = 15;
    if (!token_.empty() && may_send_token(endpoint_, url)) request.headers.push_back("Authorization: Bearer " + token_);
    std::exception_ptr problem;
    std::function<bool(std::string_view)> receive;
    if (download != nullptr) {
      request.total_s = 0;
      request.most_bytes = SIZE_MAX;
      if (download->offset > 0) request.headers.push_back(fmt::format("Range: bytes={}-", download->offset));
      request.on_head = [&](const HttpAnswer& head) {
        if (head.status != 200 && head.status != 206) return true;
        const int64_t start = head.status == 206 ? range_start(head.header("content-range")) : 0;
        if (start != 0 && start != download->offset) return false;
        download->begin(start);
        return true;
      };
      receive = [&](std::string_view bytes) {
        try {
          download->receive(bytes);
          return true;
        } catch (...) {
          problem = std::current_exception();
          return false;
        }
      };
    }
    HttpAnswer answer = http_fetch(request, receive);
    if (problem) std::rethrow_exception(problem);
    if (answer.end == HttpEnd::stopped || answer.end == HttpEnd::unavailable) fail_transfer(answer, subject);
    if (answer.status < 300 || answer.status >= 400 || answer.header("location").empty())
      return {answer, answer.end != HttpEnd::complete};
    const Url next = resolve_location(url, answer.header("location"));
    if (url.is_https() && !next.is_https())
      fail(ErrorCode::bad_data, "{}: refused a redirect from https to {}", subject, to_text(next));
    url = next;
  }
  fail(ErrorCode::bad_data, "{}: more than {} redirects", subject, kRedirects);
}

HubListing HubClient::list(const RepositoryName& repository) const {
  Url url = endpoint_;
  url.path += "/api/models/" + repository.id + "/revision/" + encode_url(repository.revision, false) + "?blobs=true";
  const std::string subject = repository.id + "@" + repository.revision;
  for (int attempt = 1;; ++attempt) {
    const Reply reply = get(url, nullptr, subject);
    const int wait = reply.broken ? attempt : retry_seconds(reply.answer, attempt);
    const bool retries =
        attempt < kAttempts && wait >= 0 && reply.answer.end != HttpEnd::cut && !reply.answer.is_lasting;
    if (retries && (reply.broken || reply.answer.status != 200)) {
      pause(wait, stop_);
      continue;
    }
    if (reply.broken) fail_transfer(reply.answer, to_text(endpoint_));
    if (reply.answer.status != 200) fail_status(reply.answer, subject, !token_.empty());
    const nlohmann::json body = io::parse_json(reply.answer.text, to_text(url), ErrorCode::bad_data);
    HubListing listing;
    try {
      body.at("sha").get_to(listing.commit);
      for (const nlohmann::json& entry : body.at("siblings")) listing.files.push_back(file_of(entry));
    } catch (const nlohmann::json::exception&) {
      fail(ErrorCode::bad_data, "{}: not a list of files", to_text(url));
    }
    if (!is_hex(listing.commit, 40)) fail(ErrorCode::bad_data, "{}: `sha` is not a commit", to_text(url));
    for (const HubFile& file : listing.files) {
      if (!is_safe_file_name(file.name))
        fail(ErrorCode::bad_data, "{}: unsafe file name {}", subject, io::quote_text(file.name));
      if (!is_hex(file.etag, 64) && !is_hex(file.etag, 40))
        fail(ErrorCode::bad_data, "{}: {} has no checksum", subject, io::quote_text(file.name));
      if (file.bytes == kInvalidSize)
        fail(ErrorCode::bad_data, "{}: {} has an invalid size", subject, io::quote_text(file.name));
    }
    return listing;
  }
}

std::string HubClient::download(const std::string& repository, const std::string& commit, const HubFile& file,
                                const Download& download) const {
  Url url = endpoint_;
  url.path += "/" + repository + "/resolve/" + commit + "/" + encode_url(file.name, true);
  const std::string subject = repository + ": " + file.name;
  for (int attempt = 1;; ++attempt) {
    const Reply reply = get(url, &download, subject);
    const int status = reply.answer.status;
    const std::string problem = reply.answer.why.empty() ? "unexpected response" : reply.answer.why;
    if (status == 200 || status == 206) return reply.broken ? problem : "";
    if (reply.broken && status == 0) {
      if (reply.answer.is_lasting && download.offset == 0) fail_transfer(reply.answer, subject);
      return problem;
    }
    if (status == 416) {  // longer than the file: start again
      download.begin(0);
      return "the partial file is too long";
    }
    const int wait = retry_seconds(reply.answer, attempt);
    if (wait < 0 || attempt == kAttempts) fail_status(reply.answer, subject, !token_.empty());
    pause(wait, stop_);
  }
}

}  // namespace brim::net
