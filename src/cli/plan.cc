// SPDX-License-Identifier: Apache-2.0
// brim plan: memory requirements of a model on a device, present or not, and the plan under a limit. Runs no model.
#include "plan/plan.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/units.h"
#include "cli/engine_flags.h"
#include "cli/plan_flags.h"
#include "cli/plan_forecast.h"
#include "cli/render.h"
#include "cli/verb.h"

namespace brim::cli {

using jobs::PlanJob;
using jobs::PlanTarget;
using plan::Plan;
using plan::PlanRequest;
using plan::Task;

namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

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
  return fmt::format("{}{}", optimizer_name(p.optimizer), p.moments_on_host ? " with its state in host memory" : "");
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

// Describes the effect of that change.
std::string neighbour(const PlanRequest& r, const Plan& chosen, int64_t change) {
  const std::string name = fmt::format("  1 GiB {} ", change > 0 ? "more:" : "less:");
  if (r.limit_bytes + change > r.device.total_bytes)
    return fmt::format("{}not available (limit {}, {} has {})", name, format_bytes(r.limit_bytes),
                       r.device.kind == device::DeviceKind::cpu ? "this machine" : r.device.name,
                       format_bytes(r.device.total_bytes));
  const auto p = jobs::neighbouring(r, change);
  if (!p) return name + fmt::format("does not fit; the smallest plan needs {}", format_bytes(least_limit(r)));
  if (summary(*p) == summary(chosen)) return name + "the same plan";
  return name + fmt::format("{}: {:+.1f} % tokens/s", summary(*p),
                            100 * (p->tokens_per_second / chosen.tokens_per_second - 1));
}

void print_teachers(const PlanJob& job, const std::vector<Plan>& plans) {
  if (plans.empty()) return;
  fmt::print("teachers     score the training texts before training, one after another\n");
  for (size_t i = 0; i < plans.size(); ++i) {
    const PlanJob& teacher = job.teachers[i];
    const Plan& p = plans[i];
    fmt::print("  {:<24} {:>10}  {}, batches of {} tokens ({} texts of {}), {} tokens/s\n", teacher.name(),
               format_bytes(p.peak_bytes), precision_name(p.precision), format_count(p.token_budget),
               format_count(texts_of(teacher, p.token_budget)), teacher.request.typical_length,
               format_si(p.tokens_per_second));
    for (const auto& note : in_flags(teacher.notes)) fmt::print("note: {}: {}\n", teacher.name(), note);
  }
  fmt::print("\n");
}

void print_plan(const PlanJob& job, const PlanRequest& r, const Plan& p, const std::vector<Plan>& teachers) {
  const model::ModelShape& s = r.shape;
  fmt::print("model        {}: {}, {} of {}, {} parameters\n", job.name(), family_name(s.family),
             format_count(s.layers, "layer"), s.hidden, format_si(static_cast<double>(param_count(s))));
  fmt::print("device       {}\n", device_line(p.device));
  fmt::print("task         {} in {}\n\n", task_name(p.task), precision_name(p.precision));
  print_ledger(p.ledger(), p.limit_bytes);
  fmt::print("{:<12} {} tokens: {} of {} tokens\n", p.task == Task::train ? "micro-batch" : "batch",
             format_count(p.token_budget), format_count(texts_of(job, p.token_budget), "text"), r.typical_length);
  if (p.task == Task::train) {
    const jobs::BatchAndRate b = training_batch(job);
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
  print_teachers(job, teachers);
  fmt::print("why\n");
  for (const auto& line : p.why) fmt::print("  {}\n", line);
  fmt::print("{}\n{}\n", neighbour(r, p, kGiB), neighbour(r, p, -kGiB));
  for (const auto& note : in_flags(job.notes)) fmt::print("note: {}\n", note);
  for (const auto& note : p.notes) fmt::print("note: {}\n", note);
}

std::vector<std::string> all_devices() {
  std::vector<std::string> names;
  for (const plan::DeviceProfile& card : plan::known_cards()) names.push_back(card.name);
  names.emplace_back("cpu");
  return names;
}

void print_all_row(const PlanJob& job, const plan::DeviceProfile& device, const std::string& name,
                   const std::optional<Plan>& p, int64_t largest, const std::string& said) {
  fmt::print("{:<14} {:>9} {:>9}", name, format_bytes(device.total_bytes), p ? precision_name(p->precision) : "-");
  if (!p) {
    fmt::print("  {}\n", said);
    return;
  }
  fmt::print(" {:>10} {:>12} {:>11} {:>9} {:>10}", format_bytes(p->peak_bytes), format_count(p->token_budget),
             format_count(texts_of(job, p->token_budget)), format_count(largest), format_si(p->tokens_per_second));
  if (p->task == Task::train) {
    const jobs::BatchAndRate b = training_batch(job);
    fmt::print(" {:>12} {:>10.3g}", format_count(b.texts), b.rate);
  }
  fmt::print("  {}\n", said);
}

int run_all(const PlanFlags& f, const PlanJob& job) {
  const jobs::PlanSpec spec = spec_of(f);
  auto rows = nlohmann::ordered_json::array();
  bool any = false;
  if (!f.json)
    fmt::print("{:<14} {:>9} {:>9} {:>10} {:>12} {:>11} {:>9} {:>10}{}  {}\n", "device", "memory", "precision", "needs",
               "tokens/batch", "texts/batch", "max texts", "tokens/s",
               job.request.task == Task::train ? fmt::format(" {:>12} {:>10}", "texts/update", "learn rate") : "",
               job.request.task == Task::train ? "chosen" : "");
  for (const auto& name : all_devices()) {
    const PlanTarget t = open_target(spec, name);
    std::optional<Plan> plan;
    int64_t largest = 0;
    std::string said;
    try {
      const PlanRequest r = request_for(job, t);
      try {
        plan = solve_in_flags(r);
        (void)teacher_plans(job, r, t);
        any = true;
        largest = largest_batch(job, r);
        if (f.json) {
          rows.push_back(json_of(job, *plan));
          rows.back()["largest_batch"] = largest;
        }
        if (plan->task == Task::train) said = way(*plan);
        if (!plan->device.runnable)
          said += fmt::format("{}planning only, unsupported by this build", said.empty() ? "" : "; ");
      } catch (const Error& e) {
        if (e.code() != ErrorCode::does_not_fit) throw;
        said = plan ? rendered(e.what()) : fmt::format("does not fit; needs {}", format_bytes(least_limit(r)));
        plan.reset();  // a teacher does not fit
        if (f.json) rows.push_back(jobs::unfit_json(name, r));
      }
    } catch (const Error& e) {  // precision or limit not supported by this GPU
      if (e.code() != ErrorCode::usage) throw;
      said = rendered(e.what());
      if (f.json)
        rows.push_back(
            {{"schema_version", jobs::kPlanSchema}, {"device", {{"name", name}}}, {"fits", false}, {"error", said}});
    }
    if (!f.json) print_all_row(job, t.profile, name, plan, largest, said);
  }
  if (f.json) {
    fmt::print("{}\n", text_of(rows));
  } else {
    fmt::print("\ntexts of {} tokens; rates and memory of GPUs are from data sheets\n", job.request.typical_length);
    for (const auto& note : in_flags(job.notes)) fmt::print("note: {}\n", note);
  }
  return any ? 0 : exit_code(ErrorCode::does_not_fit);
}

int run_one(const PlanFlags& f, PlanJob job) {
  const jobs::PlanSpec spec = spec_of(f);
  PlanTarget t = open_target(spec, device_of(spec, job));
  job.notes.insert(job.notes.end(), t.notes.begin(), t.notes.end());
  for (std::string& note : jobs::notes_on_limit(job.settings)) job.notes.push_back(std::move(note));
  job.notes = in_flags(std::move(job.notes));
  const PlanRequest r = request_for(job, t);
  const int64_t since = now_ns();
  Plan p;
  std::vector<Plan> teachers;
  try {
    p = solve_in_flags(r);
    teachers = teacher_plans(job, r, t);
  } catch (const Error& e) {
    if (f.json && e.code() == ErrorCode::does_not_fit) fmt::print("{}\n", text_of(jobs::unfit_json(t.profile.name, r)));
    throw;
  }
  const double seconds = seconds_since(since);
  if (f.json) {
    auto json = described_plan(job, r, std::move(p));
    for (size_t i = 0; i < teachers.size(); ++i) json["teachers"].push_back(json_of(job.teachers[i], teachers[i]));
    fmt::print("{}\n", text_of(json));
  } else {
    print_plan(job, r, p, teachers);
    fmt::print("planned in {}\n", seconds_text(seconds));
  }
  return 0;
}

// Flags shared by all plans have the same meaning for forecasting.
int run_forecast_plan(const PlanFlags& f) {
  FlagValues values = f.forecast;
  for (const char* key : {"memory_limit", "leave_free", "precision", "batch_size", "learning_rate"})
    if (const auto given = f.settings.find(key); given != f.settings.end()) values[key] = given->second;
  if (!f.models.empty()) fail(ErrorCode::usage, "--model: not used with --task forecast; remove it");
  if (f.device == "all") fail(ErrorCode::usage, "--device all: unsupported with --task forecast; choose one device");
  PlanFlags target = f;
  target.task = "score";
  target.forecast.clear();
  PlanTarget t = open_target(spec_of(target), f.device.empty() ? "auto" : f.device);
  return run_plan_forecast(f.config, values, {t.profile, t.memory, in_flags(t.notes)}, f.json);
}

int run_plan(const PlanFlags& f) {
#if defined(BRIM_WITH_SERVE)
  if (f.serves) return plan_serve(f);
#endif
  if (f.task == "forecast") return run_forecast_plan(f);
  if (!f.forecast.empty()) fail(ErrorCode::usage, "--{}: requires --task forecast", dashed(f.forecast.begin()->first));
  const jobs::PlanSpec spec = spec_of(f);
  std::vector<PlanJob> jobs;
  const std::vector<std::string> models = f.models.empty() ? std::vector<std::string>{""} : f.models;
  for (const auto& model : models) {
    jobs.push_back(open_job(spec, model, jobs.empty()));
    if (auto labels = labels_job(jobs.back())) jobs.push_back(std::move(*labels));
  }
  if (spec.entities && std::ranges::none_of(jobs, [](const PlanJob& job) { return job.gliner.has_value(); }))
    fail(ErrorCode::usage, "--entities: requires a GLiNER model (gliner_config.json); {} are none",
         fmt::join(models, ", "));
  if (jobs.size() > 1 && spec.task == Task::train)
    fail(ErrorCode::usage, "--model: training supports one model, not {}", jobs.size());
  if (jobs.size() > 1 || jobs[0].rules) return run_several(f, jobs);
  return device_of(spec, jobs[0]) == "all" && !spec.card ? run_all(f, jobs[0]) : run_one(f, std::move(jobs[0]));
}

}  // namespace

// All reservations with their owners, their sum, and the remaining limit.
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
  row("total", "", sum,
      fmt::format(" of {} ({:.0f} %)", format_bytes(limit),
                  100.0 * static_cast<double>(sum) / static_cast<double>(limit)));
  fmt::print("  {:<12} {:<{}} {:>10}\n\n", "left", "", width, format_bytes(limit - sum));
}

