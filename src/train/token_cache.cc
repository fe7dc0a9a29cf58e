// SPDX-License-Identifier: Apache-2.0
#include "train/token_cache.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "io/atomic_file.h"
#include "train/content_hash.h"

namespace brim::train {
namespace {

namespace fs = std::filesystem;
constexpr char kMagic[8] = {'B', 'R', 'I', 'M', 'T', 'O', 'K', '3'};  // digit: version of the layout below
constexpr size_t kHashBytes = 16;
constexpr size_t kWord = 8;  // arrays are aligned to this, so they can be used in place
constexpr size_t kArrays = 7;

// Locations of the arrays; stored between the arrays and the hash.
struct Table {
  int64_t truncated = 0, skipped = 0;
  struct Array {
    uint64_t at = 0, count = 0;
  };
  std::array<Array, kArrays> arrays;
};
static_assert(sizeof(Table) % kWord == 0);

// Writes and hashes a set incrementally, tokens first.
class TokenWriter {
 public:
  TokenWriter(const fs::path& path, int64_t limit) : file_(path), limit_(limit) {
    put(kMagic, sizeof kMagic);
    open_array();
  }

  void add_ids(std::span<const int32_t> ids) {
    put(ids.data(), ids.size_bytes());
    table_.arrays[0].count += ids.size();
  }
  // Writes the remaining arrays; returns the file size in bytes.
  int64_t finish(const TrainRows& rows) {
    add_ids(rows.ids);
    size_t number = 0;
    each_array(
        [&](const auto& values) {
          if (number++ == 0) return;  // the ids
          open_array();
          put(values.data(), values.size() * sizeof values[0]);
          table_.arrays.at(arrays_ - 1).count = values.size();
        },
        rows);
    align();
    table_.truncated = rows.truncated;
    table_.skipped = rows.skipped;
    put(&table_, sizeof table_);
    const auto hash = hash_.value();
    file_.write(hash.data(), kHashBytes);
    return static_cast<int64_t>(file_.position());
  }
  void commit() { file_.commit(); }

 private:
  void open_array() {
    align();
    table_.arrays.at(arrays_++).at = file_.position();
  }
  void align() {
    constexpr char zeros[kWord] = {};
    if (part_bytes_ > 0) put(zeros, kWord - part_bytes_);
  }
  // The hash takes whole words, so that it does not depend on how the data is split.
  void put(const void* data, size_t bytes) {
    if (static_cast<int64_t>(file_.position() + bytes) > limit_)
      fail(ErrorCode::cannot_write, "exceeds {}, the size limit of {}", format_bytes(limit_),
           file_.path().parent_path().string());
    file_.write(data, bytes);
    const auto* from = static_cast<const char*>(data);
    while (bytes > 0) {
      if (part_bytes_ == 0 && bytes >= kWord) {
        const size_t whole = bytes / kWord * kWord;
        hash_.add(from, whole);
        from += whole;
        bytes -= whole;
        continue;
      }
      const size_t n = std::min(bytes, kWord - part_bytes_);
      std::memcpy(part_ + part_bytes_, from, n);
      from += n;
      bytes -= n;
      part_bytes_ += n;
      if (part_bytes_ == kWord) {
        hash_.add(part_, kWord);
        part_bytes_ = 0;
      }
    }
  }

