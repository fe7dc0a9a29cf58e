// SPDX-License-Identifier: Apache-2.0
#include "train/teacher_review.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/units.h"
#include "io/atomic_file.h"
#include "rows/csv.h"
#include "train/job.h"

namespace brim::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int64_t kMostReviewed = 20000;
constexpr size_t kReviewBlock = 2048;
constexpr size_t kConfidenceBins = 10;

// A reviewed row with the student's decision.
struct ReviewedRow {
  int64_t row = 0;
  int32_t label = -1;      // several labels: -1
  float score = 0;         // certainty of that decision
  bool disagrees = false;  // with the teachers' mean
  // Low if the teachers are undecided, or if the student is certain of another label.
  float margin = 0;
};

ReviewedRow reviewed(const TrainJob& job, int64_t row, const float* scores) {
  const auto K = static_cast<size_t>(job.soft.classes);
  const TeacherVote& vote = job.soft.votes[static_cast<size_t>(row)];
  ReviewedRow r;
  r.row = row;
  r.margin = vote.margin;
  if (job.shape.multi_label) {
    r.score = 1;
    float certain = 0;  // largest certainty of a different decision
    for (size_t k = 0; k < K; ++k) {
      const float distance = std::abs(2 * scores[k] - 1);
      r.score = std::min(r.score, (1 + distance) / 2);
      if ((scores[k] > 0.5f) == (job.soft.logits[static_cast<size_t>(row) * K + k] > 0)) continue;
      r.disagrees = true;
      certain = std::max(certain, distance);
    }
    if (r.disagrees) r.margin = std::min(r.margin, 1 - certain);
    return r;
  }
  r.label = static_cast<int32_t>(std::max_element(scores, scores + K) - scores);
  r.score = scores[r.label];
  r.disagrees = r.label != vote.label;
  if (r.disagrees) r.margin = std::min(r.margin, 1 - r.score);
  return r;
}

// Every n-th row of the classification task, scored by the student.
std::vector<ReviewedRow> review_rows(const TrainJob& job, const fs::path& student, const PassProgress& progress) {
  const int64_t rows = classified_rows(job), step = (rows + kMostReviewed - 1) / kMostReviewed;
  const auto scorer = open_scorer(job, student, {}, job.max_length, job.train_set.mapped ? kMostMappedTokens : 0);
  std::vector<ReviewedRow> all;
  std::vector<int64_t> numbers;
  std::vector<std::string> texts, pairs;
  const auto flush = [&] {
    if (numbers.empty() || progress.stopped()) return;
    const Predictions found =
        score_texts(*scorer, texts, pairs, [&](size_t i) { return row_location(job, numbers[i]); });
    for (size_t i = 0; i < numbers.size(); ++i)
      all.push_back(reviewed(job, numbers[i], found.scores.data() + i * found.width));
    numbers.clear();
    texts.clear();
    pairs.clear();
  };
  read_texts(job.train_set, job.settings, rows,
             [&](int64_t row, std::string_view text, const std::optional<std::string_view>& pair) {
               if (row % step != 0) return;
               numbers.push_back(row);
               texts.emplace_back(text);
               if (pair) pairs.emplace_back(*pair);
               if (numbers.size() >= kReviewBlock) flush();
             });
  flush();
  return all;
}

