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
#include "io/descriptor.h"
#include "rows/file_checks.h"

namespace brim::rows {
namespace fs = std::filesystem;
using nlohmann::json;
namespace {

constexpr int kSidecarFormat = 2;
const Remedy kStartOver{"run without `resume` to start over"};
constexpr size_t kHead = size_t{1} << 20;  // bytes compared at the start of each input
constexpr size_t kPlainBlock = size_t{256} << 10;
constexpr size_t kLargestSidecar = size_t{64} << 20;

// Reads at most `most` bytes from the start of an open file and closes it.
std::string read_head(int fd, size_t most) {
  std::string head;
  char block[1 << 16];
  while (fd >= 0 && head.size() < most) {
    const ssize_t got = ::read(fd, block, std::min(sizeof block, most - head.size()));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    head.append(block, static_cast<size_t>(got));
  }
  if (fd >= 0) ::close(fd);
  return head;
}

uint32_t head_checksum(const std::string& path) {
  const std::string head = read_head(::open(path.c_str(), O_RDONLY | O_CLOEXEC), kHead);
  return static_cast<uint32_t>(::crc32(0, reinterpret_cast<const Bytef*>(head.data()), static_cast<uInt>(head.size())));
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

// Serializes JSON; file names may be arbitrary bytes, but JSON must be UTF-8.
std::string text_of(const json& value, int indent = -1) {
  return value.dump(indent, ' ', false, json::error_handler_t::replace);
}

std::string shown(const json& value) {
  return value.is_null() ? "nothing" : value.is_string() ? value.get<std::string>() : value.dump();
}

// Describes how two lists of files differ; `kind` names the files if their number differs.
void compare_files(const json& before, const json& now, const char* kind, std::vector<std::string>& out) {
  if (before.size() != now.size()) {
    out.push_back(fmt::format("the number of {} changed from {} to {}", kind, before.size(), now.size()));
    return;
  }
  for (size_t i = 0; i < now.size(); ++i) {
    const json &a = before[i], &b = now[i];
    const std::string path = b.at("path").get<std::string>();
    if (a.at("size") != b.at("size"))
      out.push_back(fmt::format("{} changed from {} to {} bytes", path, shown(a.at("size")), shown(b.at("size"))));
    else if (a.at("head_crc32") != b.at("head_crc32"))
      out.push_back(fmt::format("the content of {} changed", path));
    else if (a.at("modified_ns") != b.at("modified_ns"))
      out.push_back(fmt::format("{} was modified", path));
  }
}

// Lists all differences; empty if the runs are the same.
std::string differences(const json& before, const json& now, const std::map<std::string, std::string>& may_change) {
  std::vector<std::string> out;
  compare_files(before.at("inputs"), now.at("inputs"), "inputs", out);
  if (before.at("model") != now.at("model"))
    out.push_back(fmt::format("the model changed from {} to {}", shown(before.at("model")), shown(now.at("model"))));
  else
    compare_files(before.at("model_files"), now.at("model_files"), "model files", out);
  json options = before.at("options");
  options.update(now.at("options"));
  for (const auto& [name, unused] : options.items()) {
    const json a = before.at("options").value(name, json()), b = now.at("options").value(name, json());
    const auto free = may_change.find(name);
    if (a != b && (free == may_change.end() || a != free->second))
      out.push_back(fmt::format("{} changed from {} to {}", name, shown(a), shown(b)));
  }
  return fmt::format("{}", fmt::join(out, "; "));
}

bool is_regular_or_new(const fs::path& path) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  return !fs::exists(status) || fs::is_regular_file(status);
}

// Resolves symbolic links: .part and the sidecar are stored next to the link target.
fs::path linked(const fs::path& path) {
  std::error_code ec;
  if (!fs::is_symlink(fs::symlink_status(path, ec))) return path;
  const fs::path target = fs::weakly_canonical(path, ec);
  return ec ? path : target;
}

fs::path sidecar_of(const fs::path& path) { return io::AtomicFile::part_path(path).string() + ".json"; }

// Sidecars of other versions are recognised too: their runs may be restarted.
bool is_sidecar(const json& state) {
  const auto has = [&](const char* key, auto test) { return state.contains(key) && test(state[key]); };
  return state.is_object() && has("format", [](const json& v) { return v.is_number_integer(); }) &&
         has("run", [](const json& v) { return v.is_object() && v.contains("inputs"); }) &&
         has("output_bytes", [](const json& v) { return v.is_number_integer(); }) &&
         has("position", [](const json& v) { return v.is_object(); });
}

// Returns nothing if the file does not exist. `code` is the error code if it is not a sidecar.
std::optional<json> read_sidecar(const fs::path& path, ErrorCode code) {
  const int fd = io::open_own_file(path.string(), O_RDONLY);
  if (fd < 0 && errno == ENOENT) return std::nullopt;
  if (fd < 0) io::fail_write(path.string(), "cannot read", errno);
  const std::string text = read_head(fd, kLargestSidecar);
  json state = json::parse(text, nullptr, false);
  if (!is_sidecar(state))
    fail(code, Remedy{"move it away or choose another output"}, "{}: not the state of an interrupted run",
         path.string());
  return state;
}

bool is_before_first_row(const json& state) {
  return state.at("output_bytes") == 0 && state.at("position").value("input", 0) == 0 &&
         state.at("position").value("rows", 0) == 0;
}

}  // namespace

std::optional<std::string> option_of_run(const std::string& path, const std::string& name) {
  try {
    const auto state = read_sidecar(sidecar_of(linked(path)), ErrorCode::bad_data);
    if (!state || is_before_first_row(*state)) return std::nullopt;
    return state->at("run").at("options").value(name, "");
  } catch (const std::exception&) {  // resuming reports the problem
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
  if (!resumable_) {
    file_.emplace(path_);
    return;
  }
  fingerprint_ = text_of(identity_json(identity_));
  const auto state = read_sidecar(sidecar_, options_.resume ? ErrorCode::bad_data : ErrorCode::cannot_write);
  const fs::path part = io::AtomicFile::part_path(path_);
  std::error_code unseen;  // creating .part reports problems of the directory
  const bool has_part = fs::exists(fs::symlink_status(part, unseen));
  if (has_part && !state)
    io::refuse_foreign_file(
        part.string(), fmt::format("exists without {}, so it is not an output of brim", sidecar_.filename().string()));
  const bool has_rows = state && has_part && !is_before_first_row(*state);
  if (has_rows && options_.resume) return open_resumed(text_of(*state));
  if (options_.resume && options_.notes_new_run)
    log_info("{}: nothing to resume, starting from the first row", path_.string());
  start_part(has_part, has_rows ? state->at("output_bytes").get<uint64_t>() : 0);
  if (has_rows) log_info("{}: starting over (`resume` continues the previous run)", path_.string());
}

// The new sidecar is written first: a kill at any point leaves a .part that the next run recognises. An old .part is
// locked before its sidecar is replaced, because another process may be writing it.
void RowOutput::start_part(bool take_over, uint64_t recorded_bytes) {
  if (take_over) {
    file_.emplace(io::AtomicFile::open_part(path_));
    const uint64_t bytes = fs::file_size(file_->part());
    if (bytes < recorded_bytes)
      io::refuse_foreign_file(file_->part().string(), fmt::format("has {} bytes but {} records {}", bytes,
                                                                  sidecar_.filename().string(), recorded_bytes));
    write_sidecar({});
    file_->cut_to(0);
  } else {
    io::require_writable(path_);  // error messages name the output, not the sidecar, if the directory is not writable
    write_sidecar({});
    file_.emplace(io::AtomicFile::start_part(path_));
  }
}

void RowOutput::open_resumed(const std::string& text) {
  Progress progress;
  int64_t bytes = 0;
  std::string changed;
  try {
    const json state = json::parse(text);
    if (state.at("format").get<int>() != kSidecarFormat)
      fail(ErrorCode::usage, kStartOver, "{}: written by another version of brim", sidecar_.string());
    changed = differences(state.at("run"), json::parse(fingerprint_), identity_.may_change);
    bytes = state.at("output_bytes").get<int64_t>();
    const json& position = state.at("position");
    progress.position = {position.at("input").get<size_t>(), position.at("rows").get<int64_t>(),
                         position.at("offset").get<int64_t>(), position.at("lines").get<int64_t>(),
                         position.value("blank_lines", int64_t{0})};  // missing in older files
    progress.counters = state.at("counters").get<std::map<std::string, int64_t>>();
    if (bytes < 0 || progress.position.input >= identity_.inputs.size() || progress.position.rows < 0 ||
        progress.position.offset < 0)
      fail(ErrorCode::bad_data, kStartOver, "{}: invalid position: output_bytes {}, input {}, rows {}, offset {}",
           sidecar_.string(), bytes, progress.position.input, progress.position.rows, progress.position.offset);
  } catch (const json::exception& error) {
    fail(ErrorCode::bad_data, kStartOver, "{}: invalid state of a run ({})", sidecar_.string(), error.what());
  }
  if (!changed.empty())
    fail(ErrorCode::usage, kStartOver, "{}: cannot resume a different run: {}", path_.string(), changed);
  file_.emplace(io::AtomicFile::resume(path_, static_cast<uint64_t>(bytes)));
  position_ = progress.position;
  safe_.position = progress.position;
  safe_.counters = progress.counters;
  durable_ = safe_;
  durable_.bytes = bytes;
  saved_rows_ = progress.position.rows;
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
    // The clock is read only every 64 rows; a row costs some tens of nanoseconds.
    const bool due = resumable_ && row_count_ % 64 == 0 && now_ns() >= next_save_ns_;
    if (rows_.size() < kPlainBlock && !due) return;
  } else if (rows_.size() < options_.member_bytes && row_count_ < options_.member_rows) {
    return;
  }
  hand_over();
  if (resumable_ && now_ns() >= next_save_ns_) save(safe_);
}

// Passes all pending rows to the system and ends the compressed member. The file is complete up to this point.
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

// A full or removed disk may report its error only here, and only once.
void RowOutput::sync(const Mark& mark) {
  try {
    file_->sync();
  } catch (...) {
    lost_ = true;
    throw;
  }
  durable_ = mark;
}

void RowOutput::write_sidecar(const Mark& mark) {
  const json state = {{"format", kSidecarFormat},
                      {"run", json::parse(fingerprint_)},
                      {"output_bytes", mark.bytes},
                      {"position",
                       {{"input", mark.position.input},
                        {"rows", mark.position.rows},
                        {"offset", mark.position.offset},
                        {"lines", mark.position.lines},
                        {"blank_lines", mark.position.blank_lines}}},
                      {"counters", mark.counters}};
  io::write_file_atomically(sidecar_, text_of(state, 2) + "\n");
  saved_rows_ = mark.position.rows;
}

void RowOutput::save(const Mark& mark) {
  const int64_t start = now_ns();
  if (!failed_ && !lost_) sync(mark);  // the state must not be durable before the rows it counts
  write_sidecar(mark);
  file_->keep_part();
  // On slow disks checkpoints are less frequent: they take at most a twentieth of the time.
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
  if (!file_) return;
  if (safe_.position.rows == 0) {  // .part first: without a sidecar it would look like another program's file
    sink_.reset();
    file_.reset();
    return drop_sidecar();
  }
  file_->keep_part();
  if (!resumable_) {
    if (!kept_rows().empty()) log_info("{}: the rows written so far are in {}", path_.string(), kept_rows().string());
    return;
  }
  if (!failed_ && !lost_) {
    try {
      return save(safe_);
    } catch (const Error& error) {
      if (!lost_) throw;
      log_warning("{}", error.what());
    }
  }
  // After a failed write the file may end inside a row. Truncating it also frees space for the sidecar on a full disk.
  const Mark& kept = lost_ ? durable_ : safe_;
  if (kept.position.rows == 0) return;
  if (::truncate(file_->part().c_str(), kept.bytes) != 0)
    log_warning("{}: cannot truncate to {} bytes: {}", path_.string(), kept.bytes, std::strerror(errno));
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
  drop_sidecar();
}

void RowOutput::drop_sidecar() {
  std::error_code ignored;
  if (resumable_) fs::remove(sidecar_, ignored);
}

fs::path RowOutput::kept_rows() const {
  return regular_ && !resumable_ && file_ && safe_.position.rows > 0 ? file_->part() : fs::path();
}

}  // namespace brim::rows
