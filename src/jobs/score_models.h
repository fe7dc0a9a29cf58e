// SPDX-License-Identifier: Apache-2.0
// Models that score the rows of a file together: names, opening, and their description in records of runs. Does not
// score.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "brim/brim.h"
#include "device/device.h"
#include "plan/auto_device.h"
#include "rows/resume.h"

namespace brim::jobs {

struct NamedModel {
  std::string name;   // prefix of its columns; empty for a single model
  std::string model;  // directory or name
};

// "ner=models/ner" is the model models/ner with the name ner. Of several models, "models/ner" is named after its
// directory. Throws usage if two have the same name.
std::vector<NamedModel> name_models(const std::vector<std::string>& given);
// The models in the record of a job: "ner=/data/ner,vader". Directories are absolute, because shards may be scored from
// other directories.
std::string model_list(const std::vector<NamedModel>& models);
std::vector<NamedModel> read_model_list(const std::string& list);
// Fingerprint of their files and, if not empty, of the adapter.
std::string digest_of(const std::vector<NamedModel>& models, const std::string& adapter);

struct ScoreModels {
  std::vector<NamedModel> named;
  std::vector<std::shared_ptr<Scorer>> scorers;
  bool cpu_by_prediction = false;  // `auto` selected the CPU; a resumed run must do so too
  std::string why_cpu;             // reason for the log; empty if there is nothing to report

  std::vector<Scorer*> all() const;
  // The device of the models that have one; models opened together share it.
  device::DeviceKind device() const;
  std::string pci_bus_id() const;
};

// Opens the models with `options`, which have the same device. `auto` selects the CPU if it can score a small input
// before a GPU has started, and if such a run is resumed.
ScoreModels open_score_models(std::vector<NamedModel> named, std::vector<ScorerOptions> options,
                              const plan::AutoFacts& facts);

// `options`: settings that change the output, by name. `adapter`: its directory, or empty.
rows::RunIdentity run_identity(std::vector<std::string> inputs, std::map<std::string, std::string> options,
                               const ScoreModels& models, const std::string& adapter);

}  // namespace brim::jobs
