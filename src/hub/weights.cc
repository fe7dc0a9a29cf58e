// SPDX-License-Identifier: Apache-2.0
#include "hub/weights.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/units.h"
#include "hub/adapter.h"
#include "hub/foreign_model.h"
#include "hub/gliner_config.h"
#include "hub/torch_bin.h"
#include "io/json_text.h"
#include "io/quote_text.h"

namespace brim::hub {
namespace fs = std::filesystem;
namespace {

constexpr size_t kMaxIndexBytes = size_t{64} << 20;

// Copies elements [begin, end) of strided memory in row-major order.
void gather(const StoredTensor& tensor, size_t element_bytes, int64_t begin, int64_t end, std::byte* out) {
  const size_t rank = tensor.shape.size();
  std::vector<int64_t> index(rank, 0);
  int64_t rest = begin;
  for (size_t d = rank; d-- > 0; rest /= tensor.shape[d]) index[d] = rest % tensor.shape[d];
  for (int64_t i = begin; i < end; ++i, out += element_bytes) {
    int64_t offset = 0;
    for (size_t d = 0; d < rank; ++d) offset += index[d] * tensor.stride[d];
    std::memcpy(out, tensor.data + static_cast<size_t>(offset) * element_bytes, element_bytes);
    for (size_t d = rank; d-- > 0;) {
      if (++index[d] < tensor.shape[d]) break;
      index[d] = 0;
    }
  }
}

// Shards are named by the index; a name must not lead out of the directory.
bool plain_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\\') == std::string::npos && name.find('\0') == std::string::npos;
}

// Tensor names by shard.
using Shards = std::map<std::string, std::vector<std::string>>;

void check_shards(const fs::path& index, const Shards& shards) {
  std::error_code ignored;
  std::string missing;
  size_t present = 0;
  for (const auto& [shard, unused] : shards) {
    if (fs::exists(fs::symlink_status(index.parent_path() / shard, ignored)))
      ++present;
    else if (missing.empty())
      missing = shard;
  }
  if (!missing.empty())
    fail(ErrorCode::bad_model, "{}: the shard {} is missing ({} of {} found); download it again", index.string(),
         io::quote_text(missing), present, shards.size());
}

[[noreturn]] void fail_no_weights(const fs::path& dir) {
  if (const std::string cause = foreign_model(dir); !cause.empty())
    fail(ErrorCode::bad_model, "{}: {}", dir.string(), cause);
  fail(ErrorCode::bad_model, "{}: no weights found (model.safetensors or pytorch_model.bin, single or sharded)",
       dir.string());
}

}  // namespace

WeightSource::~WeightSource() = default;

std::unique_ptr<WeightSource> WeightSource::open(const fs::path& dir) {
  if (is_labels_encoder(dir)) {  // those tensors of the GLiNER model
    std::unique_ptr<WeightSource> source = open(dir.parent_path());
    const std::string_view prefix = kGlinerLabelsEncoder;
    std::map<std::string, Entry, std::less<>> kept;
    for (auto& [name, entry] : source->entries_)
      if (name.starts_with(prefix)) kept.emplace(name.substr(prefix.size()), std::move(entry));
    source->entries_ = std::move(kept);
    source->names_.clear();
    for (const auto& [name, unused] : source->entries_) source->names_.push_back(name);
    return source;
  }
  std::error_code ignored;
  if (!fs::is_directory(dir, ignored)) fail(ErrorCode::bad_model, "{}: not a directory", dir.string());
  // A dangling link counts as existing, so that opening it reports the problem.
  auto there = [&](const fs::path& path) { return fs::exists(fs::symlink_status(path, ignored)); };
  for (const char* name : {"model.safetensors", "pytorch_model.bin"}) {
    if (there(dir / name)) return open_file(dir / name);
    const fs::path index = dir / (std::string(name) + ".index.json");
    if (!there(index)) continue;
    std::unique_ptr<WeightSource> source(new WeightSource);
    source->open_index(index);
    source->finish(index);
    return source;
  }
  fail_no_weights(dir);
}

std::unique_ptr<WeightSource> WeightSource::open_file(const fs::path& file) {
  std::unique_ptr<WeightSource> source(new WeightSource);
  source->add_all(source->load(file));
  source->finish(file);
  return source;
}

TensorTable WeightSource::load(const fs::path& path) {
  const MappedFile& file = files_.emplace_back(path);
  if (path.extension() != ".safetensors") {
    TensorTable tensors = parse_torch_bin(file.bytes(), path.string());
    file.release();
    return tensors;
  }
  SafetensorsContents contents = parse_safetensors(file.bytes(), path.string());
  file.release();
  metadata_.merge(contents.metadata);
  return std::move(contents.tensors);
}

