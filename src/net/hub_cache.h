// SPDX-License-Identifier: Apache-2.0
// The cache of Hugging Face's tools on disk: models--ORG--NAME/{blobs,refs,snapshots} and lock files. Written so that
// huggingface_hub can read it, and the reverse. Does not use the network.
#pragma once
#include <atomic>
#include <filesystem>
#include <functional>
#include <string>

namespace brim::net {

// Directories of one repository in a cache.
class HubCache {
 public:
  // `root`: $HF_HUB_CACHE or $HF_HOME/hub.
  HubCache(const std::filesystem::path& root, const std::string& repository);

  std::filesystem::path blob(const std::string& etag) const { return home_ / "blobs" / etag; }
  // Receives the bytes of a blob during the download; a later run continues it.
  std::filesystem::path incomplete(const std::string& etag) const { return home_ / "blobs" / (etag + ".incomplete"); }
  std::filesystem::path snapshot(const std::string& commit) const { return home_ / "snapshots" / commit; }
  std::filesystem::path lock_file(const std::string& etag) const;

  void create_directories() const;
  // Makes snapshots/COMMIT/NAME a relative link to the blob, replacing an existing link.
  void link(const std::string& commit, const std::string& name, const std::string& etag) const;
  void write_ref(const std::string& revision, const std::string& commit) const;

 private:
  std::filesystem::path root_, home_;
};

// An exclusive flock on a file, as huggingface_hub takes it.
class FileLock {
 public:
  // Waits while another process holds it and calls `on_wait` once before. Throws interrupted once `stop` is set.
  FileLock(const std::filesystem::path& path, const std::atomic<bool>* stop, const std::function<void()>& on_wait);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace brim::net
