// SPDX-License-Identifier: Apache-2.0
// Compares a trained student with its teachers: agreement, confidence of the teachers, and the rows without a label
// that are most worth labelling by hand. Does not change the model.
#pragma once
#include <filesystem>
#include <string>

#include "train/teachers.h"

namespace brim::train {

constexpr const char* kToLabel = "to_label.csv";  // in the output directory
constexpr size_t kRowsToLabel = 50;

// Scores the training texts (a sample of large sets) with the model in `student`, and writes kToLabel there if there
// are rows without a label. Returns the comparison as JSON for the run's report.
std::string review_student(const TrainJob& job, const std::filesystem::path& student, const PassProgress& progress);
// One line for display: "the student agrees with the teachers on 93.1 % of 1,234 texts (…)".
std::string review_text(const std::string& review_json);

}  // namespace brim::train
