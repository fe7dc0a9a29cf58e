// SPDX-License-Identifier: Apache-2.0
#include "rows/resume.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "rows/file_checks.h"

namespace brim::rows {
namespace fs = std::filesystem;
using nlohmann::json;
namespace {

constexpr int kSidecarFormat = 2;
const Remedy kStartOver{"run without `resume` to start over"};
constexpr size_t kHead = size_t{1} << 20;  // of each input that is compared byte by byte
constexpr size_t kPlainBlock = size_t{256} << 10;

uint32_t head_checksum(const std::string& path) {
  std::string head(kHead, '\0');
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  size_t n = 0;
  while (fd >= 0 && n < head.size()) {
    const ssize_t got = ::read(fd, head.data() + n, head.size() - n);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    n += static_cast<size_t>(got);
  }
  if (fd >= 0) ::close(fd);
  return static_cast<uint32_t>(::crc32(0, reinterpret_cast<const Bytef*>(head.data()), static_cast<uInt>(n)));
}

json file_json(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) fail(ErrorCode::usage, "{}: cannot open: {}", path, std::strerror(errno));
  return {{"path", path},
          {"size", static_cast<int64_t>(info.st_size)},
          {"modified_ns", static_cast<int64_t>(info.st_mtim.tv_sec) * 1'000'000'000 + info.st_mtim.tv_nsec},
          {"head_crc32", head_checksum(path)}};
}

json identity_json(const RunIdentity& identity) {
  json inputs = json::array(), model_files = json::array();
  for (const std::string& path : identity.inputs) inputs.push_back(file_json(path));
  for (const std::string& path : identity.model_files) model_files.push_back(file_json(path));
  return {{"inputs", inputs}, {"model", identity.model}, {"model_files", model_files}, {"options", identity.options}};
}

// File names may be any bytes, JSON may not.
std::string text_of(const json& value, int indent = -1) {
  return value.dump(indent, ' ', false, json::error_handler_t::replace);
}

std::string shown(const json& value) {
  return value.is_null() ? "nothing" : value.is_string() ? value.get<std::string>() : value.dump();
}

// How the files of one list differ, in words a user knows; `kind` names them where their number differs.
void compare_files(const json& before, const json& now, const char* kind, std::vector<std::string>& out) {
  if (before.size() != now.size()) {
    out.push_back(fmt::format("there were {} {}, now there are {}", before.size(), kind, now.size()));
    return;
  }
  for (size_t i = 0; i < now.size(); ++i) {
    const json &a = before[i], &b = now[i];
    const std::string path = b.at("path").get<std::string>();
    if (a.at("size") != b.at("size"))
      out.push_back(fmt::format("{} had {} bytes and has {}", path, shown(a.at("size")), shown(b.at("size"))));
    else if (a.at("head_crc32") != b.at("head_crc32"))
      out.push_back(fmt::format("{} has another content", path));
    else if (a.at("modified_ns") != b.at("modified_ns"))
      out.push_back(fmt::format("{} was modified since", path));
  }
}

// Every difference; empty if the runs are the same.
std::string differences(const json& before, const json& now, const std::map<std::string, std::string>& may_change) {
  std::vector<std::string> out;
  compare_files(before.at("inputs"), now.at("inputs"), "inputs", out);
  if (before.at("model") != now.at("model"))
    out.push_back(fmt::format("the model was {} and is {}", shown(before.at("model")), shown(now.at("model"))));
  else
    compare_files(before.at("model_files"), now.at("model_files"), "model files", out);
  json options = before.at("options");
  options.update(now.at("options"));
  for (const auto& [name, unused] : options.items()) {
    const json a = before.at("options").value(name, json()), b = now.at("options").value(name, json());
    const auto free = may_change.find(name);
    if (a != b && (free == may_change.end() || a != free->second))
      out.push_back(fmt::format("{} was {} and is {}", name, shown(a), shown(b)));
  }
  return fmt::format("{}", fmt::join(out, "; "));
}

bool is_regular_or_new(const fs::path& path) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  return !fs::exists(status) || fs::is_regular_file(status);
}

// .part and sidecar lie beside what a link names.
fs::path linked(const fs::path& path) {
  std::error_code ec;
  if (!fs::is_symlink(fs::symlink_status(path, ec))) return path;
  const fs::path target = fs::weakly_canonical(path, ec);
  return ec ? path : target;
}

fs::path sidecar_of(const fs::path& path) { return io::AtomicFile::part_path(path).string() + ".json"; }

}  // namespace

