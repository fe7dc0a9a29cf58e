// SPDX-License-Identifier: Apache-2.0
// Downloads a model repository into the Hugging Face cache: chooses the files, continues interrupted downloads, checks
// every file against its checksum. The cache never refers to an incomplete file.
#pragma once
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "net/hub_client.h"

namespace brim::net {

struct PullOptions {
  std::string repository;            // ORG/NAME[@REVISION]
  std::filesystem::path cache;       // $HF_HUB_CACHE or $HF_HOME/hub
  std::string endpoint, token;       // empty token: none
  std::vector<std::string> include;  // file name patterns instead of the files that Brim reads
  bool allow_pickle = false;         // weights in Python's pickle format if there are no others
  int64_t max_bytes = int64_t{20} << 30;
  const std::atomic<bool>* stop = nullptr;
  std::function<void(int64_t done, int64_t total, const std::string& file)> on_progress = {};
};

struct PullReport {
  std::filesystem::path directory;  // the snapshot, for --model
  std::string commit;
  size_t files = 0;
  int64_t bytes = 0;       // total size of the files
  int64_t downloaded = 0;  // by this call
};

// $HF_ENDPOINT, $HF_TOKEN or the token file of `hf auth login`. Throws usage if $HF_HUB_OFFLINE is set.
PullOptions pull_options_from_env();

PullReport pull(const PullOptions& options);

// The files to download, from those of the repository. Throws usage if nothing is usable.
std::vector<HubFile> select_files(const HubListing& listing, const PullOptions& options);

}  // namespace brim::net
