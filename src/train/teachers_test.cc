// SPDX-License-Identifier: Apache-2.0
// Distillation from several teachers and from unlabelled rows, and rejected teachers.
#include "train/teachers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "memory/ledger.h"
#include "ops/loss.h"
#include "train/micro_batch.h"
#include "train/schedule.h"
#include "train/step_reporter.h"
#include "train/tiny_job.h"

namespace brim::train {
namespace {

namespace fs = std::filesystem;

void silent(const std::string&) {}

// Two trained models of the tiny job's kind, for an untrained student.
struct Class : TinyJob {
  std::string first, second;
  Class() : TinyJob("bert_sequence", 60) {
    settings.dropout = 0;
    settings.num_train_epochs = 1;
    TrainSettings s = to("first");
    train(s, {});
    first = s.output_dir;
    s = to("second");
    s.seed = 7;
    s.learning_rate = 3e-3;
    train(s, {});
    second = s.output_dir;
  }
  std::string weights_of(const char* name, const std::vector<std::string>& teachers, double hard_weight,
                         const std::string& file = "train.csv") {
    TrainSettings s = to(name);
    s.teachers = teachers;
    s.hard_weight = hard_weight;
    s.train_files = {(dir / file).string()};
    train(s, {});
    return weights(name);
  }
};

std::string texts_of(const std::string& csv) {
  std::string out;
  for (size_t at = csv.find('\n') + 1; at < csv.size(); at = csv.find('\n', at) + 1)
    out += csv.substr(at, csv.find(',', at) - at) + "\n";
  return out;
}

TEST(Teachers, StudentOfOneTeacherLearns) {
  TinyJob t("bert_sequence", 120);
  t.settings.num_train_epochs = 4;
  t.run();
  TrainSettings s = t.to("student");
  s.model = t.out().string();
  s.student_layers = 1;
  s.num_train_epochs = 4;
  int64_t before = open_train_job(s, silent).plan.peak_bytes;
  for (const size_t teachers : {1, 2, 3}) {  // each is counted
    s.teachers.assign(teachers, s.model);
    const TrainJob with = open_train_job(s, silent);
    EXPECT_GT(with.plan.peak_bytes, before + (teachers > 1 ? 4 * param_count(with.shape) : 0));
    EXPECT_LE(with.plan.peak_bytes, with.plan.limit_bytes);
    EXPECT_EQ(with.plan.peak_bytes, with.plan.bytes.total());
    before = with.plan.peak_bytes;
  }
  s.teachers = {s.model};
  train(s, {});
  EXPECT_EQ(json_of(t.dir / "student/config.json")["num_hidden_layers"], 1);
  EXPECT_GT(json_of(t.dir / "student/trainer_state.json")["best_metric"].get<double>(), 0.5);
}

TEST(Teachers, RejectsStudentLayersForMixedAttention) {
  TinyJob t("modernbert_sequence", 20);
  t.settings.student_layers = 1;
  EXPECT_THROW(open_train_job(t.settings, silent), Error);
}

TEST(Teachers, StudentLearnsTheMeanOfTheTeachers) {
  Class t;
  const std::string one = t.weights_of("a", {t.first}, 0.3), both = t.weights_of("b", {t.first, t.second}, 0.3);
  EXPECT_TRUE(one == t.weights_of("c", {t.first, t.first}, 0.3));
  EXPECT_TRUE(both == t.weights_of("d", {t.second, t.first}, 0.3));
  EXPECT_FALSE(one == both);
  // Labels with weight 0 are treated as missing.
  put_file(t.dir / "texts.txt", texts_of(TinyJob::csv(60, 1)));
  EXPECT_TRUE(t.weights_of("e", {t.first, t.second}, 0) == t.weights_of("f", {t.first, t.second}, 0, "texts.txt"));
}

double log_sum(const float* x, size_t K, double t) {
  double sum = 0;
  for (size_t k = 0; k < K; ++k) sum += std::exp(x[k] / t);
  return std::log(sum);
}

// Compares the first step's loss over all rows with the formula in docs/training.md.
TEST(Teachers, LossMatchesTheDocumentedFormula) {
  Class t;
  put_file(t.dir / "texts.txt", texts_of(TinyJob::csv(20, 5)));
  TrainSettings s = t.to("student");
  s.teachers = {t.first, t.second};
  s.train_files.push_back((t.dir / "texts.txt").string());
  s.train_batch_size = 80;
  s.max_steps = 1;
  s.class_weights = "1,2,3";
  s.hard_weight = 0.3;
  s.temperature = 3;
  train(s, {});
  const double got = json_of(t.dir / "student/trainer_state.json")["log_history"][0]["loss"];

  s.teachers.push_back(s.model);  // provides the student's own logits
  TrainJob job = open_train_job(s, silent);
  Teachers teachers(job);
  memory::TagBytes bytes;
  bytes[memory::Tag::activations] = teachers.arena_bytes();
  const device::DeviceBuffer arena = memory::Ledger::allocate(*job.device, nullptr, bytes, "test");
  teachers.use_arena(arena.data());
  const auto stream = job.device->make_stream();
  double loss = 0, weight = 0;
  constexpr size_t K = 3;
  for (int64_t row = 0; row < job.train_set.rows(); ++row) {
    MicroBatch m;
    build_micro_batch(job.train_set, {row}, job.shape, m);
    const tensor::TensorView logits = teachers.run(*stream, m.packed.view());
    ASSERT_EQ(logits.rows(), 3);
    const float *a = logits.as<float>(), *b = a + K, *own = b + K;
    const int32_t label = m.sequence_targets[0];
    const double each = label == ops::kNoLabel ? 1 : label + 1, soft_t = 3;
    weight += each;
    if (label != ops::kNoLabel) loss += 0.3 * each * (log_sum(own, K, 1) - own[label]);
    for (size_t k = 0; k < K; ++k) {
      const auto p = [&](const float* x) { return std::exp(x[k] / soft_t - log_sum(x, K, soft_t)); };
      const double q = (p(a) + p(b)) / 2;
      loss += 0.7 * soft_t * soft_t * q * std::log(q / p(own));
    }
  }
  EXPECT_EQ(job.unlabelled, 20);
  EXPECT_NEAR(got, loss / weight, 1e-5 * loss / weight);
}

TEST(Teachers, ReadsUnlabelledRowsFromEveryFormat) {
  Class t;
  put_file(t.dir / "a.csv", "text,label\nw5 w6,positive\nw7,\n");
  put_file(t.dir / "b.csv", "text\nw8\nw9 w10\n");
  put_file(t.dir / "c.jsonl",
           "{\"text\":\"w5\"}\n{\"text\":\"w6\",\"label\":null}\n{\"text\":\"w7\",\"label\":\"neutral\"}\n");
  put_file(t.dir / "d.txt", "w11 w12\n\n \nw13\n");
  TrainSettings s = t.to("student");
  s.teachers = {t.first, t.second};
  s.train_files.clear();
  for (const char* file : {"a.csv", "b.csv", "c.jsonl", "d.txt"}) s.train_files.push_back((t.dir / file).string());
  for (const bool cached : {false, true}) {
    const TrainJob job = open_train_job(s, silent);
    EXPECT_EQ(job.tokens_cached, cached);
    EXPECT_EQ(job.train_set.rows(), 9);
    EXPECT_EQ(job.unlabelled, 7);
    EXPECT_EQ(job.train_set.file.back(), 3);
    EXPECT_EQ(job.train_set.line.back(), 4);
    EXPECT_EQ(job.labels.sequence, (std::vector<std::string>{"negative", "neutral", "positive"}));
    const std::string line =
        "2 rows trained on labels (0.5) and 2 teachers (0.5) · 7 rows without a label trained on 2 teachers only";
    EXPECT_EQ(teaching_text(job), line);
    const auto lines = start_lines(job, StepSchedule(job.settings, job.train_set));
    EXPECT_NE(std::find(lines.begin(), lines.end(), line), lines.end());
  }
  train(s, {});
  const std::string card = get_file(t.dir / "student/README.md");
  EXPECT_HAS(card, "distilled from `first` and `second`");
  EXPECT_HAS(card, "7 rows without a label trained on 2 teachers only.");
  // No row has a label: names and order come from the teachers for a new head.
  model::put_golden_model(t.dir / "bare", "bert_sequence");
  auto config = json_of(t.dir / "bare/config.json");
  config["architectures"] = {"BertModel"};
  put_file(t.dir / "bare/config.json", config.dump());
  s = t.to("bare_student");
  s.model = (t.dir / "bare").string();
  s.ignore_mismatched_head = true;
  s.teachers = {t.first};
  s.train_files = {(t.dir / "d.txt").string()};
  EXPECT_EQ(train(s, {}).samples, 2);
  EXPECT_EQ(json_of(t.dir / "bare_student/config.json")["id2label"]["2"], "positive");
  // A head with other names, or with the same names in another order, is replaced by the teachers'.
  for (const nlohmann::json& labels : {nlohmann::json{{"0", "a"}, {"1", "b"}, {"2", "c"}},
                                       nlohmann::json{{"0", "positive"}, {"1", "neutral"}, {"2", "negative"}}}) {
    model::put_golden_model(t.dir / "other", "bert_sequence");
    config = json_of(t.dir / "other/config.json");
    config["id2label"] = labels;
    config.erase("label2id");
    put_file(t.dir / "other/config.json", config.dump());
    s.model = (t.dir / "other").string();
    s.train_files = {(t.dir / "a.csv").string()};
    const TrainJob other = open_train_job(s, silent);
    EXPECT_EQ(other.labels.sequence, (std::vector<std::string>{"negative", "neutral", "positive"}));
    EXPECT_TRUE(other.replaces_head);
  }
  // Multi-label: an unlabelled row has no marks, which differs from a row with none of the labels.
  put_file(t.dir / "m.csv", "text,x,y\nw5,1,0\nw6,,\nw7,0,0\n");
  s = t.to("multi");
  s.ignore_mismatched_head = true;
  s.validation_files.clear();
  s.train_files = {(t.dir / "m.csv").string()};
  s.label_columns = {"x", "y"};
  put_file(t.dir / "n.csv", "text,x,y\nw5,1,0\nw7,0,0\n");
  TrainSettings of_teacher = s;
  of_teacher.output_dir = (t.dir / "multi_teacher").string();
  of_teacher.train_files = {(t.dir / "n.csv").string()};
  train(of_teacher, {});
  s.teachers = {of_teacher.output_dir};
  s.class_weights = "balanced";
  const TrainJob job = open_train_job(s, silent);
  EXPECT_EQ(job.unlabelled, 1);
  EXPECT_EQ(std::vector<float>(job.train_set.multi_label.begin(), job.train_set.multi_label.end()),
            (std::vector<float>{1, 0, -1, -1, 0, 0}));
  EXPECT_TRUE(std::isfinite(train(s, {}).final_loss));
}

TEST(Teachers, RejectsIncompatibleTeachers) {
  TinyJob t;
  const auto put_model = [&](const char* name, auto change) {
    model::put_golden_model(t.dir / name, "bert_sequence");
    change(t.dir / name);
    return (t.dir / name).string();
  };
  const auto with_config = [](const char* key, const nlohmann::json& value) {
    return [=](const fs::path& dir) {
      auto config = json_of(dir / "config.json");
      config[key] = value;
      put_file(dir / "config.json", config.dump());
    };
  };
  put_file(t.dir / "texts.txt", "w5 w6\n");
  put_file(t.dir / "gap.csv", "text,label\nw5,positive\nw6,\nw7,negative\n");
  const std::string other_words = put_model("words", [](const fs::path& dir) {
    std::string vocab = get_file(dir / "vocab.txt");
    vocab.replace(vocab.find("w17"), 3, "x17");
    put_file(dir / "vocab.txt", vocab);
  });
  const std::string cased = put_model("cased", [](const fs::path& dir) {
    put_file(dir / "tokenizer_config.json", R"({"tokenizer_class":"BertTokenizer","do_lower_case":false})");
  });
  const std::string other_labels = put_model("labels", with_config("id2label", {{"0", "a"}, {"1", "b"}, {"2", "c"}}));
  const auto refused = [&](ErrorCode code, auto change) {
    TrainSettings s = t.settings;
    s.teachers = {s.model};
    change(s);
    const std::string message = error_of(code, [&] { train(s, {}); });
    EXPECT_FALSE(fs::exists(t.out())) << message;
    return message;
  };
  const std::string texts = (t.dir / "texts.txt").string(), gap = (t.dir / "gap.csv").string();
  EXPECT_HAS(refused(ErrorCode::bad_model, [&](auto& s) { s.teachers.push_back(other_words); }),
             "its token 17 is 'x17'");
  EXPECT_HAS(refused(ErrorCode::bad_model, [&](auto& s) { s.teachers.push_back(cased); }), "differently");
  EXPECT_HAS(refused(ErrorCode::bad_model, [&](auto& s) { s.teachers.push_back(other_labels); }), "labels are a, b, c");
  EXPECT_HAS(refused(ErrorCode::usage, [&](auto& s) { s.teachers.assign(9, s.model); }), "at most 8");
  EXPECT_HAS(refused(ErrorCode::usage,
                     [&](auto& s) {
                       s.train_files.push_back(texts);
                       s.hard_weight = 1;
                     }),
             "`hard_weight=1`: 1 row without a label");
  EXPECT_HAS(refused(ErrorCode::usage, [&](auto& s) { s.validation_files = {texts}; }), "labels require csv");
  EXPECT_HAS(refused(ErrorCode::bad_data, [&](auto& s) { s.validation_files = {gap}; }), "gap.csv:3: no label");
  for (const auto& [code, file] : {std::pair(ErrorCode::usage, texts), std::pair(ErrorCode::bad_data, gap)})
    refused(code, [&](auto& s) {  // no teacher
      s.teachers.clear();
      s.train_files = {file};
    });
}

}  // namespace
}  // namespace brim::train
