// SPDX-License-Identifier: Apache-2.0
// The pass that scores the training texts with one teacher after another.
#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/clock.h"
#include "base/env.h"
#include "base/error.h"
#include "base/units.h"
#include "train/job.h"
#include "train/soft_label_cache.h"
#include "train/teachers.h"
#include "train/token_cache.h"

namespace brim::train {
namespace {

namespace fs = std::filesystem;
constexpr size_t kFewestTexts = 64, kMostTexts = 65536;
constexpr double kSecondsPerBlock = 4;  // work that a kill can lose

// The rows of each distinct text.
class TextRows {
 public:
  TextRows(const TrainJob& job, const PassProgress& progress) : keys_(static_cast<size_t>(classified_rows(job))) {
    read_texts(job.train_set, job.settings, classified_rows(job),
               [&](int64_t row, std::string_view text, const std::optional<std::string_view>& pair) {
                 if (progress.stopped()) fail(ErrorCode::interrupted, "interrupted before the first step");
                 keys_[static_cast<size_t>(row)] = text_key(text, pair);
               });
    order_.resize(keys_.size());
    std::iota(order_.begin(), order_.end(), int64_t{0});
    std::sort(order_.begin(), order_.end(),
              [&](int64_t a, int64_t b) { return key(a) != key(b) ? key(a) < key(b) : a < b; });
  }
  int64_t rows() const { return static_cast<int64_t>(keys_.size()); }
  const TextKey& key(int64_t row) const { return keys_[static_cast<size_t>(row)]; }
  // In ascending order; empty if no row has this text.
  std::span<const int64_t> rows_of(const TextKey& k) const {
    const auto begin = std::partition_point(order_.begin(), order_.end(), [&](int64_t row) { return key(row) < k; });
    auto end = begin;
    while (end != order_.end() && key(*end) == k) ++end;
    return {begin, end};
  }

 private:
  std::vector<TextKey> keys_;
  std::vector<int64_t> order_;  // rows by key
};

// The scores of one teacher, row by row.
class RowScores {
 public:
  RowScores(const TextRows& texts, size_t classes)
      : texts_(texts),
        classes_(classes),
        scores_(static_cast<size_t>(texts.rows()) * classes),
        done_(static_cast<size_t>(texts.rows())),
        missing_(texts.rows()) {}
  void take(const TextKey& key, const float* scores) {
    for (const int64_t row : texts_.rows_of(key)) {
      if (done(row)) return;  // all rows of a text are set together
      std::copy_n(scores, classes_, scores_.begin() + row * static_cast<int64_t>(classes_));
      done_[static_cast<size_t>(row)] = true;
      --missing_;
    }
  }
  bool done(int64_t row) const { return done_[static_cast<size_t>(row)]; }
  int64_t missing() const { return missing_; }
  int64_t first_missing() const { return std::find(done_.begin(), done_.end(), false) - done_.begin(); }
  std::span<const float> scores() const { return scores_; }

 private:
  const TextRows& texts_;
  size_t classes_;
  std::vector<float> scores_;
  std::vector<bool> done_;
  int64_t missing_;
};

// Name of a teacher's cache: everything that determines its scores of a text.
std::string cache_name(const TrainJob& job, const Teacher& t) {
  ContentHash hash;
  hash.add(t.weights_hash);
  hash.add_file(fs::path(t.path) / "config.json");
  hash_tokenizer(hash, t.path);
  hash.add(precision_name(model::pass_precision(job.precision, job.device->kind())));
  hash.add(t.multi_label ? "several labels" : "one label");
  if (t.zero_shot) {
    hash.add(t.zero_shot->text_template);
    for (const std::string& label : t.zero_shot->labels) hash.add(label);
  }
  return hash.hex();
}

class ModelPass {
 public:
  ModelPass(const TrainJob& job, const Teacher& teacher, const TextRows& texts, RowScores& scores,
            const PassProgress& progress)
      : job_(job),
        teacher_(teacher),
        texts_(texts),
        scores_(scores),
        progress_(progress),
        dir_(cache_dir() / "soft_labels"),
        cache_(dir_, cache_name(job, teacher), static_cast<int64_t>(teacher.labels.size()), cache_limit(dir_)) {}

