// SPDX-License-Identifier: Apache-2.0
#include "train/settings.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/test_files.h"
#include "train/job.h"
#include "train/tiny_job.h"
#include "train/trainer.h"

namespace brim::train {
namespace {

const std::filesystem::path kData = std::filesystem::path(BRIM_SOURCE_DIR) / "tests/data/train";

std::string note(const std::string& key, const std::string& value) {
  TrainSettings s;
  return apply_setting(s, key, value);
}

TEST(TrainSettings, AcceptsHuggingFaceNamesWithDashOrUnderscore) {
  TrainSettings s;
  EXPECT_EQ(apply_setting(s, "num-train-epochs", "2.5"), "");
  EXPECT_EQ(apply_setting(s, "per_device_train_batch_size", "96", "x"), "");
  apply_setting(s, "learning_rate", "2e-5", "x");
  apply_setting(s, "warmup_ratio", "0.1", "x");
  apply_setting(s, "fp16", "True", "x");
  apply_setting(s, "gradient_checkpointing", "true", "x");
  EXPECT_EQ(s.num_train_epochs, 2.5);
  EXPECT_EQ(s.train_batch_size, 96);
  EXPECT_EQ(s.learning_rate, 2e-5);
  EXPECT_EQ(s.warmup_ratio, 0.1);
  EXPECT_EQ(s.precision, (plan::PrecisionRequest{ops::Precision::fp16, true}));
  EXPECT_EQ(s.recompute, model::Recompute::full);
}

TEST(TrainSettings, ReportsRecomputationDespiteGradientCheckpointingFalse) {
  plan::Plan plan;
  plan.recompute = model::Recompute::selective;
  TrainSettings s;
  EXPECT_EQ(recompute_note(s, plan), "");
  apply_setting(s, "gradient_checkpointing", "true");
  EXPECT_EQ(recompute_note(s, plan), "");
  apply_setting(s, "gradient_checkpointing", "false");  // overrides the former
  EXPECT_FALSE(s.recompute);
  EXPECT_HAS(recompute_note(s, plan), "recompute selective (feed-forward activations); set `recompute=none`");
  plan.recompute = model::Recompute::none;
  EXPECT_EQ(recompute_note(s, plan), "");
}

TEST(TrainSettings, RejectsBothHalfPrecisions) {
  TempDir dir;
  for (const char* text : {"bf16: true\nfp16: true\n", "fp16: true\nbf16: true\n"}) {
    TrainSettings s;
    put_file(dir / "a.yaml", text);
    const std::string message = error_of(ErrorCode::usage, [&] { apply_yaml(s, dir / "a.yaml"); });
    EXPECT_HAS(message, "a.yaml:2");
    EXPECT_HAS(message, "only one of bf16 and fp16 may be true");
  }
  // A later source may switch one off.
  TrainSettings s;
  apply_setting(s, "bf16", "true", "a.yaml:1");
  apply_setting(s, "bf16", "false");
  EXPECT_FALSE(s.precision.precision);
  apply_setting(s, "fp16", "true");
  EXPECT_EQ(s.precision, (plan::PrecisionRequest{ops::Precision::fp16, true}));
  apply_setting(s, "bf16", "false");
  EXPECT_EQ(s.precision, (plan::PrecisionRequest{ops::Precision::fp16, true}));
}

TEST(TrainSettings, EveryKeyIsListedOnceWithHelp) {
  std::set<std::string> seen;
  for (const SettingInfo& key : train_settings().infos()) {
    EXPECT_TRUE(seen.insert(key.name).second) << key.name;
    EXPECT_FALSE(key.help.empty()) << key.name;
    if (key.ignored) {
      EXPECT_HAS(note(key.name, "1"), key.help);
    }
  }
}

TEST(TrainSettings, UnknownKeySuggestsTheNearest) {
  EXPECT_HAS(error_of(ErrorCode::usage, [] { note("learning_rat", "1"); }), "did you mean learning_rate?");
  EXPECT_HAS(error_of(ErrorCode::usage, [] { note("num_train_epoch", "1"); }), "num_train_epochs");
  EXPECT_HAS(error_of(ErrorCode::usage, [] { note("qqqqqqqqqqqqqqqqq", "1"); }), "unknown key");
}

TEST(TrainSettings, SuggestsItsNamesForThoseOfOtherPrograms) {
  EXPECT_HAS(error_of(ErrorCode::usage, [] { note("memory_fraction", "0.98"); }), "did you mean `memory_limit=98%`?");
  EXPECT_HAS(error_of(ErrorCode::usage, [] { note("memory_fraction", "most"); }), "did you mean memory_limit?");
  EXPECT_HAS(error_of(ErrorCode::usage, [] { note("gpu", "0"); }), "did you mean `device=cuda:0`?");
  EXPECT_HAS(error_of(ErrorCode::usage, [] { note("per_device_batch_size", "8"); }),
             "did you mean per_device_train_batch_size?");
  EXPECT_HAS(error_of(ErrorCode::usage, [] { note("dynamic_batch_sizing", "maybe"); }), "must be true or false");
  TrainSettings s;
  s.model = "vader";
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { find_models(s); }), "VADER is a lexicon and cannot be trained");
}

