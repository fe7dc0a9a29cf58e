// SPDX-License-Identifier: Apache-2.0
// Distillation's teachers: classifiers that read the student's tokens, one after another, before each micro-batch.
#pragma once
#include <memory>
#include <vector>

#include "model/forward_runner.h"
#include "model/validation_plan.h"
#include "train/job.h"

namespace brim::train {

// Throws bad_model where a teacher cannot read the student's tokens or has other labels. The job has its shape, labels,
// tokenizer and max_length by then.
void check_teachers(const TrainJob& job);

// Which rows are learnt from what, a line for people.
std::string taught_by(const TrainJob& job);

class Teachers {
 public:
  explicit Teachers(TrainJob& job);
  int64_t arena_bytes() const { return plan_.arena_bytes(); }
  void use_arena(void* arena) { arena_ = static_cast<char*>(arena); }  // their own: training reads their logits
  // Logits [n*B,K] of a batch that is on the device, one teacher's after another's; they lie in the arena.
  tensor::TensorView run(device::Stream& stream, const ops::BatchView& batch);

 private:
  std::vector<std::unique_ptr<model::Model>> models_;
  model::TeachersPlan plan_;
  char* arena_ = nullptr;
  std::vector<std::unique_ptr<model::ForwardRunner>> runners_;
};

}  // namespace brim::train