double share_of(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

// Accuracy of a teacher's choices on labelled rows; null if none has a label.
Json label_agreement(const TrainJob& job, const std::function<int32_t(size_t row)>& choice) {
  int64_t labelled = 0, equal = 0;
  for (size_t row = 0; row < job.soft.votes.size(); ++row) {
    const int32_t label = job.train_set.label[row];
    if (label < 0) continue;
    ++labelled;
    equal += choice(row) == label;
  }
  return labelled > 0 ? Json(share_of(equal, labelled)) : Json(nullptr);
}

Json teachers_json(const TrainJob& job, const std::vector<ReviewedRow>& rows) {
  Json all = Json::array();
  for (size_t t = 0; t < job.teachers.size(); ++t) {
    const Teacher& teacher = job.teachers[t];
    Json j = {{"model", teacher.path}, {"weight", teacher.weight}};
    if (teacher.zero_shot) j["template"] = teacher.zero_shot->text_template;
    if (!job.soft.choices.empty()) {
      const std::vector<int32_t>& choices = job.soft.choices[t];
      int64_t equal = 0;
      for (const ReviewedRow& r : rows) equal += choices[static_cast<size_t>(r.row)] == r.label;
      j["agreement"] = share_of(equal, static_cast<int64_t>(rows.size()));
      j["label_agreement"] = label_agreement(job, [&](size_t row) { return choices[row]; });
    }
    all.push_back(std::move(j));
  }
  return all;
}

std::string label_name(const TrainJob& job, int32_t label) {
  return label < 0 ? std::string() : job.labels.sequence[static_cast<size_t>(label)];
}

// The rows to label, least certain first, with their texts.
Json rows_to_label(const TrainJob& job, std::vector<ReviewedRow> rows) {
  std::erase_if(rows, [&](const ReviewedRow& r) {
    const auto row = static_cast<size_t>(r.row);
    if (!job.shape.multi_label) return job.train_set.label[row] >= 0;
    return job.train_set.multi_label[row * static_cast<size_t>(job.soft.classes)] >= 0;
  });
  std::stable_sort(rows.begin(), rows.end(),
                   [](const ReviewedRow& a, const ReviewedRow& b) { return a.margin < b.margin; });
  if (rows.size() > kRowsToLabel) rows.resize(kRowsToLabel);
  std::vector<Json> found(rows.size());
  read_texts(job.train_set, job.settings, classified_rows(job),
             [&](int64_t row, std::string_view text, const std::optional<std::string_view>& pair) {
               for (size_t i = 0; i < rows.size(); ++i) {
                 if (rows[i].row != row) continue;
                 const TeacherVote& vote = job.soft.votes[static_cast<size_t>(row)];
                 found[i] = {{"text", text}};
                 if (pair) found[i]["pair"] = *pair;
                 found[i]["from"] = row_location(job, row);
                 found[i]["teacher_label"] = label_name(job, vote.label);
                 found[i]["teacher_score"] = vote.score;
                 found[i]["student_label"] = label_name(job, rows[i].label);
                 found[i]["student_score"] = rows[i].score;
                 found[i]["reason"] = rows[i].disagrees ? "student disagrees" : "teacher is uncertain";
               }
             });
  return found;
}

// The column of labels is empty: the file can be trained on once they are filled in.
void write_rows_to_label(const TrainJob& job, const fs::path& path, const Json& rows) {
  const TrainSettings& s = job.settings;
  const bool pairs = !s.pair_column.empty();
  std::string out = s.text_column.empty() ? "text" : s.text_column;
  if (pairs) out += "," + s.pair_column;
  out += "," + (s.label_columns.size() == 1 ? s.label_columns[0] : std::string("label"));
  out += ",from,teacher_label,teacher_score,student_label,student_score,reason\n";
  for (const Json& row : rows) {
    const auto field = [&](const char* key) {
      rows::append_csv_field(out, row.value(key, std::string()), ',');
      out += ',';
    };
    field("text");
    if (pairs) field("pair");
    out += ',';
    field("from");
    field("teacher_label");
    out += fmt::format("{:.4f},", row["teacher_score"].get<double>());
    field("student_label");
    out += fmt::format("{:.4f},{}\n", row["student_score"].get<double>(), row["reason"].get<std::string>());
  }
  io::write_file_atomically(path, out);
}

}  // namespace

std::string review_student(const TrainJob& job, const fs::path& student, const PassProgress& progress) {
  const std::vector<ReviewedRow> rows = review_rows(job, student, progress);
  double confidence = 0;
  std::array<int64_t, kConfidenceBins> bins{};
  for (const TeacherVote& vote : job.soft.votes) {
    confidence += vote.score;
    ++bins[std::min(kConfidenceBins - 1, static_cast<size_t>(vote.score * kConfidenceBins))];
  }
  const int64_t agreeing = std::count_if(rows.begin(), rows.end(), [](const ReviewedRow& r) { return !r.disagrees; });
  Json review = {{"teachers", teachers_json(job, rows)},
                 {"rows", job.soft.votes.size()},
                 {"rows_compared", rows.size()},
                 {"agreement", share_of(agreeing, static_cast<int64_t>(rows.size()))},
                 {"mean_confidence", confidence / static_cast<double>(std::max<size_t>(1, job.soft.votes.size()))},
                 {"confidence", bins},
                 {"seconds", job.soft.seconds}};
  review["label_agreement"] = job.shape.multi_label
                                  ? Json(nullptr)
                                  : label_agreement(job, [&](size_t row) { return job.soft.votes[row].label; });
  const fs::path file = student / kToLabel;
  std::error_code ec;
  fs::remove(file, ec);
  review["to_label"] = rows_to_label(job, rows);
  if (!review["to_label"].empty()) write_rows_to_label(job, file, review["to_label"]);
  const std::string text = review.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (progress.say) progress.say(review_text(text));
  return text;
}

std::string review_text(const std::string& review_json) {
  const Json review = Json::parse(review_json);
  std::string text = fmt::format(
      "the student agrees with the {} on {:.1f} % of {} (mean confidence {:.2f})",
      review.at("teachers").size() == 1 ? "teacher" : "teachers", 100 * review.at("agreement").get<double>(),
      format_count(review.at("rows_compared").get<int64_t>(), "text"), review.at("mean_confidence").get<double>());
  if (const size_t n = review.at("to_label").size(); n > 0)
    text +=
        fmt::format(" · {}: {} most worth labelling by hand", kToLabel, format_count(static_cast<int64_t>(n), "row"));
  return text;
}

}  // namespace brim::train