TEST(TrainSettings, InvalidValuesReportKeyValueAndExpectation) {
  const std::string message = error_of(ErrorCode::usage, [] { note("learning_rate", "fast"); });
  EXPECT_HAS(message, "learning_rate");
  EXPECT_HAS(message, "fast");
  EXPECT_HAS(message, "a number");
  error_of(ErrorCode::usage, [] { note("batch_size", "8.5"); });
  error_of(ErrorCode::usage, [] { note("bf16", "perhaps"); });
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, std::string>>{{"learning_rate", "0"},
                                                        {"learning_rate", "nan"},
                                                        {"batch_size", "-1"},
                                                        {"lr_scheduler_type", "polynomial"},
                                                        {"label_smoothing_factor", "1"},
                                                        {"hard_weight", "2"},
                                                        {"temperature", "0"},
                                                        {"warmup_ratio", "1.5"},
                                                        {"optim", "sgd"},
                                                        {"metric_for_best_model", "bleu"},
                                                        {"dropout", "1"},
                                                        {"dropout", "-0.5"},
                                                        {"max_steps", "0"},
                                                        {"max_steps", "-5"},
                                                        {"num_train_epochs", "inf"},
                                                        {"num_train_epochs", "1e9"},
                                                        {"learning_rate", "inf"},
                                                        {"weight_decay", "nan"},
                                                        {"batch_size", "9223372036854775807"},
                                                        {"batch_tokens", "-4"},
                                                        {"lr_reference_batch", "0"},
                                                        {"max_grad_norm", "-1"},
                                                        {"adam_beta1", "1.5"},
                                                        {"adam_beta2", "1"},
                                                        {"adam_epsilon", "-1"},
                                                        {"max_length", "-3"},
                                                        {"student_layers", "-1"},
                                                        {"freeze", "all"},
                                                        {"freeze", "layers:0"},
                                                        {"freeze", "layers:x"},
                                                        {"freeze", "head"},
                                                        {"hard_weight", "nan"},
                                                        {"warmup_steps", "nan"},
                                                        {"early_stopping_patience", "-1"},
                                                        {"early_stopping_patience", "2"},  // without val
                                                        {"token_train", "a.conll"}}) {     // without task: multi
    EXPECT_HAS(error_of(ErrorCode::usage,
                        [&, key = key, value = value] {
                          TrainSettings s;
                          s.train_files = {"a"};
                          s.output_dir = "b";
                          apply_setting(s, key, value);
                          check_settings(s);
                        }),
               key);
  }
}

TEST(TrainSettings, ReadsVisobertsFileUnchanged) {
  TrainSettings s;
  const auto notes = apply_yaml(s, kData / "visobert_rtx3070.yaml");
  EXPECT_EQ(s.train_batch_size, 96);
  EXPECT_EQ(s.num_train_epochs, 5);
  EXPECT_EQ(s.precision.precision, ops::Precision::fp16);  // fp16 wins over tf32
  EXPECT_EQ(s.optim, model::Optimizer::adamw_8bit);
  EXPECT_EQ(s.recompute, std::nullopt);
  EXPECT_EQ(s.lr_schedule, LrSchedule::cosine);
  EXPECT_EQ(notes.size(), 5u);  // eval batch, workers, prefetch, persistent, pinning
  s.train_files = {"a"};
  s.output_dir = "b";
  check_settings(s);
}

