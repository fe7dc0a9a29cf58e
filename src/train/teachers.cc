// SPDX-License-Identifier: Apache-2.0
#include "train/teachers.h"

#include <algorithm>

#include "base/error.h"
#include "base/units.h"
#include "engine/zero_shot.h"
#include "hub/weights.h"
#include "text/tokenizer.h"
#include "train/content_hash.h"
#include "train/job.h"

namespace brim::train {
namespace {

namespace fs = std::filesystem;

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](char x, char y) { return lower(x) == lower(y); });
}

// The teacher's class for each of the student's, by name, or by name in any case; empty if the sets differ.
std::vector<size_t> matched_classes(const std::vector<std::string>& teacher, const std::vector<std::string>& student) {
  if (teacher.size() != student.size()) return {};
  for (const bool exact : {true, false}) {
    std::vector<size_t> found;
    std::vector<bool> used(teacher.size());
    for (const std::string& label : student)
      for (size_t k = 0; k < teacher.size(); ++k)
        if (!used[k] && (exact ? teacher[k] == label : equal_ignoring_case(teacher[k], label))) {
          used[k] = true;
          found.push_back(k);
          break;
        }
    if (found.size() == student.size()) return found;
  }
  return {};
}

std::optional<ZeroShot> zero_shot_of(const TrainSettings& s) {
  std::vector<std::string> labels = s.labels;
  if (!s.labels_file.empty()) labels = engine::read_label_lines(s.labels_file, "`labels_file`");
  const bool given = !labels.empty() || !s.labels_file.empty();
  if (!given && s.label_template != TrainSettings().label_template)
    fail(ErrorCode::usage, Remedy{"set `labels`"}, "`template=\"{}\"`: requires labels", s.label_template);
  if (!given) return std::nullopt;
  if (s.teachers.empty())
    fail(ErrorCode::usage, Remedy{"set `teacher` to an NLI model"}, "`labels`: requires a teacher");
  if (!s.labels.empty() && !s.labels_file.empty())
    fail(ErrorCode::usage, "`labels_file={}`: cannot be combined with `labels`", s.labels_file);
  ZeroShot zero_shot;
  zero_shot.labels = std::move(labels);
  zero_shot.text_template = s.label_template;
  zero_shot.multi_label = s.several_labels();
  if (zero_shot.labels.size() == 1 && !zero_shot.multi_label)
    fail(ErrorCode::usage, "`labels`: only one label ('{}'); at least two are required", zero_shot.labels[0]);
  engine::check_zero_shot(zero_shot, {.labels = s.labels_file.empty() ? "`labels`" : "`labels_file`"});
  return zero_shot;
}

std::vector<double> read_weights(const TrainSettings& s) {
  if (s.teacher_weights.empty())
    return std::vector<double>(s.teachers.size(), 1 / static_cast<double>(s.teachers.size()));
  if (s.teacher_weights.size() != s.teachers.size())
    fail(ErrorCode::usage, Remedy{"set `teacher_weight` once per teacher, in their order"},
         "`teacher_weight`: {} given for {}", format_count(static_cast<int64_t>(s.teacher_weights.size()), "weight"),
         format_count(static_cast<int64_t>(s.teachers.size()), "teacher"));
  std::vector<double> weights;
  double sum = 0;
  for (const std::string& text : s.teacher_weights) {
    weights.push_back(read_setting("teacher_weight", text, read_number));
    if (!(weights.back() > 0)) refuse_value("teacher_weight", text, "", "must be above zero");
    sum += weights.back();
  }
  for (double& w : weights) w /= sum;
  return weights;
}

Teacher read_model(const TrainSettings& s, const std::string& dir, const std::optional<ZeroShot>& zero_shot) {
  Teacher t;
  t.path = dir;
  const model::ModelShape shape = model::read_shape(dir);
  if (shape.sequence_classes == 0) fail(ErrorCode::bad_model, "{}: the teacher has no classification head", dir);
  if (shape.regression) fail(ErrorCode::bad_model, "{}: the teacher predicts numbers, not classes", dir);
  t.labels = hub::load_hf_config(dir).id2label;
  t.multi_label = shape.multi_label;
  if (zero_shot && engine::find_nli_classes(t.labels)) {
    if (!s.pair_column.empty()) fail(ErrorCode::usage, "`pair_column={}`: not supported with `labels`", s.pair_column);
    t.zero_shot = zero_shot;
    t.labels = zero_shot->labels;
    t.multi_label = zero_shot->multi_label;
  }
  ContentHash weights;
  for (const auto& file : hub::WeightSource::open(dir)->files()) weights.add_file(file);
  t.weights_hash = weights.hex();
  return t;
}

}  // namespace

