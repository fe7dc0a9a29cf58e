// SPDX-License-Identifier: Apache-2.0
#include "jobs/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/units.h"
#include "jobs/evaluate.h"

namespace brim::jobs {
namespace {

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::vector<ClassErrors> class_errors(const rows::ClassificationMetrics& m) {
  std::vector<ClassErrors> all(m.confusion.size());
  for (size_t t = 0; t < m.confusion.size(); ++t)
    for (size_t p = 0; p < m.confusion.size(); ++p) {
      all[t].support += m.confusion[t][p];
      if (t != p) {
        all[t].false_negatives += m.confusion[t][p];
        all[p].false_positives += m.confusion[t][p];
      }
    }
  return all;
}

double rate_of(const ModelResult& m) { return m.record.rows_per_second().value_or(0); }

// Recommends the fastest model with an accuracy close to the best. Needs labels.
void recommend(Comparison& c) {
  const auto faster = [&](size_t a, size_t b) { return rate_of(c.models[a]) > rate_of(c.models[b]); };
  if (c.expected.empty()) {
    c.rule = "no recommendation: accuracy is unknown without labels";
    return;
  }
  size_t best = 0;
  for (size_t i = 1; i < c.models.size(); ++i)
    if (c.models[i].metrics->accuracy > c.models[best].metrics->accuracy) best = i;
  const double top = c.models[best].metrics->accuracy;
  c.recommended = best;
  for (size_t i = 0; i < c.models.size(); ++i)
    if (c.models[i].metrics->accuracy >= top - c.max_loss - 1e-12 && faster(i, c.recommended)) c.recommended = i;
  c.rule = fmt::format("{}: the fastest whose accuracy is within {:.2f} points of the best ({}, {:.2f} %)",
                       c.models[c.recommended].name, 100 * c.max_loss, c.models[best].name, 100 * top);
  // Warn about models that do not beat the majority class.
  std::vector<int64_t> rows_of(c.labels.size());
  for (const int32_t label : c.expected) ++rows_of[static_cast<size_t>(label)];
  const auto most = std::max_element(rows_of.begin(), rows_of.end());
  const double always = static_cast<double>(*most) / static_cast<double>(c.rows);
  if (top <= always)
    c.rule += fmt::format("; but no model beats always predicting {} ({:.2f} %)",
                          c.labels[static_cast<size_t>(most - rows_of.begin())], 100 * always);
}

double shared_accuracy(const Comparison& c, const MatchedClasses& classes, const std::vector<int32_t>& predicted) {
  int64_t right = 0;
  for (size_t row = 0; row < predicted.size(); ++row)
    right += classes.shared[static_cast<size_t>(c.expected[row])] && predicted[row] == c.expected[row];
  return static_cast<double>(right) / static_cast<double>(c.shared_rows);
}

// Describes the classes used for the metrics if models have different classes.
std::string classes_text(const Comparison& c) {
  std::string out;
  for (const ModelResult& m : c.models) {
    if (m.unknown.empty()) continue;
    int64_t rows = 0;
    for (const int32_t label : c.expected)
      rows += std::find(m.unknown.begin(), m.unknown.end(), c.labels[static_cast<size_t>(label)]) != m.unknown.end();
    out += fmt::format("{} has no {}", m.name, fmt::join(m.unknown, ", "));
    out += c.expected.empty() ? "\n"
                              : fmt::format(": {} with that label {} as wrong\n", format_count(rows, "row"),
                                            rows == 1 ? "counts" : "count");
  }
  if (out.empty()) return out;
  out += c.expected.empty()
             ? fmt::format("shared classes: {}; agreement is over all rows\n", fmt::join(c.shared, ", "))
             : fmt::format("shared classes: {}, {} of {} rows; the column \"shared\" is the accuracy on them\n",
                           fmt::join(c.shared, ", "), format_count(c.shared_rows), format_count(c.rows));
  return out;
}

std::string cell(const std::optional<int64_t>& bytes) { return bytes ? format_bytes(*bytes) : "–"; }

}  // namespace

std::vector<size_t> Comparison::disagreements() const {
  std::vector<size_t> differing;
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row)
    if (std::any_of(models.begin(), models.end(),
                    [&](const ModelResult& m) { return m.predicted[row] != models[0].predicted[row]; }))
      differing.push_back(row);
  return differing;
}

