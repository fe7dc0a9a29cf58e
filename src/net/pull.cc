// SPDX-License-Identifier: Apache-2.0
#include "net/pull.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <set>
#include <string_view>
#include <thread>

#include "base/env.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/units.h"
#include "io/descriptor.h"
#include "io/hub_names.h"
#include "io/quote_text.h"
#include "io/sha256.h"
#include "io/sync_directory.h"
#include "net/hub_cache.h"

namespace brim::net {
namespace fs = std::filesystem;
namespace {

constexpr int kAttemptsWithoutProgress = 5;
constexpr std::string_view kModelFiles[] = {"config.json",
                                            "tokenizer.json",
                                            "tokenizer_config.json",
                                            "special_tokens_map.json",
                                            "added_tokens.json",
                                            "vocab.txt",
                                            "vocab.json",
                                            "merges.txt",
                                            "bpe.codes",
                                            "modules.json",
                                            "*.model",
                                            "sentence_bert_config.json",
                                            "gliner_config.json",
                                            "labels_tokenizer/*.json",
                                            "labels_tokenizer/*.txt",
                                            "labels_tokenizer/*.model",
                                            "adapter_config.json",
                                            "config_sentence_transformers.json",
                                            "[0-9]_*/config.json"};
constexpr std::string_view kWeights[] = {"model.safetensors", "model.safetensors.index.json",
                                         "model-*-of-*.safetensors", "adapter_model.safetensors",
                                         "[0-9]_*/model.safetensors"};
constexpr std::string_view kPickles[] = {"pytorch_model.bin", "pytorch_model.bin.index.json",
                                         "pytorch_model-*-of-*.bin", "adapter_model.bin"};
constexpr std::string_view kPickleEndings[] = {".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib"};

bool matches(const std::string& name, std::string_view pattern) {
  return ::fnmatch(std::string(pattern).c_str(), name.c_str(), FNM_PATHNAME) == 0;
}
template <class Patterns>
bool matches_any(const std::string& name, const Patterns& patterns) {
  return std::any_of(std::begin(patterns), std::end(patterns),
                     [&](const auto& pattern) { return matches(name, pattern); });
}

bool is_pickle(const std::string& name) {
  return std::any_of(std::begin(kPickleEndings), std::end(kPickleEndings),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

bool is_config(std::string_view name) {
  return std::find(std::begin(io::kModelConfigs), std::end(io::kModelConfigs), name) != std::end(io::kModelConfigs);
}

// Whether `path` has the content that `etag` names: its SHA-256, or the SHA-1 of its Git blob.
bool has_checksum(const fs::path& path, const std::string& etag) {
  const int fd = io::open_own_file(path.string(), O_RDONLY);
  if (fd < 0) io::fail_write(path.string(), "cannot read", errno);
  const std::unique_ptr<const int, void (*)(const int*)> closer(&fd, [](const int* f) { ::close(*f); });
  struct stat info {};
  ::fstat(fd, &info);
  io::Sha256 sha256;
  io::Sha1 sha1;
  const bool is_large = etag.size() == 64;
  if (!is_large) sha1.update(fmt::format("blob {}", info.st_size) + '\0');
  std::string buffer(size_t{1} << 20, '\0');
  for (ssize_t n; (n = ::read(fd, buffer.data(), buffer.size())) != 0;) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) io::fail_write(path.string(), "cannot read", errno);
    const std::string_view bytes(buffer.data(), static_cast<size_t>(n));
    is_large ? sha256.update(bytes) : sha1.update(bytes);
  }
  return (is_large ? io::hex_text(sha256.finish()) : io::hex_text(sha1.finish())) == etag;
}

// The unfinished blob, kept for the next attempt unless it turns out to be wrong.
class PartFile {
 public:
  explicit PartFile(const fs::path& path) : path_(path) {
    fd_ = io::open_own_file(path.string(), O_RDWR);
    if (fd_ < 0 && errno == ENOENT)
      fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd_ < 0) io::fail_write(path.string(), "cannot create", errno);
    struct stat info {};
    if (::fstat(fd_, &info) == 0) size_ = info.st_size;
  }
  ~PartFile() { ::close(fd_); }
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;

  int64_t size() const { return size_; }
  void cut_to(int64_t bytes) {
    if (::ftruncate(fd_, bytes) != 0 || ::lseek(fd_, bytes, SEEK_SET) < 0)
      io::fail_write(path_.string(), "cannot truncate", errno);
    size_ = bytes;
  }
  void append(std::string_view bytes) {
    io::WriteStop none;
    io::write_all(fd_, bytes, path_.string(), none);
    size_ += static_cast<int64_t>(bytes.size());
  }
  void sync() {
    if (::fsync(fd_) != 0) io::fail_write(path_.string(), "cannot sync", errno);
  }

