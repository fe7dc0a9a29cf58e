// SPDX-License-Identifier: Apache-2.0
#include "jobs/shards.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "base/units.h"
#include "hub/model_dir.h"
#include "io/atomic_file.h"
#include "io/compress.h"
#include "io/descriptor.h"
#include "io/json_text.h"
#include "io/sha256.h"
#include "io/sync_directory.h"

namespace brim::jobs {
namespace fs = std::filesystem;
using nlohmann::json;
namespace {

constexpr int kJobFormat = 1;
constexpr int64_t kMostShards = 1'000'000;
constexpr int64_t kTail =
    64 << 10;  // bytes of an input that are hashed; the same as in brim.bulk, so that file descriptions match

fs::path private_folder(const fs::path& folder) { return folder / "_brim"; }
fs::path job_path(const fs::path& folder) { return private_folder(folder) / "job.json"; }

std::string shard_number(int64_t id) { return fmt::format("{:05}", id); }

// File names may be arbitrary bytes; JSON must be UTF-8.
std::string json_text(const json& value, int indent) {
  return value.dump(indent, ' ', false, json::error_handler_t::replace) + (indent >= 0 ? "\n" : "");
}

std::optional<int64_t> whole_number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

// Links `draft` under its final name; returns false if the name is taken. Unlike a rename, a link never replaces a
// file.
bool publish_draft(const fs::path& draft, const fs::path& name) {
  if (::link(draft.c_str(), name.c_str()) == 0) {
    io::sync_directory(name.parent_path());
    return true;
  }
  const int error = errno;
  if (error == EEXIST || fs::exists(name))
    return false;  // a link on a network file system may succeed and still report an error
  io::fail_write(name.string(), "cannot publish", error);
}

// Writes a small file unless it exists.
bool put_once(const fs::path& folder, const fs::path& name, const std::string& text) {
  std::string draft = (private_folder(folder) / "draft-XXXXXX").string();
  const int fd = ::mkstemp(draft.data());
  if (fd < 0) io::fail_write(draft, "cannot create", errno);
  struct Cleaner {
    int fd;
    const std::string& path;
    ~Cleaner() {
      ::close(fd);
      ::unlink(path.c_str());
    }
  } cleaner{fd, draft};
  io::WriteStop stop;
  io::write_all(fd, text, draft, stop);
  if (::fchmod(fd, 0644) != 0 || ::fsync(fd) != 0) io::fail_write(draft, "cannot write", errno);
  return publish_draft(draft, name);
}

uint32_t file_crc(const fs::path& path) {
  const MappedFile file(path, ErrorCode::bad_data);
  uLong crc = ::crc32(0, nullptr, 0);
  constexpr size_t kPiece = size_t{64} << 20;
  for (size_t at = 0; at < file.size(); at += kPiece) {
    const size_t bytes = std::min(kPiece, file.size() - at);
    crc = ::crc32(crc, reinterpret_cast<const Bytef*>(file.data() + at), static_cast<uInt>(bytes));
    file.release(at, bytes);
  }
  return static_cast<uint32_t>(crc);
}

// --- job description ---

json facts_json(const ShardFacts& facts) {
  json inputs = json::array();
  for (const auto& [name, signature] : facts.inputs) inputs.push_back({name, signature});
  return {{"format", kJobFormat},
          {"inputs", inputs},
          {"model", facts.model},
          {"options", facts.options},
          {"shards", facts.count}};
}

std::string job_id(const ShardFacts& facts) { return io::sha256_hex(json_text(facts_json(facts), -1)).substr(0, 32); }

json job_json(const ShardJob& job) {
  json inputs = json::array(), shards = json::array();
  for (const auto& [name, signature] : job.facts.inputs) inputs.push_back({{"input", name}, {"signature", signature}});
  for (const Shard& shard : job.shards) {
    json slices = json::array();
    for (const ShardSlice& s : shard.slices)
      slices.push_back({{"input", s.input}, {"begin", s.range.begin}, {"end", s.range.end}});
    shards.push_back({{"id", shard.id}, {"part", shard.part}, {"slices", slices}});
  }
  return {{"format", kJobFormat},
          {"unit", "bytes"},
          {"job", job.id},
          {"inputs", inputs},
          {"model", job.facts.model},
          {"model_name", job.model_name},
          {"options", job.facts.options},
          {"shards", shards}};
}

ShardJob job_of(const fs::path& folder, const json& record) {
  ShardJob job;
  job.folder = folder;
  if (record.at("format") != kJobFormat)
    fail(ErrorCode::bad_data, Remedy{"use the version that planned the job"}, "{}: unsupported format {}, expected {}",
         job_path(folder).string(), record.at("format").dump(), kJobFormat);
  record.at("job").get_to(job.id);
  record.at("model").get_to(job.facts.model);
  record.at("model_name").get_to(job.model_name);
  job.by_bytes = record.value("unit", "row_groups") == "bytes";
  if (job.by_bytes) {
    record.at("options").get_to(job.facts.options);
    for (const json& input : record.at("inputs"))
      job.facts.inputs.emplace_back(input.at("input").get<std::string>(), input.at("signature").get<std::string>());
  }
  for (const json& shard : record.at("shards")) {
    Shard& added = job.shards.emplace_back();
    shard.at("id").get_to(added.id);
    if (added.id != static_cast<int64_t>(job.shards.size()) - 1)
      fail(ErrorCode::bad_data, "shard {} is out of order", added.id);
    added.part = shard.value("part", fmt::format("part-{}.parquet", shard_number(added.id)));
    if (added.part.find('/') != std::string::npos) fail(ErrorCode::bad_data, "invalid part name {}", added.part);
    if (!job.by_bytes) continue;
    for (const json& s : shard.at("slices")) {
      const ShardSlice slice{s.at("input").get<size_t>(), {s.at("begin").get<int64_t>(), s.at("end").get<int64_t>()}};
      if (slice.input >= job.facts.inputs.size() || slice.range.begin < 0)
        fail(ErrorCode::bad_data, "invalid slice of input {}", slice.input);
      added.slices.push_back(slice);
    }
  }
  job.facts.count = static_cast<int64_t>(job.shards.size());
  return job;
}

// Describes how two jobs differ.
std::string differing_facts(const ShardFacts& there, const ShardFacts& now) {
  if (there.count != now.count) return fmt::format("the number of shards is {}, not {}", there.count, now.count);
  if (there.model != now.model) return "the model differs";
  for (size_t i = 0; i < std::max(there.inputs.size(), now.inputs.size()); ++i) {
    if (i >= there.inputs.size() || i >= now.inputs.size() || there.inputs[i].first != now.inputs[i].first)
      return "the inputs differ";
    if (there.inputs[i].second != now.inputs[i].second) return now.inputs[i].first + " has changed";
  }
  for (const auto& [name, value] : now.options)
    if (const auto found = there.options.find(name); found == there.options.end() || found->second != value)
      return fmt::format("{} changed from {} to {}", name, found == there.options.end() ? "not set" : found->second,
                         value);
  return "the options differ";
}

// --- cutting ---

// Start of the first record of `path` at or after byte `offset`, if every record is a line.
int64_t next_line(const std::string& path, int64_t offset, int64_t size) {
  if (offset == 0) return 0;
  std::ifstream file(path, std::ios::binary);
  file.seekg(offset - 1);  // a line may end just before `offset`
  std::string block(size_t{64} << 10, '\0');
  for (int64_t at = offset - 1; at < size;) {
    file.read(block.data(), static_cast<std::streamsize>(block.size()));
    const auto got = static_cast<size_t>(file.gcount());
    if (got == 0) break;
    if (const size_t found = std::string_view(block).substr(0, got).find('\n'); found != std::string::npos)
      return at + static_cast<int64_t>(found) + 1;
    at += static_cast<int64_t>(got);
  }
  return size;
}

// The same if quotes may contain line ends, which requires reading from the start. `offsets` ascend.
std::vector<int64_t> next_records(const std::string& path, const std::vector<int64_t>& offsets, int64_t size,
                                  rows::RowReaderOptions reading) {
  rows::RowReader reader({path}, std::move(reading));
  rows::RowChunk chunk;
  std::vector<int64_t> found;
  auto wanted = offsets.begin();
  while (wanted != offsets.end() && *wanted == 0) {
    found.push_back(0);
    ++wanted;
  }
  while (wanted != offsets.end() && reader.next_chunk(chunk)) {
    size_t row = 0;
    while (wanted != offsets.end() && chunk.position_after(chunk.size() - 1).offset >= *wanted) {
      while (chunk.position_after(row).offset < *wanted) ++row;
      found.push_back(chunk.position_after(row).offset);
      ++wanted;
    }
  }
  found.resize(offsets.size(), size);
  return found;
}

int64_t size_of(const std::string& path) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (error) fail(ErrorCode::usage, "{}: {}", path, error.message());
  return static_cast<int64_t>(size);
}

// Whether the file is compressed, regardless of its name: its byte offsets are not those of the content.
bool is_packed(const std::string& path) {
  std::string head(16, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<size_t>(file.gcount()));
  return io::read_head(path, head.size()) != head;
}

struct SplitPoint {
  size_t input;
  int64_t offset;
};

// Cut positions in the bytes of all inputs, moved forward to the next record.
std::vector<SplitPoint> split_points(const std::vector<std::string>& inputs, const rows::RowReaderOptions& reading,
                                     int64_t count, bool lines) {
  std::vector<int64_t> sizes;
  int64_t total = 0;
  for (const std::string& input : inputs) {
    sizes.push_back(size_of(input));
    total += sizes.back();
  }
  std::vector<SplitPoint> points;
  int64_t before = 0;
  int64_t next = 1;
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::vector<int64_t> offsets;
    for (; next < count; ++next) {
      const auto at = static_cast<int64_t>(static_cast<__int128>(total) * next / count) - before;
      if (at >= sizes[i]) break;
      offsets.push_back(at);
    }
    before += sizes[i];
    if (offsets.empty()) continue;
    const bool packed = is_packed(inputs[i]);
    if (packed)
      for (int64_t& at : offsets) at = 2 * at < sizes[i] ? 0 : sizes[i];
    else if (lines)
      for (int64_t& at : offsets) at = next_line(inputs[i], at, sizes[i]);
    else
      offsets = next_records(inputs[i], offsets, sizes[i], reading);
    for (const int64_t at : offsets) points.push_back(at >= sizes[i] ? SplitPoint{i + 1, 0} : SplitPoint{i, at});
  }
  points.resize(static_cast<size_t>(count) - 1, {inputs.size(), 0});
  return points;
}