  void run() {
    take_cached();
    const int64_t cached = texts_.rows() - scores_.missing();
    if (progress_.say)
      progress_.say(fmt::format("teacher {}: {}{}", teacher_.path, format_count(texts_.rows(), "text"),
                                cached > 0 ? fmt::format(", {} already scored", format_count(cached)) : ""));
    if (scores_.missing() == 0) return;
    scorer_ = open_scorer(job_, teacher_.path, teacher_.zero_shot, 0, reserved_bytes());
    read_texts(job_.train_set, job_.settings, texts_.rows(),
               [&](int64_t row, std::string_view text, const std::optional<std::string_view>& pair) {
                 if (scores_.done(row) || texts_.rows_of(texts_.key(row))[0] != row) return;
                 rows_.push_back(row);
                 block_.emplace_back(text);
                 if (pair) pairs_.emplace_back(*pair);
                 if (rows_.size() >= block_rows_) flush();
               });
    flush();
    scorer_.reset();
  }

 private:
  void take_cached() {
    cache_.read_new([&](const TextKey& key, const float* scores) { scores_.take(key, scores); });
  }

  // Host memory of the token sets, keys and scores, which the scorer's plan does not include.
  int64_t reserved_bytes() const {
    const int64_t rows = texts_.rows(), own = static_cast<int64_t>(teacher_.labels.size());
    return std::min(kMostMappedTokens, job_.train_set.bytes() + job_.validation_set.bytes()) +
           rows * (24 + 4 * own + 2 * 4 * job_.shape.sequence_classes);
  }

  void flush() {
    if (rows_.empty()) return;
    if (progress_.stopped())
      fail(ErrorCode::interrupted, "interrupted while {} scored the training texts; run the command again to continue",
           teacher_.path);
    take_cached();  // another run may have computed some
    drop_done();
    if (!rows_.empty()) {
      const int64_t since = now_ns();
      score_block();
      const double seconds = std::max(1e-6, seconds_since(since));
      const auto fitting = static_cast<size_t>(static_cast<double>(rows_.size()) / seconds * kSecondsPerBlock);
      block_rows_ = std::clamp(fitting, kFewestTexts, std::min(kMostTexts, 8 * block_rows_));
    }
    rows_.clear();
    block_.clear();
    pairs_.clear();
    if (progress_.progress)
      progress_.progress(static_cast<double>(texts_.rows() - scores_.missing()), static_cast<double>(texts_.rows()),
                         "scoring with " + fs::path(teacher_.path).filename().string());
  }

  void drop_done() {
    size_t kept = 0;
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (scores_.done(rows_[i])) continue;
      if (kept != i) {
        rows_[kept] = rows_[i];
        block_[kept] = std::move(block_[i]);
        if (!pairs_.empty()) pairs_[kept] = std::move(pairs_[i]);
      }
      ++kept;
    }
    rows_.resize(kept);
    block_.resize(kept);
    if (!pairs_.empty()) pairs_.resize(kept);
  }

  void score_block() {
    const Predictions found = score_texts(*scorer_, block_, pairs_, [&](size_t i) {
      return fmt::format("{}: teacher {}", row_location(job_, rows_[i]), teacher_.path);
    });
    BRIM_CHECK(found.width == teacher_.labels.size(), "{} scores per text", found.width);
    std::vector<TextKey> keys;
    for (const int64_t row : rows_) keys.push_back(texts_.key(row));
    cache_.append(keys, found.scores);
    for (size_t i = 0; i < keys.size(); ++i) scores_.take(keys[i], found.scores.data() + i * found.width);
  }