std::function<int()> setup_plan(CLI::App& app) {
  auto f = std::make_shared<PlanFlags>();
  app.add_option("-m,--model", f->models, "model directory or name; several (a,b,vader) are planned together")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_option("--adapter", f->adapter, "LoRA adapter for the model, in PEFT's format: directory or name");
  app.add_option("--task", f->task, "score, train or forecast (default: score, or train with --config)");
  app.add_option("--device", f->device, "GPU by name (rtx3070, h200, …), all, auto, cpu, cuda or cuda:N");
  app.add_option("--vram", f->vram, "memory of a custom GPU, such as 8GiB");
  app.add_option("--tflops", f->tflops, "attainable half-precision matrix rate of the custom GPU in TFLOP/s");
  app.add_option("--bandwidth", f->bandwidth, "attainable memory bandwidth of the custom GPU in GB/s");
  const auto add = [&](const char* name, const char* help) {
    const std::vector<SettingInfo> all = train::train_settings().infos();
    SettingInfo setting = *std::find_if(all.begin(), all.end(), [&](const SettingInfo& i) { return i.name == name; });
    setting.help = help;
    setting.default_value = "";
    add_kept_flag(app, setting, f->settings, Spelling::dashes);
  };
  add("memory_limit", "maximum device memory of the process: 6GiB, 90% or auto");
  add("leave_free", "memory to leave free for other processes (8GiB)");
  add("precision", "auto, fp32, tf32, bf16, fp16, fp8 or int8");
  add("max_length", "maximum text length in tokens; 0: the model's limit");
  app.add_option("--typical-length", f->typical_length,
                 "average tokens per text, to predict the speed; 0: at most 128");
  app.add_option("--threads", f->threads, "CPU threads; 0: all cores");
  add("fill", "use all allowed memory, even if it is not faster");
  add("optim", "adamw or adamw_8bit");
  add("freeze", "training: parameters to leave unchanged: embeddings, layers:N or all-but-head");
  add("lora_r", "training: rank of LoRA");
  add("lora_targets", "training: linear layers that LoRA adapts: all, attention, names or a regular expression");
  add("recompute", "auto, none, half, selective or full");
  add("teacher", "training: model that scores the training texts first, or file of its scores; repeatable");
  add("batch_size", "rows per update (default: 32, same as `brim train`)");
  add("learning_rate", "learning rate at the reference batch");
  add("lr_scaling", "scale the learning rate with the batch size: none, sqrt or linear");
  add("lr_reference_batch", "batch size for which the learning rate is given");
  app.add_option("--config", f->config, "training settings (YAML file of `brim train`)");
#if defined(BRIM_WITH_SERVE)
  const CLI::Option* serve =
      app.add_option("--serve", f->serve,
                     "plan the models of a server together: YAML file of `brim serve --config`, or without a file the "
                     "models of the environment or --env-file")
          ->expected(0, 1);
#else
  const CLI::Option* serve = nullptr;
#endif
  add_forecast_plan_rows(app, f->forecast);
  f->zero_shot.add_to(app);
  app.add_option("--entities", f->entities.entities, "plan for these labels of a GLiNER model, separated by commas");
  app.add_option("--entities-file", f->entities.entities_file, "file of such labels, one per line");
  app.add_flag("--measure", f->measure, "measure this CPU first and save the result");
  app.add_flag("--json", f->json, "print the plan as JSON");
  return [f, serve] {
    f->serves = serve != nullptr && serve->count() > 0;
    return run_plan(*f);
  };
}

}  // namespace brim::cli