bool MatchedClasses::same() const { return std::find(shared.begin(), shared.end(), false) == shared.end(); }

std::vector<std::string> MatchedClasses::shared_labels() const {
  std::vector<std::string> names;
  for (size_t k = 0; k < labels.size(); ++k)
    if (shared[k]) names.push_back(labels[k]);
  return names;
}

std::optional<int32_t> MatchedClasses::find(std::string_view label) const {
  const auto found = rows::find_label(labels, label);
  if (!found || same() || lower(labels[static_cast<size_t>(*found)]) == lower(std::string(label))) return found;
  return std::nullopt;
}

MatchedClasses match_classes(const std::vector<std::string>& names,
                             const std::vector<std::vector<std::string>>& labels_of_model) {
  MatchedClasses m;
  std::vector<size_t> models_with;
  for (const auto& labels : labels_of_model) {
    std::vector<int32_t>& own = m.of_model.emplace_back();
    for (const auto& label : labels) {
      size_t k = 0;
      while (k < m.labels.size() && lower(m.labels[k]) != lower(label)) ++k;
      if (k == m.labels.size()) {
        m.labels.push_back(label);
        models_with.push_back(0);
      }
      if (std::find(own.begin(), own.end(), static_cast<int32_t>(k)) == own.end()) ++models_with[k];
      own.push_back(static_cast<int32_t>(k));
    }
  }
  for (const size_t count : models_with) m.shared.push_back(count == labels_of_model.size());
  if (std::find(m.shared.begin(), m.shared.end(), true) != m.shared.end()) return m;
  std::string sets;
  for (size_t i = 0; i < names.size(); ++i)
    sets += fmt::format("\n  {}: {}", names[i], fmt::join(labels_of_model[i], ", "));
  fail(ErrorCode::bad_model,
       "{} have no class in common and cannot be compared; use `brim profile models={}` to compare speed and memory{}",
       fmt::join(names, " and "), fmt::join(names, ","), sets);
}

Comparison compare_models(const std::vector<ModelRun>& runs, const std::vector<std::string>& expected,
                          double max_loss) {
  if (runs.size() < 2) fail(ErrorCode::usage, "brim compare: at least two models are required");
  Comparison c;
  c.blank_lines = runs[0].blank_lines;
  std::vector<std::string> names;
  std::vector<std::vector<std::string>> labels;
  for (const ModelRun& run : runs) {
    names.push_back(run.name);
    labels.push_back(run.labels);
  }
  const MatchedClasses classes = match_classes(names, labels);
  c.labels = classes.labels;
  c.shared = classes.shared_labels();
  c.max_loss = max_loss;
  c.rows = static_cast<int64_t>(runs[0].predicted.size());
  for (const ModelRun& run : runs)
    BRIM_CHECK(static_cast<int64_t>(run.predicted.size()) == c.rows, "{} scored {} rows of {}", run.name,
               run.predicted.size(), c.rows);
  if (!expected.empty()) {
    BRIM_CHECK(static_cast<int64_t>(expected.size()) == c.rows, "{} labels for {} rows", expected.size(), c.rows);
    for (size_t row = 0; row < expected.size(); ++row) {
      const auto label = classes.find(expected[row]);
      if (!label)
        fail(ErrorCode::bad_data, "row {}: unknown label '{}' (labels of the models: {})", row + 1, expected[row],
             fmt::join(c.labels, ", "));
      c.expected.push_back(*label);
      c.shared_rows += classes.shared[static_cast<size_t>(*label)];
    }
  }
  for (size_t i = 0; i < runs.size(); ++i) {
    const ModelRun& run = runs[i];
    const std::vector<int32_t>& own = classes.of_model[i];
    ModelResult m;
    m.name = run.name;
    m.record = run.record;
    for (const int32_t p : run.predicted) m.predicted.push_back(own.at(static_cast<size_t>(p)));
    for (size_t k = 0; k < c.labels.size(); ++k)
      if (std::find(own.begin(), own.end(), static_cast<int32_t>(k)) == own.end()) m.unknown.push_back(c.labels[k]);
    if (!c.expected.empty()) {
      if (!classes.same() && c.shared_rows > 0) m.shared_accuracy = shared_accuracy(c, classes, m.predicted);
      m.metrics = rows::classification_metrics(c.expected, m.predicted, static_cast<int32_t>(c.labels.size()));
      m.per_class = class_errors(*m.metrics);
    }
    c.models.push_back(std::move(m));
  }
  for (size_t a = 0; a < c.models.size(); ++a)
    for (size_t b = a + 1; b < c.models.size(); ++b) {
      PairResult p{a, b, rows::agreement(c.models[a].predicted, c.models[b].predicted), std::nullopt};
      if (!c.expected.empty()) p.mcnemar = rows::mcnemar(c.expected, c.models[a].predicted, c.models[b].predicted);
      c.pairs.push_back(p);
    }
  recommend(c);
  return c;
}

