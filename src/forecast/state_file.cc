// SPDX-License-Identifier: Apache-2.0
#include "forecast/state_file.h"

#include <algorithm>

#include "base/error.h"

namespace brim::forecast {
namespace {

constexpr std::string_view kMagic = "brim forecast 1\n";
constexpr size_t kBlockBytes = size_t{1} << 20;  // hashed in blocks of this size

std::string hash_text(const train::ContentHash& hash) {
  const auto value = hash.value();
  return {reinterpret_cast<const char*>(value.data()), sizeof value};
}

}  // namespace

StateWriter::StateWriter(const std::filesystem::path& path, std::string_view owner) : file_(path) {
  file_.write(kMagic);
  text(owner);
}

void StateWriter::write(const void* data, size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const size_t n = std::min(bytes, kBlockBytes - block_.size());
    block_.append(from, n);
    from += n;
    bytes -= n;
    if (block_.size() == kBlockBytes) end_block();
  }
}

void StateWriter::end_block() {
  hash_.add(std::string_view(block_));
  file_.write(block_);
  block_.clear();
}

void StateWriter::commit() {
  end_block();
  file_.write(hash_text(hash_));
  file_.commit();
}

std::optional<StateReader> StateReader::open(const std::filesystem::path& path, std::string_view owner) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return std::nullopt;
  MappedFile file(path, ErrorCode::bad_data);
  const std::string_view all = file.text();
  const size_t hash_bytes = hash_text({}).size();
  if (all.size() < kMagic.size() + hash_bytes || !all.starts_with(kMagic)) return std::nullopt;
  const std::string_view content = all.substr(kMagic.size(), all.size() - kMagic.size() - hash_bytes);
  train::ContentHash hash;
  for (size_t at = 0; at <= content.size(); at += kBlockBytes) hash.add(content.substr(at, kBlockBytes));
  if (hash_text(hash) != all.substr(all.size() - hash_bytes)) return std::nullopt;
  StateReader reader(std::move(file), content);
  if (reader.text() != owner) return std::nullopt;
  return reader;
}

const char* StateReader::take(size_t bytes) {
  if (bytes > content_.size())
    fail(ErrorCode::bad_data, "{}: truncated: {} bytes are missing", file_.path().string(), bytes - content_.size());
  const char* data = content_.data();
  content_.remove_prefix(bytes);
  return data;
}

size_t StateReader::count(size_t each) {
  const auto n = get<uint64_t>();
  if (n > content_.size() / each)
    fail(ErrorCode::bad_data, "{}: truncated in a list of {} values", file_.path().string(), n);
  return static_cast<size_t>(n);
}

std::string StateReader::text() {
  const size_t n = count(1);
  return {take(n), n};
}

}  // namespace brim::forecast