 private:
  fs::path path_;
  int fd_ = -1;
  int64_t size_ = 0;
};

// Removes surrounding spaces and line ends, as left by `echo` and by files from Windows. Throws usage if the rest could
// add a header to a request.
std::string checked_token(std::string_view token, const std::string& source) {
  const auto is_visible = [](unsigned char c) { return c > 0x20 && c < 0x7f; };
  while (!token.empty() && !is_visible(static_cast<unsigned char>(token.back()))) token.remove_suffix(1);
  while (!token.empty() && !is_visible(static_cast<unsigned char>(token.front()))) token.remove_prefix(1);
  if (!std::all_of(token.begin(), token.end(), is_visible)) fail(ErrorCode::usage, "{}: not a token", source);
  return std::string(token);
}

// $HF_TOKEN, or the file in which `hf auth login` keeps it.
std::string read_token() {
  if (const auto token = env("HF_TOKEN")) return checked_token(*token, "HF_TOKEN");
  fs::path file;
  if (const auto path = env("HF_TOKEN_PATH"))
    file = *path;
  else if (const auto home = env("HF_HOME"))
    file = fs::path(*home) / "token";
  else
    file = fs::path(env("XDG_CACHE_HOME").value_or((home_dir() / ".cache").string())) / "huggingface" / "token";
  std::error_code ignored;
  if (!fs::is_regular_file(file, ignored)) return "";
  return checked_token(read_file(file, ErrorCode::usage), file.string());
}

class Puller {
 public:
  explicit Puller(const PullOptions& options)
      : options_(options),
        name_(parse_repository(options.repository)),
        client_(options.endpoint, options.token, options.stop),
        cache_(options.cache, name_.id) {}

  PullReport run() {
    if (!options_.token.empty() && !client_.can_send_token())
      log_warning("the access token is not sent to {}, which is not https", options_.endpoint);
    const HubListing listing = client_.list(name_);
    const std::vector<HubFile> files = select_files(listing, options_);
    report_.commit = listing.commit;
    report_.directory = cache_.snapshot(listing.commit);
    report_.files = files.size();
    for (const HubFile& file : files)
      if (__builtin_add_overflow(report_.bytes, std::max<int64_t>(0, file.bytes), &report_.bytes))
        report_.bytes = INT64_MAX;
    if (report_.bytes > options_.max_bytes) fail_limit(report_.bytes);
    cache_.create_directories();
    require_disk_space(files);
    for (const HubFile& file : files) fetch(file);
    link(files);
    if (name_.revision != listing.commit) cache_.write_ref(name_.revision, listing.commit);
    return report_;
  }

 private:
  [[noreturn]] void fail_limit(int64_t bytes) const {
    fail(ErrorCode::usage,
         Remedy{"raise the limit with `brim pull max_size=SIZE`, or choose files with `brim pull include=PATTERN`"},
         "{}: {} to download, above the limit of {}", name_.id, format_bytes(bytes), format_bytes(options_.max_bytes));
  }

  void require_disk_space(const std::vector<HubFile>& files) const {
    int64_t missing = 0;
    std::error_code ignored;
    for (const HubFile& file : files)
      if (!fs::exists(cache_.blob(file.etag), ignored)) {
        const auto present = fs::file_size(cache_.incomplete(file.etag), ignored);
        missing += std::max<int64_t>(0, file.bytes - (ignored ? 0 : static_cast<int64_t>(present)));
      }
    struct statvfs disk {};
    if (::statvfs(options_.cache.c_str(), &disk) != 0) return;
    const auto free = static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
    if (missing > free)
      fail(ErrorCode::cannot_write, Remedy{"free some space or set HF_HOME to another disk"}, "{}: {} needed, {} free",
           options_.cache.string(), format_bytes(missing), format_bytes(free));
  }

  // Once all files are complete, and the config last: a snapshot without it is not a model.
  void link(const std::vector<HubFile>& files) const {
    for (const bool configs : {false, true})
      for (const HubFile& file : files)
        if (is_config(file.name) == configs) cache_.link(report_.commit, file.name, file.etag);
  }

  void fetch(const HubFile& file) {
    const FileLock lock(cache_.lock_file(file.etag), options_.stop,
                        [&] { log_info("{}: waiting for another download", file.name); });
    std::error_code ignored;
    if (!fs::is_regular_file(cache_.blob(file.etag), ignored)) {
      const int64_t bytes = download(file);
      if (file.bytes < 0) report_.bytes += bytes;
      fs::rename(cache_.incomplete(file.etag), cache_.blob(file.etag));
      io::sync_directory(cache_.blob(file.etag).parent_path());
    }
    done_ += std::max<int64_t>(0, file.bytes);
    show(file, 0);
  }