TEST(TrainSettings, ReadsTheMemoryManagersFileUnchanged) {
  TrainSettings s;
  const auto notes = apply_yaml(s, kData / "nbeats_12gb.yaml");
  EXPECT_EQ(s.memory_limit.bytes, 12'000'000'000);
  EXPECT_EQ(s.gradient_accumulation_steps, 2);
  EXPECT_EQ(s.precision, (plan::PrecisionRequest{std::nullopt, true}));
  EXPECT_EQ(notes.size(), 3u);
  EXPECT_HAS(notes[0], "dynamic_batch_sizing");
}

TEST(TrainSettings, YamlErrorsHaveFileAndLine) {
  TempDir dir;
  TrainSettings s;
  const auto bad = [&](const std::string& text) {
    put_file(dir / "a.yaml", text);
    return error_of(ErrorCode::usage, [&] { apply_yaml(s, dir / "a.yaml"); });
  };
  EXPECT_HAS(bad("seed: 1\nlearning_rte: 1\n"), "a.yaml:2: unknown key learning_rte; did you mean learning_rate?");
  EXPECT_HAS(bad("model_settings:\n  seed: 1\n"), "unknown block model_settings");
  EXPECT_HAS(bad("gpu_optimization:\n  dynamic_batch_sizing: maybe\n"),
             "a.yaml:2: dynamic_batch_sizing: maybe: must be true or false");
  EXPECT_HAS(bad("memory_fraction: 0.98\n"), "a.yaml:1: unknown key memory_fraction; did you mean memory_limit: 98%?");
  EXPECT_HAS(bad("gpu_optimisation:\n  max_memory_gb: 3\n"), "did you mean gpu_optimization?");
  EXPECT_HAS(bad("gpu_optimization: 3\n"), "a.yaml:1: gpu_optimization is a block; put its keys below it");
  EXPECT_HAS(bad("gpu_optimization:\n  max_memory_gb: -1\n"),
             "a.yaml:2: max_memory_gb: -1: must be a number of GB above 0");
  EXPECT_HAS(bad("seed: 1\ntrain: [{a: b}]\n"), "a.yaml:2");
  put_file(dir / "b.yaml", "precision: BF16\n\nmax_memory_gb: 12.0\n");
  TrainSettings limited;
  apply_yaml(limited, dir / "b.yaml");
  EXPECT_EQ(limited.precision, (plan::PrecisionRequest{ops::Precision::bf16, false}));
  EXPECT_EQ(limited.limit_origin.name(""), (dir / "b.yaml").string() + ":3: max_memory_gb: 12.0");
  apply_setting(limited, "memory_limit", "2GiB");
  EXPECT_EQ(limited.limit_origin.name("2GiB"), "`memory_limit=2GiB`");
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { apply_yaml(s, dir / "."); }), "is a directory");
  EXPECT_HAS(bad("- 1\n- 2\n"), "not a mapping");
  EXPECT_HAS(bad("seed: [1\n"), "a.yaml:");
  EXPECT_HAS(bad("seed: 1\ntrain: a: b\n"), "a.yaml:2: invalid YAML: more than one ':' on the line");
  EXPECT_HAS(bad("seed: many\n"), "a.yaml:1");
  EXPECT_HAS(bad("learning_rate: [1e-5, 2e-5]\n"), "a.yaml:1: learning_rate takes one value");
  EXPECT_HAS(bad("seed: 1\nlearning_rate: 1e-5\nlearning-rate: 2e-5\n"), "a.yaml:3: duplicate key learning-rate");
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { apply_yaml(s, dir / "missing.yaml"); }), "cannot be read");
}

TEST(TrainSettings, ResumeAcceptsAPathOrABoolean) {
  const auto read = [](const std::string& value) {
    TrainSettings s;
    apply_setting(s, "resume_from_checkpoint", value, "x");
    return s.resume_from_checkpoint;
  };
  for (const char* newest : {"last", "true", "True", "auto", "latest"}) EXPECT_EQ(read(newest), "last") << newest;
  for (const char* none : {"false", "False", "none", ""}) EXPECT_EQ(read(none), "") << none;
  EXPECT_EQ(read("out/checkpoint-4"), "out/checkpoint-4");
}

