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
constexpr char kMagic[8] = {'B', 'R', 'I', 'M', 'T', 'O', 'K', '1'};  // the digit changes with the layout below
constexpr size_t kHashBytes = 16;

// One list of the arrays serves writing, reading and sizes.
template <class Set, class Fn>
void each_array(Set& set, Fn&& fn) {
  fn(set.ids), fn(set.begin), fn(set.label), fn(set.multi_label), fn(set.token_label), fn(set.file), fn(set.line);
}

bool is_tokenizer_file(const fs::path& path) {
  const std::string name = path.filename().string();
  for (const char* known : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                            "vocab.txt", "vocab.json", "merges.txt", "bpe.codes", "dict.txt"})
    if (name == known) return true;
  return path.extension() == ".model";
}

}  // namespace

std::optional<TrainSet> TokenCache::load(const fs::path& path) const {
  std::error_code ec;
  if (!fs::exists(path, ec)) return std::nullopt;
  try {
    const MappedFile file(path);
    ContentHash hash;
    if (file.size() < sizeof kMagic + kHashBytes || std::memcmp(file.data(), kMagic, sizeof kMagic) != 0)
      fail(ErrorCode::bad_data, "no token cache");
    const size_t end = file.size() - kHashBytes;
    hash.add(file.data(), end);
    if (std::memcmp(hash.value().data(), file.data() + end, kHashBytes) != 0)
      fail(ErrorCode::bad_data, "its hash differs");
    size_t at = sizeof kMagic;
    TrainSet set;
    const auto take = [&](void* out, size_t bytes) {
      if (end - at < bytes) fail(ErrorCode::bad_data, "cut short");
      if (bytes > 0) std::memcpy(out, file.data() + at, bytes);
      at += bytes;
    };
    take(&set.truncated, sizeof set.truncated);
    each_array(set, [&](auto& values) {
      uint64_t count = 0;
      take(&count, sizeof count);
      if (count > end) fail(ErrorCode::bad_data, "cut short");
      values.resize(count);
      take(values.data(), count * sizeof values[0]);
    });
    if (set.begin.empty()) fail(ErrorCode::bad_data, "no rows");
    fs::last_write_time(path, fs::file_time_type::clock::now(), ec);  // used just now
    return set;
  } catch (const Error& e) {
    log_warning("{}: damaged ({}); tokenizing again", path.string(), e.what());
    fs::remove(path, ec);
    return std::nullopt;
  }
}

void TokenCache::store(const fs::path& path, const TrainSet& set) const {
  std::error_code ec;
  fs::create_directories(dir_, ec);
  AtomicFile file(path);
  ContentHash hash;
  std::vector<char> bytes;
  const auto put = [&](const void* data, size_t count) {
    bytes.insert(bytes.end(), static_cast<const char*>(data), static_cast<const char*>(data) + count);
  };
  put(kMagic, sizeof kMagic);
  put(&set.truncated, sizeof set.truncated);
  each_array(set, [&](const auto& values) {
    const uint64_t count = values.size();
    put(&count, sizeof count);
    put(values.data(), values.size() * sizeof values[0]);
  });
  hash.add(bytes.data(), bytes.size());
  put(hash.value().data(), kHashBytes);
  if (static_cast<int64_t>(bytes.size()) > limit_) return;
  make_room(static_cast<int64_t>(bytes.size()));
  file.write(bytes.data(), bytes.size());
  file.commit();
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
  if (auto set = load(file)) {
    hit_ = true;
    return std::move(*set);
  }
  hit_ = false;
  TrainSet set = make();
  try {
    store(file, set);
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
