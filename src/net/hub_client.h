// SPDX-License-Identifier: Apache-2.0
// Requests to a Hugging Face-compatible hub: the list of files of a repository, and the bytes of one file. Follows
// redirects itself, so that the access token is never sent to another host. Does not use the cache.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "net/hub_url.h"

namespace brim::net {

struct HubFile {
  std::string name;    // with folders
  std::string etag;    // SHA-256 of a large file, else the SHA-1 of its Git blob
  int64_t bytes = -1;  // -1: unknown
};

struct HubListing {
  std::string commit;
  std::vector<HubFile> files;
};

class HubClient {
 public:
  // `endpoint`: https://huggingface.co or another address; empty `token`: none.
  HubClient(const std::string& endpoint, std::string token, const std::atomic<bool>* stop);

  // False if the token may never be sent, because the endpoint is not https.
  bool can_send_token() const { return endpoint_.is_https(); }

  // Files of a revision. Throws usage for an unknown repository or revision, or if access is denied.
  HubListing list(const RepositoryName& repository) const;

  struct Download {
    int64_t offset = 0;                                   // bytes that are present already
    std::function<void(int64_t offset)> begin;            // offset of the following bytes: `offset` or 0
    std::function<void(std::string_view bytes)> receive;  // may throw
  };
  // Returns why the connection broke, empty if the file is complete; call again with the new offset. Throws if there is
  // no point in retrying.
  std::string download(const std::string& repository, const std::string& commit, const HubFile& file,
                       const Download& download) const;

 private:
  struct Reply;
  Reply get(Url url, const Download* download, const std::string& subject) const;
  Url endpoint_;
  std::string token_;
  const std::atomic<bool>* stop_;
};

}  // namespace brim::net
