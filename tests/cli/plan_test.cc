// SPDX-License-Identifier: Apache-2.0
// brim plan: GPUs by name or description, several models, files of training settings.
#include <algorithm>

#include "cli/program.h"

namespace brim {
namespace {

class PlanVerb : public ProgramTest {
 protected:
  static std::vector<std::string> plan(std::vector<std::string> more) {
    more.insert(more.begin(), {"plan", "--model", "tiny"});
    return more;
  }
};

TEST_F(PlanVerb, NamesTheFlagOfAMissingFile) {
  refused(2, {"--serve none.yaml: cannot be read: No such file or directory"}, {"plan", "--serve", "none.yaml"});
}

TEST_F(PlanVerb, MemorySizeSufficesAsDescription) {
  const std::string output = must(plan({"--vram", "8GiB"}));
  EXPECT_NE(output.find("custom, 8.00 GiB"), std::string::npos) << output;
  EXPECT_NE(output.find("note: speed taken from rtx3050-8gb"), std::string::npos) << output;
  const auto own = nlohmann::json::parse(must(plan({"--vram", "8GiB", "--tflops", "20", "--json"})));
  EXPECT_EQ(own.at("device").at("tflops_half"), 20);
  refused(2, {"--vram 8: missing unit", "did you mean 8GiB?"}, plan({"--vram", "8"}));
  refused(2, {"--vram: must be a memory size"}, plan({"--tflops", "8"}));
}

TEST_F(PlanVerb, AcceptsCommonGpuNames) {
  EXPECT_NE(must(plan({"--device", "rtx3060-12gb"})).find("device       rtx3060, 12.0 GiB"), std::string::npos);
  const std::string a100 = must(plan({"--device", "A100"}));
  EXPECT_NE(a100.find("note: A100 has several memory sizes (a100-40gb (40.0 GiB), a100-80gb (80.0 GiB)); planning for "
                      "a100-40gb"),
            std::string::npos)
      << a100;
  EXPECT_NE(must(plan({"--device", "rtx4070"})).find("340 MiB of driver memory are estimated"), std::string::npos);
  EXPECT_NE(must(plan({"--device", "k80"})).find("note: this build does not support k80 (sm_37)"), std::string::npos);
}

TEST_F(PlanVerb, PrintsTableOfAllGpus) {
  const auto score = lines_of(must(plan({"--device", "all"})));
  for (const char* head : {"needs", "tokens/batch", "texts/batch", "tokens/s"})
    EXPECT_NE(score.at(0).find(head), std::string::npos) << score.at(0);
  const auto train = lines_of(must(plan({"--device", "all", "--task", "train", "--batch-size", "64", "--lr-scaling",
                                         "sqrt", "--lr-reference-batch", "16", "--learning-rate", "1e-5"})));
  for (const char* head : {"texts/update", "learn rate"}) EXPECT_NE(train.at(0).find(head), std::string::npos);
  for (const char* gpu : {"rtx3050-laptop", "rtx4060 ", "rtx5090", "h200"}) {
    const auto row = std::find_if(train.begin(), train.end(), [&](const auto& line) { return line.starts_with(gpu); });
    ASSERT_NE(row, train.end()) << gpu;
    EXPECT_NE(row->find(" 64      2e-05"), std::string::npos) << *row;
  }
}

TEST_F(PlanVerb, PlansTeachersOfTraining) {
  const auto with_teacher = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--task", "train", "--teacher", "tiny"});
    return must(plan(std::move(more)));
  };
  const auto made = nlohmann::json::parse(with_teacher({"--device", "rtx3060", "--json"}));
  ASSERT_EQ(made.at("teachers").size(), 1u);
  EXPECT_EQ(made.at("teachers")[0].at("task"), "score");
  EXPECT_GT(made.at("teachers")[0].at("peak_bytes"), 0);
  const std::string text = with_teacher({"--device", "rtx3060"});
  EXPECT_NE(text.find("score the training texts before training"), std::string::npos) << text;
  EXPECT_NE(with_teacher({"--device", "all"}).find("rtx5090"), std::string::npos);
  refused(2, {"--teacher", "not used in scoring"}, plan({"--teacher", "tiny"}));
  refused(2, {"--labels", "without a teacher"}, plan({"--task", "train", "--labels", "a,b"}));
}

TEST_F(PlanVerb, UsesTheBatchSizeOfTraining) {
  const auto of = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--device", "rtx3060", "--task", "train", "--json"});
    return nlohmann::json::parse(must(plan(std::move(more))));
  };
  EXPECT_EQ(of({}).at("global_batch"), 32);
  EXPECT_EQ(of({}), of({"--batch-size", "32"}));
}