std::optional<std::string> option_of_run(const std::string& path, const std::string& name) {
  try {
    const json state = json::parse(read_file(sidecar_of(linked(path)), ErrorCode::bad_data));
    return state.at("run").at("options").value(name, "");
  } catch (const std::exception&) {  // resuming says what is wrong
    return std::nullopt;
  }
}

RowOutput::RowOutput(const std::string& path, RunIdentity identity, RowOutputOptions options)
    : path_(path), identity_(std::move(identity)), options_(options) {
  const bool rereadable = std::all_of(identity_.inputs.begin(), identity_.inputs.end(), io::is_rereadable);
  if (path == "-") {
    if (options_.resume) fail(ErrorCode::usage, "`resume` needs an output file (`output=OUT`), not stdout");
    sink_ = io::make_sink(STDOUT_FILENO, "stdout", options_.stop);
    return;
  }
  refuse_foreign_output(path);
  path_ = linked(path_);
  regular_ = is_regular_or_new(path_);
  if (options_.resume && !rereadable)
    fail(ErrorCode::usage, Remedy{"give the input as a file"}, "`resume` cannot re-read stdin or a pipe");
  if (options_.resume && !regular_) fail(ErrorCode::usage, "{}: `resume` needs a regular file as output", path);
  resumable_ = regular_ && rereadable && !identity_.inputs.empty();
  sidecar_ = sidecar_of(path_);
  compression_ = io::compression_of(path);
  open_file();
  file_->stop_by(options_.stop);
  sink_ = make_sink(*file_, compression_);
  safe_.bytes = sink_->position();
  next_save_ns_ = now_ns() + static_cast<int64_t>(options_.checkpoint_seconds * 1e9);
}

void RowOutput::open_file() {
  if (resumable_) fingerprint_ = text_of(identity_json(identity_));
  std::error_code unseen;  // creating .part says what is wrong with the folder
  // Also of a run that was another's: its rows go now, and what speaks of them with them.
  const bool had_sidecar = regular_ && fs::exists(sidecar_, unseen);
  if (options_.resume) {
    if (had_sidecar && fs::exists(io::AtomicFile::part_path(path_), unseen)) return open_resumed();
    log_info("{}: nothing to resume, starting from the first row", path_.string());
  }
  file_.emplace(path_);
  if (!had_sidecar) return;
  // Only now, with the lock on .part held, is the old state ours to drop.
  if (!options_.resume) log_info("{}: starting over; `resume` would continue the run before", path_.string());
  std::error_code error;
  if (!fs::remove(sidecar_, error) && error)
    fail(ErrorCode::cannot_write, "{}: cannot remove: {}", sidecar_.string(), error.message());
}

void RowOutput::open_resumed() {
  Progress progress;
  int64_t bytes = 0;
  std::string changed;
  try {
    const json state = json::parse(read_file(sidecar_, ErrorCode::bad_data));
    if (state.at("format").get<int>() != kSidecarFormat)
      fail(ErrorCode::usage, kStartOver, "{}: written by another version of brim", sidecar_.string());
    changed = differences(state.at("run"), json::parse(fingerprint_), identity_.may_change);
    bytes = state.at("output_bytes").get<int64_t>();
    const json& position = state.at("position");
    progress.position = {position.at("input").get<size_t>(), position.at("rows").get<int64_t>(),
                         position.at("offset").get<int64_t>(), position.at("lines").get<int64_t>()};
    progress.counters = state.at("counters").get<std::map<std::string, int64_t>>();
    if (bytes < 0 || progress.position.input >= identity_.inputs.size() || progress.position.rows < 0 ||
        progress.position.offset < 0)
      fail(ErrorCode::bad_data, kStartOver, "{}: output_bytes {}, input {}, rows {}, offset {}: no such place",
           sidecar_.string(), bytes, progress.position.input, progress.position.rows, progress.position.offset);
  } catch (const json::exception& error) {
    fail(ErrorCode::bad_data, kStartOver, "{}: not a state that brim wrote ({})", sidecar_.string(), error.what());
  }
  if (!changed.empty())
    fail(ErrorCode::usage, kStartOver, "{}: cannot resume, this is another run: {}", path_.string(), changed);
  file_.emplace(io::AtomicFile::resume(path_, static_cast<uint64_t>(bytes)));
  position_ = progress.position;
  safe_.position = progress.position;
  safe_.counters = progress.counters;
  durable_ = safe_;
  durable_.bytes = bytes;
  resumed_ = std::move(progress);
}

