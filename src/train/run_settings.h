// SPDX-License-Identifier: Apache-2.0
// Settings shared by all kinds of training: device, memory, precision and optimizer. The settings tables of text
// training and forecasting include these rows.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/settings.h"
#include "plan/plan.h"
#include "plan/resolve.h"
#include "rows/row_reader.h"

namespace brim::train {

struct RunSettings {
  int64_t gradient_accumulation_steps = 1;
  double learning_rate = 5e-5, weight_decay = 0.01, adam_beta1 = 0.9, adam_beta2 = 0.999, adam_epsilon = 1e-8,
         max_grad_norm = 1;
  plan::PrecisionRequest precision;
  bool bf16 = false, fp16 = false;        // the switches, which also set `precision`
  std::optional<model::Optimizer> optim;  // nullopt: chosen by the plan
  device::DeviceChoice device;
  plan::MemoryLimit memory_limit;
  plan::LimitOrigin limit_origin;  // source of memory_limit
  int threads = 0;
  bool fill = false;

  // Called when a key is set from `where`; remembers the source of a memory limit.
  void note_origin(std::string_view key, std::string_view value, const std::string& where);
};

// A switch that sets other settings.
template <class S>
SettingValue<S> when_true(void (*change)(S&)) {
  SettingValue<S> value;
  value.set = [change](S& s, std::string_view v) {
    if (read_truth(v)) change(s);
  };
  value.is_switch = true;
  return value;
}

// The switches bf16 and fp16: only one of them may be true.
template <class S>
SettingValue<S> precision_switch(bool RunSettings::*own, bool RunSettings::*other, ops::Precision precision) {
  SettingValue<S> value;
  value.is_switch = true;
  value.set = [=](S& s, std::string_view v) {
    const plan::PrecisionRequest request{precision, true};
    s.*own = read_truth(v);
    if (s.*own && s.*other) throw BadValue{"only one of bf16 and fp16 may be true"};
    if (s.*own)
      s.precision = request;
    else if (s.precision == request)
      s.precision = {};
  };
  return value;
}

// Column separator of a file. S has a char `delimiter`; 0 means the default of the file format.
template <class S>
SettingValue<S> delimiter_value() {
  SettingValue<S> value;
  value.set = [](S& s, std::string_view v) {
    const auto character = rows::parse_delimiter(v);
    if (!character) throw BadValue{"must be tab or one character that is not a letter, digit or quote"};
    s.delimiter = *character;
  };
  return value;
}

// All shared rows; S derives from RunSettings.
template <class S>
std::vector<Setting<S>> run_rows() {
  using namespace setting;  // NOLINT: value kinds
  using model::Optimizer;
  using Optim = std::optional<Optimizer>;
  const auto real = [](double S::*m, Bound bound) { return number<S, double>(m, bound); };
  SettingValue<S> mixed;
  mixed.is_switch = true;
  mixed.set = [](S& s, std::string_view v) {
    if (!read_truth(v))
      s.precision.precision = ops::Precision::fp32;
    else if (!s.precision.precision)
      s.precision.by_switch = true;
  };
  SettingValue<S> gigabytes;
  gigabytes.set = [](S& s, std::string_view v) {
    double n = 0;
    try {
      n = read_number(v);
    } catch (const BadValue&) {  // rejected below
    }
    if (!(n > 0)) throw BadValue{"must be a number of GB above 0"};
    s.memory_limit.set_limit(std::string(v) + "GB");
  };
  return {
      {"gradient_accumulation_steps",
       "number of batches per update",
       number<S, int64_t>(&S::gradient_accumulation_steps, above_zero),
       Keep::same,
       {"grad_accum_steps"}},
      {"learning_rate", "peak learning rate", real(&S::learning_rate, above_zero), Keep::same},
      {"weight_decay", "decoupled weight decay, except for biases and norms", real(&S::weight_decay, not_negative),
       Keep::same},
      {"adam_beta1", "beta1 of AdamW", real(&S::adam_beta1, share_below_one), Keep::same},
      {"adam_beta2", "beta2 of AdamW", real(&S::adam_beta2, share_below_one), Keep::same},
      {"adam_epsilon", "epsilon of AdamW", real(&S::adam_epsilon, not_negative), Keep::same},
      {"max_grad_norm", "clip gradients to this global norm; 0: off", real(&S::max_grad_norm, not_negative),
       Keep::same},
      {"bf16", "train in bf16", precision_switch<S>(&S::bf16, &S::fp16, ops::Precision::bf16)},
      {"fp16", "train in fp16 with a dynamic loss scale",
       precision_switch<S>(&S::fp16, &S::bf16, ops::Precision::fp16)},
      {"tf32", "train in tf32", when_true<S>([](S& s) {
         if (!s.precision.precision) s.precision = {ops::Precision::tf32, true};
       })},
      {"precision", "auto, fp32, tf32, bf16, fp16 or fp8 (fp8 for text models only)",
       typed<S, plan::PrecisionRequest>(&S::precision, plan::read_precision, plan::precision_text), Keep::report},
      {"optim", "auto, adamw or adamw_8bit (or Hugging Face names); auto: 8-bit only if 32-bit does not fit",
       choice<S, Optim>(&S::optim, {{"auto", std::nullopt},
                                    {"adamw", Optimizer::adamw},
                                    {"adamw_torch", Optimizer::adamw},
                                    {"adamw_torch_fused", Optimizer::adamw},
                                    {"adamw_hf", Optimizer::adamw},
                                    {"adamw_8bit", Optimizer::adamw_8bit},
                                    {"adamw_bnb_8bit", Optimizer::adamw_8bit},
                                    {"paged_adamw_8bit", Optimizer::adamw_8bit}}),
       Keep::report},
      {"device", "auto, cpu, cuda or cuda:N",
       typed<S, device::DeviceChoice>(&S::device, device::read_device, device::device_text), Keep::report},
      {"memory_limit", "maximum device memory of this process: 6GiB, 90% or auto",
       plan::memory_limit_value<S>(&S::memory_limit), Keep::report},
      {"leave_free", plan::kLeaveFreeHelp, plan::leave_free_value<S>(&S::memory_limit)},
      {"max_memory_gb", "`memory_limit` in GB", gigabytes},
      {"use_mixed_precision", "true: 16-bit training", mixed},
      {"threads", "CPU threads; 0: all cores", number<S, int>(&S::threads)},
      {"use_cpu",
       "same as `device=cpu`",
       when_true<S>([](S& s) { s.device = {device::DeviceChoice::Kind::cpu}; }),
       {},
       {"no_cuda"}},
      {"fill", "use all allowed memory, even if it is not faster", truth<S>(&S::fill)},
  };
}

// A single shared row, for a table with its own order.
template <class S>
Setting<S> run_row(std::string_view name) {
  for (Setting<S>& row : run_rows<S>())
    if (name == row.name) return row;
  BRIM_CHECK(false, "no row {}", name);
}

// Finds a row by name, with - or _; null if there is none.
const SettingInfo* find_info(const std::vector<SettingInfo>& infos, std::string_view key);

// Maps the keys of a YAML file to the settings of a table.
struct YamlKeys {
  std::vector<std::string> blocks;  // blocks whose keys are read as top-level keys
  std::vector<std::string> joined;  // keys whose lists are one value, separated by commas
  bool foreign = false;             // unknown top-level blocks, and keys next to known blocks, belong to other
                                    // programs: ignored with a note
  std::function<const SettingInfo*(std::string_view key)> find;  // null: no such key
  std::function<std::string(std::string_view key)> nearest;      // if `foreign`: the most likely intended key, or empty
  std::function<std::string(std::string_view key, std::string_view value, const std::string& where)> apply;
};

// Returns notes for the user. Throws a usage error with file and line.
std::vector<std::string> apply_yaml(const YamlKeys& keys, const std::filesystem::path& path);

}  // namespace brim::train