TEST(TrainSettings, AcceptsLabelColumnsAsAListOrRepeated) {
  for (const std::vector<const char*>& given : {std::vector<const char*>{"a,b"}, {"a", "b"}}) {
    TrainSettings s;
    for (const char* value : given) apply_setting(s, "label-column", value);
    EXPECT_EQ(s.label_columns, (std::vector<std::string>{"a", "b"}));
    EXPECT_TRUE(s.several_labels());
  }
  TrainSettings smoothed;
  apply_setting(smoothed, "label_column", "a,b");
  apply_setting(smoothed, "label_smoothing_factor", "0.1");
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { check_values(smoothed); }), "multi-label rows");
  TrainSettings one;
  apply_setting(one, "label_column", "stance");
  EXPECT_EQ(one.label_columns, (std::vector<std::string>{"stance"}));
  EXPECT_FALSE(one.several_labels());
}

TEST(TrainSettings, IgnoredKeyIsReportedOnceRegardlessOfItsValue) {
  TempDir dir;
  TrainSettings s;
  put_file(dir / "a.yaml",
           "gradient_checkpointing_kwargs: {use_reentrant: false}\nhub_strategy: [end, checkpoint]\nrun_name:\n");
  const auto notes = apply_yaml(s, dir / "a.yaml");
  ASSERT_EQ(notes.size(), 3u);
  EXPECT_HAS(notes[0], "a.yaml:1: gradient_checkpointing_kwargs is ignored");
  EXPECT_HAS(notes[1], "hub_strategy");
}

TEST(TrainSettings, ReportsToTensorboardOnly) {
  TempDir dir;
  TrainSettings s;
  put_file(dir / "a.yaml", "report_to: [wandb, tensorboard]\n");
  const auto notes = apply_yaml(s, dir / "a.yaml");
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_HAS(notes[0], "report_to wandb is ignored: only tensorboard is supported");
  EXPECT_TRUE(s.tensorboard());
  TrainSettings none;
  EXPECT_EQ(apply_setting(none, "report_to", "none"), "");
  EXPECT_FALSE(none.tensorboard());
}

TEST(TrainSettings, ReadsYamlListsAndBlocks) {
  TempDir dir;
  TrainSettings s;
  put_file(dir / "a.yaml",
           "data:\n  train: [a.csv, b.csv]\n  val: c.csv\ntraining:\n  seed: 7\n  resume_from_checkpoint: true\n  "
           "class_weights: [1, 2.5]\n");
  apply_yaml(s, dir / "a.yaml");
  EXPECT_EQ(s.train_files, (std::vector<std::string>{"a.csv", "b.csv"}));
  EXPECT_EQ(s.validation_files, (std::vector<std::string>{"c.csv"}));
  EXPECT_EQ(s.seed, 7);
  EXPECT_EQ(s.resume_from_checkpoint, "last");
  EXPECT_EQ(s.class_weights, "1,2.5");
}

TEST(TrainSettings, ListsDefaults) {
  std::map<std::string, std::string> defaults;
  for (const SettingInfo& key : train_settings().infos()) defaults[key.name] = key.default_value;
  EXPECT_EQ(defaults["learning_rate"], "5e-05");
  EXPECT_EQ(defaults["num_train_epochs"], "3");
  EXPECT_EQ(defaults["per_device_train_batch_size"], "32");
  EXPECT_EQ(defaults["lr_scheduler_type"], "linear");
  EXPECT_EQ(defaults["load_best_model_at_end"], "true");
  EXPECT_EQ(defaults["on_error"], "stop");
  EXPECT_EQ(defaults["output"], "");
}