void WeightSource::add_all(TensorTable table) {
  while (!table.empty()) {
    auto node = table.extract(table.begin());
    entries_[std::move(node.key())] = {std::move(node.mapped()), files_.size() - 1};
  }
}

void WeightSource::open_index(const fs::path& index) {
  const MappedFile text(index);
  if (text.size() > kMaxIndexBytes)
    fail(ErrorCode::bad_model, "{}: {} bytes are too large for an index", index.string(), text.size());
  const nlohmann::json object = io::parse_json(text.text(), index.string());
  const auto map = object.is_object() ? object.find("weight_map") : object.end();
  if (map == object.end() || !map->is_object())
    fail(ErrorCode::bad_model, "{}: no \"weight_map\" object; download it again", index.string());
  Shards shards;
  for (const auto& [name, value] : map->items()) {
    if (!value.is_string() || !plain_file_name(value.get_ref<const std::string&>()))
      fail(ErrorCode::bad_model, "{}: tensor {} is in {}, but shards must be files in the same directory",
           index.string(), io::quote_text(name), io::quote_text(value.dump()));
    shards[value.get<std::string>()].push_back(name);
  }
  check_shards(index, shards);
  for (const auto& [shard, names] : shards) {
    const fs::path path = index.parent_path() / shard;
    TensorTable table = load(path);
    for (const std::string& name : names) {
      auto node = table.extract(name);
      if (node.empty())
        fail(ErrorCode::bad_model, "{}: tensor {} is missing from {}; download both again", index.string(),
             io::quote_text(name), path.string());
      entries_[name] = {std::move(node.mapped()), files_.size() - 1};
    }
  }
}

// DataParallel, torch.compile and modules that hold the model as `model` prefix all names. ModernBERT's own names start
// with "model." too.
void WeightSource::strip_wrapper_prefixes() {
  const auto prefixes_all = [&](std::string_view prefix) {
    return std::all_of(entries_.begin(), entries_.end(), [&](const auto& entry) {
      return entry.first.size() > prefix.size() && entry.first.starts_with(prefix);
    });
  };
  for (bool stripped = !entries_.empty(); stripped;) {
    stripped = false;
    for (const std::string_view prefix : {"module.", "_orig_mod.", "model."}) {
      if (!prefixes_all(prefix) || (prefix == "model." && entries_.contains("model.embeddings.tok_embeddings.weight")))
        continue;
      std::map<std::string, Entry, std::less<>> renamed;
      for (auto& [name, entry] : entries_) renamed.emplace(name.substr(prefix.size()), std::move(entry));
      entries_ = std::move(renamed);
      stripped = true;
    }
  }
  // GLiNER holds its encoder beside its head: the encoder's tensors get the names they have when saved alone.
  const std::string encoder = kGlinerEncoder;
  for (auto at = entries_.lower_bound(encoder); at != entries_.end() && at->first.starts_with(encoder);
       at = entries_.lower_bound(encoder)) {
    auto node = entries_.extract(at);
    node.key().erase(0, encoder.size());
    entries_.insert(std::move(node));
  }
}

void WeightSource::finish(const fs::path& path) {
  where_ = path.string();
  strip_wrapper_prefixes();
  for (const auto& [name, unused] : entries_) names_.push_back(name);
}

const WeightSource::Entry* WeightSource::entry(std::string_view name) const {
  if (const auto found = entries_.find(name); found != entries_.end()) return &found->second;
  static constexpr std::pair<std::string_view, std::string_view> kOldNames[] = {{"LayerNorm.weight", "LayerNorm.gamma"},
                                                                                {"LayerNorm.bias", "LayerNorm.beta"}};
  for (const auto& [now, old] : kOldNames) {
    if (!name.ends_with(now)) continue;
    const std::string before = std::string(name.substr(0, name.size() - now.size())) + std::string(old);
    if (const auto found = entries_.find(before); found != entries_.end()) return &found->second;
  }
  return nullptr;
}

const StoredTensor& WeightSource::require(std::string_view name) const {
  const StoredTensor* stored = describe(name);
  if (stored == nullptr) {
    const std::string near = nearest_name(name, names_);
    fail(ErrorCode::bad_model, "{}: tensor {} is missing{}: the weights do not match config.json", where_,
         io::quote_text(name), near.empty() ? "" : fmt::format(" (similar: {})", io::quote_text(near)));
  }
  if (!stored->dtype) fail(ErrorCode::bad_model, "{}: unsupported type {}", where(name), stored->dtype_text);
  if (stored->shape.size() > tensor::kMaxRank)
    fail(ErrorCode::bad_model, "{}: shape {} has more than {} dimensions", where(name), shape_text(stored->shape),
         tensor::kMaxRank);
  return *stored;
}

