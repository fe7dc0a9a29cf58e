// SPDX-License-Identifier: Apache-2.0
#include "train/settings.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/units.h"
#include "io/labels.h"
#include "io/row_reader.h"
#include "io/yaml_file.h"

namespace brim {
namespace {

using Setter = std::function<void(TrainSettings&, std::string_view value)>;
using Getter = std::function<std::string(const TrainSettings&)>;

// How a key is written, and for the help how it is read: its default.
struct Access {
  Setter set;
  Getter get;
  template <class Fn>
  requires std::is_invocable_v<Fn, TrainSettings&, std::string_view> Access(Fn fn)
      : set(std::move(fn)) {}  // NOLINT: implicit on purpose
  Access(Setter setter, Getter getter) : set(std::move(setter)), get(std::move(getter)) {}
  Access() = default;
};

struct Bad {
  std::string wanted;
};
constexpr const char* kTruth = "true or false";

template <class Number>
Number number(std::string_view text, const char* wanted) {
  Number n{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end != text.data() + text.size()) throw Bad{wanted};
  return n;
}

std::optional<bool> read_boolean(std::string_view text) {
  for (const char* yes : {"true", "True", "TRUE", "1", "yes", "on"})
    if (text == yes) return true;
  for (const char* no : {"false", "False", "FALSE", "0", "no", "off"})
    if (text == no) return false;
  return std::nullopt;
}

bool boolean(std::string_view text) {
  if (const auto truth = read_boolean(text)) return *truth;
  throw Bad{kTruth};
}

template <class T, class Parse>
Access access(T TrainSettings::*m, Parse parse) {
  return {[m, parse](TrainSettings& s, std::string_view v) { s.*m = parse(v); },
          [m](const TrainSettings& s) { return fmt::format("{}", s.*m); }};
}
Access set(std::string TrainSettings::*m) {
  return access(m, [](std::string_view v) { return std::string(v); });
}
Access set(int64_t TrainSettings::*m) {
  return access(m, [](std::string_view v) { return number<int64_t>(v, "a whole number"); });
}
Access set(int TrainSettings::*m) {
  return access(m, [](std::string_view v) { return number<int>(v, "a whole number"); });
}
Access set(double TrainSettings::*m) {
  return access(m, [](std::string_view v) { return number<double>(v, "a number"); });
}
Access set(bool TrainSettings::*m) { return access(m, boolean); }
Setter list(std::vector<std::string> TrainSettings::*m) {
  return [m](TrainSettings& s, std::string_view v) { (s.*m).emplace_back(v); };
}
Setter precision_flag(const char* name) {
  return [name](TrainSettings& s, std::string_view v) {
    if (boolean(v)) {
      s.precision = name;
      s.precision_by_switch = true;
    }
  };
}

constexpr int64_t kMostSamples = 1 << 30;  // of a step
constexpr double kMostEpochs = 1e6;

struct Key {
  const char* name;
  const char* help;
  Access access;  // empty: unnecessary, `help` explains
};

const std::vector<Key>& table() {
  using S = TrainSettings;
  static const std::vector<Key> keys = {
      {"model", "model directory or name to start from", set(&S::model)},
      {"model_name_or_path", "the same", set(&S::model)},
      {"train", "training rows (csv, tsv, jsonl) or tagged words (CoNLL, jsonl); may be given several times",
       list(&S::train_files)},
      {"train_file", "the same", list(&S::train_files)},
      {"val", "validation rows; may be given several times", list(&S::validation_files)},
      {"validation_file", "the same", list(&S::validation_files)},
      {"token_train", "`task=multi`: tagged words (CoNLL, jsonl) for the token head", set(&S::token_train_file)},
      {"token_val", "`task=multi`: tagged words for validation", set(&S::token_validation_file)},
      {"output", "directory for the trained model and its checkpoints", set(&S::output_dir)},
      {"output_dir", "the same", set(&S::output_dir)},
      {"overwrite_output_dir", "write into an output directory that is not empty", set(&S::overwrite_output_dir)},
      {"text_column", "column or key that holds the text; without it `text`", set(&S::text_column)},
      {"label_column",
       "column or key that holds the label, without it `label`; several (a,b,c or given again): a 0/1 column each, "
       "multi-label",
       [](S& s, std::string_view v) {
         for (auto& name : split_names(v, ',')) s.label_columns.push_back(std::move(name));
       }},
      {"format", "auto, csv, tsv, jsonl or conll", set(&S::format)},
      {"delimiter",
       "what separates the columns of csv and tsv rows, where it is neither comma nor tab: ';', '|', …, or tab",
       [](S& s, std::string_view v) {
         const auto character = parse_delimiter(v);
         if (!character) throw Bad{"one character that is no letter, digit or quote, or tab"};
         s.delimiter = *character;
       }},
      {"no_quotes", "quotes in csv and tsv rows are characters like any other", set(&S::no_quotes)},
      {"on_error", "rows without text or label, or with a label that is not known: stop or skip", set(&S::on_error)},
      {"task", "auto, classification, ner or multi (both heads)", set(&S::task)},
      {"multi_label", "several labels per row in one column, separated by |; none is allowed", set(&S::multi_label)},
      {"ignore_mismatched_head",
       "start a new classifier where the labels differ from the model's; what lies below it is kept",
       set(&S::ignore_mismatched_head)},
      {"num_train_epochs", "passes over the data", set(&S::num_train_epochs)},
      {"max_steps", "updates; overrides epochs; -1: epochs decide", set(&S::max_steps)},
      {"batch_size", "batch size: rows an update is made from (how many are computed at once, the plan decides)",
       set(&S::train_batch_size)},
      {"per_device_train_batch_size", "the same", set(&S::train_batch_size)},
      {"train_batch_size", "the same", set(&S::train_batch_size)},
      {"gradient_accumulation_steps", "multiplies the batch size", set(&S::gradient_accumulation_steps)},
      {"grad_accum_steps", "the same", set(&S::gradient_accumulation_steps)},
      {"batch_tokens", "batch size in tokens instead of rows; 0: rows count", set(&S::batch_tokens)},
      {"learning_rate", "peak learning rate", set(&S::learning_rate)},
      {"lr_scheduler_type", "linear, cosine, constant or constant_with_warmup", set(&S::lr_scheduler_type)},
      {"lr_scaling", "none, sqrt or linear: scales the rate with the batch", set(&S::lr_scaling)},
      {"lr_reference_batch", "batch at which the learning rate holds as given", set(&S::lr_reference_batch)},
      {"warmup_steps", "steps of linear warm-up; below 1: a share of all steps", set(&S::warmup_steps)},
      {"warmup_ratio", "warm-up as a share of all steps", set(&S::warmup_ratio)},
      {"weight_decay", "decoupled decay; none on biases and norms", set(&S::weight_decay)},
      {"adam_beta1", "AdamW", set(&S::adam_beta1)},
      {"adam_beta2", "AdamW", set(&S::adam_beta2)},
      {"adam_epsilon", "AdamW", set(&S::adam_epsilon)},
      {"max_grad_norm", "gradient clipping by global norm; 0: off", set(&S::max_grad_norm)},
      {"label_smoothing_factor", "label smoothing", set(&S::label_smoothing)},
      {"class_weights", "none, balanced, or one number per class", set(&S::class_weights)},
      {"max_length", "longest text in tokens; 0: the model's own", set(&S::max_length)},
      {"max_seq_length", "the same", set(&S::max_length)},
      {"seed", "of shuffling, dropout and new heads", set(&S::seed)},
      {"dropout", "overrides the model's dropout; -1: the model's own", set(&S::dropout)},
      {"eval_strategy", "no, steps or epoch", set(&S::eval_strategy)},
      {"evaluation_strategy", "the same", set(&S::eval_strategy)},
      {"eval_steps", "steps between evaluations", set(&S::eval_steps)},
      {"save_strategy", "no, steps or epoch", set(&S::save_strategy)},
      {"save_steps", "steps between checkpoints", set(&S::save_steps)},
      {"save_total_limit", "checkpoints kept", set(&S::save_total_limit)},
      {"logging_steps", "steps between log lines", set(&S::logging_steps)},
      {"load_best_model_at_end", "write the best model, not the last", set(&S::load_best_model_at_end)},
      {"metric_for_best_model",
       "accuracy, macro_f1, macro_recall, loss, entity_f1, mean_f1 (both heads) or f1: the task's own, which is the "
       "default",
       set(&S::metric_for_best_model)},
      {"early_stopping_patience", "evaluations without improvement before stopping; 0: never",
       set(&S::early_stopping_patience)},
      {"resume_from_checkpoint", "a checkpoint directory, or `last`",
       [](S& s, std::string_view v) {
         for (const char* newest : {"last", "latest", "auto"})
           if (v == newest) v = "true";
         for (const char* none : {"", "none", "None", "null"})
           if (v == none) v = "false";
         const auto truth = read_boolean(v);
         s.resume_from_checkpoint = !truth ? std::string(v) : *truth ? "last" : "";
       }},
      {"bf16", "train in bf16", precision_flag("bf16")},
      {"fp16", "train in fp16 with a dynamic loss scale", precision_flag("fp16")},
      {"tf32", "train in tf32",
       [](S& s, std::string_view v) {
         if (boolean(v) && s.precision == "auto") {
           s.precision = "tf32";
           s.precision_by_switch = true;
         }
       }},
      {"precision", "auto, fp32, tf32, bf16 or fp16",
       [](S& s, std::string_view v) {
         s.precision = lower_case(v);
         s.precision_by_switch = false;
       }},
      {"optim", "auto, adamw or adamw_8bit (also Hugging Face's names); auto takes 8 bits only where 32 do not fit",
       set(&S::optim)},
      {"recompute", "auto, none, selective or full", set(&S::recompute)},
      {"gradient_checkpointing", "true: full recompute",
       [](S& s, std::string_view v) {
         if (boolean(v)) s.recompute = "full";
       }},
      {"device", "auto, cpu, cuda or cuda:N", set(&S::device)},
      {"memory_limit", "bytes this process may hold on the device: 6GiB, 90% or auto", set(&S::memory_limit)},
      {"max_memory_gb", "the same, in GB",
       [](S& s, std::string_view v) {
         if (!(number<double>(v, "a number of GB above 0") > 0)) throw Bad{"a number of GB above 0"};
         s.memory_limit = std::string(v) + "GB";
       }},
      {"token_set",
       "where training tokens live: auto, resident (on the device), staged (in host memory) or streamed (from disk)",
       set(&S::token_set)},
      {"use_mixed_precision", "true: 16-bit training",
       [](S& s, std::string_view v) {
         if (!boolean(v))
           s.precision = "fp32";
         else if (s.precision == "auto")
           s.precision_by_switch = true;
       }},
      {"threads", "CPU threads; 0: all cores", set(&S::threads)},
      {"use_cpu", "true: `device=cpu`",
       [](S& s, std::string_view v) {
         if (boolean(v)) s.device = "cpu";
       }},
      {"no_cuda", "the same",
       [](S& s, std::string_view v) {
         if (boolean(v)) s.device = "cpu";
       }},
      {"fill", "use all allowed memory, even where it is no faster", set(&S::fill)},
      {"teacher", "model whose outputs are to be matched", set(&S::teacher)},
      {"temperature", "distillation temperature", set(&S::temperature)},
      {"hard_weight", "share of the hard labels' loss in distillation", set(&S::hard_weight)},
      {"student_layers", "start from this many of the model's layers; 0: all", set(&S::student_layers)},
      // Accepted, because Brim makes them unnecessary.
      {"per_device_eval_batch_size", "evaluation runs under the same memory plan; no batch size is needed", {}},
      {"auto_find_batch_size", "the plan computes the micro-batch before the first step", {}},
      {"dynamic_batch_sizing", "the plan computes the micro-batch before the first step", {}},
      {"memory_monitoring", "memory is planned, allocated once and reported; it cannot grow", {}},
      {"target_utilization", "the plan takes the fastest micro-batch; utilisation is reported, not steered", {}},
      {"group_by_length", "batches are packed without padding; grouping gains nothing", {}},
      {"train_sampling_strategy", "batches are packed without padding; grouping gains nothing", {}},
      {"dataloader_num_workers", "tokenization runs once, on all cores", {}},
      {"dataloader_prefetch_factor", "micro-batches are staged ahead by themselves", {}},
      {"dataloader_persistent_workers", "there are no worker processes", {}},
      {"dataloader_pin_memory", "staging memory is page-locked where the device can use it", {}},
      {"dataloader_drop_last", "the last batch is kept and averaged over its real samples", {}},
      {"torch_compile", "there is nothing to compile", {}},
      {"torch_empty_cache_steps", "memory is allocated once", {}},
      {"eval_accumulation_steps", "logits are never kept on the device", {}},
      {"report_to", "train_log.jsonl and report.html are always written", {}},
      {"push_to_hub", "Brim uploads nothing", {}},
      {"do_train", "`brim train` trains", {}},
      {"do_eval", "evaluation follows eval_strategy", {}},
      {"remove_unused_columns", "only the text and label columns are read", {}},
      {"logging_dir", "logs go to the output directory", {}},
      {"logging_strategy", "logging_steps decides", {}},
      {"greater_is_better", "known from the metric", {}},
      {"data_seed", "seed decides", {}},
      {"include_tokens_per_second", "always reported", {}},
      {"run_name", "the output directory names the run", {}},
      {"save_safetensors", "models are always stored as safetensors", {}},
      {"full_determinism", "the same seed, plan and device always give the same run", {}},
      {"skip_memory_metrics", "memory is always reported", {}},
      {"log_level", "`quiet=true` says less, BRIM_DEBUG=1 more", {}},
      {"logging_first_step", "progress is shown from the first step", {}},
      {"prediction_loss_only", "metrics cost nothing beside the forward pass", {}},
      {"ddp_find_unused_parameters", "every parameter's gradient is computed", {}},
      {"disable_tqdm", "the bar is drawn on terminals only", {}},
      {"num_workers", "tokenization runs once, on all cores", {}},
      {"prefetch_factor", "micro-batches are staged ahead by themselves", {}},
      {"persistent_workers", "there are no worker processes", {}},
      {"pin_memory", "staging memory is page-locked where the device can use it", {}},
      {"gradient_checkpointing_kwargs", "what is recomputed follows recompute and the plan", {}},
      {"fp16_opt_level", "fp16 keeps 32-bit master weights", {}},
      {"fp16_full_eval", "evaluation runs in the training's precision", {}},
      {"bf16_full_eval", "evaluation runs in the training's precision", {}},
      {"half_precision_backend", "there is one", {}},
      {"hub_model_id", "Brim uploads nothing", {}},
      {"hub_strategy", "Brim uploads nothing", {}},
      {"local_rank", "a run uses one device", {}},
      {"label_names", "label_column names the labels' column", {}},
  };
  return keys;
}

std::string normalized(std::string_view key) {
  std::string out(key);
  for (char& c : out)
    if (c == '-') c = '_';
  return out;
}

// Keys that hold several values.
const std::vector<std::string>& lists() {
  static const std::vector<std::string> names = {"train", "train_file", "val", "validation_file", "label_column"};
  return names;
}

// A switch, or a key where `true` has a meaning of its own.
bool stands_alone(const Key& key) {
  if (!key.access.set || key.name == std::string_view("resume_from_checkpoint")) return true;
  try {
    TrainSettings unused;
    key.access.set(unused, "neither");
  } catch (const Bad& bad) {
    return bad.wanted == kTruth;
  }
  return false;
}

void one_of(const char* key, const std::string& value, const std::vector<std::string>& known) {
  for (const auto& k : known)
    if (value == k) return;
  fail(ErrorCode::usage, "{} is '{}'; use {}", key, value, fmt::join(known, ", "));
}

}  // namespace

const std::vector<SettingsKey>& settings_keys() {
  static const std::vector<SettingsKey> keys = [] {
    std::vector<SettingsKey> all;
    for (const Key& k : table())
      all.push_back({k.name, k.help, k.access.get ? k.access.get(TrainSettings{}) : "", !k.access.set, stands_alone(k),
                     std::find(lists().begin(), lists().end(), k.name) != lists().end()});
    return all;
  }();
  return keys;
}

std::string apply_setting(TrainSettings& settings, std::string_view raw, std::string_view value,
                          const std::string& where) {
  const std::string key = normalized(raw);
  for (const Key& k : table()) {
    if (key != k.name) continue;
    if (!k.access.set) return fmt::format("{}: {} is not needed: {}", where, key, k.help);
    try {
      k.access.set(settings, value);
    } catch (const Bad& bad) {
      fail(ErrorCode::usage, "{}: {} is '{}', wanted {}", where, key, value, bad.wanted);
    }
    if (key == "memory_limit" || key == "max_memory_gb") {
      const bool flag = where.starts_with("--");
      settings.limit_origin = flag ? LimitOrigin{} : LimitOrigin{where, key, std::string(value)};
    }
    return {};
  }
  const std::string near = setting_meant(key);
  fail(ErrorCode::usage, "{}: unknown key {}{}", where, key,
       near.empty() ? "" : fmt::format("; did you mean {}?", near));
}

std::string setting_meant(std::string_view typed) {
  const std::string key = normalized(typed);
  static const std::map<std::string_view, const char*> others = {{"lr", "learning_rate"},
                                                                 {"epochs", "num_train_epochs"},
                                                                 {"num_epochs", "num_train_epochs"},
                                                                 {"resume", "resume_from_checkpoint"},
                                                                 {"steps", "max_steps"},
                                                                 {"warmup", "warmup_ratio"},
                                                                 {"scheduler", "lr_scheduler_type"},
                                                                 {"lr_scheduler", "lr_scheduler_type"},
                                                                 {"optimizer", "optim"},
                                                                 {"patience", "early_stopping_patience"},
                                                                 {"max_len", "max_length"},
                                                                 {"eval", "val"},
                                                                 {"dev", "val"}};
  if (const auto it = others.find(key); it != others.end()) return it->second;
  std::vector<std::string> names;
  for (const Key& k : table()) names.emplace_back(k.name);
  return nearest_name(key, names);
}

std::vector<std::string> apply_yaml(TrainSettings& settings, const std::filesystem::path& path) {
  const YAML::Node root = load_yaml(path);
  static const std::vector<std::string> blocks = {"training", "training_args",    "training_arguments", "model",
                                                  "data",     "gpu_optimization", "optimization",       "hardware"};
  std::vector<std::string> notes;
  std::function<void(const YAML::Node&)> walk = [&](const YAML::Node& map) {
    std::set<std::string> seen;
    for (const auto& item : map) {
      const auto key = item.first.as<std::string>(), name = normalized(key);
      const YAML::Node& value = item.second;
      const std::string where = fmt::format("{}:{}", path.string(), item.first.Mark().line + 1);
      if (!seen.insert(name).second) fail(ErrorCode::usage, "{}: {} is given twice", where, key);
      const bool known = std::find(blocks.begin(), blocks.end(), key) != blocks.end();
      const bool needless =
          std::any_of(table().begin(), table().end(), [&](const Key& k) { return key == k.name && !k.access.set; });
      if (needless) {  // whatever its value
        notes.push_back(apply_setting(settings, key, "", where));
      } else if (value.IsMap() && known) {
        walk(value);
      } else if (value.IsMap()) {
        const std::string near = nearest_name(key, blocks);
        fail(ErrorCode::usage, "{}: unknown block {}{}", where, key,
             near.empty() ? "" : fmt::format("; did you mean {}?", near));
      } else if (known && key != "model" && !value.IsNull()) {
        fail(ErrorCode::usage, "{}: {} is a block: its keys stand below it, indented", where, key);
      } else if (value.IsSequence()) {
        std::vector<std::string> elements;
        for (const auto& element : value) elements.push_back(element.as<std::string>());
        if (name == "class_weights") elements = {fmt::format("{}", fmt::join(elements, ","))};
        for (const auto& element : elements) apply_setting(settings, key, element, where);
        if (elements.size() > 1 && std::find(lists().begin(), lists().end(), name) == lists().end())
          fail(ErrorCode::usage, "{}: {} takes one value, not a list", where, key);
      } else if (!value.IsNull()) {
        if (std::string note = apply_setting(settings, key, value.as<std::string>(), where); !note.empty())
          notes.push_back(note);
      }
    }
  };
  try {
    walk(root);
  } catch (const YAML::Exception& e) {  // a block where a value should be
    fail(ErrorCode::usage, "{}:{}: {}", path.string(), e.mark.line + 1, e.msg);
  }
  return notes;
}

std::vector<SettingRow> setting_rows(const TrainSettings& s) {
  const auto n = [](auto value) { return fmt::format("{}", value); };
  return {{"task", s.task, false},
          {"num_train_epochs", n(s.num_train_epochs)},
          {"max_steps", n(s.max_steps)},
          {"per_device_train_batch_size", n(s.train_batch_size)},
          {"gradient_accumulation_steps", n(s.gradient_accumulation_steps)},
          {"batch_tokens", n(s.batch_tokens)},
          {"learning_rate", n(s.learning_rate)},
          {"lr_scheduler_type", s.lr_scheduler_type},
          {"lr_scaling", s.lr_scaling},
          {"lr_reference_batch", n(s.lr_reference_batch)},
          {"warmup_steps", n(s.warmup_steps)},
          {"warmup_ratio", n(s.warmup_ratio)},
          {"weight_decay", n(s.weight_decay)},
          {"adam_beta1", n(s.adam_beta1)},
          {"adam_beta2", n(s.adam_beta2)},
          {"adam_epsilon", n(s.adam_epsilon)},
          {"max_grad_norm", n(s.max_grad_norm)},
          {"label_smoothing_factor", n(s.label_smoothing)},
          {"class_weights", s.class_weights},
          {"max_length", n(s.max_length)},
          {"seed", n(s.seed)},
          {"dropout", s.dropout < 0 ? "the model's" : n(s.dropout)},
          {"eval_strategy", s.eval_strategy},
          {"eval_steps", n(s.eval_steps)},
          {"metric_for_best_model", s.metric_for_best_model},
          {"early_stopping_patience", n(s.early_stopping_patience)},
          {"load_best_model_at_end", n(s.load_best_model_at_end)},
          {"temperature", s.teacher.empty() ? "" : n(s.temperature)},
          {"hard_weight", s.teacher.empty() ? "" : n(s.hard_weight)},
          {"student_layers", s.student_layers > 0 ? n(s.student_layers) : ""},
          {"save_strategy", s.save_strategy, false},
          {"save_steps", n(s.save_steps), false},
          {"save_total_limit", n(s.save_total_limit), false},
          {"logging_steps", n(s.logging_steps), false},
          {"precision", s.precision, false},
          {"optim", s.optim, false},
          {"recompute", s.recompute, false},
          {"device", s.device, false},
          {"memory_limit", s.memory_limit, false},
          {"token_set", s.token_set, false}};
}

void check_values(const TrainSettings& s) {
  auto positive = [](const char* key, double value) {
    if (!(value > 0) || std::isinf(value)) fail(ErrorCode::usage, "{} is {}, must be above zero", key, value);
  };
  auto not_negative = [](const char* key, double value) {
    if (!(value >= 0) || std::isinf(value)) fail(ErrorCode::usage, "{} is {}, must not be negative", key, value);
  };
  auto share = [](const char* key, double value, bool whole) {
    if (!(value >= 0 && (whole ? value <= 1 : value < 1)))
      fail(ErrorCode::usage, "{} is {}, must be from 0 to {}1", key, value, whole ? "" : "below ");
  };
  if (s.max_steps == 0 || s.max_steps < -1)
    fail(ErrorCode::usage, "max_steps is {}, must be above zero; without it (or with -1) num_train_epochs decides",
         s.max_steps);
  if (s.max_steps < 0) positive("num_train_epochs", s.num_train_epochs);
  if (s.max_steps < 0 && s.num_train_epochs > kMostEpochs)
    fail(ErrorCode::usage, "num_train_epochs is {}, at most {} are possible", s.num_train_epochs, kMostEpochs);
  positive("batch_size", static_cast<double>(s.train_batch_size));
  positive("gradient_accumulation_steps", static_cast<double>(s.gradient_accumulation_steps));
  if (s.train_batch_size > kMostSamples / s.gradient_accumulation_steps)
    fail(ErrorCode::usage, "batch_size {} times gradient_accumulation_steps {}: a step takes at most {} rows",
         s.train_batch_size, s.gradient_accumulation_steps, kMostSamples);
  not_negative("batch_tokens", static_cast<double>(s.batch_tokens));
  positive("lr_reference_batch", static_cast<double>(s.lr_reference_batch));
  not_negative("max_grad_norm", s.max_grad_norm);
  share("adam_beta1", s.adam_beta1, false);
  share("adam_beta2", s.adam_beta2, false);
  not_negative("adam_epsilon", s.adam_epsilon);
  not_negative("max_length", static_cast<double>(s.max_length));
  not_negative("student_layers", static_cast<double>(s.student_layers));
  not_negative("early_stopping_patience", static_cast<double>(s.early_stopping_patience));
  positive("learning_rate", s.learning_rate);
  positive("logging_steps", static_cast<double>(s.logging_steps));
  not_negative("weight_decay", s.weight_decay);
  share("label_smoothing_factor", s.label_smoothing, false);
  if (s.dropout != -1) share("dropout", s.dropout, false);
  one_of("lr_scheduler_type", s.lr_scheduler_type, {"linear", "cosine", "constant", "constant_with_warmup"});
  one_of("lr_scaling", s.lr_scaling, {"none", "sqrt", "linear"});
  one_of("eval_strategy", s.eval_strategy, {"no", "steps", "epoch"});
  one_of("save_strategy", s.save_strategy, {"no", "steps", "epoch"});
  one_of("format", s.format, {"auto", "csv", "tsv", "jsonl", "conll"});
  one_of("task", s.task, {"auto", "classification", "ner", "multi"});
  one_of("on_error", s.on_error, {"stop", "skip"});
  one_of("token_set", s.token_set, {"auto", "resident", "staged", "streamed"});
  one_of("recompute", s.recompute, {"auto", "none", "selective", "full"});
  one_of("optim", s.optim,
         {"auto", "adamw", "adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_8bit", "adamw_bnb_8bit",
          "paged_adamw_8bit"});
  if (!s.metric_for_best_model.empty()) {
    const std::string& m = s.metric_for_best_model;
    one_of("metric_for_best_model", m.rfind("eval_", 0) == 0 ? m.substr(5) : m,
           {"accuracy", "macro_f1", "macro_recall", "loss", "entity_f1", "mean_f1", "f1"});
  }
  if (s.eval_strategy == "steps") positive("eval_steps", static_cast<double>(s.eval_steps));
  if (s.save_strategy == "steps") positive("save_steps", static_cast<double>(s.save_steps));
  if (s.task == "multi" && s.several_labels())
    fail(ErrorCode::usage, "`task=multi` takes one label per row; train multi-label rows alone");
  positive("temperature", s.temperature);
  share("hard_weight", s.hard_weight, true);
  share("warmup_ratio", s.warmup_ratio, true);
  not_negative("warmup_steps", s.warmup_steps);
}

void check_settings(const TrainSettings& s) {
  if (s.train_files.empty()) fail(ErrorCode::usage, Remedy{"give `train=FILE`"}, "no training data");
  if (s.output_dir.empty()) fail(ErrorCode::usage, Remedy{"give `output=DIR`"}, "no output directory");
  check_values(s);
  one_of("precision", s.precision, {"auto", "fp32", "tf32", "bf16", "fp16"});
  if (s.early_stopping_patience > 0 && (s.validation_files.empty() || s.eval_strategy == "no"))
    fail(ErrorCode::usage, Remedy{"give `val=FILE`, and `eval_strategy=steps` or `eval_strategy=epoch`"},
         "`early_stopping_patience` needs evaluations");
  if (s.task != "multi" && !(s.token_train_file.empty() && s.token_validation_file.empty()))
    fail(ErrorCode::usage, Remedy{"for tags alone give `train` the CoNLL file"},
         "`token_train` and `token_val` belong to `task=multi`");
  if (s.task == "multi" && s.validation_files.empty() != s.token_validation_file.empty())
    fail(ErrorCode::usage, Remedy{"give `val=FILE` and `token_val=FILE`, or neither"},
         "`task=multi` is validated on both sides");
}

}  // namespace brim