  // Returns the size.
  int64_t download(const HubFile& file) {
    const fs::path path = cache_.incomplete(file.etag);
    PartFile part(path);
    for (bool resumed = part.size() > 0;; resumed = false) {
      if (file.bytes >= 0 && part.size() > file.bytes) part.cut_to(0);
      receive(file, part);
      part.sync();
      if ((file.bytes < 0 || part.size() == file.bytes) && has_checksum(path, file.etag)) return part.size();
      part.cut_to(0);
      // A resumed file may have been damaged earlier, so download it again. A new one was sent with these bytes.
      if (!resumed)
        fail(ErrorCode::bad_data, Remedy{"try again later; nothing was stored"}, "{}: {} differs from its checksum",
             name_.id, file.name);
      log_warning("{}: the interrupted download of {} was damaged, starting again", name_.id, file.name);
    }
  }

  // Writes no more than the list of files announced; for a file of unknown size, than the limit leaves.
  void append(const HubFile& file, PartFile& part, std::string_view bytes) {
    const auto count = static_cast<int64_t>(bytes.size());
    if (file.bytes >= 0 && count > file.bytes - part.size()) {
      part.cut_to(0);
      fail(ErrorCode::bad_data, "{}: {} is longer than the {} that the hub lists", name_.id, file.name,
           format_bytes(file.bytes));
    }
    if (file.bytes < 0 && count > options_.max_bytes - report_.bytes - part.size())
      fail_limit(report_.bytes + part.size() + count);
    part.append(bytes);
    report_.downloaded += count;
    show(file, part.size());
  }

  void receive(const HubFile& file, PartFile& part) {
    for (int attempts = 0; file.bytes < 0 || part.size() < file.bytes;) {
      const int64_t before = part.size();
      const std::string problem =
          client_.download(name_.id, report_.commit, file,
                           {.offset = before,
                            .begin = [&](int64_t offset) { part.cut_to(offset); },
                            .receive = [&](std::string_view bytes) { append(file, part, bytes); }});
      if (problem.empty() && (file.bytes < 0 || part.size() >= file.bytes)) return;
      attempts = part.size() > before ? 1 : attempts + 1;
      if (attempts >= kAttemptsWithoutProgress)
        fail(ErrorCode::bad_data, Remedy{"run the same command again to continue"},
             "{}: {}: the connection broke after {} ({})", name_.id, file.name, format_bytes(part.size()),
             problem.empty() ? "the file is too short" : problem);
      std::this_thread::sleep_for(std::chrono::milliseconds(200 * attempts));
    }
  }

  void show(const HubFile& file, int64_t bytes) const {
    if (options_.on_progress) options_.on_progress(done_ + bytes, report_.bytes, file.name);
  }

  const PullOptions& options_;
  RepositoryName name_;
  HubClient client_;
  HubCache cache_;
  PullReport report_;
  int64_t done_ = 0;
};

}  // namespace

PullOptions pull_options_from_env() {
  if (env_flag("HF_HUB_OFFLINE")) fail(ErrorCode::usage, Remedy{"unset it to download"}, "HF_HUB_OFFLINE is set");
  PullOptions options;
  options.endpoint = env("HF_ENDPOINT").value_or("https://huggingface.co");
  options.token = read_token();
  return options;
}

std::vector<HubFile> select_files(const HubListing& listing, const PullOptions& options) {
  std::vector<HubFile> selected;
  const auto add = [&](const auto& patterns, bool pickles) {
    const size_t before = selected.size();
    for (const HubFile& file : listing.files)
      if (matches_any(file.name, patterns) && !file.name.ends_with(".py") && (pickles || !is_pickle(file.name)))
        selected.push_back(file);
    return selected.size() > before;
  };
  if (!options.include.empty()) {
    if (!add(options.include, options.allow_pickle))
      fail(ErrorCode::usage, "{}: no file matches `include` {}", options.repository, fmt::join(options.include, ", "));
    return selected;
  }
  add(kModelFiles, false);
  const auto has = [&](std::string_view name) {
    return std::any_of(selected.begin(), selected.end(), [&](const HubFile& file) { return file.name == name; });
  };
  if (!has("config.json") && !has("adapter_config.json") && !has("gliner_config.json"))
    fail(ErrorCode::usage, "{}: not a model (no config.json)", options.repository);
  if (add(kWeights, false)) return selected;
  const bool has_pickles = std::any_of(listing.files.begin(), listing.files.end(),
                                       [](const HubFile& file) { return matches_any(file.name, kPickles); });
  if (!has_pickles) fail(ErrorCode::usage, "{}: no weights that Brim can read (model.safetensors)", options.repository);
  if (!options.allow_pickle)
    fail(ErrorCode::usage,
         Remedy{"use `brim pull allow_pickle=true` to download them (Brim reads pickles without executing them)"},
         "{}: the weights exist only as pickles (pytorch_model.bin)", options.repository);
  add(kPickles, true);
  return selected;
}

PullReport pull(const PullOptions& options) { return Puller(options).run(); }

}  // namespace brim::net
