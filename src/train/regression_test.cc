// SPDX-License-Identifier: Apache-2.0
// Regression, and training on text pairs with classes and numbers, compared with passes over the same tokens.
#include <gtest/gtest.h>

#include <array>

#include "base/token.h"
#include "hub/hf_config.h"
#include "train/golden_losses.h"
#include "train/tiny_job.h"

namespace brim::train {
namespace {

// Turns the ids of a golden pair of the tiny models back into two texts.
std::array<std::string, 2> texts_of(const std::vector<int32_t>& ids) {
  std::array<std::string, 2> texts;
  for (const int32_t id : ids)
    if (id_of(id) >= 5) {
      std::string& text = texts[id == id_of(id) ? 0 : 1];
      text += (text.empty() ? "w" : " w") + std::to_string(id_of(id));
    }
  return texts;
}

// Three full-batch updates from files, compared with the passes and updates of the golden gradient tests.
TEST(Regression, PairsTrainLikeTheirTokens) {
  for (const char* model : {"bert_pair", "bert_rerank"}) {
    SCOPED_TRACE(model);
    const auto ids = model::golden_json(model, "golden.json")["ids"].get<std::vector<std::vector<int32_t>>>();
    const nlohmann::json targets = model::golden_json(model, "gradients.json")["targets"];
    TinyJob t(model);
    std::string csv = "text,other,label\n";
    std::vector<size_t> rows;
    for (size_t r = 0; r < ids.size(); ++r) {
      const auto texts = texts_of(ids[r]);
      if (texts[0].empty()) continue;  // a row needs text
      rows.push_back(r);
      csv += texts[0] + "," + texts[1] + "," +
             (targets[r].is_number_integer() ? tiny_label(targets[r].get<int>()) : targets[r].dump()) + "\n";
    }
    put_file(t.dir / "train.csv", csv);
    t.settings.validation_files.clear();
    t.settings.pair_column = "other";
    t.settings.dropout = 0;
    t.settings.max_steps = 3;
    t.settings.train_batch_size = static_cast<int64_t>(rows.size());
    t.settings.precision = {ops::Precision::fp32};
    t.run();
    std::vector<double> got;
    const nlohmann::json state = json_of(t.out() / "trainer_state.json");
    for (const auto& entry : state["log_history"])
      if (entry.contains("loss")) got.push_back(entry["loss"]);

    const auto device = device::open_cpu_device(1);
    model::GoldenTraining training(*device, model, ops::Precision::fp32);
    const auto weight = static_cast<double>(rows.size());
    std::vector<double> want;
    for (int64_t step = 0; step < 3; ++step) {
      want.push_back(training.pass(rows, model::Recompute::none, 1 / weight) / weight);
      model::StepSettings s;
      s.lr = static_cast<float>(learning_rate_at(t.settings, t.settings.learning_rate, step, 3));
      s.weight_decay = static_cast<float>(t.settings.weight_decay);
      s.max_grad_norm = static_cast<float>(t.settings.max_grad_norm);
      s.step = step + 1;
      training.state().step(training.stream(), s, 1);
    }
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5 * std::abs(want[i])) << i;
    EXPECT_LT(got[2], got[0]);
  }
}

// The label depends on the words of the text.
std::string numbered(int rows, unsigned seed) {
  std::mt19937 random(seed);
  std::string text = "text,label\n";
  for (int r = 0; r < rows; ++r) {
    const int lean = r % 3;
    text += fmt::format("{},{}\n", tiny_text(random, lean, 6), -0.5 + lean);
  }
  return text;
}

TEST(Regression, LearnsNumbersAndReportsRegressionMetrics) {
  for (const bool new_head : {false, true}) {
    TinyJob t(new_head ? "bert_encoder" : "bert_rerank");
    put_file(t.dir / "train.csv", numbered(240, 1));
    put_file(t.dir / "val.csv", numbered(24, 2));
    if (new_head) t.settings.task = TaskChoice::regression;
    t.settings.num_train_epochs = 8;
    t.settings.learning_rate = 2e-3;
    t.settings.dropout = 0;
    std::string lines;
    const TrainOutcome outcome = train(t.settings, {.say = [&](const std::string& line) { lines += line + "\n"; }});
    EXPECT_EQ(outcome.best_metric_name, "pearson");
    EXPECT_GT(outcome.best_metric, 0.5);
    EXPECT_NE(lines.find("regression: one value per text"), std::string::npos) << lines;
    for (const char* name : {"mse", "pearson", "spearman"}) EXPECT_NE(lines.find(name), std::string::npos) << lines;
    EXPECT_EQ(lines.find("accuracy"), std::string::npos) << lines;
    const hub::HfConfig config = hub::load_hf_config(t.out());
    EXPECT_EQ(config.problem_type, "regression");
    EXPECT_EQ(config.num_labels, 1);
    EXPECT_TRUE(config.raw_scores);
  }
}

TEST(Regression, RejectsIncompatibleSettings) {
  struct Case {
    const char* model;
    const char* csv;
    std::function<void(TrainSettings&)> change;
    ErrorCode code;
    std::vector<const char*> parts;
  };
  const Case cases[] = {
      {"bert_rerank",
       "text,label\nw5,1.5\nw6,good\n",
       {},
       ErrorCode::bad_data,
       {"train.csv:3", "good", "not a number"}},
      {"bert_rerank", "text,label\nw5,nan\n", {}, ErrorCode::bad_data, {"train.csv:2", "nan"}},
      {"bert_rerank", "text,label\nw5,1e39\n", {}, ErrorCode::bad_data, {"train.csv:2", "1e39"}},
      {"bert_sequence",
       "text,label\nw5,1.5\n",
       [](TrainSettings& s) { s.task = TaskChoice::regression; },
       ErrorCode::bad_data,
       {"one output", "3 labels"}},
      {"bert_rerank",
       "text,label\nw5,1.5\n",
       [](TrainSettings& s) { s.class_weights = "balanced"; },
       ErrorCode::usage,
       {"class_weights"}},
      {"bert_rerank",
       "text,label\nw5,1.5\n",
       [](TrainSettings& s) { s.metric_for_best_model = "accuracy"; },
       ErrorCode::usage,
       {"accuracy", "pearson"}},
  };
  for (const Case& c : cases) {
    TinyJob t(c.model);
    put_file(t.dir / "train.csv", c.csv);
    t.settings.validation_files.clear();
    if (c.change) c.change(t.settings);
    try {
      t.run();
      ADD_FAILURE() << c.csv;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), c.code) << e.what();
      for (const char* part : c.parts) EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace brim::train
