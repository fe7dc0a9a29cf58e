// SPDX-License-Identifier: Apache-2.0
// Distillation from teachers of any family, zero-shot models, files of scores and unlabelled rows; rejected teachers.
#include "train/teachers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>

#include "engine/testing.h"
#include "ops/loss.h"
#include "train/job.h"
#include "train/schedule.h"
#include "train/step_reporter.h"
#include "train/teacher_review.h"
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
  const int64_t alone = open_train_job(s, {silent}).plan.peak_bytes;
  s.teachers = {s.model};  // closed before the first step: its soft labels and residue are counted
  const TrainJob with = open_train_job(s, {silent});
  EXPECT_EQ(with.plan.peak_bytes, alone + soft_label_bytes(120, 3, 1) + kTeacherResidue);
  train(s, {});
  EXPECT_EQ(json_of(t.dir / "student/config.json")["num_hidden_layers"], 1);
  EXPECT_GT(json_of(t.dir / "student/trainer_state.json")["best_metric"].get<double>(), 0.5);
}

TEST(Teachers, RejectsStudentLayersForMixedAttention) {
  TinyJob t("modernbert_sequence", 20);
  t.settings.student_layers = 1;
  EXPECT_THROW(open_train_job(t.settings, {silent}), Error);
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

// Log-probabilities of every row by a single teacher.
std::vector<float> log_probabilities(TrainSettings s, const std::string& teacher) {
  s.teachers = {teacher};
  s.teacher_weights.clear();
  s.temperature = 1;
  return open_train_job(s, {silent}).soft.logits;
}

// Compares the first step's loss over all rows with the formula in docs/training.md.
TEST(Teachers, LossMatchesTheDocumentedFormula) {
  Class t;
  put_file(t.dir / "texts.txt", texts_of(TinyJob::csv(20, 5)));
  TrainSettings s = t.to("student");
  s.teachers = {t.first, t.second};
  s.teacher_weights = {"3", "1"};
  s.train_files.push_back((t.dir / "texts.txt").string());
  s.train_batch_size = 80;
  s.max_steps = 1;
  s.class_weights = "1,2,3";
  s.hard_weight = 0.3;
  s.temperature = 3;
  train(s, {});
  const double got = json_of(t.dir / "student/trainer_state.json")["log_history"][0]["loss"];
  const std::vector<float> a = log_probabilities(s, t.first), b = log_probabilities(s, t.second),
                           own = log_probabilities(s, s.model);
  const TrainJob job = open_train_job(s, {silent});
  double loss = 0, weight = 0;
  constexpr size_t K = 3;
  for (size_t row = 0; row < static_cast<size_t>(job.train_set.rows()); ++row) {
    const int32_t label = job.train_set.label[row];
    const double each = label == ops::kNoLabel ? 1 : label + 1, soft_t = 3;
    weight += each;
    const float *za = &a[row * K], *zb = &b[row * K], *z = &own[row * K];
    if (label != ops::kNoLabel) loss += 0.3 * each * (log_sum(z, K, 1) - z[label]);
    for (size_t k = 0; k < K; ++k) {
      const auto p = [&](const float* x) { return std::exp(x[k] / soft_t - log_sum(x, K, soft_t)); };
      const double q = (3 * p(za) + p(zb)) / 4;
      loss += 0.7 * soft_t * soft_t * q * std::log(q / p(z));
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
    const TrainJob job = open_train_job(s, {silent});
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
  // A head with other names is replaced by the teachers'; one with the same names in another order is kept.
  for (const bool same : {false, true}) {
    const nlohmann::json labels = same ? nlohmann::json{{"0", "positive"}, {"1", "neutral"}, {"2", "negative"}}
                                       : nlohmann::json{{"0", "a"}, {"1", "b"}, {"2", "c"}};
    model::put_golden_model(t.dir / "other", "bert_sequence");
    config = json_of(t.dir / "other/config.json");
    config["id2label"] = labels;
    config.erase("label2id");
    put_file(t.dir / "other/config.json", config.dump());
    s.model = (t.dir / "other").string();
    s.train_files = {(t.dir / "a.csv").string()};
    const TrainJob other = open_train_job(s, {silent});
    EXPECT_EQ(other.labels.sequence, same ? (std::vector<std::string>{"positive", "neutral", "negative"})
                                          : (std::vector<std::string>{"negative", "neutral", "positive"}));
    EXPECT_EQ(other.teachers[0].class_of, same ? (std::vector<size_t>{2, 1, 0}) : (std::vector<size_t>{0, 1, 2}));
    EXPECT_NE(other.replaces_head, same);
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
  const TrainJob job = open_train_job(s, {silent});
  EXPECT_EQ(job.unlabelled, 1);
  EXPECT_EQ(std::vector<float>(job.train_set.multi_label.begin(), job.train_set.multi_label.end()),
            (std::vector<float>{1, 0, -1, -1, 0, 0}));
  EXPECT_TRUE(std::isfinite(train(s, {}).final_loss));
}

// A model of another family, with other token ids and the classes in another order.
std::string put_other_family(const TinyJob& t, const char* name = "electra") {
  const fs::path dir = t.dir / name;
  model::put_golden_model(dir, "electra_sequence");
  std::string vocab = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  for (int i = 95; i >= 5; --i) vocab += "w" + std::to_string(i) + "\n";
  put_file(dir / "vocab.txt", vocab);
  auto config = json_of(dir / "config.json");
  config["id2label"] = {{"0", "Positive"}, {"1", "negative"}, {"2", "neutral"}};
  config.erase("label2id");
  put_file(dir / "config.json", config.dump());
  return dir.string();
}

// bert_pair as an NLI model.
std::string put_nli(const TinyJob& t) {
  const fs::path dir = t.dir / "nli";
  model::put_golden_model(dir, "bert_pair");
  auto config = json_of(dir / "config.json");
  config["id2label"] = {{"0", "contradiction"}, {"1", "neutral"}, {"2", "entailment"}};
  config.erase("label2id");
  put_file(dir / "config.json", config.dump());
  return dir.string();
}

// An encoder without a head.
std::string put_encoder(const TinyJob& t) {
  const fs::path dir = t.dir / "encoder";
  model::put_golden_model(dir, "bert_sequence");
  auto config = json_of(dir / "config.json");
  config["architectures"] = {"BertModel"};
  for (const char* key : {"id2label", "label2id"}) config.erase(key);
  put_file(dir / "config.json", config.dump());
  return dir.string();
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1)
    lines.push_back(text.substr(at, text.find('\n', at) - at));
  return lines;
}

TEST(Teachers, TeachersOfOtherFamiliesScoreWithTheirOwnTokens) {
  TinyJob t;
  TrainSettings s = t.settings;
  s.teachers = {put_other_family(t)};
  s.train_files = {(t.dir / "texts.txt").string()};
  const std::string texts = texts_of(TinyJob::csv(40, 3));
  put_file(s.train_files[0], texts + "w5 w6\nw5 w6\n");
  s.temperature = 1;
  const TrainJob job = open_train_job(s, {silent});
  const auto scorer = Scorer::open(engine::cpu_options(s.teachers[0]));
  const auto lines = lines_of(get_file(s.train_files[0]));
  ASSERT_EQ(lines.size(), 42u);
  const std::vector<std::string_view> views(lines.begin(), lines.end());
  const Predictions found = scorer->score(views);
  constexpr size_t kTeachersClass[] = {1, 2, 0};  // for negative, neutral, positive
  for (size_t row = 0; row < lines.size(); ++row)
    for (size_t k = 0; k < 3; ++k)
      EXPECT_NEAR(std::exp(job.soft.logits[row * 3 + k]), found.scores[row * 3 + kTeachersClass[k]], 1e-6);
  EXPECT_EQ(train(s, {}).samples, 84);
}

TEST(Teachers, ZeroShotTeacherLabelsTexts) {
  TinyJob t;
  TrainSettings s = t.settings;
  s.model = put_encoder(t);
  s.teachers = {put_nli(t)};
  s.labels = {"w10", "w20 w21", "w30"};
  s.label_template = "w7 {}.";
  put_file(t.dir / "texts.csv", "text\n" + texts_of(TinyJob::csv(80, 3)));
  s.train_files = {(t.dir / "texts.csv").string()};
  s.validation_files.clear();
  nlohmann::json record;
  TrainCallbacks callbacks;
  callbacks.record = [&](const std::string& json) { record = nlohmann::json::parse(json); };
  EXPECT_EQ(train(s, callbacks).samples, 160);
  const auto config = json_of(t.out() / "config.json");
  EXPECT_EQ(config["id2label"], (nlohmann::json{{"0", "w10"}, {"1", "w20 w21"}, {"2", "w30"}}));
  const auto& review = record.at("teachers");
  EXPECT_EQ(review["rows_compared"], 80);
  EXPECT_EQ(review["label_agreement"], nullptr);
  EXPECT_EQ(review["teachers"][0]["template"], "w7 {}.");
  EXPECT_EQ(review["teachers"][0]["agreement"], review["agreement"]);
  int64_t rows = 0;
  for (const auto& bin : review["confidence"]) rows += bin.get<int64_t>();
  EXPECT_EQ(rows, 80);
  ASSERT_EQ(review["to_label"].size(), kRowsToLabel);
  const auto lines = lines_of(get_file(t.out() / kToLabel));
  ASSERT_EQ(lines.size(), kRowsToLabel + 1);
  EXPECT_EQ(lines[0], "text,label,from,teacher_label,teacher_score,student_label,student_score,reason");
  EXPECT_TRUE(lines[1].starts_with(review["to_label"][0]["text"].get<std::string>() + ",,")) << lines[1];
  // The labels of the most uncertain row have the closest scores.
  const auto scorer = Scorer::open([&] {
    ScorerOptions o = engine::cpu_options(s.teachers[0]);
    o.zero_shot = ZeroShot{s.labels, s.label_template};
    return o;
  }());
  const std::string text = review["to_label"][0]["text"];
  const Predictions one = scorer->score(std::vector<std::string_view>{text});
  EXPECT_NEAR(*std::max_element(one.scores.begin(), one.scores.end()),
              review["to_label"][0]["teacher_score"].get<double>(), 1e-5);
  EXPECT_HAS(get_file(t.out() / "README.md"), "the student agrees with the teacher on ");
}

TEST(Teachers, CachedScoresContinueAfterAnInterruption) {
  TinyJob t("bert_sequence", 300);
  TrainSettings s = t.settings;
  s.teachers = {put_other_family(t)};
  std::atomic<bool> stop{false};
  std::string lines;
  const auto say = [&](const std::string& line) { lines += line + "\n"; };
  PassProgress progress{say, [&](double done, double, const std::string&) { stop = done > 0; }, &stop};
  EXPECT_HAS(error_of(ErrorCode::interrupted, [&] { open_train_job(s, progress); }), "run the command again");
  EXPECT_HAS(lines, ": 300 texts\n");
  lines.clear();
  const TrainJob second = open_train_job(s, {say});
  EXPECT_HAS(lines, ": 300 texts, 64 already scored\n");
  lines.clear();
  const TrainJob third = open_train_job(s, {say});
  EXPECT_HAS(lines, ": 300 texts, 300 already scored\n");
  EXPECT_EQ(second.soft.logits, third.soft.logits);
  ::setenv("BRIM_CACHE", (t.dir / "fresh").c_str(), 1);
  EXPECT_EQ(open_train_job(s, {silent}).soft.logits, second.soft.logits);
  ::setenv("BRIM_CACHE", "/proc/none", 1);  // not writable
  EXPECT_EQ(open_train_job(s, {silent}).soft.logits, second.soft.logits);
  // Other weights or labels do not use these scores.
  ::setenv("BRIM_CACHE", (t.dir / "fresh").c_str(), 1);
  std::string weights = get_file(fs::path(s.teachers[0]) / "model.safetensors");
  weights[weights.size() - 2] ^= 1;
  put_file(fs::path(s.teachers[0]) / "model.safetensors", weights);
  lines.clear();
  open_train_job(s, {say});
  EXPECT_HAS(lines, ": 300 texts\n");
}

TEST(Teachers, TwoRunsShareACache) {
  TinyJob t("bert_sequence", 400);
  TrainSettings s = t.settings;
  s.teachers = {put_other_family(t)};
  std::vector<std::vector<float>> logits(2);
  std::vector<std::thread> runs;
  for (auto& own : logits) runs.emplace_back([&] { own = open_train_job(s, {silent}).soft.logits; });
  for (auto& run : runs) run.join();
  EXPECT_EQ(logits[0].size(), 1200u);
  EXPECT_EQ(logits[0], logits[1]);
  EXPECT_EQ(open_train_job(s, {silent}).soft.logits, logits[0]);
}

TEST(Teachers, ReadsScoresFromFiles) {
  TinyJob t;
  TrainSettings s = t.settings;
  s.train_files = {(t.dir / "texts.txt").string()};
  put_file(s.train_files[0], "w5 w6\nw7\nw5 w6\n");
  s.temperature = 1;
  put_file(t.dir / "scores.csv",
           "text,label,score,positive,negative,neutral\nw7,neutral,0.6,0.3,0.1,0.6\nw5 w6,negative,0.5,0.25,0.5,0.25\n"
           "unused,x,1,0,0,1\n");
  put_file(t.dir / "nested.jsonl",
           "{\"text\":\"w7\",\"scores\":{\"positive\":0.3,\"negative\":0.1,\"neutral\":0.6}}\n"
           "{\"text\":\"w5 w6\",\"scores\":{\"positive\":0.25,\"negative\":0.5,\"neutral\":0.25}}\n");
  put_file(t.dir / "flat.jsonl",
           "{\"text\":\"w7\",\"positive\":0.3,\"negative\":0.1,\"neutral\":0.6}\n"
           "{\"text\":\"w5 w6\",\"positive\":0.25,\"negative\":0.5,\"neutral\":0.25}\n");
  put_file(t.dir / "prefixed.csv",  // scored from a file with the columns label and positive
           "text,label,positive,predicted_label,predicted_score,predicted_positive,predicted_negative,"
           "predicted_neutral\nw7,a,1,neutral,0.6,0.3,0.1,0.6\nw5 w6,b,0,negative,0.5,0.25,0.5,0.25\n");
  put_file(t.dir / "prefixed.jsonl",
           "{\"text\":\"w7\",\"scores\":{},\"predicted_scores\":{\"positive\":0.3,\"negative\":0.1,\"neutral\":0.6}}\n"
           "{\"text\":\"w5 w6\",\"predicted_scores\":{\"positive\":0.25,\"negative\":0.5,\"neutral\":0.25}}\n");
  const std::vector<float> want = {0.5f, 0.25f, 0.25f, 0.1f, 0.6f, 0.3f, 0.5f, 0.25f, 0.25f};
  for (const char* file : {"scores.csv", "nested.jsonl", "flat.jsonl", "prefixed.csv", "prefixed.jsonl"}) {
    s.teachers = {(t.dir / file).string()};
    const TrainJob job = open_train_job(s, {silent});
    ASSERT_EQ(job.soft.logits.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(std::exp(job.soft.logits[i]), want[i], 1e-6) << file << i;
  }
  s.output_dir = (t.dir / "student").string();
  EXPECT_EQ(train(s, {}).samples, 6);
  const auto refused = [&](const char* file, const char* content, ErrorCode code = ErrorCode::bad_data) {
    put_file(t.dir / file, content);
    s.teachers = {(t.dir / file).string()};
    s.output_dir = (t.dir / "refused").string();
    const std::string message = error_of(code, [&] { train(s, {}); });
    EXPECT_FALSE(fs::exists(s.output_dir));
    return message;
  };
  EXPECT_HAS(refused("a.csv", "text,negative,neutral,good\nw7,0,0,1\n"),
             "no scores for label 'positive'; the columns are text, negative, neutral, good, the student's labels "
             "negative, neutral, positive");
  EXPECT_HAS(refused("a.csv", "text,negative,neutral,positive\nw7,0,0,1\n"),
             "no scores for 2 of 3 training texts, first: " + s.train_files[0] + ":1");
  EXPECT_HAS(refused("a.csv", "text,negative,neutral,positive\nw7,0,0,x\n"), "a.csv:2");
  EXPECT_HAS(refused("a.csv", "text,negative,neutral,positive\nw7,0,-1,2\n"), "the score of neutral is -1");
  EXPECT_HAS(refused("a.csv", "text,negative,neutral,positive\nw7,0.5,0.1,0.1\n"), "add up to 0.7, not 1");
  EXPECT_HAS(refused("a.jsonl", "{\"text\":\"w7\",\"scores\":{\"negative\":1}}\n"), "label 'neutral'");
  EXPECT_HAS(refused("a.jsonl", "{\"text\":\"w7\",\"scores\":{\"negative\":\"1\",\"neutral\":0}}\n"), "not a number");
  EXPECT_HAS(refused("a.txt", "w7\n", ErrorCode::usage), "must be csv, tsv or jsonl");
}

TEST(Teachers, RejectsIncompatibleTeachers) {
  TinyJob t;
  put_file(t.dir / "texts.txt", "w5 w6\n");
  put_file(t.dir / "gap.csv", "text,label\nw5,positive\nw6,\nw7,negative\n");
  model::put_golden_model(t.dir / "labels", "bert_sequence");
  auto config = json_of(t.dir / "labels/config.json");
  config["id2label"] = {{"0", "a"}, {"1", "b"}, {"2", "c"}};
  put_file(t.dir / "labels/config.json", config.dump());
  model::put_golden_model(t.dir / "several", "bert_multilabel");
  const auto refused = [&](ErrorCode code, auto change) {
    TrainSettings s = t.settings;
    s.teachers = {s.model};
    change(s);
    const std::string message = error_of(code, [&] { train(s, {}); });
    EXPECT_FALSE(fs::exists(t.out())) << message;
    return message;
  };
  const std::string texts = (t.dir / "texts.txt").string(), gap = (t.dir / "gap.csv").string(), nli = put_nli(t);
  EXPECT_HAS(refused(ErrorCode::bad_model, [&](auto& s) { s.teachers.push_back((t.dir / "labels").string()); }),
             "the teacher's labels (a, b, c) do not match the student's (negative, neutral, positive)");
  EXPECT_HAS(refused(ErrorCode::bad_model, [&](auto& s) { s.teachers = {(t.dir / "several").string()}; }),
             "any number of labels per text, the student one");
  EXPECT_HAS(refused(ErrorCode::usage, [&](auto& s) { s.teachers.assign(9, s.model); }), "at most 8");
  const auto labels = [&](const std::vector<std::string>& names, const std::string& teacher, ErrorCode code) {
    return refused(code, [&](auto& s) {
      s.teachers = {teacher};
      s.labels = names;
    });
  };
  EXPECT_HAS(labels({"a", "b", "c"}, nli, ErrorCode::bad_model),
             "labels (a, b, c) do not match the student's (negative, neutral, positive)");
  EXPECT_HAS(labels({"a", ""}, nli, ErrorCode::usage), "`labels`: label 2 is empty");
  EXPECT_HAS(labels({"a", "a"}, nli, ErrorCode::usage), "duplicate label \"a\"");
  EXPECT_HAS(labels({"a"}, nli, ErrorCode::usage), "only one label ('a')");
  EXPECT_HAS(labels(std::vector<std::string>(10000, "a"), nli, ErrorCode::usage), "10,000 labels, at most 1,000");
  EXPECT_HAS(labels({"a", "b"}, t.settings.model, ErrorCode::bad_model), "requires an NLI model");
  EXPECT_HAS(refused(ErrorCode::usage, [&](auto& s) { s.label_template = "no braces"; }), "requires labels");
  EXPECT_HAS(refused(ErrorCode::usage,
                     [&](auto& s) {
                       s.teachers.clear();
                       s.labels = {"a", "b"};
                     }),
             "`labels`: requires a teacher");
  for (const auto& [weights, problem] : {std::pair(std::vector<std::string>{"1", "2"}, "2 weights given for 1 teacher"),
                                         std::pair(std::vector<std::string>{"0"}, "must be above zero"),
                                         std::pair(std::vector<std::string>{"x"}, "must be a number")})
    EXPECT_HAS(refused(ErrorCode::usage, [&, w = weights](auto& s) { s.teacher_weights = w; }), problem);
  EXPECT_HAS(refused(ErrorCode::usage,
                     [&](auto& s) {
                       s.train_files.push_back(texts);
                       s.hard_weight = 1;
                     }),
             "`hard_weight=1`: 1 row without a label");
  EXPECT_HAS(refused(ErrorCode::usage, [&](auto& s) { s.validation_files = {texts}; }), "labels require csv");
  EXPECT_HAS(refused(ErrorCode::bad_data, [&](auto& s) { s.validation_files = {gap}; }), "gap.csv:3: no label");
  for (const auto& [code, file] : {std::pair(ErrorCode::usage, texts), std::pair(ErrorCode::bad_data, gap)})
    refused(code, [&, file = file](auto& s) {  // no teacher
      s.teachers.clear();
      s.train_files = {file};
    });
}

}  // namespace
}  // namespace brim::train