std::vector<Teacher> read_teachers(const TrainSettings& s) {
  const std::optional<ZeroShot> zero_shot = zero_shot_of(s);
  if (s.teachers.empty()) return {};
  const std::vector<double> weights = read_weights(s);
  std::vector<Teacher> teachers;
  std::error_code ec;
  for (size_t i = 0; i < s.teachers.size(); ++i) {
    const std::string& path = s.teachers[i];
    if (fs::is_regular_file(path, ec)) {
      ContentHash content;
      content.add_file(path);
      Teacher t;
      t.path = path;
      t.is_file = true;
      t.multi_label = s.several_labels();
      t.weights_hash = content.hex();
      teachers.push_back(std::move(t));
    } else {
      teachers.push_back(read_model(s, path, zero_shot));
    }
    teachers.back().weight = weights[i];
  }
  if (zero_shot &&
      std::none_of(teachers.begin(), teachers.end(), [](const Teacher& t) { return t.is_file || t.zero_shot; }))
    engine::require_nli_classes(teachers[0].labels, teachers[0].path, "`labels`");
  return teachers;
}

std::vector<std::string> labels_of_teachers(const TrainSettings& s, const std::vector<Teacher>& teachers) {
  for (const Teacher& t : teachers)
    if (t.zero_shot) return t.labels;
  if (const auto zero_shot = zero_shot_of(s)) return zero_shot->labels;
  for (const Teacher& t : teachers)
    if (!t.is_file) return t.labels;
  return {};
}

void match_teachers(TaskSpec& spec) {
  for (Teacher& t : spec.teachers) {
    if (t.is_file) t.labels = spec.labels.sequence;
    t.class_of = matched_classes(t.labels, spec.labels.sequence);
    if (t.class_of.empty())
      fail(ErrorCode::bad_model,
           Remedy{t.zero_shot ? "use the same names in `labels` and the data, or set `ignore_mismatched_head=true` if "
                                "the model's classifier has other labels"
                              : "rename the labels in the data, or set `ignore_mismatched_head=true` if the model's "
                                "classifier has other labels"},
           "{}: the teacher's labels ({}) do not match the student's ({})", t.path, some_of(t.labels),
           some_of(spec.labels.sequence));
    if (t.multi_label != spec.shape.multi_label)
      fail(ErrorCode::bad_model, "{}: the teacher predicts {}, the student {}", t.path,
           t.multi_label ? "any number of labels per text" : "one label per text",
           spec.shape.multi_label ? "any number" : "one");
    if (spec.settings.pair_column.empty() || t.is_file) continue;
    const model::ModelShape shape = model::read_shape(t.path);
    if (auto problem = text::why_no_pairs(*text::Tokenizer::load(t.path), t.path, shape.types, shape.max_tokens()))
      throw *problem;
  }
}

std::string teaching_text(const TrainJob& job) {
  const size_t n = job.teachers.size();
  const std::string teachers = n == 1 ? "the teacher" : fmt::format("{} teachers", n);
  int64_t labelled = 0;  // rows of this task only
  for (const int32_t label : job.train_set.label) labelled += label >= 0;
  std::string text;
  if (labelled > 0)
    text = fmt::format("{} trained on labels ({:.3g}) and {} ({:.3g})", format_count(labelled, "row"),
                       job.settings.hard_weight, teachers, 1 - job.settings.hard_weight);
  if (job.unlabelled > 0)
    text += fmt::format("{}{} without a label trained on {} only", text.empty() ? "" : " · ",
                        format_count(job.unlabelled, "row"), teachers);
  return text;
}

int64_t classified_rows(const TrainJob& job) {
  const auto files = static_cast<int32_t>(job.settings.train_files.size());
  return std::partition_point(job.train_set.file.begin(), job.train_set.file.end(),
                              [&](int32_t file) { return file < files; }) -
         job.train_set.file.begin();
}

std::string row_location(const TrainJob& job, int64_t row) {
  return fmt::format("{}:{}",
                     job.settings.train_files[static_cast<size_t>(job.train_set.file[static_cast<size_t>(row)])],
                     job.train_set.line[static_cast<size_t>(row)]);
}

}  // namespace brim::train