TEST(TrainSettings, AcceptsOrSuggestsNamesFromOtherTools) {
  TrainSettings s;
  apply_setting(s, "grad_accum_steps", "4", "x");
  EXPECT_EQ(s.gradient_accumulation_steps, 4);
  s.metric_for_best_model = "f1";
  check_values(s);
  EXPECT_EQ(train_settings().nearest("lr"), "learning_rate");
  EXPECT_EQ(train_settings().nearest("epochs"), "num_train_epochs");
  EXPECT_EQ(train_settings().nearest("resume"), "resume_from_checkpoint");
  EXPECT_EQ(train_settings().nearest("lerning-rate"), "learning_rate");
  EXPECT_EQ(train_settings().nearest("qqqqqqqqqqqqqqqq"), "");
  EXPECT_HAS(error_of(ErrorCode::usage, [] { note("lr", "1"); }), "did you mean learning_rate?");
}

TEST(TrainSettings, DelimiterIsOneCharacter) {
  TrainSettings s;
  apply_setting(s, "delimiter", ";", "x");
  EXPECT_EQ(s.delimiter, ';');
  apply_setting(s, "delimiter", "tab", "x");
  EXPECT_EQ(s.delimiter, '\t');
  for (const char* wrong : {"", ";;", "a", "\""})
    EXPECT_HAS(error_of(ErrorCode::usage, [&] { note("delimiter", wrong); }), "one character");
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { note("on_error", "null"); }), "`on_error=null`: use stop or skip");
}

// Formatting and parsing a setting gives the same value, for every choice.
TEST(TrainSettings, EveryValueRoundTrips) {
  for (const Setting<TrainSettings>& row : train_settings().rows()) {
    if (!row.value.get) continue;
    TrainSettings s;
    const std::string standard = row.value.get(s);
    if (!standard.empty()) {
      apply_setting(s, row.name, standard);
      EXPECT_EQ(row.value.get(s), standard) << row.name;
    }
    for (const std::string& value : row.value.choices) {
      apply_setting(s, row.name, value);
      TrainSettings again;
      apply_setting(again, row.name, row.value.get(s));
      EXPECT_EQ(row.value.get(again), row.value.get(s)) << row.name << " " << value;
    }
  }
}

// Existing checkpoints contain these names and texts, so they must not change.
TEST(TrainSettings, FingerprintMatchesEarlierVersions) {
  TrainSettings s;
  std::string same, report;
  for (const KeptSetting& kept : train_settings().kept(s))
    (kept.keep == Keep::same ? same : report) += kept.name + "=" + kept.value + " ";
  EXPECT_EQ(same,
            "num_train_epochs=3 max_steps=-1 per_device_train_batch_size=32 gradient_accumulation_steps=1 "
            "batch_tokens=0 learning_rate=5e-05 lr_scheduler_type=linear lr_scaling=none lr_reference_batch=32 "
            "warmup_steps=0 warmup_ratio=0 weight_decay=0.01 adam_beta1=0.9 adam_beta2=0.999 adam_epsilon=1e-08 "
            "max_grad_norm=1 label_smoothing_factor=0 class_weights=none max_length=0 seed=42 dropout=the model's "
            "eval_strategy=epoch eval_steps=500 load_best_model_at_end=true metric_for_best_model= "
            "early_stopping_patience=0 temperature= hard_weight= student_layers= ");
  EXPECT_EQ(report,
            "task=auto save_strategy=epoch save_steps=500 save_total_limit=2 logging_steps=50 precision=auto "
            "optim=auto recompute=auto device=auto memory_limit=auto token_set=auto ");
}

