// SPDX-License-Identifier: Apache-2.0
#include "jobs/score_models.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "engine/scorer_access.h"
#include "hub/model_dir.h"
#include "jobs/shards.h"

namespace brim::jobs {
namespace {

std::string directory_name(const std::string& model) {
  std::filesystem::path path = std::filesystem::absolute(model).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path.filename().string();
}

NamedModel split_name(const std::string& given) {
  const size_t equals = given.find('=');
  const bool named = equals != std::string::npos && equals > 0 && equals < given.find('/');
  return named ? NamedModel{given.substr(0, equals), given.substr(equals + 1)} : NamedModel{"", given};
}

std::string prefix_of(const NamedModel& named) { return named.name.empty() ? "" : named.name + "="; }

ScoreModels open_on(const std::vector<NamedModel>& named, std::vector<ScorerOptions> options, const Device& device) {
  for (ScorerOptions& one : options) one.device = device;
  return {named, open_together(options)};
}

}  // namespace

std::vector<NamedModel> name_models(const std::vector<std::string>& given) {
  std::vector<NamedModel> models;
  std::error_code unreadable;  // reported when the model is opened
  for (const std::string& one : given) {
    NamedModel named = std::filesystem::exists(one, unreadable) ? NamedModel{"", one} : split_name(one);
    if (named.name.empty() && given.size() > 1)
      named.name = hub::names_vader(named.model) ? "vader" : directory_name(named.model);
    const auto same = [&](const NamedModel& other) { return other.name == named.name; };
    if (given.size() > 1 && std::any_of(models.begin(), models.end(), same))
      fail(ErrorCode::usage, Remedy{fmt::format("set another one with `model=NAME={}`", named.model)},
           "`model={}`: duplicate name {}", one, named.name);
    models.push_back(std::move(named));
  }
  return models;
}

std::string model_list(const std::vector<NamedModel>& models) {
  std::string list;
  std::error_code unreadable;  // reported when the model is opened
  for (const NamedModel& named : models) {
    if (!list.empty()) list += ',';
    list += prefix_of(named);
    list += std::filesystem::is_directory(named.model, unreadable)
                ? std::filesystem::absolute(named.model).lexically_normal().string()
                : named.model;
  }
  return list;
}

std::vector<NamedModel> read_model_list(const std::string& list) {
  std::vector<NamedModel> models;
  for (size_t at = 0; at <= list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    models.push_back(split_name(list.substr(at, end - at)));
    at = end + 1;
  }
  return models;
}

std::string digest_of(const std::vector<NamedModel>& models, const std::string& adapter) {
  std::string digest;
  for (const NamedModel& named : models) {
    if (!digest.empty()) digest += ',';
    const std::string dir = find_model(named.model);
    digest += prefix_of(named) + (dir.empty() ? "rules" : model_digest(dir));
    if (!adapter.empty()) digest += "+" + model_digest(adapter);
  }
  return digest;
}

std::vector<Scorer*> ScoreModels::all() const {
  std::vector<Scorer*> all;
  for (const auto& scorer : scorers) all.push_back(scorer.get());
  return all;
}

device::DeviceKind ScoreModels::device() const {
  const std::vector<engine::Engine*> engines = engine::engines_of(all());
  return engines.empty() ? device::DeviceKind::null : engines[0]->device().kind();
}

std::string ScoreModels::pci_bus_id() const {
  for (const auto& scorer : scorers)
    if (!scorer->pci_bus_id().empty()) return scorer->pci_bus_id();
  return {};
}

ScoreModels open_score_models(std::vector<NamedModel> named, std::vector<ScorerOptions> options,
                              const plan::AutoFacts& facts) {
  const Device given = options.empty() ? Device() : options[0].device;
  const plan::AutoDevice wanted = plan::auto_device(facts);
  if (wanted == plan::AutoDevice::usual) {
    ScoreModels models = open_on(named, options, given);
    models.cpu_by_prediction = facts.on_cpu.value_or(false) && models.device() == device::DeviceKind::cpu;
    return models;
  }
  ScoreModels models;
  try {
    models = open_on(named, options, Device::Kind::cpu);
  } catch (const Error& error) {
    if (wanted == plan::AutoDevice::cpu || error.code() != ErrorCode::does_not_fit) throw;
    return open_on(named, options, given);
  }
  std::vector<double> rates;
  for (const auto& scorer : models.scorers)
    if (scorer->kind() != ModelKind::rules) rates.push_back(scorer->plan().tokens_per_second);
  const double seconds = plan::predicted_seconds(facts.bytes, rates);
  if (wanted == plan::AutoDevice::if_faster && !plan::faster_on_cpu(seconds)) {
    models = {};  // release them before the GPU's are opened
    return open_on(named, options, given);
  }
  models.cpu_by_prediction = !rates.empty();
  if (models.cpu_by_prediction)
    models.why_cpu = wanted == plan::AutoDevice::cpu
                         ? "the resumed run used it"
                         : fmt::format("it needs about {}, less than starting the GPU", format_duration(seconds));
  return models;
}

rows::RunIdentity run_identity(std::vector<std::string> inputs, std::map<std::string, std::string> options,
                               const ScoreModels& models, const std::string& adapter) {
  rows::RunIdentity id;
  id.inputs = std::move(inputs);
  id.options = std::move(options);
  id.may_change["on-error"] = "stop";  // such a run has written no bad rows
  std::string precisions;
  for (size_t m = 0; m < models.scorers.size(); ++m) {
    const Scorer& scorer = *models.scorers[m];
    id.model += (m > 0 ? ", " : "") + prefix_of(models.named[m]);
    const bool rules = scorer.kind() == ModelKind::rules;
    id.model += rules ? scorer.model() : std::filesystem::absolute(scorer.model()).string();
    if (rules) continue;
    for (auto& file : hub::model_files(scorer.model())) id.model_files.push_back(std::move(file));
    if (!adapter.empty())
      for (auto& file : hub::model_files(adapter)) id.model_files.push_back(std::move(file));
    precisions += (precisions.empty() ? "" : ", ") + scorer.precision();
  }
  if (!precisions.empty()) id.options["precision"] = precisions;
  if (models.cpu_by_prediction) id.options["device"] = "cpu";  // auto keeps the CPU on resume
  return id;
}

}  // namespace brim::jobs