void WeightSource::read(std::string_view name, int64_t begin, int64_t end, void* out) const {
  const StoredTensor& stored = require(name);
  BRIM_CHECK(0 <= begin && begin <= end && end <= stored.elements, "{}: elements [{}, {}) of {}", where(name), begin,
             end, stored.elements);
  if (begin == end) return;
  const Entry& found = *entry(name);
  if (found.original)
    read_adapted(name, found, begin, end, static_cast<float*>(out));
  else
    read_stored(stored, found.file, begin, end, out);
}

void WeightSource::read_stored(const StoredTensor& stored, size_t number, int64_t begin, int64_t end, void* out) const {
  const MappedFile& file = files_[number];
  const auto width = static_cast<size_t>(dtype_bytes(*stored.dtype));
  if (stored.stride.empty()) {
    file.read(static_cast<size_t>(stored.data - file.data()) + static_cast<size_t>(begin) * width,
              static_cast<size_t>(end - begin) * width, out);
    return;
  }
  // Strided tensors occur only in torch files that saved a view, such as a transposed matrix.
  gather(stored, width, begin, end, static_cast<std::byte*>(out));
  file.release();
}

void WeightSource::read_adapted(std::string_view name, const Entry& entry, int64_t begin, int64_t end,
                                float* out) const {
  constexpr int64_t kPiece = int64_t{1} << 14;
  if (const StoredTensor& original = *entry.original; original.dtype) {
    std::vector<std::byte> raw(static_cast<size_t>(std::min(kPiece, end - begin) * dtype_bytes(*original.dtype)));
    for (int64_t at = begin; at < end; at += kPiece) {
      const int64_t next = std::min(at + kPiece, end);
      read_stored(original, entry.file, at, next, raw.data());
      convert_elements(raw.data(), *original.dtype, out + (at - begin), tensor::DType::f32, next - at);
    }
  }
  adapter_->apply(name, begin, end, out);
}

void WeightSource::adapt(std::unique_ptr<const Adapter> adapter) {
  adapter_ = std::move(adapter);
  for (const std::string& name : adapter_->changed()) {
    const Entry* const known = entry(name);
    Entry changed = known != nullptr ? *known : Entry();
    changed.original = adapter_->adds_to(name) ? changed.stored : StoredTensor();
    if (const auto added = adapter_->added().find(name); added != adapter_->added().end()) {
      changed.stored.shape = added->second;
      changed.stored.elements = 1;
      for (const int64_t n : added->second) changed.stored.elements *= n;
    }
    changed.stored.dtype = tensor::DType::f32;
    changed.stored.stride.clear();
    changed.stored.data = nullptr;
    entries_[name] = std::move(changed);
  }
  names_.clear();
  for (const auto& [name, unused] : entries_) names_.push_back(name);
}

LoadedTensor WeightSource::get(std::string_view name) const {
  const StoredTensor& stored = require(name);
  LoadedTensor t;
  t.dtype = *stored.dtype;
  t.rank = std::max<int>(1, static_cast<int>(stored.shape.size()));
  t.dim[0] = 1;
  std::copy(stored.shape.begin(), stored.shape.end(), t.dim.begin());
  int64_t step = 1;
  for (int i = t.rank - 1; i >= 0; --i) {
    t.stride[static_cast<size_t>(i)] = step;
    step *= t.dim[static_cast<size_t>(i)];
  }
  const size_t bytes = static_cast<size_t>(stored.elements) * static_cast<size_t>(dtype_bytes(t.dtype));
  t.storage = std::make_unique_for_overwrite<std::byte[]>(std::max<size_t>(bytes, 1));
  t.data = t.storage.get();
  read(name, 0, stored.elements, t.data);
  return t;
}

std::optional<LoadedTensor> WeightSource::find(std::string_view name) const {
  if (!has(name)) return std::nullopt;
  return get(name);
}

void WeightSource::check_unchanged() const {
  for (const MappedFile& file : files_) file.check_unchanged();
  if (adapter_) adapter_->check_unchanged();
}

const StoredTensor* WeightSource::describe(std::string_view name) const {
  const Entry* found = entry(name);
  return found == nullptr ? nullptr : &found->stored;
}

std::string WeightSource::where(std::string_view name) const {
  const Entry* found = entry(name);
  const std::string file = found == nullptr ? where_ : files_[found->file].path().string();
  return fmt::format("{}: tensor {}", file, io::quote_text(name));
}

std::vector<fs::path> WeightSource::files() const {
  std::vector<fs::path> paths;
  for (const MappedFile& file : files_) paths.push_back(file.path());
  return paths;
}

int64_t WeightSource::file_bytes() const {
  int64_t total = 0;
  for (const MappedFile& file : files_) total += static_cast<int64_t>(file.size());
  return total;
}

int64_t WeightSource::parameter_count() const {
  int64_t total = 0;
  for (const auto& [name, entry] : entries_) total += entry.stored.elements;
  return total;
}

}  // namespace brim::hub
