// SPDX-License-Identifier: Apache-2.0
// brim plan: what a model needs on a device, present or not, and what would be chosen under a limit. Computes nothing.
#include "plan/plan.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/env.h"
#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "cli/engine_flags.h"
#include "cli/plan_forecast.h"
#include "cli/render.h"
#include "cli/setting_flags.h"
#include "cli/verb.h"
#if defined(BRIM_WITH_SERVE)
#include "cli/serve_settings.h"
#include "serve/serve_config.h"
#endif
#include "engine/engine.h"
#include "engine/precision.h"
#include "hub/model_dir.h"
#include "plan/card_measure.h"
#include "plan/profile_json.h"
#include "text/tokenizer.h"
#include "train/schedule.h"
#include "train/settings.h"

namespace brim::cli {

using plan::Plan;
using plan::PlanRequest;
using plan::Task;

namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr int kSchemaVersion = 1;

struct PlanFlags {
  std::vector<std::string> models;
  std::string task, device, vram, config, serve;
  double tflops = 0, bandwidth = 0;
  int64_t typical_length = 0;
  int threads = 0;
  bool json = false, measure = false, serves = false;
  FlagValues settings;  // of training's table
  FlagValues forecast;  // of forecasting's, where it alone has them
};

// What is to be planned, before a device is chosen.
struct Job {
  std::filesystem::path dir;
  hub::HfConfig config;
  PlanRequest request;
  train::TrainSettings settings;  // defaults, the YAML file's values, the flags' values
  bool rules = false;             // VADER: nothing of it is on a device
  bool batch_given = false;
  std::vector<std::string> notes;
  std::string served_as;  // where a serve.yaml names it
  std::string name() const { return !served_as.empty() ? served_as : rules ? "vader" : dir.filename().string(); }
};

// A file of training settings is about training.
Task asked_task(const PlanFlags& f) {
  if (f.task.empty()) return f.config.empty() ? Task::score : Task::train;
  if (f.task != "score" && f.task != "train") fail(ErrorCode::usage, "--task {}: use score, train or forecast", f.task);
  if (!f.forecast.empty()) fail(ErrorCode::usage, "--{} belongs to --task forecast", dashed(f.forecast.begin()->first));
  return f.task == "train" ? Task::train : Task::score;
}

// The flags that have a meaning with `model`; the file's notes are logged once.
Job open_job(const PlanFlags& f, const std::string& model, bool first) {
  Job job;
  train::TrainSettings& s = job.settings;
  if (!f.config.empty()) {
    for (const auto& note : apply_yaml(s, f.config))
      if (first) log_info("{}", note);
    job.batch_given = true;
  }
  for (const auto& [key, values] : f.settings) apply_setting(s, key, values[0]);
  if (!model.empty()) s.model = model;
  if (f.settings.count("batch_size") > 0) {
    s.gradient_accumulation_steps = 1;
    job.batch_given = true;
  }
  if (f.typical_length < 0) fail(ErrorCode::usage, "--typical-length {}: must not be negative", f.typical_length);
  check_values(s);
  if (s.model.empty()) s.model = hub::default_model();

  PlanRequest& r = job.request;
  r.task = asked_task(f);
  if (hub::names_vader(s.model)) {
    if (r.task == Task::train) fail(ErrorCode::usage, "--model {}: rules are not trained; name another", s.model);
    job.rules = true;
    return job;
  }
  job.dir = resolve_model(s.model, hub::model_places(hub::model_roots()));
  job.config = hub::load_hf_config(job.dir);
  std::vector<std::string> names;
  try {
    names = hub::WeightSource::open(job.dir)->names();
  } catch (const Error& e) {  // a config alone is enough to plan
    job.notes.push_back(fmt::format("planned from config.json alone ({})", rendered(e.what())));
  }
  r.shape = model::shape_of(job.config, head_kind(job.config, names));
  if (r.shape.sequence_classes + r.shape.token_classes == 0) {
    r.shape.sequence_classes = 2;
    job.notes.push_back("the model has no classification head; two classes are assumed");
  }
  r.output = r.shape.sequence_classes > 0 ? model::Output::sequence_scores : model::Output::token_scores;
  r.max_length = r.shape.max_tokens();
  try {
    r.max_length = std::min(r.max_length, text::Tokenizer::load(job.dir)->model_max_length().value_or(r.max_length));
  } catch (const Error&) {  // plans do not need a tokenizer
  }
  if (s.max_length > 0) r.max_length = std::min(r.max_length, s.max_length);
  r.typical_length =
      f.typical_length > 0 ? std::min(f.typical_length, r.max_length) : std::min<int64_t>(r.max_length, 128);
  r.fill = s.fill;
  r.optimizer = s.optim.value_or(model::Optimizer::adamw);
  r.keep_optimizer = s.optim.has_value();
  r.recompute = s.recompute;
  if (r.task == Task::train && job.batch_given)
    r.global_batch_tokens = s.batch_tokens > 0 ? s.batch_tokens : s.global_batch() * r.typical_length;
  return job;
}

struct Target {
  plan::DeviceProfile profile;
  device::MemoryInfo memory;
  std::unique_ptr<device::Device> device;  // only where it is this machine's
  std::vector<std::string> notes;
};

// A card's name, `all`, or what is here, which a file of settings may say too.
std::string device_of(const PlanFlags& f, const Job& job) {
  return f.device.empty() ? device_text(job.settings.device) : f.device;
}

Target open_target(const PlanFlags& f, const std::string& name) {
  Target t;
  if (!f.vram.empty() || f.tflops != 0 || f.bandwidth != 0) {
    if (!f.device.empty())
      fail(ErrorCode::usage,
           "--device {}: name a card, or describe one with --vram, --tflops and --bandwidth, not both", f.device);
    const auto vram = parse_bytes(f.vram);
    if (!vram)
      fail(ErrorCode::usage, "--vram{}: give the card's memory, such as 8GiB", f.vram.empty() ? "" : " " + f.vram);
    if (const std::string meant = with_unit(f.vram); !meant.empty())
      fail(ErrorCode::usage, "--vram {}: a number needs a unit; did you mean {}?", f.vram, meant);
    t.profile = plan::custom_card(*vram, f.tflops, f.bandwidth * 1e9, &t.notes);
  } else if (name == "auto" || name == "cpu" || name.starts_with("cuda")) {
    t.device = device::open_device(name, f.threads);
    t.profile = f.measure && t.device->kind() == device::DeviceKind::cpu ? plan::measure_cpu(*t.device)
                                                                         : plan::local_profile(*t.device);
    t.memory = t.device->memory();
    return t;
  } else {
    t.profile = plan::card_profile(name, &t.notes);
  }
  for (std::string& note : t.notes) note = rendered(note);
  t.memory = {t.profile.total_bytes, t.profile.total_bytes};
  return t;
}

PlanRequest request_for(const Job& job, const Target& t) {
  PlanRequest r = job.request;
  r.device = t.profile;
  r.limit_bytes = job.settings.memory_limit.on(t.memory, t.profile.name, job.settings.limit_origin);
  r.limit_origin = job.settings.limit_origin;
  add_host_memory(r, job.dir);
  const train::TrainSettings& s = job.settings;
  r.precision = (r.task == Task::score ? engine::choose_precision(s.precision, t.profile, job.config, job.dir)
                                       : train_precision(s.precision, t.profile, r.shape))
                    .precision;
  if (t.device && r.device.kind != device::DeviceKind::cpu)
    r.device = plan::measured_profile(*t.device, r.precision, r.limit_bytes);
  return r;
}

// What `auto` leaves to others, where it was asked to.
std::vector<std::string> notes_on_limit(const train::TrainSettings& s) {
  const plan::MemoryLimit& limit = s.memory_limit;
  if (limit.leave_free_bytes == 0) return {};
  if (limit.bytes > 0 || limit.percent > 0)
    return {
        fmt::format("--leave-free {} is not asked: --memory-limit {} was given", limit.leave_free_text, limit.text)};
  return {fmt::format("of what is free {} are left to others (--leave-free)", format_bytes(limit.leave_free_bytes))};
}

plan::Plan in_flags(plan::Plan p) {
  for (auto* lines : {&p.why, &p.notes})
    for (std::string& line : *lines) line = rendered(line);
  return p;
}

plan::Plan solve_in_flags(const plan::PlanRequest& r) { return in_flags(solve(r)); }

std::string bar(int64_t part, int64_t whole, int width) {
  const double eighths = whole > 0 ? 8.0 * width * static_cast<double>(part) / static_cast<double>(whole) : 0;
  static const char* const ends[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int n = static_cast<int>(std::lround(eighths));
  std::string text;
  for (int i = 0; i < n / 8; ++i) text += "█";
  return text + ends[n % 8];
}

std::string optimizer_text(const Plan& p) {
  return fmt::format("{}{}", optimizer_name(p.optimizer), p.moments_on_host ? ", its state on the host" : "");
}
std::string way(const Plan& p) {
  return fmt::format("recompute {}, {}", recompute_name(p.recompute), optimizer_text(p));
}

std::string summary(const Plan& p) {
  std::string text = fmt::format("{} tokens", format_count(p.token_budget));
  if (p.task == Task::train) text += ", " + way(p);
  return text;
}

std::string seconds_text(double s) { return s < 1 ? fmt::format("{:.3g} ms", s * 1e3) : fmt::format("{:.3g} s", s); }

// The plan with a GiB more or less; empty where the device has no such limit, or nothing fits it.
std::optional<Plan> neighbouring(PlanRequest r, int64_t change) {
  r.limit_bytes += change;
  if (r.limit_bytes <= 0 || r.limit_bytes > r.device.total_bytes) return std::nullopt;
  try {
    return solve(r);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::does_not_fit) throw;
    return std::nullopt;
  }
}

// What that changes, in words.
std::string neighbour(const PlanRequest& r, const Plan& chosen, int64_t change) {
  const std::string name = fmt::format("  one GiB {} ", change > 0 ? "more:" : "less:");
  if (r.limit_bytes + change > r.device.total_bytes)
    return fmt::format("  more memory: {} has no more",
                       r.device.kind == device::DeviceKind::cpu ? "the machine" : "the card");
  const auto p = neighbouring(r, change);
  if (!p) return name + fmt::format("does not fit; the smallest plan needs {}", format_bytes(least_limit(r)));
  if (summary(*p) == summary(chosen)) return name + "the same plan";
  return name + fmt::format("{}: {:+.1f} % tokens/s", summary(*p),
                            100 * (p->tokens_per_second / chosen.tokens_per_second - 1));
}

struct BatchAndRate {
  int64_t texts = 0, tokens = 0;
  double rate = 0;
};
BatchAndRate learning(const Job& job, const Plan& p) {
  BatchAndRate b;
  const train::TrainSettings& s = job.settings;
  b.tokens = job.request.global_batch_tokens > 0 ? job.request.global_batch_tokens : p.token_budget;
  b.texts = job.batch_given ? rows_of_step(s, static_cast<double>(job.request.typical_length))
                            : std::max<int64_t>(1, b.tokens / job.request.typical_length);
  b.rate = scaled_learning_rate(s, b.texts);
  return b;
}

// Paths may be any bytes.
std::string text_of(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

nlohmann::ordered_json json_of(const Job& job, const Plan& p) {
  nlohmann::ordered_json j = {{"schema_version", kSchemaVersion}};
  j.update(nlohmann::ordered_json::parse(to_json(p)));
  j["model"] = job.dir.string();
  j["fits"] = true;
  if (p.task == Task::train) {
    const BatchAndRate b = learning(job, p);
    j["global_batch"] = b.texts;
    j["global_batch_tokens"] = b.tokens;
    j["learning_rate"] = b.rate;
    j["lr_scaling"] = setting_text(job.settings, "lr_scaling");
  }
  return j;
}

nlohmann::ordered_json unfit_json(const std::string& device, const PlanRequest& r) {
  return {{"schema_version", kSchemaVersion}, {"task", task_name(r.task)},
          {"device", {{"name", device}}},     {"fits", false},
          {"limit_bytes", r.limit_bytes},     {"smallest_limit_bytes", least_limit(r)}};
}

int64_t texts_of(const Job& job, int64_t tokens) { return std::max<int64_t>(1, tokens / job.request.typical_length); }

std::string device_text(const plan::DeviceProfile& d) {
  std::string text = fmt::format("{}, {}", d.name, format_bytes(d.total_bytes));
  if (d.kind == device::DeviceKind::cuda && !d.context_measured)
    text +=
        fmt::format(", sm_{}; the driver's own {} are estimated", d.compute_capability, format_bytes(d.context_bytes));
  else if (d.context_by_free_memory)
    text += fmt::format("; the driver's own {} were measured by the card's free memory, NVML is silent",
                        format_bytes(d.context_bytes));
  return text;
}

void print_plan(const Job& job, const PlanRequest& r, const Plan& p) {
  const model::ModelShape& s = r.shape;
  fmt::print("model        {}: {}, {} of {}, {} parameters\n", job.name(), family_name(s.family),
             format_count(s.layers, "layer"), s.hidden, format_si(static_cast<double>(param_count(s))));
  fmt::print("device       {}\n", device_text(p.device));
  fmt::print("task         {} in {}\n\n", task_name(p.task), precision_name(p.precision));
  print_ledger(p.ledger(), p.limit_bytes);
  fmt::print("{:<12} {} tokens: {} of {} tokens\n", p.task == Task::train ? "micro-batch" : "batch",
             format_count(p.token_budget), format_count(texts_of(job, p.token_budget), "text"), r.typical_length);
  if (p.task == Task::train) {
    const BatchAndRate b = learning(job, p);
    fmt::print("recompute    {}\noptimizer    {}\n", recompute_name(p.recompute), optimizer_text(p));
    fmt::print("global batch {}, {} tokens: {} micro-batch{} per update\n", format_count(b.texts, "text"),
               format_count(b.tokens), p.accumulation_steps, p.accumulation_steps == 1 ? "" : "es");
    fmt::print("learn. rate  {:.3g}{}\n", b.rate,
               job.settings.lr_scaling == train::LrScaling::none
                   ? ""
                   : fmt::format(" ({:.3g} for a batch of {}, scaled {})", job.settings.learning_rate,
                                 job.settings.lr_reference_batch, setting_text(job.settings, "lr_scaling")));
  }
  fmt::print("predicted    {} tokens/s, {} per {}\n\n", format_si(p.tokens_per_second), seconds_text(p.step_seconds),
             p.task == Task::train ? "update" : "batch");
  fmt::print("why\n");
  for (const auto& line : p.why) fmt::print("  {}\n", line);
  fmt::print("{}\n{}\n", neighbour(r, p, kGiB), neighbour(r, p, -kGiB));
  for (const auto& note : job.notes) fmt::print("note: {}\n", note);
  for (const auto& note : p.notes) fmt::print("note: {}\n", note);
}

std::vector<std::string> all_devices() {
  std::vector<std::string> names;
  for (const plan::DeviceProfile& card : plan::known_cards()) names.push_back(card.name);
  names.emplace_back("cpu");
  return names;
}

void print_all_row(const Job& job, const plan::DeviceProfile& device, const std::string& name,
                   const std::optional<Plan>& p, const std::string& said) {
  fmt::print("{:<14} {:>9} {:>9}", name, format_bytes(device.total_bytes), p ? precision_name(p->precision) : "-");
  if (!p) {
    fmt::print("  {}\n", said);
    return;
  }
  fmt::print(" {:>10} {:>12} {:>11} {:>10}", format_bytes(p->peak_bytes), format_count(p->token_budget),
             format_count(texts_of(job, p->token_budget)), format_si(p->tokens_per_second));
  if (p->task == Task::train) {
    const BatchAndRate b = learning(job, *p);
    fmt::print(" {:>12} {:>10.3g}", format_count(b.texts), b.rate);
  }
  fmt::print("  {}\n", said);
}

int run_all(const PlanFlags& f, const Job& job) {
  auto rows = nlohmann::ordered_json::array();
  bool any = false;
  if (!f.json)
    fmt::print("{:<14} {:>9} {:>9} {:>10} {:>12} {:>11} {:>10}{}  {}\n", "device", "memory", "precision", "needs",
               "tokens/batch", "texts/batch", "tokens/s",
               job.request.task == Task::train ? fmt::format(" {:>12} {:>10}", "texts/update", "learn rate") : "",
               job.request.task == Task::train ? "chosen" : "");
  for (const auto& name : all_devices()) {
    const Target t = open_target(f, name);
    std::optional<Plan> plan;
    std::string said;
    try {
      const PlanRequest r = request_for(job, t);
      try {
        plan = solve_in_flags(r);
        any = true;
        if (f.json) rows.push_back(json_of(job, *plan));
        if (plan->task == Task::train) said = way(*plan);
        if (!plan->device.runnable)
          said += fmt::format("{}planned only: this build cannot run it", said.empty() ? "" : "; ");
      } catch (const Error& e) {
        if (e.code() != ErrorCode::does_not_fit) throw;
        said = fmt::format("does not fit; needs {}", format_bytes(least_limit(r)));
        if (f.json) rows.push_back(unfit_json(name, r));
      }
    } catch (const Error& e) {  // a precision or a limit this card has not
      if (e.code() != ErrorCode::usage) throw;
      said = rendered(e.what());
      if (f.json)
        rows.push_back(
            {{"schema_version", kSchemaVersion}, {"device", {{"name", name}}}, {"fits", false}, {"error", said}});
    }
    if (!f.json) print_all_row(job, t.profile, name, plan, said);
  }
  if (f.json) {
    fmt::print("{}\n", text_of(rows));
  } else {
    fmt::print("\ntexts of {} tokens; rates and memory of cards are from data sheets\n", job.request.typical_length);
    for (const auto& note : job.notes) fmt::print("note: {}\n", note);
  }
  return any ? 0 : exit_code(ErrorCode::does_not_fit);
}

int run_one(const PlanFlags& f, Job job) {
  Target t = open_target(f, device_of(f, job));
  job.notes.insert(job.notes.end(), t.notes.begin(), t.notes.end());
  for (std::string& note : notes_on_limit(job.settings)) job.notes.push_back(std::move(note));
  const PlanRequest r = request_for(job, t);
  const int64_t since = now_ns();
  Plan p;
  try {
    p = solve_in_flags(r);
  } catch (const Error& e) {
    if (f.json && e.code() == ErrorCode::does_not_fit) fmt::print("{}\n", text_of(unfit_json(t.profile.name, r)));
    throw;
  }
  const double seconds = seconds_since(since);
  if (f.json) {
    p.notes.insert(p.notes.begin(), job.notes.begin(), job.notes.end());
    auto j = json_of(job, p);
    auto& neighbours = j["neighbours"] =
        nlohmann::ordered_json::array();  // a GiB less and a GiB more, where they can be planned
    for (const int64_t change : {-kGiB, kGiB})
      if (const auto n = neighbouring(r, change))
        neighbours.push_back({{"limit_bytes", n->limit_bytes},
                              {"peak_bytes", n->peak_bytes},
                              {"token_budget", n->token_budget},
                              {"tokens_per_second", n->tokens_per_second}});
    fmt::print("{}\n", text_of(j));
  } else {
    print_plan(job, r, p);
    fmt::print("planned in {}\n", seconds_text(seconds));
  }
  return 0;
}

// Models that share a device, as one process holds them: one context, and a part of the limit each.
struct Together {
  std::vector<PlanRequest> requests;  // of those that are on the device
  std::vector<Plan> plans;
  std::vector<memory::LedgerEntry> ledger;
  std::vector<std::string> names;           // of these
  std::vector<plan::ResidentSet> resident;  // who may be there together, where they need not all be
  int64_t context_bytes = 0, limit_bytes = 0;
  bool all_resident = true;
};

// `in_turn`: they need not all fit at once, as a server's models need not.
Together plan_together(const std::vector<Job>& jobs, const Target& t, bool in_turn) {
  Together all;
  for (const Job& job : jobs)
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
  if (!all.all_resident) {  // the largest is what must fit
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
    fmt::print("note: all of them may be resident together\n");
    return;
  }
  if (all.plans.size() > plan::kListedResidents) {
    fmt::print("note: of {} models at most {} may be resident together: {}\n", all.plans.size(),
               all.resident[0].models.size(), names_of(all, all.resident[0]));
  } else {
    fmt::print("resident together, at most:\n");
    for (const plan::ResidentSet& set : all.resident)
      fmt::print("  {:>10}  {}\n", format_bytes(set.bytes), names_of(all, set));
  }
  fmt::print(
      "note: not all fit at once: a model is loaded when it is asked for, and others go, those without waiting texts "
      "first\n"
      "and the one least worth its bytes (seconds of loading, times texts of the last ten minutes)\n");
}

int run_several(const PlanFlags& f, const std::vector<Job>& jobs) {
  if (device_of(f, jobs[0]) == "all")
    fail(ErrorCode::usage, "--device all: plans one model; name a device for several");
  const Target t = open_target(f, device_of(f, jobs[0]));
  const Together all = plan_together(jobs, t, f.serves);
  if (f.json) {
    nlohmann::ordered_json j = {{"schema_version", kSchemaVersion},         {"task", task_name(Task::score)},
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
    for (const Job& job : jobs) {
      if (job.rules)
        j["models"].push_back({{"model", "vader"}, {"fits", true}, {"peak_bytes", 0}});
      else
        j["models"].push_back(json_of(job, all.plans[next++]));
    }
    fmt::print("{}\n", text_of(j));
    return 0;
  }
  if (all.plans.empty()) {
    fmt::print("vader needs no device memory (0 bytes): its rules run on the CPU\n");
    return 0;
  }
  fmt::print("device       {}\ntask         score, all models in one process\n\n", device_text(t.profile));
  size_t next = 0;
  for (const Job& job : jobs) {
    if (job.rules) {
      fmt::print("  {:<24} {:>10}  no device memory: rules on the CPU\n", job.name(), "0 B");
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
    fmt::print("note: what they share (the forward pass, batches in flight, the context) is counted once\n");
  if (f.serves && all.plans.size() > 1) print_resident(all);
  for (const Job& job : jobs)
    for (const auto& note : job.notes) fmt::print("note: {}: {}\n", job.name(), note);
  for (const auto& note : t.notes) fmt::print("note: {}\n", note);
  for (const auto& note : notes_on_limit(jobs[0].settings)) fmt::print("note: {}\n", note);
  return 0;
}

#if defined(BRIM_WITH_SERVE)
// The models of a serve.yaml, or of the environment as `brim serve` takes them from there, with what is said of device,
// memory and precision where no flag does.
int plan_serve(PlanFlags f) {
  if (!f.models.empty() || !f.config.empty() || asked_task(f) == Task::train)
    fail(ErrorCode::usage, "--serve{}: names the models itself, and plans no training",
         f.serve.empty() ? "" : " " + f.serve);
  const serve::ServeConfig config = f.serve.empty() ? serve::config_from_env([](const char* name) { return env(name); })
                                                    : serve::read_serve_config(f.serve, serve_setting_names());
  serve::check_names(config);
  if (config.models.empty() && f.serve.empty())
    fail(ErrorCode::usage,
         "--serve: give a file, or SENTIMENT_MODEL_NAME or FEATURE_ADAPTIVE_SENTIMENT=1 by the "
         "environment or --env-file");
  if (config.models.empty()) fail(ErrorCode::usage, "{}: names no models", f.serve);
  for (const serve::PlainSetting& setting : config.settings) {
    if (setting.key == "device" && f.device.empty()) f.device = setting.value;
    for (const char* key : {"memory_limit", "leave_free", "precision", "max_length"})
      if (setting.key == key && f.settings.count(key) == 0) f.settings[key] = {setting.value};
  }
  if (const std::string left = leave_free_of_env(f.vram.empty() ? f.device : "card"); !left.empty())
    f.settings.try_emplace("leave_free", std::vector<std::string>{left});
  std::vector<Job> jobs;
  for (const serve::ModelEntry& model : config.models) {
    PlanFlags own = f;
    if (model.precision != "auto") own.settings["precision"] = {model.precision};
    jobs.push_back(open_job(own, model.path, jobs.empty()));
    jobs.back().served_as = model.name;
    if (model.pooling) {  // its head, if it has one, is not computed
      jobs.back().request.output = engine::output_of(*model.pooling);
      jobs.back().notes.clear();
    }
  }
  return run_several(f, jobs);
}
#endif

// The flags that all plans share mean the same to forecasting.
int run_forecast_plan(const PlanFlags& f) {
  FlagValues values = f.forecast;
  for (const char* key : {"memory_limit", "leave_free", "precision", "batch_size", "learning_rate"})
    if (const auto given = f.settings.find(key); given != f.settings.end()) values[key] = given->second;
  if (!f.models.empty()) fail(ErrorCode::usage, "--model: an ensemble is planned from its settings; leave it out");
  if (f.device == "all") fail(ErrorCode::usage, "--device all: name one card for --task forecast");
  Target t = open_target(f, f.device.empty() ? "auto" : f.device);
  return run_plan_forecast(f.config, values, {t.profile, t.memory, t.notes}, f.json);
}

int run_plan(const PlanFlags& f) {
#if defined(BRIM_WITH_SERVE)
  if (f.serves) return plan_serve(f);
#endif
  if (f.task == "forecast") return run_forecast_plan(f);
  if (!f.forecast.empty()) fail(ErrorCode::usage, "--{} belongs to --task forecast", dashed(f.forecast.begin()->first));
  std::vector<Job> jobs;
  const std::vector<std::string> models = f.models.empty() ? std::vector<std::string>{""} : f.models;
  for (const auto& model : models) jobs.push_back(open_job(f, model, jobs.empty()));
  if (jobs.size() > 1 && asked_task(f) == Task::train)
    fail(ErrorCode::usage, "--model: training is planned for one model, {} are given", jobs.size());
  if (jobs.size() > 1 || jobs[0].rules) return run_several(f, jobs);
  const bool described = !f.vram.empty() || f.tflops != 0 || f.bandwidth != 0;
  return device_of(f, jobs[0]) == "all" && !described ? run_all(f, jobs[0]) : run_one(f, std::move(jobs[0]));
}

}  // namespace

// Every reservation with its owner, their sum, and what the limit leaves.
void print_ledger(const std::vector<memory::LedgerEntry>& entries, int64_t limit) {
  constexpr int kBar = 30;
  size_t width = 0;
  for (const memory::LedgerEntry& e : entries) width = std::max(width, e.owner.size());
  const auto row = [&](const std::string& what, const std::string& owner, int64_t bytes, const std::string& rest) {
    fmt::print("  {:<12} {:<{}} {:>10}  {}{}\n", what, owner, width, format_bytes(bytes), bar(bytes, limit, kBar),
               rest);
  };
  for (const memory::LedgerEntry& e : entries) row(tag_name(e.tag), e.owner, e.bytes, "");
  const int64_t sum = total_bytes(entries);
  row("in all", "", sum,
      fmt::format(" of {} ({:.0f} %)", format_bytes(limit),
                  100.0 * static_cast<double>(sum) / static_cast<double>(limit)));
  fmt::print("  {:<12} {:<{}} {:>10}\n\n", "left", "", width, format_bytes(limit - sum));
}

std::function<int()> setup_plan(CLI::App& app) {
  auto f = std::make_shared<PlanFlags>();
  app.add_option("-m,--model", f->models, "model directory or name; several (a,b,vader): what they need together")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_option("--task", f->task, "score, train or forecast; absent: score, or train with --config");
  app.add_option("--device", f->device, "a card by name (rtx3070, h200, …), all, auto, cpu, cuda or cuda:N");
  app.add_option("--vram", f->vram, "a card of your own: its memory, such as 8GiB; enough by itself");
  app.add_option("--tflops", f->tflops, "its attainable half-precision matrix rate, TFLOP/s");
  app.add_option("--bandwidth", f->bandwidth, "its attainable memory bandwidth, GB/s");
  const auto add = [&](const char* name, const char* help) {
    const std::vector<SettingInfo> all = train::train_settings().infos();
    SettingInfo setting = *std::find_if(all.begin(), all.end(), [&](const SettingInfo& i) { return i.name == name; });
    setting.help = help;
    setting.default_value = "";
    add_kept_flag(app, setting, f->settings, Spelling::dashes);
  };
  add("memory_limit", "bytes the process may hold on the device: 6GiB, 90% or auto");
  add("leave_free",
      "with --memory-limit auto: what is left to others of what is free (of a card by name: of all): 8GiB");
  add("precision", "auto, fp32, tf32, bf16, fp16, fp8 or int8");
  add("max_length", "longest text in tokens; 0 takes the model's own");
  app.add_option("--typical-length", f->typical_length,
                 "tokens a text has on average, for predicting speed; 0: at most 128");
  app.add_option("--threads", f->threads, "CPU threads; 0 takes all cores");
  add("fill", "use all allowed memory, even where it is no faster");
  add("optim", "train: adamw or adamw_8bit");
  add("recompute", "train: auto, none, selective or full");
  add("batch_size", "train: batch size (rows an update is made from); absent: as many as are useful");
  add("learning_rate", "train: at the reference batch");
  add("lr_scaling", "train: none, sqrt or linear in the global batch");
  add("lr_reference_batch", "train: the batch the learning rate is meant for");
  app.add_option("--config", f->config, "YAML file of training keys, as `brim train` reads it: plans that training");
#if defined(BRIM_WITH_SERVE)
  const CLI::Option* serve =
      app.add_option("--serve", f->serve,
                     "YAML file as `brim serve --config` reads it: plans its models together; without a file those of "
                     "the environment or --env-file")
          ->expected(0, 1);
#else
  const CLI::Option* serve = nullptr;
#endif
  add_forecast_plan_rows(app, f->forecast);
  app.add_flag("--measure", f->measure, "measure this CPU first and keep the answer");
  app.add_flag("--json", f->json, "print the plan as JSON");
  return [f, serve] {
    f->serves = serve != nullptr && serve->count() > 0;
    return run_plan(*f);
  };
}

}  // namespace brim::cli