[[noreturn]] void fail_foreign_part(const fs::path& part) {
  fail(ErrorCode::bad_data, Remedy{"remove it or use an empty folder"}, "{} belongs to another job", part.string());
}

// The published record of a shard; null if there is none.
json record_of(const ShardJob& job, const Shard& shard) {
  const fs::path path = private_folder(job.folder) / ("part-" + shard_number(shard.id) + ".json");
  if (!fs::exists(path)) return {};
  json record = json::parse(read_file(path, ErrorCode::bad_data), nullptr, false);
  if (!record.is_object() || record.value("job", "") != job.id || record.value("shard", int64_t{-1}) != shard.id ||
      !record.value("crc", json()).is_number_unsigned() || !record.value("rows", json()).is_number_unsigned() ||
      !record.value("bytes", json()).is_number_unsigned())
    fail_foreign_part(path);
  return record;
}

fs::path failure_path(const ShardJob& job, int64_t id) {
  return private_folder(job.folder) / ("failed-" + shard_number(id) + ".json");
}

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace

ShardChoice read_shard(std::string_view text, const EnvLookup& env, bool planned) {
  const Remedy how{"use 3/64 (counted from 0), auto or auto/64"};
  const size_t slash = text.find('/');
  const std::string_view first = text.substr(0, slash);
  ShardChoice choice;
  if (slash != std::string_view::npos) {
    choice.count = whole_number(text.substr(slash + 1));
    if (!choice.count || *choice.count < 1 || *choice.count > kMostShards)
      fail(ErrorCode::usage, how, "`shard={}`: the number of shards must be from 1 to {}", text, kMostShards);
  }
  if (first == "auto") {
    const auto number = [&](const char* name) -> std::optional<int64_t> {
      const auto value = env(name);
      if (!value) return std::nullopt;
      const auto read = whole_number(*value);
      if (!read) fail(ErrorCode::usage, "{}={}: not a number", name, *value);
      return read;
    };
    if (const auto task = number("SLURM_ARRAY_TASK_ID")) {
      choice.index = *task;
      const auto tasks = number("SLURM_ARRAY_TASK_COUNT"), least = number("SLURM_ARRAY_TASK_MIN"),
                 most = number("SLURM_ARRAY_TASK_MAX");
      if (!choice.count && !planned) {  // parts of the array may be run again later
        if (!tasks || least.value_or(0) != 0 || most.value_or(*tasks - 1) != *tasks - 1)
          fail(ErrorCode::usage, Remedy{"submit the array as 0-63 or set `shard=auto/64`"},
               "`shard=auto`: the task ids of the Slurm array do not start at 0 without gaps");
        choice.count = tasks;
      }
    } else if (const auto index = number("JOB_COMPLETION_INDEX")) {
      choice.index = *index;
      if (!choice.count && !planned)
        fail(ErrorCode::usage, Remedy{"set `shard=auto/N`, N being the completions of the job"},
             "`shard=auto`: Kubernetes does not provide the number of shards");
    } else {
      fail(ErrorCode::usage, Remedy{"set `shard=I/N`"},
           "`shard={}`: neither SLURM_ARRAY_TASK_ID nor JOB_COMPLETION_INDEX is set", text);
    }
  } else {
    const auto index = whole_number(first);
    if (!index || !choice.count) fail(ErrorCode::usage, how, "invalid `shard={}`", text);
    choice.index = *index;
  }
  if (choice.count && choice.index >= *choice.count)
    fail(ErrorCode::usage, "`shard={}`: shard {} is out of range, must be below {}", text, choice.index, *choice.count);
  return choice;
}