RowOutput::~RowOutput() {
  if (finished_) return;
  try {
    suspend();
  } catch (const std::exception& error) {
    log_warning("{}", error.what());
  }
}

void RowOutput::write_header(std::string_view bytes) { rows_.append(bytes); }

void RowOutput::write_row(std::string_view bytes, const RowPosition& position) {
  BRIM_CHECK(!finished_, "{} written after commit or suspend", path_.string());
  rows_.append(bytes);
  ++row_count_;
  position_ = position;
  if (compression_ == io::Compression::none) {
    // The clock is read now and then only; a row costs some tens of nanoseconds.
    const bool due = resumable_ && row_count_ % 64 == 0 && now_ns() >= next_save_ns_;
    if (rows_.size() < kPlainBlock && !due) return;
  } else if (rows_.size() < options_.member_bytes && row_count_ < options_.member_rows) {
    return;
  }
  hand_over();
  if (resumable_ && now_ns() >= next_save_ns_) save(safe_);
}

// Everything so far reaches the system; compressed output ends its member. The file is whole up to here.
void RowOutput::hand_over() {
  try {
    sink_->write(rows_);
    sink_->end_member();
  } catch (...) {
    failed_ = true;
    throw;
  }
  rows_.clear();
  row_count_ = 0;
  safe_.position = position_;
  safe_.bytes = sink_->position();
  if (counters_ != nullptr) safe_.counters = *counters_;
}

// A disk that is full, or gone, may say so only now, and only once.
void RowOutput::sync(const Mark& mark) {
  try {
    file_->sync();
  } catch (...) {
    lost_ = true;
    throw;
  }
  durable_ = mark;
}

void RowOutput::save(const Mark& mark) {
  const int64_t start = now_ns();
  const json state = {{"format", kSidecarFormat},
                      {"run", json::parse(fingerprint_)},
                      {"output_bytes", mark.bytes},
                      {"position",
                       {{"input", mark.position.input},
                        {"rows", mark.position.rows},
                        {"offset", mark.position.offset},
                        {"lines", mark.position.lines}}},
                      {"counters", mark.counters}};
  if (!failed_ && !lost_) sync(mark);  // the state must not be durable before the rows it speaks of
  io::write_file_atomically(sidecar_, text_of(state, 2) + "\n");
  file_->keep_part();
  // On a disk where this takes long it is done less often: at most a twentieth of the time goes here.
  const int64_t end = now_ns(), wait = static_cast<int64_t>(options_.checkpoint_seconds * 1e9);
  next_save_ns_ = end + (wait == 0 ? 0 : std::max(wait, 20 * (end - start)));
}

void RowOutput::flush() {
  if (compression_ == io::Compression::none) hand_over();
}

void RowOutput::suspend() {
  if (finished_) return;
  finished_ = true;
  if (!failed_ && row_count_ > 0) {
    try {
      hand_over();
    } catch (const Error& error) {
      log_warning("{}", error.what());
    }
  }
  if (!file_ || safe_.position.rows == 0) return;
  file_->keep_part();
  if (!resumable_) return;
  if (!failed_ && !lost_) {
    try {
      return save(safe_);
    } catch (const Error& error) {
      if (!lost_) throw;
      log_warning("{}", error.what());
    }
  }
  // After a failed write the file may end inside a row. Cutting it also makes room for the sidecar on a full disk.
  const Mark& kept = lost_ ? durable_ : safe_;
  if (kept.position.rows == 0) return;
  if (::truncate(io::AtomicFile::part_path(path_).c_str(), kept.bytes) != 0)
    log_warning("{}: cannot cut to {} bytes: {}", path_.string(), kept.bytes, std::strerror(errno));
  save(kept);
}

void RowOutput::commit() {
  BRIM_CHECK(!finished_, "{} committed after commit or suspend", path_.string());
  hand_over();
  if (file_) {
    if (resumable_) sync(safe_);
    try {
      file_->commit();
    } catch (...) {
      failed_ = true;
      throw;
    }
  }
  finished_ = true;
  std::error_code ignored;
  if (regular_) fs::remove(sidecar_, ignored);
}

}  // namespace brim::rows