TEST(Trainer, RejectsIncompatibleSettingsBeforeTraining) {
  TinyJob t;
  model::put_golden_model(t.dir / "tagger", "bert_token");
  put_file(t.dir / "train.conll", TinyJob::conll(12, 1));
  put_file(t.dir / "empty.csv", "text,label\n");
  put_file(t.dir / "empty.conll", "\n");
  const std::string conll = (t.dir / "train.conll").string();
  const auto refused = [&](ErrorCode code, auto change) {
    TrainSettings s = t.settings;
    change(s);
    const std::string message = error_of(code, [&] { train(s, {}); });
    EXPECT_FALSE(std::filesystem::exists(t.out())) << message;
    return message;
  };
  EXPECT_HAS(refused(ErrorCode::usage, [](auto& s) { s.metric_for_best_model = "eval_entity_f1"; }), "macro_f1");
  EXPECT_HAS(refused(ErrorCode::usage,
                     [&](auto& s) {
                       s.train_files = {conll};
                       s.metric_for_best_model = "macro_f1";
                     }),
             "entity_f1");
  EXPECT_HAS(refused(ErrorCode::usage,
                     [&](auto& s) {
                       s.train_files = {conll};
                       s.class_weights = "balanced";
                     }),
             "class_weights");
  EXPECT_HAS(refused(ErrorCode::usage,
                     [&](auto& s) {
                       s.train_files = {conll};
                       s.teachers = {s.model};
                     }),
             "`teacher`");
  EXPECT_HAS(refused(ErrorCode::bad_model, [&](auto& s) { s.teachers = {(t.dir / "tagger").string()}; }),
             "no classification head");
  EXPECT_HAS(refused(ErrorCode::usage,
                     [&](auto& s) {
                       s.task = TaskChoice::multi;
                       s.token_train_file = conll;
                     }),
             "`token_val=FILE`");
  EXPECT_HAS(refused(ErrorCode::bad_data, [&](auto& s) { s.train_files = {(t.dir / "empty.csv").string()}; }),
             "empty.csv: no rows");
  EXPECT_HAS(refused(ErrorCode::bad_data, [&](auto& s) { s.train_files = {(t.dir / "empty.conll").string()}; }),
             "empty.conll: no rows");
  EXPECT_HAS(refused(ErrorCode::bad_data, [&](auto& s) { s.validation_files = {(t.dir / "empty.csv").string()}; }),
             "empty.csv: no rows");
  EXPECT_HAS(refused(ErrorCode::bad_data, [&](auto& s) { s.train_files = {conll}; }),
             "train.conll: the data has tags, but the model " + t.settings.model +
                 " has a classifier (negative, neutral, positive); set `ignore_mismatched_head=true`");
  EXPECT_HAS(refused(ErrorCode::bad_data, [&](auto& s) { s.model = (t.dir / "tagger").string(); }), " has a tagger (");
  EXPECT_HAS(refused(ErrorCode::usage, [](auto& s) { s.max_length = 2; }), "max_length 2: must be above");
  EXPECT_HAS(refused(ErrorCode::usage, [](auto& s) { s.format = "xml"; }), "conll");
  std::string many = "text,label\n";
  for (int i = 0; i < 300; ++i) many += "w5,class" + std::to_string(i) + "\n";
  put_file(t.dir / "many.csv", many);
  const std::string message =
      refused(ErrorCode::bad_data, [&](auto& s) { s.train_files = {(t.dir / "many.csv").string()}; });
  EXPECT_HAS(message, "(300 in total)");
  EXPECT_LT(message.size(), 600u);
  for (const char* weights : {"1,-2,3", "nan,1,1", "0,0,0", "1,2"})
    EXPECT_HAS(refused(ErrorCode::usage, [&](auto& s) { s.class_weights = weights; }), "class_weights");
}

TEST(Trainer, RejectsFp8OnTheCpuAndInt8Training) {
  TinyJob t;
  t.settings.precision = {ops::Precision::fp8};
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { t.run(); }), "training in fp8 requires sm_89 or newer");
  t.settings.precision = {ops::Precision::int8};
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { t.run(); }), "training supports fp32, tf32, bf16, fp16 and fp8");
}

TEST(Trainer, HalfPrecisionSwitchIsOptionalOnTheCpu) {
  TinyJob t;
  apply_yaml(t.settings, kData / "visobert_rtx3070.yaml");
  t.settings.num_train_epochs = 1;
  EXPECT_EQ(t.run().steps, 1);  // 48 rows in a batch of 96
  TrainSettings s = t.to("fp16");
  apply_setting(s, "precision", "fp16");
  error_of(ErrorCode::usage, [&] { train(s, {}); });
  TinyJob d;
  apply_yaml(d.settings, kData / "nbeats_12gb.yaml");
  d.settings.memory_limit = plan::MemoryLimit::read("1GiB");  // the machine may have less than 12 GB
  EXPECT_EQ(d.run().steps, 6);
}

}  // namespace
}  // namespace brim::train
