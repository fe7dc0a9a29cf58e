// SPDX-License-Identifier: Apache-2.0
// Teachers for distillation: models of any family, zero-shot models and files of scores. Each scores every training
// text once, with its own tokenizer, before training; scores are cached on disk. Does not compute the distillation
// loss.
#pragma once
#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "train/soft_labels.h"

namespace brim::train {

struct TaskSpec;
struct TrainJob;
struct TrainSettings;

// Reports and interrupts work that precedes or follows the training steps.
struct PassProgress {
  std::function<void(const std::string& line)> say = {};
  std::function<void(double done, double total, const std::string& text)> progress = {};
  const std::atomic<bool>* stop = nullptr;

  bool stopped() const { return stop != nullptr && stop->load(std::memory_order_relaxed); }
};

// The teachers of the settings with their weights and classes; throws for models that cannot teach. Files have no
// classes yet.
std::vector<Teacher> read_teachers(const TrainSettings& settings);
// Class names that the teachers determine; empty if all are files and no labels are set.
std::vector<std::string> labels_of_teachers(const TrainSettings& settings, const std::vector<Teacher>& teachers);
// Throws bad_model, listing both sets, if a teacher has other classes than the student. Matches classes by name. The
// shape, labels and max_length must be set.
void match_teachers(TaskSpec& spec);

// Line for display: which rows are trained on labels, teachers or both.
std::string teaching_text(const TrainJob& job);

// On a CPU: code and heap of their scorers that stay resident after the pass.
constexpr int64_t kTeacherResidue = int64_t{4} << 20;

// Computes or loads the scores of all teachers and mixes them. Teachers run one after another under the job's memory
// limit and are closed again.
SoftLabels make_soft_labels(const TrainJob& job, const PassProgress& progress);

// A scorer with the job's device, precision, threads and memory limit, less `reserved_bytes`.
std::shared_ptr<Scorer> open_scorer(const TrainJob& job, const std::filesystem::path& model,
                                    const std::optional<ZeroShot>& zero_shot, int64_t max_length,
                                    int64_t reserved_bytes);
// Scores texts, or pairs if `pairs` is not empty; throws the first text's error, prefixed with where(i).
Predictions score_texts(Scorer& scorer, const std::vector<std::string>& texts, const std::vector<std::string>& pairs,
                        const std::function<std::string(size_t i)>& where);
// Number of rows of the classification task, which come first, and the source of one: "train.csv:7".
int64_t classified_rows(const TrainJob& job);
std::string row_location(const TrainJob& job, int64_t row);

// Reads the probabilities of the job's texts from a file: one column per label (csv, tsv), or per row an object with
// one number per label, at top level or in `scores` (jsonl). `take` receives the scores by text, in the order of
// `labels`.
void read_score_file(const TrainSettings& settings, const std::string& path, const std::vector<std::string>& labels,
                     bool multi_label,
                     const std::function<void(std::string_view text, const std::optional<std::string_view>& pair,
                                              const std::vector<float>& scores)>& take);

}  // namespace brim::train