rows::RowReaderOptions ShardJob::reading(rows::RowReaderOptions options, const Shard& shard) const {
  options.ranges.assign(facts.inputs.size(), {0, 0});
  for (const ShardSlice& slice : shard.slices) options.ranges[slice.input] = slice.range;
  return options;
}

std::string input_signature(const std::string& path) {
  const int64_t size = size_of(path);
  std::ifstream file(path, std::ios::binary);
  const int64_t tail = std::min(size, kTail);
  std::string bytes(static_cast<size_t>(tail), '\0');
  file.seekg(size - tail);
  if (!file.read(bytes.data(), tail)) fail(ErrorCode::bad_data, "{}: cannot read the end of the file", path);
  return fmt::format("{}-{}", size, io::sha256_hex(bytes).substr(0, 32));
}

std::string model_digest(const fs::path& dir) {
  std::string all;
  for (const std::string& path : hub::model_files(dir)) {
    const auto digest = io::sha256(MappedFile(path).text());
    all += fs::path(path).filename().string() + '\0';
    all.append(reinterpret_cast<const char*>(digest.data()), digest.size());
  }
  return io::sha256_hex(all);
}

std::vector<Shard> cut_shards(const std::vector<std::string>& inputs, const rows::RowReaderOptions& reading,
                              int64_t count, const std::string& suffix) {
  const rows::RowFormat format =
      reading.format == rows::RowFormat::automatic ? rows::row_format_of(inputs[0]) : reading.format;
  const bool lines = (format != rows::RowFormat::csv && format != rows::RowFormat::tsv) || !reading.quotes;
  std::vector<SplitPoint> points = split_points(inputs, reading, count, lines);
  points.push_back({inputs.size(), 0});
  std::vector<Shard> shards;
  SplitPoint from{0, 0};
  for (const SplitPoint& to : points) {
    Shard& shard = shards.emplace_back();
    shard.id = static_cast<int64_t>(shards.size()) - 1;
    shard.part = fmt::format("part-{}.{}", shard_number(shard.id), suffix);
    for (size_t i = from.input; i <= to.input && i < inputs.size(); ++i) {
      const rows::ByteRange range{i == from.input ? from.offset : 0, i == to.input ? to.offset : -1};
      if (!range.is_empty()) shard.slices.push_back({i, range});
    }
    from = to;
  }
  return shards;
}

