// SPDX-License-Identifier: Apache-2.0
// Plans of GLiNER models against those of open ones, and rejected inputs.
#include "jobs/plan_job.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/test_files.h"
#include "engine/engine.h"
#include "engine/testing.h"
#include "model/golden_models.h"

namespace brim::jobs {
namespace {

std::string gliner_dir(const std::string& name) { return std::string(BRIM_SOURCE_DIR) + "/tests/data/gliner/" + name; }

PlanSpec cpu_spec(const char* precision) {
  PlanSpec spec;
  spec.settings = {{"precision", {precision}}, {"memory_limit", {"512MiB"}}};
  spec.device = "cpu";
  spec.threads = 1;
  return spec;
}

int64_t head_bytes_of(const plan::Plan& plan) {
  int64_t bytes = 0;
  for (const memory::LedgerEntry& part : plan.parts)
    if (part.owner == "head on the host") bytes += part.bytes;
  return bytes;
}

EntityLabels some_labels(size_t n) {
  EntityLabels labels;
  for (size_t i = 0; i < n; ++i) labels.labels.push_back("label " + std::to_string(i));
  return labels;
}

// Bytes of all encoders of a model, without those of the device.
int64_t planned_bytes_of(const PlanSpec& spec, const std::string& model, int64_t* head) {
  std::vector<PlanJob> jobs = {open_job(spec, model, true)};
  if (auto labels = labels_job(jobs[0])) jobs.push_back(std::move(*labels));
  const PlanTarget target = open_target(spec, spec.device);
  std::vector<plan::PlanRequest> requests;
  for (const PlanJob& job : jobs) requests.push_back(request_for(job, target));
  const plan::TurnPlans turns = solve_turns(requests, plan::Residency::all);
  std::vector<const plan::Plan*> plans;
  for (const plan::Plan& plan : turns.plans) {
    plans.push_back(&plan);
    *head += head_bytes_of(plan);
  }
  return plan::planned_bytes(plans) - plans[0]->device.context_bytes;
}

TEST(PlanJob, GlinerModelsArePlannedAsTheyAreOpened) {
  for (const char* name : {"span", "span_rnn", "token_rnn", "bi_span"})
    for (const char* precision : {"fp32", "bf16"})
      for (const size_t labels : {0u, 5u}) {
        SCOPED_TRACE(fmt::format("{} {} {}", name, precision, labels));
        PlanSpec spec = cpu_spec(precision);
        engine::EngineOptions options = engine::engine_options(engine::cpu_options(gliner_dir(name)));
        options.model_dir = gliner_dir(name);
        options.precision = plan::read_precision(precision);
        options.memory_limit = plan::MemoryLimit::read("512MiB");
        options.threads = 1;
        if (labels > 0) spec.entities = options.entities = some_labels(labels);
        const auto engine = engine::Engine::open(options);
        int64_t head = 0;
        const int64_t planned = planned_bytes_of(spec, gliner_dir(name), &head);
        EXPECT_GT(head, 0);
        EXPECT_EQ(head, head_bytes_of(engine->plan()));
        EXPECT_EQ(planned, engine->plan().peak_bytes - engine->plan().device.context_bytes);
      }
}

TEST(PlanJob, MoreEntitiesNeedMoreMemory) {
  int64_t few = 0, many = 0;
  PlanSpec spec = cpu_spec("fp32");
  spec.entities = some_labels(2);
  (void)planned_bytes_of(spec, gliner_dir("bi_span"), &few);
  spec.entities = some_labels(400);
  (void)planned_bytes_of(spec, gliner_dir("bi_span"), &many);
  EXPECT_GT(many, few);
  const PlanJob job = open_job(spec, gliner_dir("bi_span"), true);
  EXPECT_EQ(job.request.output, model::Output::hidden);
  EXPECT_EQ(job.request.shape.sequence_classes, 0);
  EXPECT_EQ(labels_job(job)->name(), "bi_span (labels)");
}

TEST(PlanJob, RejectsEntitiesThatCannotBePlanned) {
  const TempDir temp;
  model::put_golden_model(temp.path(), "bert_sequence");
  PlanSpec spec = cpu_spec("fp32");
  const auto refusal = [&](const std::string& model) {
    return error_of(ErrorCode::usage, [&] { open_job(spec, model, true); });
  };
  spec.entities = some_labels(2);
  EXPECT_HAS(refusal(temp.path().string()), "`entities` requires a GLiNER model");
  spec.task = plan::Task::train;
  EXPECT_HAS(refusal(gliner_dir("span")), "cannot be trained");
  spec.task = plan::Task::score;
  spec.zero_shot = ZeroShot{.labels = {"a", "b"}};
  EXPECT_HAS(refusal(gliner_dir("span")), "requires an NLI model; name `entities`");
  spec.zero_shot.reset();
  spec.adapter = temp.path().string();
  EXPECT_HAS(refusal(gliner_dir("span")), "adapters are not supported for a GLiNER model");
}

}  // namespace
}  // namespace brim::jobs
