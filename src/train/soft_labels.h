// SPDX-License-Identifier: Apache-2.0
// Teachers of a training run and the soft labels mixed from their scores: one row per training row, computed once
// before training. Does not compute the scores (teachers.h).
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "brim/brim.h"

namespace brim::train {

struct Teacher {
  std::string path;  // model directory, or file of scores
  bool is_file = false;
  double weight = 1;  // share in the mean; all add up to 1
  bool multi_label = false;
  std::vector<std::string> labels;    // its classes in its order; those of the student for a file
  std::vector<size_t> class_of;       // its class for each class of the student
  std::optional<ZeroShot> zero_shot;  // an NLI model that classifies by label names
  std::string weights_hash;           // content of its weights, or of the file
};

// The teachers' view of a row: their mean probabilities at temperature 1.
struct TeacherVote {
  int32_t label = -1;  // -1 with several labels per row, and for rows of another task
  float score = 0;     // probability of that label; several labels: that of the least certain decision
  float margin = 0;    // distance to the second label; several labels: the smallest distance of two opposite decisions
};

struct SoftLabels {
  int64_t classes = 0;
  // [rows, classes]: at the run's temperature, their softmax (several labels: sigmoid) is the weighted mean of the
  // teachers' probabilities at that temperature.
  std::vector<float> logits;
  std::vector<TeacherVote> votes;             // per row
  std::vector<std::vector<int32_t>> choices;  // label of each teacher per row; empty with several labels per row
  double seconds = 0;                         // spent on scoring and reading

  bool empty() const { return logits.empty(); }
};
// Host memory of the soft labels of a run.
int64_t soft_label_bytes(int64_t rows, int64_t classes, size_t teachers);

// Adds up the scores of teachers, in the student's order of classes.
class SoftLabelMixer {
 public:
  SoftLabelMixer(int64_t rows, int64_t classes, double temperature, bool multi_label);
  void add(const Teacher& teacher, std::span<const float> scores);  // [rows, its classes], probabilities
  SoftLabels finish();

 private:
  void vote(int64_t row, const float* mean);
  int64_t rows_;
  double temperature_;
  bool multi_label_;
  std::vector<float> mean_;  // at temperature 1
  SoftLabels out_;           // logits hold the mean at the run's temperature until finish()
};

}  // namespace brim::train