std::optional<ShardJob> find_job(const fs::path& folder) {
  const fs::path path = job_path(folder);
  if (!fs::exists(path)) return std::nullopt;
  try {
    return job_of(folder, json::parse(read_file(path, ErrorCode::bad_data)));
  } catch (const json::exception& error) {
    fail(ErrorCode::bad_data, Remedy{"use an empty folder"}, "{}: invalid job ({})", path.string(),
         io::json_reason(error.what()));
  }
}

ShardJob plan_job(const fs::path& folder, const std::string& model_name, const ShardFacts& facts,
                  const rows::RowReaderOptions& reading, const std::string& suffix) {
  std::error_code error;
  fs::create_directories(private_folder(folder), error);
  if (error) io::fail_write(private_folder(folder).string(), "cannot create", error.value());
  if (!find_job(folder)) {
    std::vector<std::string> names;
    for (const auto& input : facts.inputs) names.push_back(input.first);
    ShardJob job{folder, job_id(facts), model_name, facts, true, cut_shards(names, reading, facts.count, suffix)};
    put_once(folder, job_path(folder), json_text(job_json(job), 1));
  }
  ShardJob there = *find_job(folder);  // another process may have been first
  if (there.id != job_id(facts))
    fail(ErrorCode::usage, Remedy{"use an empty folder, or the model, inputs and options of that job"},
         "{} contains another job: {}", folder.string(),
         there.by_bytes ? differing_facts(there.facts, facts) : "a job of Parquet files");
  return there;
}