double parse_share(const std::string& text) {
  std::string number = text;
  bool percent = false;
  while (!number.empty() && (number.back() == '%' || number.back() == ' ')) {
    percent |= number.back() == '%';
    number.pop_back();
  }
  double value = -1;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (percent) value /= 100;
  if (error != std::errc() || end != number.data() + number.size() ||
      !(value >= 0 && (percent ? value <= 1 : value < 1)))
    fail(ErrorCode::usage, "`max_loss={}`: must be points of accuracy such as 1% or 0.01", text);
  return value;
}

std::string to_text(const Comparison& c) {
  size_t width = 8;
  for (const ModelResult& m : c.models) width = std::max(width, m.name.size());
  const std::string skipped =
      c.blank_lines > 0 ? fmt::format(" · {} skipped", format_count(c.blank_lines, "blank line")) : "";
  std::string out = fmt::format("{}{} · classes {}\n{}\n", format_count(c.rows, "row"), skipped,
                                fmt::join(c.labels, ", "), classes_text(c));
  const bool labelled = !c.expected.empty(), shared = c.models[0].shared_accuracy.has_value();
  out += fmt::format("{:<{}} ", "model", width);
  if (labelled) out += fmt::format("{:>9} {:>9} {:>9} ", "accuracy", "macro F1", "recall");
  if (shared) out += fmt::format("{:>9} ", "shared");
  out += fmt::format("{:>10} {:>10} {:>8} {:>14} {:>14}  {}\n", "rows/s", "tokens/s", "load s", "memory planned",
                     "process memory", "runs on");
  for (const ModelResult& m : c.models) {
    out += fmt::format("{:<{}} ", m.name, width);
    if (labelled)
      out +=
          fmt::format("{:>9.4f} {:>9.4f} {:>9.4f} ", m.metrics->accuracy, m.metrics->macro_f1, m.metrics->macro_recall);
    if (shared) out += fmt::format("{:>9.4f} ", *m.shared_accuracy);
    const monitor::RunRecord& r = m.record;
    out += fmt::format("{:>10} {:>10} {:>8.2f} {:>14} {:>14}  {} {}\n", format_count(static_cast<int64_t>(rate_of(m))),
                       r.stats.tokens > 0 ? format_si(r.tokens_per_second().value_or(0)) : "–", r.load_seconds,
                       cell(r.planned_bytes), cell(r.peak_bytes), r.device,
                       r.precision == "exact" ? "(rules)" : r.precision);
  }
  if (labelled) {
    out += fmt::format("\n{:<{}} {:<16} {:>9} {:>16} {:>16}\n", "model", width, "class", "support", "false positives",
                       "false negatives");
    for (const ModelResult& m : c.models)
      for (size_t k = 0; k < c.labels.size(); ++k)
        out += fmt::format("{:<{}} {:<16} {:>9} {:>16} {:>16}\n", k == 0 ? m.name : "", width, c.labels[k],
                           format_count(m.per_class[k].support), format_count(m.per_class[k].false_positives),
                           format_count(m.per_class[k].false_negatives));
  }
  out += "\npairs\n";
  for (const PairResult& p : c.pairs) {
    out += fmt::format("  {} and {} agree on {:.2f} %", c.models[p.a].name, c.models[p.b].name, 100 * p.agreement);
    if (p.mcnemar)
      out +=
          fmt::format("; only the first is correct {}, only the second {}; difference {} (p = {:.3g})",
                      format_count(p.mcnemar->only_a_right), format_count(p.mcnemar->only_b_right),
                      p.mcnemar->p_value < rows::kSignificant ? "significant" : "not significant", p.mcnemar->p_value);
    out += "\n";
  }
  out += fmt::format("\n{} with disagreement\n", format_count(static_cast<int64_t>(c.disagreements().size()), "row"));
  return out + (labelled ? "recommended: " : "") + c.rule + "\n";
}