  const TrainJob& job_;
  const Teacher& teacher_;
  const TextRows& texts_;
  RowScores& scores_;
  const PassProgress& progress_;
  fs::path dir_;
  SoftLabelCache cache_;
  std::shared_ptr<Scorer> scorer_;
  std::vector<int64_t> rows_;  // in the block
  std::vector<std::string> block_, pairs_;
  size_t block_rows_ = kFewestTexts;
};

void read_file_scores(const TrainJob& job, const Teacher& t, const TextRows& texts, RowScores& scores,
                      const PassProgress& progress) {
  read_score_file(job.settings, t.path, t.labels, t.multi_label,
                  [&](std::string_view text, const std::optional<std::string_view>& pair,
                      const std::vector<float>& row) { scores.take(text_key(text, pair), row.data()); });
  if (scores.missing() > 0)
    fail(ErrorCode::bad_data, "{}: no scores for {} of {}, first: {}", t.path, format_count(scores.missing()),
         format_count(texts.rows(), "training text"), row_location(job, scores.first_missing()));
  if (progress.say) progress.say(fmt::format("teacher {}: {}", t.path, format_count(texts.rows(), "text")));
}

}  // namespace

std::shared_ptr<Scorer> open_scorer(const TrainJob& job, const fs::path& model,
                                    const std::optional<ZeroShot>& zero_shot, int64_t max_length,
                                    int64_t reserved_bytes) {
  const TrainSettings& s = job.settings;
  const device::DeviceKind kind = job.device->kind();
  ScorerOptions options;
  options.model = model.string();
  options.device = kind == device::DeviceKind::cpu ? brim::Device(brim::Device::Kind::cpu)
                                                   : brim::Device(brim::Device::Kind::cuda, job.device->index());
  options.precision = precision_name(model::pass_precision(job.precision, kind));
  options.memory_limit = s.memory_limit.text;
  options.leave_free = s.memory_limit.leave_free_text;
  if (kind == device::DeviceKind::cpu) {  // the limit covers the whole process
    const int64_t limit = s.memory_limit.on(job.device->memory(), job.device->name(), s.limit_origin) - reserved_bytes;
    options.memory_limit = brim::MemoryLimit::of_bytes(std::max<int64_t>(1, limit));
    options.leave_free = {};
  }
  options.threads = s.threads;
  options.max_length = max_length;
  options.zero_shot = zero_shot;
  options.deterministic = true;  // a resumed pass gives the same scores
  try {
    return Scorer::open(options);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::does_not_fit) throw;
    throw Error(e.code(), fmt::format("{}: scoring the training texts: {}", model.string(), e.problem()),
                Remedy{e.remedy()});
  }
}

Predictions score_texts(Scorer& scorer, const std::vector<std::string>& texts, const std::vector<std::string>& pairs,
                        const std::function<std::string(size_t i)>& where) {
  const std::vector<std::string_view> first(texts.begin(), texts.end()), second(pairs.begin(), pairs.end());
  Predictions found = second.empty() ? scorer.score(first) : scorer.score_pairs(first, second);
  if (!found.errors.empty()) {
    const auto& [row, error] = found.errors[0];
    throw Error(error.code(), fmt::format("{}: {}", where(row), error.problem()), Remedy{error.remedy()});
  }
  return found;
}

SoftLabels make_soft_labels(const TrainJob& job, const PassProgress& progress) {
  const int64_t since = now_ns();
  const TextRows texts(job, progress);
  SoftLabelMixer mixer(texts.rows(), job.shape.sequence_classes, job.settings.temperature, job.shape.multi_label);
  for (const Teacher& t : job.teachers) {
    RowScores scores(texts, t.labels.size());
    if (t.is_file)
      read_file_scores(job, t, texts, scores, progress);
    else
      ModelPass(job, t, texts, scores, progress).run();
    mixer.add(t, scores.scores());
  }
  ::malloc_trim(0);  // the teachers' freed memory; on a CPU the limit covers the whole process
  SoftLabels soft = mixer.finish();
  soft.seconds = seconds_since(since);
  return soft;
}

}  // namespace brim::train
