// SPDX-License-Identifier: Apache-2.0
// Teachers for distillation: classifiers that run on the student's tokens, one after another, before each micro-batch.
// Does not compute the distillation loss.
#pragma once
#include <memory>
#include <vector>

#include "model/forward_runner.h"
#include "model/validation_plan.h"
#include "train/job.h"

namespace brim::train {

// Throws bad_model if a teacher cannot use the student's tokens or has other labels. The job's shape, labels, tokenizer
// and max_length must be set.
void check_teachers(const TrainJob& job);

// Line for display: which rows are trained on labels, teachers or both.
std::string teaching_text(const TrainJob& job);

class Teachers {
 public:
  explicit Teachers(TrainJob& job);
  int64_t arena_bytes() const { return plan_.arena_bytes(); }
  void use_arena(void* arena) { arena_ = static_cast<char*>(arena); }  // not shared: training reads the logits
  // Logits [n*B,K] for a batch on the device, in order of the teachers; stored in the arena.
  tensor::TensorView run(device::Stream& stream, const ops::BatchView& batch);

 private:
  std::vector<std::unique_ptr<model::Model>> models_;
  model::TeachersPlan plan_;
  char* arena_ = nullptr;
  std::vector<std::unique_ptr<model::ForwardRunner>> runners_;
};

}  // namespace brim::train
