// SPDX-License-Identifier: Apache-2.0
#include "serve/models.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "serve/answers.h"

namespace brim::serve {
namespace {

constexpr size_t kMostAddedAdapters = 256;

bool is_one_of(ModelKind kind, ModelKinds kinds) { return std::find(kinds.begin(), kinds.end(), kind) != kinds.end(); }

}  // namespace

ModelRegistry::ModelRegistry(const ServerOptions& options, std::vector<ServedModel> models)
    : options_(options), gates_(options.ladders, [this](const std::string& name) {
        try {
          const Served served = get(find(name), true);
          return gate_model(served->scorer, name, fmt::format("{} {}", served->id, served->revision));
        } catch (const Refusal& refusal) {
          fail(ErrorCode::bad_model, "{}", refusal.message);
        }
      }) {
  BRIM_CHECK(!models.empty(), "no models to serve");
  slots_.resize(models.size() + (options.add_adapter ? kMostAddedAdapters : 0));
  for (ServedModel& model : models) {
    Slot& slot = add_slot(model, "resident");
    slot.opened = model.scorer != nullptr;
    if (slot.opened) {
      slot.kind = model.scorer->kind();
      slot.served = std::make_shared<const ServedModel>(std::move(model));
    } else {
      if (model.pooling) slot.kind = ModelKind::embedder;
      slot.state = "failed";
      slot.fault = model.fault;
      report_fault(model.name, model.fault);
    }
  }
}

ModelRegistry::Slot& ModelRegistry::add_slot(const ServedModel& model, const char* state) {
  auto& slot = slots_[size_] = std::make_unique<Slot>();
  slot->configured = model;
  slot->configured.scorer.reset();  // only `served` owns it, so that an unloaded model is freed
  slot->id = model.id;
  slot->state = state;
  ++size_;  // visible to other threads from here on
  return *slot;
}

ModelRegistry::~ModelRegistry() { stop(); }

int64_t ModelRegistry::unix_now() const { return options_.unix_clock ? options_.unix_clock() : std::time(nullptr); }

std::string ModelRegistry::id_of(size_t model) const {
  std::lock_guard lock(slots_[model]->mutex);
  return slots_[model]->id;
}

int ModelRegistry::find(const std::string& name) const {
  if (const int named = index_of(name); named >= 0) return named;
  std::vector<std::string> names;
  for (size_t m = 0; m < size(); ++m) {
    if (id_of(m) == name) return static_cast<int>(m);
    names.push_back(slots_[m]->configured.name);
  }
  for (const auto& ladder : ladders()) names.push_back(ladder->rules().name);
  throw Refusal{404, "NotFound",
                fmt::format("model {} not found (available: {})", name.substr(0, 200), fmt::join(names, ", "))};
}

int ModelRegistry::index_of(std::string_view name) const {
  for (size_t m = 0; m < size(); ++m)
    if (slots_[m]->configured.name == name) return static_cast<int>(m);
  return -1;
}

int ModelRegistry::first_of(ModelKinds kinds, bool loaded) const {
  for (size_t m = 0; m < size(); ++m) {
    if (!is_one_of(slots_[m]->kind, kinds)) continue;
    std::lock_guard lock(slots_[m]->mutex);
    if (!loaded || slots_[m]->served != nullptr) return static_cast<int>(m);
  }
  return -1;
}

void ModelRegistry::require_kind(int model, ModelKinds kinds, const char* what) const {
  if (!is_one_of(slots_[static_cast<size_t>(model)]->kind, kinds))
    throw Refusal{424, "Backend", fmt::format("Backend error: Model is not {}", what)};
}

Served ModelRegistry::get(int model, bool may_wait) const {
  const Slot& slot = *slots_[static_cast<size_t>(model)];
  std::unique_lock lock(slot.mutex);
  if (may_wait) slot.replaced.wait(lock, [&] { return !slot.replacing; });
  if (slot.replacing)
    throw ModelBeingReplaced{
        {503, "Unhealthy", fmt::format("model {} is being replaced", slot.configured.name), retry_after(1)}, model};
  if (slot.served == nullptr)
    throw Refusal{
        503, "Unhealthy",
        fmt::format("model {} is not loaded{}", slot.configured.name, slot.fault.empty() ? "" : ": " + slot.fault),
        retry_after(1)};
  return slot.served;
}

ModelChoice ModelRegistry::choose(const ModelQuery& query, ModelKinds kinds) const {
  ModelChoice choice;
  // Ladders choose classifiers only; any model with a tokenizer can handle token routes.
  const bool classifies = std::all_of(kinds.begin(), kinds.end(), [](ModelKind kind) {
    return kind == ModelKind::classifier || kind == ModelKind::rules;
  });
  const auto ladder = std::ranges::find_if(
      ladders(), [&](const auto& l) { return query.model.empty() ? classifies : l->rules().name == query.model; });
  if (ladder == ladders().end()) {
    choice.model = query.model.empty() ? std::max(0, first_of(kinds)) : find(query.model);
    // For token routes, any loaded model will do.
    const bool any_kind = !classifies && kinds.size() > 1;
    if (const int loaded_model = first_of(kinds, true); query.model.empty() && any_kind && loaded_model >= 0)
      choice.model = loaded_model;
    choice.reason = query.model.empty() ? "default" : "requested";
    choice.served = get(choice.model, query.may_wait);
    return choice;
  }
  LadderRequest request;
  request.source = query.source;
  if (query.timeout_ms > 0) request.deadline_ms = query.timeout_ms;
  request.may_spill = !query.bulk;
  const Ladder::Wait wait = [this](const std::string& name) { return wait_seconds(find(name)) * 1e3; };
  Choice rung;
  try {
    rung = (*ladder)->choose(request, {unix_now(), now_ns()}, wait);
  } catch (const Error& error) {  // no rung is available
    throw Refusal{503, "Unhealthy", error.what(), retry_after(options_.load_retry_seconds)};
  }
  choice.model = find(rung.model);
  choice.reason = reason_name(rung.reason);
  choice.instead_of = rung.instead_of;
  choice.served = get(choice.model, query.may_wait);
  return choice;
}

ModelChoice ModelRegistry::choose_for_bulk(const std::string& model, const std::string& source) const {
  try {
    // Load must not split a flush or a job.
    return choose({.model = model, .source = source, .bulk = true, .may_wait = true},
                  {ModelKind::classifier, ModelKind::rules});
  } catch (const Refusal& refusal) {
    fail(refusal.status == 503 ? ErrorCode::does_not_fit : ErrorCode::bad_model, "{}", refusal.message);
  }
}

std::vector<Served> ModelRegistry::loaded() const {
  std::vector<Served> all;
  for (size_t m = 0; m < size(); ++m) {
    const Slot& slot = *slots_[m];
    std::lock_guard lock(slot.mutex);
    if (slot.served != nullptr) all.push_back(slot.served);
  }
  return all;
}

MemoryPlan ModelRegistry::planned() const {
  std::vector<std::shared_ptr<Scorer>> scorers;
  for (const Served& served : loaded()) scorers.push_back(served->scorer);
  return plan_together(scorers);
}

std::string ModelRegistry::Slot::state_now() const {
  if (served == nullptr || state != "resident") return state;
  switch (served->scorer->residence()) {
    case Residence::parked:
      return "parked";
    case Residence::disk:
      return "disk";
    default:
      return state;
  }
}

ModelStatus ModelRegistry::status(size_t model) const {
  const Slot& slot = *slots_[model];
  std::lock_guard lock(slot.mutex);
  const double keep = slot.configured.keep_alive_seconds;
  return {.served = slot.served,
          .kind = slot.kind,
          .opened = slot.opened,
          .state = slot.state_now(),
          .fault = slot.fault,
          .keep_alive_left = keep < 0 ? keep : std::max(0.0, keep - seconds_since(slot.used_ns)),
          .running_texts = slot.running_texts};
}

double ModelRegistry::wait_seconds(int model) const {
  const Slot& slot = *slots_[static_cast<size_t>(model)];
  std::lock_guard lock(slot.mutex);
  return slot.served == nullptr ? 0 : slot.served->scorer->load().wait_seconds;
}

bool ModelRegistry::device_lost() const {
  return std::ranges::any_of(loaded(), [](const Served& model) { return model->scorer->load().lost; });
}

void ModelRegistry::after_replacement(int model, std::function<void()> resume) {
  Slot& slot = *slots_[static_cast<size_t>(model)];
  {
    std::lock_guard lock(slot.mutex);
    if (slot.replacing) {
      slot.held.push_back(std::move(resume));
      return;
    }
  }
  resume();
}

bool ModelRegistry::note_if_not_loaded(const ServedModel& model, const Error& error) {
  const bool is_load_error = error.code() == ErrorCode::does_not_fit || error.code() == ErrorCode::bad_model;
  if (!is_load_error || model.scorer->residence() == Residence::resident) return false;
  note_not_loaded(static_cast<size_t>(find(model.name)), error.what());
  return true;
}

// Until the model loads, the ladder uses another rung.
void ModelRegistry::note_not_loaded(size_t index, const std::string& why) {
  Slot& slot = *slots_[index];
  {
    std::lock_guard lock(slot.mutex);
    if (slot.failed_ns == 0) log_warning("cannot load {}: {}", name(index), why);
    slot.failed_ns = now_ns();
    slot.fault = why;
  }
  report_fault(name(index), why);
}

void ModelRegistry::note_loaded(size_t index) {
  Slot& slot = *slots_[index];
  {
    std::lock_guard lock(slot.mutex);
    if (std::exchange(slot.failed_ns, 0) == 0) return;
    log_info("{}: loaded again", name(index));
    slot.fault.clear();
  }
  report_fault(name(index), "");
  gates_.measure_again(name(index));  // its measurement may have failed too
}

void ModelRegistry::report_fault(const std::string& model, const std::string& fault) {
  bool returned = false;
  for (const auto& ladder : ladders())
    if (ladder->has(model)) {
      returned |= fault.empty() && !ladder->fault(model).empty();
      ladder->report_fault(model, fault);
    }
  if (returned) gates_.measure_again(model);  // the gate skips unavailable rungs
}

void ModelRegistry::close_all() {
  for (const Served& model : loaded()) model->scorer->close();
  std::lock_guard lock(retired_mutex_);
  for (const Served& model : retired_) model->scorer->close();
}

}  // namespace brim::serve
