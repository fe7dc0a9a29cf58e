// SPDX-License-Identifier: Apache-2.0
#include "train/token_cache.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "io/atomic_file.h"
#include "train/content_hash.h"

namespace brim {
namespace {

namespace fs = std::filesystem;
constexpr char kMagic[8] = {'B', 'R', 'I', 'M', 'T', 'O', 'K', '2'};  // the digit changes with the layout below
constexpr size_t kHashBytes = 16;
constexpr size_t kWord = 8;  // everything begins at a multiple of it, so that arrays are read where they lie

constexpr size_t padded(size_t bytes) { return (bytes + kWord - 1) / kWord * kWord; }

// Bytes in whole words, written and hashed as they come.
class WordFile {
 public:
  explicit WordFile(const fs::path& path) : file_(path) {}
  void put(const void* data, size_t bytes) {
    const size_t whole = bytes / kWord * kWord;
    put_words(data, whole);
    if (whole == bytes) return;
    char last[kWord] = {};
    std::memcpy(last, static_cast<const char*>(data) + whole, bytes - whole);
    put_words(last, kWord);
  }
  void commit() {
    const auto hash = hash_.value();
    file_.write(hash.data(), kHashBytes);
    file_.commit();
  }

 private:
  void put_words(const void* data, size_t bytes) { hash_.add(data, bytes), file_.write(data, bytes); }
  AtomicFile file_;
  ContentHash hash_;
};

bool is_tokenizer_file(const fs::path& path) {
  const std::string name = path.filename().string();
  for (const char* known : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                            "vocab.txt", "vocab.json", "merges.txt", "bpe.codes", "dict.txt"})
    if (name == known) return true;
  return path.extension() == ".model";
}

}  // namespace

std::optional<TrainSet> TokenCache::load(const fs::path& path, bool written_just_now) const {
  std::error_code ec;
  if (!fs::exists(path, ec)) return std::nullopt;
  try {
    TrainSet set;
    set.mapped = std::make_shared<const MappedFile>(path);
    const MappedFile& file = *set.mapped;
    if (file.size() < sizeof kMagic + kHashBytes || std::memcmp(file.data(), kMagic, sizeof kMagic) != 0)
      fail(ErrorCode::bad_data, "no token cache");
    const size_t end = file.size() - kHashBytes;
    if (!written_just_now) {
      ContentHash hash;
      hash.add(file.data(), end);
      if (std::memcmp(hash.value().data(), file.data() + end, kHashBytes) != 0)
        fail(ErrorCode::bad_data, "its hash differs");
    }
    size_t at = sizeof kMagic;
    const auto take = [&](size_t bytes) {
      if (end - at < padded(bytes)) fail(ErrorCode::bad_data, "cut short");
      const std::byte* data = file.data() + at;
      at += padded(bytes);
      return data;
    };
    std::memcpy(&set.truncated, take(sizeof set.truncated), sizeof set.truncated);
    each_array(
        [&]<class T>(std::span<const T>& view) {
          uint64_t count = 0;
          std::memcpy(&count, take(sizeof count), sizeof count);
          if (count > end / sizeof(T)) fail(ErrorCode::bad_data, "cut short");
          view = {reinterpret_cast<const T*>(take(count * sizeof(T))), count};
        },
        set);
    if (set.begin.empty()) fail(ErrorCode::bad_data, "no rows");
    fs::last_write_time(path, fs::file_time_type::clock::now(), ec);  // used just now
    return set;
  } catch (const Error& e) {
    log_warning("{}: damaged ({}); tokenizing again", path.string(), e.what());
    fs::remove(path, ec);
    return std::nullopt;
  }
}

bool TokenCache::store(const fs::path& path, const TrainSet& set) const {
  size_t bytes = sizeof kMagic + sizeof set.truncated + kHashBytes;
  each_array([&](const auto& view) { bytes += sizeof(uint64_t) + padded(view.size_bytes()); }, set);
  if (static_cast<int64_t>(bytes) > limit_) return false;
  std::error_code ec;
  fs::create_directories(dir_, ec);
  make_room(static_cast<int64_t>(bytes));
  WordFile file(path);
  file.put(kMagic, sizeof kMagic);
  file.put(&set.truncated, sizeof set.truncated);
  each_array(
      [&](const auto& view) {
        const uint64_t count = view.size();
        file.put(&count, sizeof count);
        file.put(view.data(), view.size_bytes());
      },
      set);
  file.commit();
  return true;
}

void TokenCache::make_room(int64_t bytes) const {
  struct Old {
    fs::path path;
    fs::file_time_type used;
    int64_t bytes;
  };
  std::vector<Old> all;
  std::error_code ec;
  int64_t total = bytes;
  for (const auto& entry : fs::directory_iterator(dir_, ec)) {
    if (entry.path().extension() != ".tokens") continue;
    all.push_back({entry.path(), entry.last_write_time(ec), static_cast<int64_t>(entry.file_size(ec))});
    total += all.back().bytes;
  }
  std::sort(all.begin(), all.end(), [](const Old& a, const Old& b) { return a.used < b.used; });
  for (const Old& old : all) {
    if (total <= limit_) break;
    if (fs::remove(old.path, ec)) total -= old.bytes;
  }
}

TrainSet TokenCache::get(const std::string& key, const std::function<TrainSet()>& make) {
  const fs::path file = path(key);
  if (auto set = load(file, false)) {
    hit_ = true;
    return std::move(*set);
  }
  hit_ = false;
  TrainSet set = make();
  try {
    // From here on the file's pages serve, which the system may drop; the arrays made first could only be swapped.
    if (store(file, set))
      if (auto mapped = load(file, true)) return std::move(*mapped);
  } catch (const Error& e) {
    log_warning("tokens are not cached: {}", e.what());
  }
  return set;
}

std::string token_cache_key(const std::vector<std::string>& files, const std::string& token_file,
                            const TrainSettings& s, TrainTask task, const LabelSets& labels,
                            const fs::path& tokenizer_dir, int64_t max_length) {
  ContentHash hash;
  for (const auto& file : files) hash.add(file), hash.add_file(file);  // names too: rows remember where they came from
  if (task == TrainTask::multi) hash.add(token_file), hash.add_file(token_file);
  std::vector<fs::path> tokenizer;
  for (const auto& entry : fs::directory_iterator(tokenizer_dir))
    if (is_tokenizer_file(entry.path())) tokenizer.push_back(entry.path());
  std::sort(tokenizer.begin(), tokenizer.end());
  for (const auto& path : tokenizer) hash.add(path.filename().string()), hash.add_file(path);
  hash.add(fmt::format("{}|{}|{}|{}|{}|{}", static_cast<int>(task), s.text_column, s.label_column, s.format,
                       s.multi_label, max_length));
  for (const auto* names : {&labels.sequence, &labels.token})
    for (const auto& name : *names) hash.add(name);
  return hash.hex();
}

}  // namespace brim
