// SPDX-License-Identifier: Apache-2.0
// Plans of GLiNER models against those of open ones, and rejected inputs.
#include "jobs/plan_job.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

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

TEST(PlanJob, GlinerHeadsArePlannedOnGpus) {
  for (const char* name : {"span", "span_rnn", "token_rnn", "bi_span", "bi_token"}) {
    SCOPED_TRACE(name);
    PlanSpec spec;
    spec.settings = {{"precision", {"bf16"}}};
    spec.device = "h200";
    spec.entities = some_labels(5);
    const PlanJob job = open_job(spec, gliner_dir(name), true);
    const plan::PlanRequest request = request_for(job, open_target(spec, spec.device));
    EXPECT_EQ(request.output, model::Output::word_scores);
    EXPECT_EQ(request.shape.word_width, std::string(name).find("token") == std::string::npos ? 2 * 4 : 3 * 5);
    memory::TagBytes head;
    for (const memory::LedgerEntry& part : solve(request).parts)
      if (part.owner == plan::kWordHead) head[part.tag] += part.bytes;
    EXPECT_EQ(head[memory::Tag::weights], request.head_weight_bytes);
    EXPECT_EQ(head[memory::Tag::activations], request.head_bytes);
    EXPECT_GT(request.head_weight_bytes, 0);
    EXPECT_GT(request.head_bytes, 0);
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

class TeacherPlans : public ::testing::Test {
 protected:
  std::string model(const char* name, const std::vector<std::string>& labels = {}) {
    const auto dir = temp_ / name;
    model::put_golden_model(dir, name);
    if (labels.empty()) return dir.string();
    auto config = nlohmann::json::parse(get_file(dir / "config.json"));
    for (size_t i = 0; i < labels.size(); ++i) config["id2label"][std::to_string(i)] = labels[i];
    config.erase("label2id");
    put_file(dir / "config.json", config.dump());
    return dir.string();
  }
  std::string nli() { return model("bert_pair", {"contradiction", "neutral", "entailment"}); }
  static PlanSpec training(const std::vector<std::string>& teachers) {
    PlanSpec spec = cpu_spec("fp32");
    spec.task = plan::Task::train;
    spec.settings["teacher"] = teachers;
    return spec;
  }
  const TempDir temp_;
};

TEST_F(TeacherPlans, PlanEachTeacherInTurn) {
  const std::string student = model("distilbert_sequence"), classes = model("roberta_sequence");
  put_file(temp_ / "scores.csv", "text,a,b\n");
  PlanSpec spec = training({classes, (temp_ / "scores.csv").string(), nli()});
  spec.zero_shot = ZeroShot{.labels = {"a", "b", "c", "d"}};
  const PlanJob job = open_job(spec, student, true);
  EXPECT_TRUE(job.request.soft_labels);
  EXPECT_EQ(job.request.shape.sequence_classes, 4);
  ASSERT_EQ(job.teachers.size(), 2u) << "a file needs no pass";
  EXPECT_EQ(job.teachers[0].pairs_per_text, 1);
  EXPECT_EQ(job.teachers[1].pairs_per_text, 4);
  const PlanTarget target = open_target(spec, "cpu");
  const plan::PlanRequest request = request_for(job, target);
  const std::vector<plan::Plan> plans = teacher_plans(job, request, target);
  ASSERT_EQ(plans.size(), 2u);
  PlanSpec alone = cpu_spec("fp32");
  const plan::Plan scoring = solve(request_for(open_job(alone, classes, true), target));
  EXPECT_EQ(plans[0].task, plan::Task::score);
  EXPECT_EQ(plans[0].peak_bytes, scoring.peak_bytes);
  EXPECT_EQ(plans[1].output, model::Output::sequence_logits);
  PlanJob smaller = job;
  smaller.teachers[0].settings.memory_limit = plan::MemoryLimit::read("1MiB");
  EXPECT_HAS(error_of(ErrorCode::does_not_fit, [&] { teacher_plans(smaller, request, target); }),
             "roberta_sequence: scoring the training texts");
}

TEST_F(TeacherPlans, ReadTheKeysOfTrainingFiles) {
  const std::string teacher = nli();
  put_file(temp_ / "train.yaml", "teacher: [" + teacher + "]\nlabels: \"x, y\"\n");
  PlanSpec spec = cpu_spec("fp32");
  spec.task = plan::Task::train;
  spec.config = (temp_ / "train.yaml").string();
  const PlanJob job = open_job(spec, "", true);
  EXPECT_EQ(job.dir, teacher) << "the student starts from it";
  ASSERT_EQ(job.teachers.size(), 1u);
  EXPECT_EQ(job.teachers[0].pairs_per_text, 2);
  EXPECT_EQ(job.request.shape.sequence_classes, 2);
}

TEST_F(TeacherPlans, RejectModelsThatCannotTeach) {
  const std::string student = model("bert_sequence");
  const auto refusal = [&](ErrorCode code, const PlanSpec& spec) {
    return error_of(code, [&] { open_job(spec, student, true); });
  };
  EXPECT_HAS(refusal(ErrorCode::bad_model, training({model("bert_token")})), "no classification head");
  EXPECT_HAS(refusal(ErrorCode::bad_model, training({model("bert_encoder")})), "no classification head");
  PlanSpec spec = training({model("roberta_sequence")});
  spec.zero_shot = ZeroShot{.labels = {"a", "b"}};
  EXPECT_HAS(refusal(ErrorCode::bad_model, spec), "`labels` requires an NLI model");
  spec.settings.erase("teacher");
  EXPECT_HAS(refusal(ErrorCode::usage, spec), "without a teacher");
  spec = training({student});
  spec.task = plan::Task::score;
  EXPECT_HAS(refusal(ErrorCode::usage, spec), "not used in scoring");
}

}  // namespace
}  // namespace brim::jobs