TEST_F(PlanVerb, ListsTheLargestBatchNextToTheChosenOne) {
  for (const char* task : {"score", "train"}) {
    EXPECT_NE(must(plan({"--device", "all", "--task", task})).find("max texts"), std::string::npos);
    for (const auto& row : nlohmann::json::parse(must(plan({"--device", "all", "--task", task, "--json"})))) {
      if (!row.at("fits").get<bool>()) continue;
      EXPECT_GE(row.at("largest_batch").get<int64_t>(), row.at("token_budget").get<int64_t>() / 128) << row;
      if (task == std::string("train")) {
        EXPECT_GT(row.at("largest_batch").get<int64_t>(), 32) << row;
      }
    }
  }
}

TEST_F(PlanVerb, NamesTheLimitIfThereIsNoMoreMemory) {
  EXPECT_NE(must(plan({"--device", "rtx3060"})).find("1 GiB more: not available (limit 11."), std::string::npos);
}

TEST_F(PlanVerb, AutoLimitReservesMemoryForOthers) {
  const auto limit = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--device", "rtx3090", "--json"});
    return nlohmann::json::parse(must(plan(std::move(more)))).at("limit_bytes").get<int64_t>();
  };
  EXPECT_EQ(limit({"--leave-free", "8GiB"}), int64_t{16} << 30);
  EXPECT_EQ(limit({"--leave-free", "8GiB", "--memory-limit", "20GiB"}), int64_t{20} << 30) << "given by hand";
  EXPECT_EQ(limit({"--memory-limit", "auto", "--leave-free", "8GiB"}), int64_t{16} << 30);
  EXPECT_NE(must(plan({"--device", "rtx3090", "--leave-free", "8GiB"}))
                .find("note: 8.00 GiB of the free memory are left to other processes (--leave-free)"),
            std::string::npos);
  refused(2, {"--leave-free 32GiB: rtx3090 has 24.0 GiB"}, plan({"--device", "rtx3090", "--leave-free", "32GiB"}));
  refused(2, {"--leave-free lots: use a size"}, plan({"--device", "rtx3090", "--leave-free", "lots"}));
  refused(5, {"--leave-free 24GiB: only 24.0 GiB free on rtx3090"},
          plan({"--device", "rtx3090", "--leave-free", "24GiB"}));
  put("run.yaml", "model: tiny\nleave_free: 4GiB\n");
  const auto train = nlohmann::json::parse(must({"plan", "--config", "run.yaml", "--device", "rtx3090", "--json"}));
  EXPECT_EQ(train.at("limit_bytes"), int64_t{20} << 30);
}

