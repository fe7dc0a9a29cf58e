// SPDX-License-Identifier: Apache-2.0
#include "serve/gate_run.h"

#include <zlib.h>

#include <algorithm>
#include <deque>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/atomic_file.h"
#include "jobs/compare.h"
#include "rows/row_reader.h"

namespace brim::serve {
namespace {

using GateJson = nlohmann::ordered_json;

constexpr int kGateVersion = 1;
constexpr size_t kMaxGateRows = 20'000;  // precise to about 0.1 points; more rows would occupy the device for too long

struct GateRows {
  std::deque<std::string> texts;
  std::vector<std::string> labels;  // empty if the file has none
  uint32_t checksum = 0;
};

GateRows read_gate_rows(const GateRules& rules) {
  rows::RowReaderOptions options;
  options.text_column = rules.text;
  if (!rules.label.empty()) options.label_columns = {rules.label};
  rows::RowReader reader({rules.data}, options);
  GateRows all;
  rows::RowChunk chunk;
  uLong sum = crc32_z(0, nullptr, 0);
  const auto add = [&](std::string_view text) {
    sum = crc32_z(sum, reinterpret_cast<const Bytef*>(text.data()), text.size());
    sum = crc32_z(sum, reinterpret_cast<const Bytef*>("\n"), 1);
  };
  while (all.texts.size() < kMaxGateRows && reader.next_chunk(chunk))
    for (size_t row = 0; row < chunk.size() && all.texts.size() < kMaxGateRows; ++row) {
      if (chunk.error(row) != nullptr) continue;
      all.texts.emplace_back(chunk.texts[row]);
      add(chunk.texts[row]);
      if (rules.label.empty()) continue;
      all.labels.emplace_back(chunk.labels[row]);
      add(chunk.labels[row]);
    }
  if (all.texts.empty()) fail(ErrorCode::bad_data, "{}: no rows to compare models", rules.data);
  all.checksum = static_cast<uint32_t>(sum);
  return all;
}

std::vector<int32_t> labels_of(const GateModel& model, const GateRows& rows, std::stop_token stop) {
  const std::vector<std::string_view> texts(rows.texts.begin(), rows.texts.end());
  std::vector<int32_t> labels = model.label_of(texts, stop);
  if (stop.stop_requested()) fail(ErrorCode::interrupted, "stopped");
  return labels;
}

GateJson to_json(const GateFigures& f) {
  const auto or_null = [](const std::optional<double>& value) { return value ? GateJson(*value) : GateJson(); };
  GateJson json = {{"rows", f.rows},
                   {"known_share", f.known_share},
                   {"agreement", f.agreement},
                   {"macro_recall", or_null(f.macro_recall)},
                   {"against_recall", or_null(f.against_recall)},
                   {"p_value", or_null(f.p_value)},
                   {"per_class", GateJson::array()}};
  for (const auto& [label, errors] : f.per_class)
    json["per_class"].push_back({{"label", label},
                                 {"support", errors.support},
                                 {"false_positives", errors.false_positives},
                                 {"false_negatives", errors.false_negatives}});
  return json;
}

GateFigures figures_from(const GateJson& json) {
  const auto optional_number = [&](const char* key) {
    return json.at(key).is_null() ? std::nullopt : std::optional(json.at(key).get<double>());
  };
  GateFigures f;
  f.rows = json.at("rows").get<int64_t>();
  f.known_share = json.at("known_share").get<double>();
  f.agreement = json.at("agreement").get<double>();
  f.macro_recall = optional_number("macro_recall");
  f.against_recall = optional_number("against_recall");
  f.p_value = optional_number("p_value");
  for (const GateJson& entry : json.at("per_class"))
    f.per_class.emplace_back(
        entry.at("label").get<std::string>(),
        jobs::ClassErrors{entry.at("support").get<int64_t>(), entry.at("false_positives").get<int64_t>(),
                          entry.at("false_negatives").get<int64_t>()});
  return f;
}

// Keyed by a string that identifies both models and the rows.
std::map<std::string, GateFigures> read_cache(const std::filesystem::path& path) {
  std::map<std::string, GateFigures> all;
  std::ifstream in(path, std::ios::binary);
  if (!in) return all;
  try {
    const GateJson json = GateJson::parse(in);
    if (json.at("version").get<int>() != kGateVersion) return all;
    for (const auto& [key, value] : json.at("measured").items()) all[key] = figures_from(value);
  } catch (const GateJson::exception&) {
    all.clear();  // a damaged cache is measured again
  }
  return all;
}

void write_cache(const std::filesystem::path& path, const std::map<std::string, GateFigures>& all) {
  GateJson json = {{"version", kGateVersion}, {"measured", GateJson::object()}};
  for (const auto& [key, figures] : all) json["measured"][key] = to_json(figures);
  io::write_file_atomically(path, json.dump(1, ' ', false, GateJson::error_handler_t::replace) + "\n");
}

GateFigures compare_two(const GateModel& against, const std::vector<int32_t>& theirs, const GateModel& rung,
                        const std::vector<int32_t>& ours, const GateRows& rows, const std::string& name) {
  jobs::ModelRun other{.name = "against", .labels = against.labels};
  jobs::ModelRun own{.name = name, .labels = rung.labels};
  std::vector<std::string> expected;
  for (size_t row = 0; row < ours.size(); ++row) {
    if (ours[row] < 0 || theirs[row] < 0) continue;  // a failed row has no label to compare
    own.predicted.push_back(ours[row]);
    other.predicted.push_back(theirs[row]);
    if (!rows.labels.empty()) expected.push_back(rows.labels[row]);
  }
  if (own.predicted.empty()) fail(ErrorCode::bad_data, "no row was labelled by both models");
  return gate_figures(jobs::compare_models({other, own}, expected, 1), 1, 0);
}

}  // namespace

GateModel gate_model(const std::shared_ptr<Scorer>& scorer, const std::string& name, const std::string& identity) {
  if (scorer->kind() != ModelKind::classifier && scorer->kind() != ModelKind::rules)
    fail(ErrorCode::bad_model, "{}: not a classifier, no labels to compare", name);
  return {identity, scorer->labels(), [scorer](std::span<const std::string_view> texts, std::stop_token stop) {
            Predictions p = scorer->score(texts, std::move(stop));
            for (const auto& [row, error] : p.errors) p.labels[row] = -1;
            return p.labels;
          }};
}

std::vector<std::string> measure_gate(Ladder& ladder, const GateModels& models, const std::filesystem::path& cache,
                                      std::stop_token stop) {
  const GateRules& rules = ladder.rules().gate;
  if (rules.data.empty()) return {};
  const std::string against = rules.against.empty() ? ladder.rules().rungs.front().model : rules.against;
  const GateRows rows = read_gate_rows(rules);
  const uint64_t as_of = ladder.changes();  // read before any model is used
  std::map<std::string, GateFigures> measured = read_cache(cache), kept;
  std::vector<std::string> unmeasured;
  std::optional<GateModel> best;
  std::vector<int32_t> theirs;
  bool changed = false;
  // The ladder reports unavailable rungs, once each; they are measured when they have been loaded.
  if (!ladder.fault(against).empty()) return {};
  for (const RungRules& rung : ladder.rules().rungs) {
    if (!ladder.fault(rung.model).empty()) continue;
    try {
      if (!best) best = models(against);
      // Use the same object: requesting it again could wait until this one is released.
      const GateModel model = rung.model == against ? *best : models(rung.model);
      // The key includes the labels, because a configuration can rename them.
      const std::string key =
          fmt::format("{} ({}) against {} ({}) on {} rows {:08x}", model.identity, fmt::join(model.labels, ","),
                      best->identity, fmt::join(best->labels, ","), rows.texts.size(), rows.checksum);
      if (const auto known = measured.find(key); known != measured.end()) {
        kept[key] = known->second;
      } else {
        if (theirs.empty()) theirs = labels_of(*best, rows, stop);
        const bool same = rung.model == against;
        kept[key] = compare_two(*best, theirs, model, same ? theirs : labels_of(model, rows, stop), rows, rung.model);
        changed = true;
      }
      ladder.report_gate(rung.model, kept[key], as_of);
    } catch (const Error& e) {
      if (e.code() == ErrorCode::interrupted) throw;
      unmeasured.push_back(fmt::format("ladder {}: cannot measure {}: {}", ladder.rules().name, rung.model, e.what()));
    }
  }
  if (changed && !cache.empty()) write_cache(cache, kept);
  return unmeasured;
}

}  // namespace brim::serve
