// SPDX-License-Identifier: Apache-2.0
#include "train/train_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "base/utf8.h"
#include "ops/loss.h"
#include "train/checkpoint.h"
#include "train/event_file.h"
#include "train/teacher_review.h"
#include "train/teachers.h"

namespace brim::train {
namespace {

using Json = nlohmann::ordered_json;

// File names may contain arbitrary bytes.
std::string text_of(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

// Log lines are written immediately, so a crash loses no line that was displayed. Lines that cannot be written, as on a
// full disk, do not end the training: they are written with the next line.
class LineFile {
 public:
  explicit LineFile(const std::filesystem::path& path)
      : path_(path), fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
    if (fd_ < 0) fail(ErrorCode::cannot_write, "{}: {}", path.string(), std::strerror(errno));
  }
  ~LineFile() { ::close(fd_); }
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;
  void put(const std::string& text) {
    unwritten_ += text;
    const off_t end = ::lseek(fd_, 0, SEEK_CUR);
    for (size_t at = 0; at < unwritten_.size();) {
      const ssize_t n = ::write(fd_, unwritten_.data() + at, unwritten_.size() - at);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return fail_to_write(errno, end);
      at += static_cast<size_t>(n);
    }
    unwritten_.clear();
  }

 private:
  // Removes the part of a line that was written.
  void fail_to_write(int error, off_t end) {
    if (!warned_) log_warning("{}: {}; training continues without its log", path_.string(), std::strerror(error));
    warned_ = true;
    if (::ftruncate(fd_, end) == 0) (void)::lseek(fd_, end, SEEK_SET);
  }

  std::filesystem::path path_;
  int fd_;
  std::string unwritten_;
  bool warned_ = false;
};

std::string one_line(std::string text) {
  for (char& c : text)
    if (c == '\n' || c == '|') c = ' ';
  return text;
}

std::string file_names(const std::vector<std::string>& paths) {
  std::vector<std::string> names;
  for (const auto& p : paths) names.push_back(std::filesystem::path(p).filename().string());
  return one_line(fmt::format("{}", fmt::join(names, ", ")));
}

// Hugging Face's tags: train/loss, eval/accuracy.
std::string tag_of(const std::string& name) {
  return name.starts_with("eval_") ? "eval/" + name.substr(5) : "train/" + name;
}

// Returns ", distilled from `a` and `b`".
std::string teacher_names(const std::vector<std::string>& teachers) {
  std::string out;
  for (size_t i = 0; i < teachers.size(); ++i)
    out += fmt::format("{}`{}`",
                       i == 0                     ? ", distilled from "
                       : i + 1 == teachers.size() ? " and "
                                                  : ", ",
                       one_line(std::filesystem::path(teachers[i]).filename().string()));
  return out;
}

// A line of the model card's data table: for a set with both tasks, the rows of one task.
std::string data_line(const char* name, const std::vector<std::string>& files, const TrainSet& set, bool tags,
                      bool both) {
  int64_t rows = 0, tokens = 0;
  for (int64_t r = 0; r < set.rows(); ++r) {
    if (both && (set.label[static_cast<size_t>(r)] == ops::kIgnoredTarget) != tags) continue;
    ++rows;
    tokens += set.length(r);
  }
  return fmt::format("| {}{} | {} | {} | {} |\n", name, both && tags ? ", tags" : "", file_names(files),
                     format_count(rows), format_count(tokens));
}

std::string metrics_text(const Json& history, const RunFacts& f, bool loads_best) {
  std::string out = "\n## Metrics\n\n";
  std::map<int64_t, Json> evaluations;  // by step, so that a resumed run has no duplicates
  for (const auto& row : history)
    if (row.contains("eval_loss")) evaluations[row.at("step").get<int64_t>()] = row;
  if (evaluations.empty()) {
    out += "Not evaluated: no validation data was given.\n";
    return out;
  }
  const Json& first = evaluations.begin()->second;
  std::string head = "| step |", line = "| --- |";
  for (const auto& [key, value] : first.items())
    if (key.rfind("eval_", 0) == 0) {
      head += fmt::format(" {} |", key.substr(5));
      line += " --- |";
    }
  out += head + "\n" + line + "\n";
  for (const auto& [step, row] : evaluations) {
    out += fmt::format("| {}{} |", step, step == f.best_step ? " (best)" : "");
    for (const auto& [key, value] : row.items())
      if (key.rfind("eval_", 0) == 0)
        out += value.is_number() ? fmt::format(" {:.4f} |", value.get<double>()) : std::string(" – |");
    out += "\n";
  }
  if (f.best_step >= 0 && loads_best)
    out += fmt::format("\nThe weights are from step {}, selected by {}{}.\n", f.best_step, f.metric,
                       f.metric == "mean_f1" ? ", the mean of macro_f1 and entity_f1" : "");
  return out;
}

std::string plan_text(const TrainJob& job) {
  const plan::Plan& p = job.plan;
  std::string out = fmt::format(
      "\n## Plan\n\nMicro-batch {} tokens, recompute {}, {}, token set {}; {} of {} allowed.\n\n| part | bytes |\n| "
      "--- | --- |\n",
      format_count(p.token_budget), recompute_name(p.recompute), optimizer_name(p.optimizer),
      token_placement_name(job.token_placement), format_bytes(p.peak_bytes), format_bytes(p.limit_bytes));
  for (int t = 0; t < static_cast<int>(memory::Tag::count); ++t)
    if (p.bytes[static_cast<memory::Tag>(t)] > 0)
      out += fmt::format("| {} | {} |\n", tag_name(static_cast<memory::Tag>(t)),
                         format_bytes(p.bytes[static_cast<memory::Tag>(t)]));
  return out;
}

}  // namespace

struct TrainLog::Log {
  Json history = Json::array();
  int64_t tokens_before = 0;  // tokens processed before the checkpoint this run resumed from
  std::unique_ptr<LineFile> file;
  std::unique_ptr<EventFile> events;
};

TrainLog::TrainLog(const TrainJob& job) : job_(job), log_(std::make_unique<Log>()) {}
TrainLog::~TrainLog() = default;

void TrainLog::open(const std::string& state_json) {
  if (!state_json.empty()) {
    const Json state = Json::parse(state_json);
    log_->history = state.at("log_history");
    const auto seen = state.find("num_input_tokens_seen");
    if (seen != state.end() && seen->is_number_integer()) log_->tokens_before = seen->get<int64_t>();
  }
  log_->file = std::make_unique<LineFile>(std::filesystem::path(job_.settings.output_dir) / "train_log.jsonl");
  std::string text;
  for (const auto& row : log_->history) text += row.dump() + "\n";
  log_->file->put(text);
  if (!job_.settings.tensorboard()) return;
  const std::string& events = job_.settings.logging_dir;
  log_->events = std::make_unique<EventFile>(
      events.empty() ? std::filesystem::path(job_.settings.output_dir) / "runs" : std::filesystem::path(events),
      state_json.empty() ? 0 : Json::parse(state_json).value("global_step", int64_t{0}));
}

void TrainLog::add(const LogRow& row) {
  Json j = Json::object();
  for (const auto& [name, value] : row) {
    if (!std::isfinite(value))
      j[name] = nullptr;
    else if (value == std::floor(value) && std::abs(value) < 1e15 && (name == "step" || name.ends_with("_bytes")))
      j[name] = static_cast<int64_t>(value);
    else
      j[name] = value;
  }
  log_->file->put(j.dump() + "\n");
  if (log_->events) {
    LogRow scalars;
    for (const auto& [name, value] : row)
      if (name != "step") scalars.emplace_back(tag_of(name), value);
    try {
      log_->events->add(static_cast<int64_t>(row.at(0).second), scalars);
    } catch (const Error& e) {
      log_warning("{}; training continues without TensorBoard events", e.what());
      log_->events.reset();
    }
  }
  log_->history.push_back(std::move(j));
}

std::string TrainLog::state_json(const RunFacts& f) const {
  const TrainSettings& s = job_.settings;
  const Json best = f.best_step >= 0 ? Json(f.best_metric) : Json(nullptr);
  const Json state = {{"best_global_step", f.best_step >= 0 ? Json(f.best_step) : Json(nullptr)},
                      {"best_metric", best},
                      {"best_metric_name", f.metric},
                      {"best_model_checkpoint", nullptr},
                      {"epoch", f.epoch},
                      {"eval_steps", s.eval_steps},
                      {"global_step", f.step},
                      {"is_hyper_param_search", false},
                      {"is_local_process_zero", true},
                      {"is_world_process_zero", true},
                      {"log_history", log_->history},
                      {"logging_steps", s.logging_steps},
                      {"max_steps", f.total_steps},
                      {"num_input_tokens_seen", log_->tokens_before + f.tokens},
                      {"num_train_epochs", s.num_train_epochs},
                      {"precision", precision_name(job_.precision)},
                      {"save_steps", s.save_steps},
                      {"stateful_callbacks", Json::object()},
                      {"total_flos", 0},
                      {"train_batch_size", s.global_batch()},
                      {"trial_name", nullptr},
                      {"trial_params", nullptr}};
  return text_of(state, 2) + "\n";
}

std::string TrainLog::report_json(const RunFacts& f) const {
  Json settings = Json::object();
  for (const KeptSetting& kept : train_settings().kept(job_.settings)) settings[kept.name] = kept.value;
  Json data = {{"train", job_.settings.train_files},
               {"validation", job_.settings.validation_files},
               {"rows", job_.train_set.rows()},
               {"tokens", job_.train_set.tokens()},
               {"validation_rows", job_.validation_set.rows()},
               {"truncated", job_.train_set.truncated},
               {"skipped", job_.train_set.skipped},
               {"token_set", token_placement_name(job_.token_placement)}};
  if (job_.unlabelled > 0) data["rows_without_label"] = job_.unlabelled;
  if (job_.task == TrainTask::multi) {  // rows and files of both tasks are counted together
    data["train"].push_back(job_.settings.token_train_file);
    if (job_.validation_set.rows() > 0) data["validation"].push_back(job_.settings.token_validation_file);
  }
  Json report = {{"schema_version", 1},
                 {"state", Json::parse(state_json(f))},
                 {"settings", settings},
                 {"plan", Json::parse(to_json(job_.plan))},
                 {"data", data},
                 {"model", job_.settings.model},
                 {"device", job_.device->name()},
                 {"precision", precision_name(job_.precision)},
                 {"parameters", param_count(job_.shape)},
                 {"seconds", f.seconds},
                 {"seconds_before", f.seconds_before},
                 {"samples", f.samples},
                 {"tokens", f.tokens}};
  if (!job_.review_json.empty()) report["teachers"] = Json::parse(job_.review_json);
  return text_of(report);
}

std::string TrainLog::card(const RunFacts& f) const {
  const TrainSettings& s = job_.settings;
  const bool tags = job_.shape.sequence_classes == 0;
  const std::string base = std::filesystem::path(s.model).filename().string();
  std::string out =
      fmt::format("---\nlibrary_name: {}\npipeline_tag: {}\ntags:\n- brim\n---\n\n# {}\n\n",
                  job_.shape.lora ? "peft" : "transformers", tags ? "token-classification" : "text-classification",
                  std::filesystem::path(s.output_dir).lexically_normal().filename().string());
  out += fmt::format("{} with {} layers and {} parameters, fine-tuned by `brim train` from `{}`{}.\n\n",
                     job_.config.model_type, job_.shape.layers, format_count(param_count(job_.shape)), base,
                     teacher_names(s.teachers));
  if (job_.shape.lora)
    out += fmt::format("This is a LoRA adapter of rank {} for `{}`, with its head.\n\n", job_.shape.lora.rank, base);
  if (job_.shape.regression)
    out += "It predicts one number per text and was trained with mean squared error.\n\n";
  else if (!job_.labels.sequence.empty())
    out += fmt::format("Labels: {}.\n\n", one_line(fmt::format("{}", fmt::join(job_.labels.sequence, ", "))));
  if (!job_.labels.token.empty())
    out += fmt::format(
        "Tags: {}.{}\n\n", one_line(fmt::format("{}", fmt::join(job_.labels.token, ", "))),
        job_.labels.sequence.empty() ? "" : fmt::format(" The tagger is a separate model in `{}`.", kTagger));
  out += "## Data\n\n| set | files | rows | tokens |\n| --- | --- | --- | --- |\n";
  const bool both = job_.task == TrainTask::multi;
  const auto add_set = [&](const char* name, const std::vector<std::string>& files, const std::string& token_file,
                           const TrainSet& set) {
    if (set.rows() == 0) return;
    out += data_line(name, files, set, false, both);
    if (both) out += data_line(name, {token_file}, set, true, true);
  };
  add_set("training", s.train_files, s.token_train_file, job_.train_set);
  add_set("validation", s.validation_files, s.token_validation_file, job_.validation_set);
  if (!s.teachers.empty()) out += fmt::format("\n{}.\n", teaching_text(job_));
  if (!job_.review_json.empty()) out += fmt::format("\n{}.\n", review_text(job_.review_json));
  if (job_.train_set.skipped > 0)
    out += fmt::format("\n{} skipped (`on_error: skip`).\n", format_count(job_.train_set.skipped, "bad training row"));
  if (job_.train_set.truncated > 0)
    out += fmt::format("\n{} truncated to {} tokens.\n", format_count(job_.train_set.truncated, "training text"),
                       job_.max_length);
  out += metrics_text(log_->history, f, s.load_best_model_at_end);
  out +=
      fmt::format("\n## Training\n\n{} in {}, {}/s, on {} in {}.\n\n| setting | value |\n| --- | --- |\n",
                  format_count(f.step, "step"), format_duration(f.seconds_before + f.seconds),
                  format_count(static_cast<int64_t>(static_cast<double>(f.samples) / std::max(1e-9, f.seconds)), "row"),
                  job_.device->name(), precision_name(job_.precision));
  for (const KeptSetting& kept : train_settings().kept(s))
    if (!kept.value.empty() && kept.keep == Keep::same)
      out += fmt::format("| {} | {} |\n", kept.name, one_line(kept.value));
  out += plan_text(job_);
  return replace_invalid_utf8(out);  // file names may contain arbitrary bytes
}

}  // namespace brim::train