ShardPart::ShardPart(const ShardJob& job, int64_t index)
    : job_(job), shard_(job.shards.at(static_cast<size_t>(index))) {
  // The process that holds the lock on the job file's byte with the shard's number continues an earlier draft; all
  // others write their own.
  lock_ = ::open(job_path(job.folder).c_str(), O_RDWR | O_CLOEXEC);
  struct flock range {};
  range.l_type = F_WRLCK;
  range.l_whence = SEEK_SET;
  range.l_start = index;
  range.l_len = 1;
  if (lock_ >= 0 && ::fcntl(lock_, F_OFD_SETLK, &range) != 0) {
    ::close(lock_);
    lock_ = -1;
  }
  const std::string owner = resumable() ? "" : fmt::format("-{}-{}", host_name(), ::getpid());
  const std::string suffix = fs::path(shard_.part).extension().string();
  draft_ = (private_folder(job.folder) / ("draft-" + shard_number(index) + owner + suffix)).string();
}

ShardPart::~ShardPart() {
  if (lock_ >= 0) ::close(lock_);
}

// If a record is published, its draft becomes the part, regardless of the writer. Returns false if there is no record.
bool ShardPart::settle() const {
  const json record = record_of(job_, shard_);
  const fs::path part = job_.folder / shard_.part;
  if (record.is_null()) {
    if (fs::exists(part)) fail_foreign_part(part);
    return false;
  }
  if (fs::exists(part)) return true;
  const fs::path draft = private_folder(job_.folder) /
                         fmt::format("draft-{}-{:08x}", shard_number(shard_.id), record["crc"].get<uint32_t>());
  if (!fs::exists(draft)) {  // lost with its disk, or removed: the shard is scored again
    fs::remove(private_folder(job_.folder) / ("part-" + shard_number(shard_.id) + ".json"));
    return false;
  }
  publish_draft(draft, part);
  fs::remove(draft);
  return true;
}

bool ShardPart::is_done() const { return settle(); }

void ShardPart::publish(int64_t rows, int64_t bad_rows) {
  const uint32_t crc = file_crc(draft_);
  const fs::path named = private_folder(job_.folder) / fmt::format("draft-{}-{:08x}", shard_number(shard_.id), crc);
  const json record = {
      {"format", kJobFormat}, {"job", job_.id},       {"shard", shard_.id}, {"part", shard_.part},
      {"rows", rows},         {"bad_rows", bad_rows}, {"crc", crc},         {"bytes", size_of(draft_)}};
  fs::rename(draft_, named);
  const fs::path path = private_folder(job_.folder) / ("part-" + shard_number(shard_.id) + ".json");
  const bool first = put_once(job_.folder, path, json_text(record, 1));
  if (!settle()) fail(ErrorCode::cannot_write, "{}: draft not found", shard_.part);
  std::error_code ignored;
  if (!first) fs::remove(named, ignored);
  fs::remove(failure_path(job_, shard_.id), ignored);
}

