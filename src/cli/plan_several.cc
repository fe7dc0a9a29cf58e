// SPDX-License-Identifier: Apache-2.0
// brim plan for several models that share a device, given by flags, a serve.yaml or the environment. Single models are
// planned in plan.cc.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/env.h"
#include "base/error.h"
#include "base/units.h"
#include "cli/engine_flags.h"
#include "cli/plan_flags.h"
#include "cli/plan_forecast.h"
#if defined(BRIM_WITH_SERVE)
#include "cli/serve_settings.h"
#include "serve/serve_config.h"
#endif
#include "engine/engine_options.h"
#include "plan/profile_json.h"

namespace brim::cli {

using jobs::PlanJob;
using jobs::PlanTarget;
using plan::Plan;
using plan::PlanRequest;
using plan::Task;

namespace {

// Models that share a device in one process: one context, and a part of the limit each.
struct Together {
  std::vector<PlanRequest> requests;  // models on the device
  std::vector<Plan> plans;
  std::vector<memory::LedgerEntry> ledger;
  std::vector<std::string> names;           // names of these
  std::vector<plan::ResidentSet> resident;  // possible sets of resident models, if not all must be
  int64_t context_bytes = 0, limit_bytes = 0;
  bool all_resident = true;
};

// `in_turn`: they need not all fit at once, like a server's models.
Together plan_together(const std::vector<PlanJob>& jobs, const PlanTarget& t, bool in_turn) {
  Together all;
  for (const PlanJob& job : jobs)
    if (!job.rules) {
      all.requests.push_back(request_for(job, t));
      all.names.push_back(job.name());
      all.context_bytes = std::max(all.context_bytes, all.requests.back().device.context_bytes);
    }
  if (all.requests.empty()) return all;
  all.limit_bytes = all.requests[0].limit_bytes;
  plan::TurnPlans turns = solve_turns(all.requests, in_turn ? plan::Residency::in_turn : plan::Residency::all);
  all.all_resident = turns.all_resident;
  for (plan::Plan& p : turns.plans) all.plans.push_back(in_flags(std::move(p)));
  if (in_turn) all.resident = resident_sets(all.plans, all.limit_bytes);
  std::vector<const plan::Plan*> plans;
  std::vector<std::string> names = all.names;
  for (const plan::Plan& p : all.plans) plans.push_back(&p);
  if (!all.all_resident) {  // the largest set must fit
    const auto own = [](const plan::Plan* p) { return total_bytes(p->own_parts()); };
    const auto largest =
        std::max_element(plans.begin(), plans.end(), [&](auto* a, auto* b) { return own(a) < own(b); });
    names = {names[static_cast<size_t>(largest - plans.begin())]};
    plans = {*largest};
  }
  all.ledger = ledger_of(plans, names);
  return all;
}

std::string names_of(const Together& all, const plan::ResidentSet& set) {
  std::string text;
  for (const size_t m : set.models) text += (text.empty() ? "" : ", ") + all.names[m];
  return text;
}

void print_resident(const Together& all) {
  if (all.all_resident) {
    fmt::print("note: all models fit together\n");
    return;
  }
  if (all.plans.size() > plan::kListedResidents) {
    fmt::print("note: at most {1} of {0} models fit together: {2}\n", all.plans.size(), all.resident[0].models.size(),
               names_of(all, all.resident[0]));
  } else {
    fmt::print("largest sets that fit together:\n");
    for (const plan::ResidentSet& set : all.resident)
      fmt::print("  {:>10}  {}\n", format_bytes(set.bytes), names_of(all, set));
  }
  fmt::print(
      "note: models are loaded on request; to make room, models without waiting texts are unloaded first, then those "
      "with\n"
      "the lowest reload cost per byte (load time × texts in the last ten minutes)\n");
}

}  // namespace

int run_several(const PlanFlags& f, const std::vector<PlanJob>& jobs) {
  const jobs::PlanSpec spec = spec_of(f);
  if (device_of(spec, jobs[0]) == "all") fail(ErrorCode::usage, "--device all: supports one model; choose a device");
  const PlanTarget t = open_target(spec, device_of(spec, jobs[0]));
  const Together all = plan_together(jobs, t, f.serves);
  if (f.json) {
    nlohmann::ordered_json j = {{"schema_version", jobs::kPlanSchema},      {"task", task_name(Task::score)},
                                {"device", {{"name", t.profile.name}}},     {"fits", true},
                                {"limit_bytes", all.limit_bytes},           {"peak_bytes", total_bytes(all.ledger)},
                                {"context_bytes", all.context_bytes},       {"ledger", plan::ledger_json(all.ledger)},
                                {"models", nlohmann::ordered_json::array()}};
    if (f.serves) {
      j["all_resident"] = all.all_resident;
      j["resident_sets"] = nlohmann::ordered_json::array();
      for (const plan::ResidentSet& set : all.resident) {
        auto names = nlohmann::ordered_json::array();
        for (const size_t m : set.models) names.push_back(all.names[m]);
        j["resident_sets"].push_back({{"models", names}, {"bytes", set.bytes}});
      }
    }
    size_t next = 0;
    for (const PlanJob& job : jobs) {
      if (job.rules)
        j["models"].push_back({{"model", "vader"}, {"fits", true}, {"peak_bytes", 0}});
      else
        j["models"].push_back(json_of(job, all.plans[next++]));
    }
    fmt::print("{}\n", text_of(j));
    return 0;
  }
  if (all.plans.empty()) {
    fmt::print("vader: no device memory (0 bytes), runs on the CPU\n");
    return 0;
  }
  fmt::print("device       {}\ntask         score, all models in one process\n\n", device_line(t.profile));
  size_t next = 0;
  for (const PlanJob& job : jobs) {
    if (job.rules) {
      fmt::print("  {:<24} {:>10}  no device memory, runs on the CPU\n", job.name(), "0 B");
      continue;
    }
    const Plan& p = all.plans[next++];
    fmt::print("  {:<24} {:>10}  {}, batches of {} tokens ({} texts of {}), {} tokens/s alone\n", job.name(),
               format_bytes(total_bytes(p.own_parts())), precision_name(p.precision), format_count(p.token_budget),
               format_count(texts_of(job, p.token_budget)), job.request.typical_length, format_si(p.tokens_per_second));
  }
  fmt::print("\n");
  print_ledger(all.ledger, all.limit_bytes);
  if (all.plans.size() > 1)
    fmt::print("note: shared memory (forward pass, batches in flight, context) is counted once\n");
  if (f.serves && all.plans.size() > 1) print_resident(all);
  for (const PlanJob& job : jobs)
    for (const auto& note : in_flags(job.notes)) fmt::print("note: {}: {}\n", job.name(), note);
  for (const auto& note : in_flags(t.notes)) fmt::print("note: {}\n", note);
  for (const auto& note : in_flags(jobs::notes_on_limit(jobs[0].settings))) fmt::print("note: {}\n", note);
  return 0;
}

#if defined(BRIM_WITH_SERVE)
// Plans the weights of its encoder once for all models of this directory.
void share_base(PlanJob& job) {
  if (!job.adapter_ranks) return;
  job.request.base = std::filesystem::absolute(job.dir).lexically_normal().string();
  job.request.adapter_ranks = *job.adapter_ranks;
  job.request.shape.adapter_width = model::adapter_width(*job.adapter_ranks);
  job.request.shape.shares_weights = true;
}

// Models of a serve.yaml, or of the environment as used by `brim serve`, with its device, memory and precision settings
// unless flags override them.
int plan_serve(PlanFlags f) {
  if (!f.models.empty() || !f.config.empty() || asked_task(f) == Task::train)
    fail(ErrorCode::usage, "--serve{}: cannot be combined with --model, --config or training",
         f.serve.empty() ? "" : " " + f.serve);
  serve::ServeConfig config = f.serve.empty() ? serve::config_from_env([](const char* name) { return env(name); })
                                              : serve::read_serve_config(f.serve, serve_setting_names(), "serve");
  serve::check_names(config);
  serve::share_bases(config);
  if (config.models.empty() && f.serve.empty())
    fail(ErrorCode::usage,
         "--serve: no models; name a file, or set SENTIMENT_MODEL_NAME or FEATURE_ADAPTIVE_SENTIMENT=1 in the "
         "environment or --env-file");
  if (config.models.empty()) fail(ErrorCode::usage, "{}: no models", f.serve);
  for (const serve::PlainSetting& setting : config.settings) {
    if (setting.key == "device" && f.device.empty()) f.device = setting.value;
    for (const char* key : {"memory_limit", "leave_free", "precision", "max_length"})
      if (setting.key == key && f.settings.count(key) == 0) f.settings[key] = {setting.value};
  }
  const bool chosen = f.vram.empty() && (f.device.empty() || f.device == "auto");
  const Device::Kind kind = chosen                                ? Device::Kind::automatic
                            : f.vram.empty() && f.device == "cpu" ? Device::Kind::cpu
                                                                  : Device::Kind::cuda;
  if (const LeaveFree left = leave_free_of_env(kind); left.bytes > 0)
    f.settings.try_emplace("leave_free", std::vector<std::string>{left.text});
  std::vector<PlanJob> jobs;
  for (const serve::ModelEntry& model : config.models) {
    PlanFlags own = f;
    if (model.precision != Precision()) own.settings["precision"] = {model.precision.text()};
    jobs::PlanSpec spec = spec_of(own);
    spec.adapter = model.adapter;
    spec.entities = model.entities;
    jobs.push_back(open_job(spec, model.path, jobs.empty()));
    jobs.back().served_as = model.name;
    if (model.share_base) share_base(jobs.back());
    if (model.pooling) {  // its head, if any, is not computed
      jobs.back().request.output = engine::embedding_output(
          hub::resolve_model(model.path, hub::model_search_path(hub::model_roots())), *model.pooling);
      jobs.back().notes.clear();
    }
    if (auto labels = labels_job(jobs.back())) jobs.push_back(std::move(*labels));
  }
  return run_several(f, jobs);
}
#endif

}  // namespace brim::cli
