// SPDX-License-Identifier: Apache-2.0
// The task of a training run, from its settings and the model directory: labels, shape, tokenizer and teachers. Reads
// the data's labels, but no rows.
#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "hub/hf_config.h"
#include "model/shape.h"
#include "text/tokenizer.h"
#include "train/dataset.h"
#include "train/teachers.h"

namespace brim::train {

struct TaskSpec {
  TrainSettings settings;
  TrainTask task = TrainTask::sequence;
  std::unique_ptr<device::Device> device;
  int threads = 1;
  std::filesystem::path model_dir;
  hub::HfConfig config;
  std::unique_ptr<hub::Adapter> adapter;        // to continue; null if there is none
  hub::HeadKind head = hub::HeadKind::encoder;  // the model's original head
  bool unnamed_head = false;                    // the adapter has a head with unknown labels, which is replaced
  model::ModelShape whole;                      // with all layers of the model
  model::ModelShape shape;                      // trained model; may have fewer layers (student_layers)
  LabelSets labels;                             // label names of the trained model
  std::unique_ptr<text::Tokenizer> tokenizer;
  int64_t max_length = 0;
  std::vector<Teacher> teachers;
};

using Say = std::function<void(const std::string& line)>;

// Throws an Error with the matching code for any problem with settings or model. `say` receives notes for display.
TaskSpec read_task(const TrainSettings& settings, const Say& say);

// Metric that selects the best model: metric_for_best_model, where f1 or an empty value means the task's own F1. With
// both heads this is the mean of their F1 scores, so that neither head is favoured.
std::string best_metric(const TrainSettings& settings, TrainTask task);

}  // namespace brim::train