TEST_F(PlanVerb, PlansTrainingFromConfigFile) {
  put("run.yaml", "model: tiny\nper_device_train_batch_size: 8\ngpu_optimization:\n  max_memory_gb: 4\n");
  const auto plan = nlohmann::json::parse(must({"plan", "--config", "run.yaml", "--device", "rtx3070", "--json"}));
  EXPECT_EQ(plan.at("task"), "train");
  EXPECT_EQ(plan.at("global_batch"), 8);
  EXPECT_EQ(plan.at("limit_bytes"), 4'000'000'000);
  EXPECT_EQ(
      nlohmann::json::parse(must({"plan", "--config", "run.yaml", "--task", "score", "--device", "rtx3070", "--json"}))
          .at("task"),
      "score");
  put("small.yaml", "model: tiny\n\nmax_memory_gb: 0.05\n");
  refused(5, {"small.yaml:3: max_memory_gb: 0.05: does not fit in 47.7 MiB on rtx3070", "(max_memory_gb: 0."},
          {"plan", "--config", "small.yaml", "--device", "rtx3070"});
  put("large.yaml", "model: tiny\nmemory_limit: 12GiB\n");
  refused(2, {"large.yaml:2: memory_limit: 12GiB: rtx3070 has 8.00 GiB"},
          {"plan", "--config", "large.yaml", "--device", "rtx3070"});
  refused(5, {"brim: does not fit in", "(--memory-limit "},  // the flag takes precedence, and is suggested
          {"plan", "--config", "small.yaml", "--device", "rtx3070", "--memory-limit", "40MiB"});
}

TEST_F(PlanVerb, PlansSeveralModels) {
  make_model("bert_token", "tagger");
  const auto run = [&](const std::string& models, std::vector<std::string> more) {
    more.insert(more.begin(), {"plan", "--model", models, "--device", "rtx3060"});
    return more;
  };
  const auto one = nlohmann::json::parse(must(run("tiny", {"--json"})));
  const auto all = nlohmann::json::parse(must(run("tiny,tagger,vader", {"--json"})));
  ASSERT_EQ(all.at("models").size(), 3u);
  EXPECT_EQ(all.at("models")[0].at("peak_bytes"), one.at("peak_bytes"));
  EXPECT_EQ(all.at("models")[2].at("model"), "vader");
  const int64_t context = all.at("context_bytes").get<int64_t>();
  const int64_t peak = all.at("peak_bytes"), first = all.at("models")[0].at("peak_bytes"),
                second = all.at("models")[1].at("peak_bytes");
  EXPECT_LT(peak, first + second - context) << "arena and staging are held once too";
  EXPECT_GT(peak, std::max(first, second));
  int64_t reserved = 0, contexts = 0;
  for (const auto& entry : all.at("ledger")) {
    reserved += entry.at("bytes").get<int64_t>();
    contexts += entry.at("tag") == "context" ? 1 : 0;
  }
  EXPECT_EQ(reserved, all.at("peak_bytes").get<int64_t>());
  EXPECT_EQ(contexts, 1) << "held once for both";
  const std::string output = must(run("tiny,tagger,vader", {}));
  for (const char* part :
       {"tiny", "tagger", "vader", "no device memory", "tiny: model", "driver and libraries", "total", "left"})
    EXPECT_NE(output.find(part), std::string::npos) << output;
  EXPECT_EQ(must({"plan", "--model", "tiny", "--model", "tagger", "--device", "rtx3060"}),
            must(run("tiny,tagger", {})));
  EXPECT_EQ(must(run("VADER", {})), "vader: no device memory (0 bytes), runs on the CPU\n");
  refused(5, {"2 models do not fit in 280 MiB on rtx3060: they need at least", "--memory-limit"},
          run("tiny,tagger", {"--memory-limit", "280MiB"}));
  // The models of a server need not fit at the same time.
  const auto served = [&](const std::string& limit) {
    put("serve.yaml", "listen: 127.0.0.1:1\nmemory_limit: " + limit +
                          "\nmodels: {a: {path: tiny}, b: {path: tagger, precision: fp32}, c: {builtin: vader}}\n");
    return std::vector<std::string>{"plan", "--serve", "serve.yaml", "--device", "rtx3060"};
  };
  const std::string room = must(served("4GiB"));
  EXPECT_EQ(room.find("loaded on request"), std::string::npos);
  for (const char* part : {"a: model", "b: model", "\n  c ", "is counted once"})
    EXPECT_NE(room.find(part), std::string::npos) << part << "\n" << room;
  int mib = 300;
  Outcome least = brim(served("300MiB"));
  while (least.code != 0 && mib < 400) least = brim(served(std::to_string(mib += 2) + "MiB"));
  EXPECT_NE(least.out.find("loaded on request"), std::string::npos) << mib << " MiB: " << least.out << least.err;
  EXPECT_NE(room.find("all models fit together"), std::string::npos) << room;
  EXPECT_NE(least.out.find("largest sets that fit together:\n"), std::string::npos) << least.out;
  EXPECT_NE(least.out.find("B  a\n"), std::string::npos) << least.out;
  EXPECT_NE(least.out.find("B  b\n"), std::string::npos) << least.out;
  EXPECT_EQ(least.out.find("longest idle"), std::string::npos) << least.out;
  const auto sets = [&](const std::string& limit) {
    std::vector<std::string> arguments = served(limit);
    arguments.push_back("--json");
    const auto plan = nlohmann::json::parse(must(arguments));
    std::string all_sets;
    for (const auto& set : plan.at("resident_sets")) {
      all_sets += set.at("models").dump();
      EXPECT_LE(set.at("bytes"), plan.at("limit_bytes"));
    }
    return all_sets;
  };
  EXPECT_EQ(sets("4GiB"), R"(["a","b"])");
  EXPECT_EQ(sets(std::to_string(mib) + "MiB"), R"(["a"]["b"])");
  // A ladder configured by environment variables or an env file.
  const std::vector<std::string> of_env = {"plan", "--device", "rtx3060", "--serve"};
  const Surroundings bot{.environment = {{"SENTIMENT_MODEL_NAME", "tiny"}, {"SENTIMENT_BATCH_SIZE", "5"}}};
  EXPECT_NE(must(of_env, bot).find("\n  tiny "), std::string::npos);
  put("bot.env", "FEATURE_ADAPTIVE_SENTIMENT=1\nSENTIMENT_MODEL_OPEN=tiny\nSENTIMENT_MODEL_CLOSED=vader\n");
  const std::string adaptive = must({"plan", "--env-file", "bot.env", "--serve", "--device", "rtx3060"});
  for (const char* part : {"\n  tiny ", "\n  vader "}) EXPECT_NE(adaptive.find(part), std::string::npos) << adaptive;
  refused(2, {"--serve: no models", "--env-file"}, of_env);
  refused(5, {"--memory-limit"}, served("100MiB"));
  refused(2, {"one model"}, run("tiny,tagger", {"--task", "train"}));
  refused(2, {"VADER cannot be trained"}, run("vader", {"--task", "train"}));
}

}  // namespace
}  // namespace brim