  io::AtomicFile file_;
  int64_t limit_;
  ContentHash hash_;
  Table table_;
  size_t arrays_ = 0, part_bytes_ = 0;
  char part_[kWord] = {};
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
    if (file.size() < sizeof kMagic + sizeof(Table) + kHashBytes ||
        std::memcmp(file.data(), kMagic, sizeof kMagic) != 0)
      fail(ErrorCode::bad_data, "not a token cache");
    const size_t end = file.size() - kHashBytes, arrays_end = end - sizeof(Table);
    if (!written_just_now) {
      ContentHash hash;
      hash.add_pieces(file.data(), end, &file);
      if (std::memcmp(hash.value().data(), file.data() + end, kHashBytes) != 0)
        fail(ErrorCode::bad_data, "hash mismatch");
    }
    Table table;
    std::memcpy(&table, file.data() + arrays_end, sizeof table);
    set.truncated = table.truncated;
    set.skipped = table.skipped;
    size_t number = 0;
    each_array(
        [&]<class T>(std::span<const T>& view) {
          const auto [at, count] = table.arrays.at(number++);
          if (at % kWord != 0 || at > arrays_end || count > (arrays_end - at) / sizeof(T))
            fail(ErrorCode::bad_data, "array out of bounds");
          view = {reinterpret_cast<const T*>(file.data() + at), count};
        },
        set);
    if (set.begin.empty()) fail(ErrorCode::bad_data, "no rows");
    fs::last_write_time(path, fs::file_time_type::clock::now(), ec);  // marks it as recently used
    return set;
  } catch (const Error& e) {
    log_warning("{}: damaged ({}); tokenizing again", path.string(), e.what());
    fs::remove(path, ec);
    return std::nullopt;
  }
}

void evict_least_recent(const fs::path& dir, const char* extension, const fs::path& kept, int64_t limit_bytes,
                        int64_t added) {
  struct Old {
    fs::path path;
    fs::file_time_type used;
    int64_t bytes;
  };
  std::vector<Old> all;
  std::error_code ec;
  int64_t total = added;
  for (const auto& entry : fs::directory_iterator(dir, ec)) {
    if (entry.path().extension() != extension) continue;
    const auto bytes = static_cast<int64_t>(entry.file_size(ec));
    total += bytes;
    if (entry.path() != kept) all.push_back({entry.path(), entry.last_write_time(ec), bytes});
  }
  std::sort(all.begin(), all.end(), [](const Old& a, const Old& b) { return a.used < b.used; });
  for (const Old& old : all) {
    if (total <= limit_bytes) break;
    if (fs::remove(old.path, ec)) total -= old.bytes;
  }
}

int64_t cache_limit(const fs::path& dir) {
  std::error_code ec;
  fs::create_directories(dir, ec);
  const auto space = fs::space(dir, ec);
  return std::max<int64_t>(int64_t{4} << 30, ec ? 0 : static_cast<int64_t>(space.available / 4));
}

void hash_tokenizer(ContentHash& hash, const fs::path& dir) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(dir))
    if (is_tokenizer_file(entry.path())) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  for (const auto& path : files) {
    hash.add(path.filename().string());
    hash.add_file(path);
  }
}

TrainSet TokenCache::get(const std::string& key, const std::function<void(TrainRows&)>& make) {
  const fs::path path = this->path(key);
  if (auto set = load(path, false)) {
    hit_ = true;
    return std::move(*set);
  }
  hit_ = false;
  TrainRows rows;
  bool made = false;
  try {
    std::error_code ec;
    fs::create_directories(dir_, ec);
    TokenWriter file(path, limit_);
    rows.spill = [&](std::span<const int32_t> ids) { file.add_ids(ids); };
    make(rows);
    made = true;
    evict_least_recent(dir_, ".tokens", {}, limit_, file.finish(rows));
    file.commit();
    if (auto set = load(path, true)) {
      set->first_skipped = rows.first_skipped;
      return std::move(*set);
    }
  } catch (const Error& e) {
    if (e.code() != ErrorCode::cannot_write) throw;
    log_warning("cannot cache tokens: {}", e.what());
  }
  rows.spill = nullptr;
  if (!made || rows.spilled > 0) {
    rows = {};
    make(rows);
  }
  return TrainSet(std::move(rows));
}

std::string token_cache_key(const std::vector<std::string>& files, const std::string& token_file,
                            const TrainSettings& s, TrainTask task, const LabelSets& labels,
                            const fs::path& tokenizer_dir, int64_t max_length) {
  ContentHash hash;
  for (const auto& file : files) {
    hash.add(file);
    hash.add_file(file);
  }  // names matter too: rows store their source file
  if (task == TrainTask::multi) {
    hash.add(token_file);
    hash.add_file(token_file);
  }
  hash_tokenizer(hash, tokenizer_dir);
  hash.add(fmt::format("{}|{}|{}|{}|{}|{}|{}|{}|{}", static_cast<int>(task), s.text_column,
                       fmt::join(s.label_columns, ","), s.format, s.several_labels(), max_length,
                       static_cast<int>(s.delimiter), s.no_quotes, setting_text(s, "on_error")));
  if (!s.pair_column.empty()) hash.add("pair|" + s.pair_column);
  if (takes_unlabelled(s, files)) hash.add("unlabelled");
  if (s.numbers()) hash.add("numbers");
  for (const auto* names : {&labels.sequence, &labels.token})
    for (const auto& name : *names) hash.add(name);
  return hash.hex();
}

}  // namespace brim::train