std::string to_json(const Comparison& c) {
  using json = nlohmann::ordered_json;
  const auto maybe = [](const auto& value) { return value ? json(*value) : json(nullptr); };
  json j = {{"schema_version", 1},     {"rows", c.rows},         {"labels", c.labels},
            {"models", json::array()}, {"pairs", json::array()}, {"disagreements", c.disagreements().size()},
            {"max_loss", c.max_loss},  {"rule", c.rule},         {"shared_labels", c.shared}};
  j["blank_lines"] = c.blank_lines;
  j["shared_rows"] = c.expected.empty() ? json(nullptr) : json(c.shared_rows);
  j["recommended"] = c.expected.empty() ? json(nullptr) : json(c.models[c.recommended].name);
  for (const ModelResult& m : c.models) {
    json model = {
        {"name", m.name},
        {"device", m.record.device},
        {"precision", m.record.precision},
        {"rows_per_second", rate_of(m)},
        {"tokens_per_second", m.record.stats.tokens > 0 ? maybe(m.record.tokens_per_second()) : json(nullptr)},
        {"load_seconds", m.record.load_seconds},
        {"planned_bytes", maybe(m.record.planned_bytes)},
        {"held_bytes", maybe(m.record.peak_bytes)},
        {"unknown_labels", m.unknown}};
    if (m.shared_accuracy) model["shared_accuracy"] = *m.shared_accuracy;
    if (m.metrics) {
      model["accuracy"] = m.metrics->accuracy;
      model["macro_f1"] = m.metrics->macro_f1;
      model["macro_recall"] = m.metrics->macro_recall;
      model["confusion"] = m.metrics->confusion;
      for (size_t k = 0; k < c.labels.size(); ++k)
        model["per_class"][c.labels[k]] = {{"support", m.per_class[k].support},
                                           {"false_positives", m.per_class[k].false_positives},
                                           {"false_negatives", m.per_class[k].false_negatives},
                                           {"precision", m.metrics->per_class[k].precision},
                                           {"recall", m.metrics->per_class[k].recall},
                                           {"f1", m.metrics->per_class[k].f1}};
    }
    j["models"].push_back(std::move(model));
  }
  for (const PairResult& p : c.pairs) {
    json pair = {{"a", c.models[p.a].name}, {"b", c.models[p.b].name}, {"agreement", p.agreement}};
    if (p.mcnemar)
      pair["mcnemar"] = {{"only_a_right", p.mcnemar->only_a_right},
                         {"only_b_right", p.mcnemar->only_b_right},
                         {"p_value", p.mcnemar->p_value}};
    j["pairs"].push_back(std::move(pair));
  }
  return j.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace brim::jobs
