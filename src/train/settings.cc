// SPDX-License-Identifier: Apache-2.0
#include "train/settings.h"

#include <algorithm>

#include "base/error.h"
#include "base/units.h"
#include "hub/model_dir.h"
#include "ops/loss.h"

namespace brim::train {
namespace {

constexpr int64_t kMostSamples = 1 << 30;  // per step
constexpr double kMostEpochs = 1e6;

}  // namespace

bool TrainSettings::tensorboard() const {
  return std::any_of(report_to.begin(), report_to.end(),
                     [](const std::string& name) { return name == "tensorboard" || name == "all"; });
}

std::string apply_setting(TrainSettings& settings, std::string_view key, std::string_view value,
                          const std::string& where) {
  std::string note = train_settings().apply(settings, key, value, where);
  settings.note_origin(key, value, where);
  if (underscored(key) == "report_to" && value != "none" && value != "all" && value != "tensorboard")
    return ignored_note(fmt::format("report_to {}", value), where, "only tensorboard is supported");
  return note;
}

std::string setting_text(const TrainSettings& settings, std::string_view key) {
  return train_settings().find(key)->value.get(settings);
}

std::vector<std::string> apply_yaml(TrainSettings& settings, const std::filesystem::path& path) {
  static const std::vector<SettingInfo> infos = train_settings().infos();
  YamlKeys keys;
  keys.blocks = {
      "training", "training_args", "training_arguments", "model", "data",       "gpu_optimization", "optimization",
      "hardware", "lora",          "lora_config",        "peft",  "peft_config"};
  keys.joined = {"class_weights"};
  keys.find = [](std::string_view key) { return find_info(infos, key); };
  keys.apply = [&](std::string_view key, std::string_view value, const std::string& where) {
    return apply_setting(settings, key, value, where);
  };
  return apply_yaml(keys, path);
}

void find_models(TrainSettings& settings) {
  std::error_code ec;
  const auto is_file = [&](const std::string& teacher) { return std::filesystem::is_regular_file(teacher, ec); };
  if (settings.model.empty())
    if (const auto first = std::find_if_not(settings.teachers.begin(), settings.teachers.end(), is_file);
        first != settings.teachers.end())
      settings.model = *first;
  if (settings.model.empty()) fail(ErrorCode::usage, Remedy{"set `model=DIR`"}, "no model to start from");
  if (same_word(settings.model, "vader") && !std::filesystem::is_directory(settings.model, ec))
    fail(ErrorCode::usage, Remedy{"set `model` to an encoder, such as distilbert"},
         "`model={}`: VADER is a lexicon and cannot be trained", settings.model);
  const auto places = hub::model_search_path(hub::model_roots());
  settings.model = resolve_model(settings.model, places).string();
  for (std::string& teacher : settings.teachers)
    if (!is_file(teacher)) teacher = resolve_model(teacher, places).string();
}

model::Freeze read_freeze(std::string_view text) {
  using Part = model::Freeze::Part;
  if (text.empty() || same_word(text, "none")) return {};
  if (same_word(text, "embeddings")) return {Part::embeddings};
  if (same_word(text, "all-but-head") || same_word(text, "all_but_head")) return {Part::all_but_head};
  if (same_word(text, "all")) throw BadValue{"leaves nothing to train; use all-but-head"};
  if (!text.starts_with("layers:")) throw BadValue{"use embeddings, layers:N or all-but-head"};
  const int64_t layers = read_whole_number(text.substr(7));
  if (layers < 1) throw BadValue{"the number of layers must be above zero"};
  return {Part::layers, layers};
}

std::string freeze_text(const model::Freeze& freeze) {
  using Part = model::Freeze::Part;
  if (freeze.part == Part::layers) return fmt::format("layers:{}", freeze.layers);
  return freeze.part == Part::embeddings ? "embeddings" : freeze.part == Part::all_but_head ? "all-but-head" : "";
}

model::ModelShape with_freeze(model::ModelShape shape, const model::Freeze& freeze) {
  if (freeze.part == model::Freeze::Part::layers && freeze.layers > shape.layers)
    fail(ErrorCode::usage, "`freeze={}`: the model has {} layers", freeze_text(freeze), shape.layers);
  if (freeze.part == model::Freeze::Part::layers && shape.layer_groups > 0 && freeze.layers < shape.layers)
    fail(ErrorCode::usage, Remedy{"set `freeze=embeddings` or `freeze=all-but-head`"},
         "`freeze={}`: the layers of this model share their parameters", freeze_text(freeze));
  shape.freeze = freeze;
  return shape;
}

namespace {

// Combinations of settings with LoRA.
void check_lora(const TrainSettings& s) {
  const std::pair<const char*, bool> parts[] = {{"lora_alpha", s.lora_alpha.has_value()},
                                                {"lora_targets", !s.lora_targets.empty()},
                                                {"lora_layers", !s.lora_layers.empty()},
                                                {"use_rslora", s.use_rslora}};
  for (const auto& [key, given] : parts) {
    if (given && !s.lora()) fail(ErrorCode::usage, Remedy{"set `lora_r=8`"}, "`{}`: requires `lora_r`", key);
    if (given && !s.adapter.empty())
      fail(ErrorCode::usage, "`{}`: cannot be combined with `adapter`, which determines it", key);
  }
  if (s.lora_dropout && !s.lora())
    fail(ErrorCode::usage, Remedy{"set `lora_r=8`"}, "`lora_dropout`: requires `lora_r`");
  if (!s.lora()) return;
  const std::string lora = s.adapter.empty() ? fmt::format("lora_r={}", s.lora_r) : "adapter=" + s.adapter;
  if (s.freeze)
    fail(ErrorCode::usage, "`freeze={}`: cannot be combined with `{}`, which freezes the model", freeze_text(s.freeze),
         lora);
  if (s.precision.precision == ops::Precision::fp8)
    fail(ErrorCode::usage, Remedy{"set `precision=bf16`"}, "`{}`: not supported with `precision=fp8`", lora);
  if (s.student_layers > 0)
    fail(ErrorCode::usage, "`student_layers={}`: not supported with `{}`", s.student_layers, lora);
  if (!s.teachers.empty()) fail(ErrorCode::usage, "`teacher`: not supported with `{}`", lora);
}

}  // namespace

void check_values(const TrainSettings& s) {
  const auto need_above_zero = [&](const char* key) {
    const std::string value = setting_text(s, key);
    if (const char* what = setting::above_zero(read_number(value))) refuse_value(key, value, "", what);
  };
  train_settings().check(s);
  if (s.max_steps == 0 || s.max_steps < -1)
    fail(ErrorCode::usage, Remedy{"omit it or set -1 to use `num_train_epochs`"}, "`max_steps={}`: must be above zero",
         s.max_steps);
  if (s.max_steps < 0) need_above_zero("num_train_epochs");
  if (s.max_steps < 0 && s.num_train_epochs > kMostEpochs)
    fail(ErrorCode::usage, "`num_train_epochs={}`: must be at most {}", s.num_train_epochs, kMostEpochs);
  if (s.train_batch_size > kMostSamples / s.gradient_accumulation_steps)
    fail(ErrorCode::usage, "`batch_size={}` times `gradient_accumulation_steps={}`: at most {} rows per step",
         s.train_batch_size, s.gradient_accumulation_steps, kMostSamples);
  if (s.freeze && s.precision.precision == ops::Precision::fp8)
    fail(ErrorCode::usage, Remedy{"set `precision=bf16`"}, "`freeze={}`: not supported with `precision=fp8`",
         freeze_text(s.freeze));
  check_lora(s);
  if (s.eval_strategy == Strategy::steps) need_above_zero("eval_steps");
  if (s.save_strategy == Strategy::steps) need_above_zero("save_steps");
  if (s.teachers.size() > static_cast<size_t>(ops::kMostTeachers))
    fail(ErrorCode::usage, "`teacher`: {} given, at most {} supported", s.teachers.size(), ops::kMostTeachers);
  if (s.teachers.empty() && !s.teacher_weights.empty()) fail(ErrorCode::usage, "`teacher_weight`: requires `teacher`");
  if (s.task == TaskChoice::multi && s.several_labels())
    fail(ErrorCode::usage, Remedy{"use `task=classification` for multi-label rows"},
         "`task=multi` supports one label per row");
  if (s.several_labels() && s.label_smoothing > 0)
    fail(ErrorCode::usage, "`label_smoothing` is not supported for multi-label rows");
  if (!s.numbers()) return;
  if (s.several_labels()) fail(ErrorCode::usage, "`task=regression` supports one number per row");
  if (!s.teachers.empty()) fail(ErrorCode::usage, "`teacher`: not supported for regression");
  if (s.class_weights != "none") fail(ErrorCode::usage, "`class_weights`: not supported for regression");
  if (s.label_smoothing > 0) fail(ErrorCode::usage, "`label_smoothing`: not supported for regression");
}

void check_settings(const TrainSettings& s) {
  if (s.train_files.empty()) fail(ErrorCode::usage, Remedy{"set `train=FILE`"}, "no training data");
  if (s.output_dir.empty()) fail(ErrorCode::usage, Remedy{"set `output=DIR`"}, "no output directory");
  check_values(s);
  if (s.precision.precision == ops::Precision::int8)
    fail(ErrorCode::usage, "`precision=int8`: training supports fp32, tf32, bf16, fp16 and fp8");
  if (s.early_stopping_patience > 0 && (s.validation_files.empty() || s.eval_strategy == Strategy::no))
    fail(ErrorCode::usage, Remedy{"set `val=FILE`, and `eval_strategy=steps` or `eval_strategy=epoch`"},
         "`early_stopping_patience` requires evaluations");
  if (s.task != TaskChoice::multi && !(s.token_train_file.empty() && s.token_validation_file.empty()))
    fail(ErrorCode::usage, Remedy{"set `train` to the CoNLL file to train on tags only"},
         "`token_train` and `token_val` require `task=multi`");
  if (s.task == TaskChoice::multi && s.validation_files.empty() != s.token_validation_file.empty())
    fail(ErrorCode::usage, Remedy{"set both `val=FILE` and `token_val=FILE`, or neither"},
         "`task=multi` requires validation data for both heads");
}

}  // namespace brim::train