void ShardPart::note_failure(const Error& error) const {
  const json record = {{"job", job_.id}, {"shard", shard_.id}, {"error", error.what()}};
  io::write_file_atomically(failure_path(job_, shard_.id), json_text(record, 1));
}

ShardStates shard_states(const ShardJob& job) {
  ShardStates states;
  for (const Shard& shard : job.shards) {
    if (fs::exists(job.folder / shard.part)) {
      states.done.push_back(shard.id);
      continue;
    }
    states.missing.push_back(shard.id);
    if (!fs::exists(failure_path(job, shard.id))) continue;
    const json record = json::parse(read_file(failure_path(job, shard.id), ErrorCode::bad_data), nullptr, false);
    if (record.is_object()) states.failed.emplace_back(shard.id, record.value("error", ""));
  }
  return states;
}

namespace {

// Earlier versions wrote manifest.json, which readers of the whole folder treat as data. A file of another program is
// kept.
void remove_old_manifest(const ShardJob& job) {
  const fs::path path = job.folder / "manifest.json";
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return;
  const json old = json::parse(read_file(path, ErrorCode::bad_data), nullptr, false);
  if (old.is_object() && old.value("job", json()) == job.id) fs::remove(path, ignored);
}

}  // namespace

int64_t finish_job(const ShardJob& job) {
  if (!job.by_bytes)
    fail(ErrorCode::usage, Remedy{"finish it in Python: brim.bulk.finish(brim.bulk.load(folder))"},
         "{} is a job of Parquet files", job.folder.string());
  const ShardStates states = shard_states(job);
  if (!states.missing.empty())
    fail(ErrorCode::bad_data, Remedy{"run the missing shards"}, "{} of {} shards have no part: {}",
         states.missing.size(), job.shards.size(), id_ranges(states.missing));
  json parts = json::array();
  int64_t rows = 0;
  for (const Shard& shard : job.shards) {
    const json record = record_of(job, shard);
    const fs::path part = job.folder / shard.part;
    if (record.is_null()) fail_foreign_part(part);
    if (size_of(part.string()) != record["bytes"].get<int64_t>() || file_crc(part) != record["crc"].get<uint32_t>())
      fail(ErrorCode::bad_data, Remedy{"remove it and rerun its shard"}, "{} is damaged", part.string());
    json inputs = json::array();
    for (const ShardSlice& slice : shard.slices) inputs.push_back(job.facts.inputs[slice.input].first);
    parts.push_back({{"part", shard.part}, {"inputs", inputs}, {"rows", record["rows"]}, {"crc", record["crc"]}});
    rows += record["rows"].get<int64_t>();
  }
  const json manifest = {{"format", kJobFormat}, {"job", job.id}, {"rows", rows}, {"parts", parts}};
  put_once(job.folder, job.folder / "_manifest.json", json_text(manifest, 1));
  put_once(job.folder, job.folder / "_SUCCESS", "");
  remove_old_manifest(job);
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(private_folder(job.folder), ignored))
    if (const std::string name = entry.path().filename().string();
        name.starts_with("draft-") || name.starts_with("failed-"))
      fs::remove(entry.path(), ignored);
  return rows;
}

std::string id_ranges(const std::vector<int64_t>& ids) {
  std::string out;
  for (size_t i = 0; i < ids.size();) {
    size_t end = i;
    while (end + 1 < ids.size() && ids[end + 1] == ids[end] + 1) ++end;
    out += out.empty() ? "" : ",";
    out += i == end ? std::to_string(ids[i]) : fmt::format("{}-{}", ids[i], ids[end]);
    i = end + 1;
  }
  return out;
}

}  // namespace brim::jobs
