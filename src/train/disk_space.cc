// SPDX-License-Identifier: Apache-2.0
#include "train/disk_space.h"

#include <algorithm>

#include "base/error.h"
#include "base/units.h"
#include "hub/hf_config.h"
#include "train/checkpoint.h"

namespace brim::train {

constexpr int64_t kMostSaves = 100'000'000;  // avoids overflow of saves times bytes

int64_t DiskNeed::most_checkpoints() const {
  const int64_t all = kept + saves;
  return keep > 0 && saves > 0 ? std::min(all, keep + 1) : all;
}

int64_t DiskNeed::bytes() const {
  const int64_t most = most_checkpoints(), settled = keep > 0 && saves > 0 ? std::min(most, keep) : most;
  const int64_t writing_model = settled * checkpoint_bytes + (rewrites_model ? 2 : 1) * model_bytes;
  const int64_t writing_checkpoint = most * checkpoint_bytes + (rewrites_model ? model_bytes : 0);
  const int64_t there = kept * checkpoint_bytes + (rewrites_model && has_model ? model_bytes : 0);
  return std::max<int64_t>(0, std::max(writing_model, writing_checkpoint) - there);
}

DiskNeed disk_need(const TrainJob& job, const StepSchedule& schedule, const model::TrainState& state,
                   int64_t first_step, bool evaluates) {
  const TrainSettings& s = job.settings;
  std::error_code ec;
  int64_t model = 4 * (job.shape.lora ? state.layout().trained() : state.layout().elements());  // written as f32
  for (const auto& file : hub::tokenizer_files(job.model_dir)) {
    const auto bytes = std::filesystem::file_size(file, ec);
    if (!ec) model += static_cast<int64_t>(bytes);
  }
  DiskNeed need;
  const bool two_models = job.shape.sequence_classes > 0 && job.shape.token_classes > 0;
  need.model_bytes = two_models ? 2 * model : model;
  need.checkpoint_bytes = model + static_cast<int64_t>(state.all_moment_bytes());
  const int64_t last = schedule.total_steps() - 1;  // followed by the final model instead of a checkpoint
  if (first_step < last && s.save_strategy == Strategy::steps)
    need.saves = last / s.save_steps - first_step / s.save_steps;
  if (first_step < last && s.save_strategy == Strategy::epoch)
    need.saves = schedule.epoch_of(last) - schedule.epoch_of(first_step);
  need.saves = std::min(need.saves, kMostSaves);
  need.keep = s.save_total_limit;
  need.kept = count_checkpoints(s.output_dir);
  need.rewrites_model = s.load_best_model_at_end && evaluates;
  need.has_model = std::filesystem::exists(std::filesystem::path(s.output_dir) / weights_file(job.shape), ec);
  return need;
}

void check_disk_space(const std::filesystem::path& dir, const DiskNeed& need) {
  std::error_code ec;
  const auto space = std::filesystem::space(dir, ec);
  if (ec || space.capacity == 0) return;  // unknown, for example on some network file systems
  const auto available = static_cast<int64_t>(std::min<uintmax_t>(space.available, INT64_MAX));
  if (need.bytes() <= available) return;
  const int64_t checkpoints = need.most_checkpoints();
  fail(ErrorCode::cannot_write,
       Remedy{checkpoints > 0 ? "free some space, set another `output`, or keep fewer checkpoints with "
                                "`save_total_limit=1` or `save_strategy=no`"
                              : "free some space or set another `output`"},
       "{}: not enough disk space: the run needs {} ({} bytes: a model of {}{}), {} ({} bytes) are available",
       dir.string(), format_bytes(need.bytes()), need.bytes(), format_bytes(need.model_bytes),
       checkpoints > 0 ? fmt::format(" and up to {} of {}", format_count(checkpoints, "checkpoint"),
                                     format_bytes(need.checkpoint_bytes))
                       : "",
       format_bytes(available), available);
}

}  // namespace brim::train
