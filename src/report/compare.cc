// SPDX-License-Identifier: Apache-2.0
#include "report/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/units.h"
#include "engine/evaluate.h"

namespace brim {
namespace {

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::vector<std::string> sorted_names(const std::vector<std::string>& labels) {
  std::vector<std::string> names;
  for (const auto& label : labels) names.push_back(lower(label));
  std::sort(names.begin(), names.end());
  return names;
}

// The run's classes in terms of `labels`.
std::vector<int32_t> translated(const ModelRun& run, const std::vector<std::string>& labels) {
  std::vector<int32_t> to;
  for (const auto& label : run.labels)
    for (size_t k = 0; k < labels.size(); ++k)
      if (lower(labels[k]) == lower(label)) to.push_back(static_cast<int32_t>(k));
  std::vector<int32_t> out;
  for (const int32_t p : run.predicted) out.push_back(to.at(static_cast<size_t>(p)));
  return out;
}

std::vector<ClassErrors> class_errors(const ClassificationMetrics& m) {
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

// The fastest model that is right nearly as often as the best. Without labels nobody knows who is right.
void recommend(Comparison& c) {
  const auto faster = [&](size_t a, size_t b) { return c.models[a].rows_per_second > c.models[b].rows_per_second; };
  if (c.expected.empty()) {
    c.rule = "no recommendation: without labels nobody knows which of them is right";
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
  // A model that does not beat one word is worth hearing about before it is taken.
  std::vector<int64_t> rows_of(c.labels.size());
  for (const int32_t label : c.expected) ++rows_of[static_cast<size_t>(label)];
  const auto most = std::max_element(rows_of.begin(), rows_of.end());
  const double always = static_cast<double>(*most) / static_cast<double>(c.rows);
  if (top <= always)
    c.rule += fmt::format("; but none is right more often than always saying {} ({:.2f} %)",
                          c.labels[static_cast<size_t>(most - rows_of.begin())], 100 * always);
}

std::string cell(int64_t bytes) { return bytes < 0 ? "–" : format_bytes(bytes); }

}  // namespace

std::vector<size_t> Comparison::disagreements() const {
  std::vector<size_t> differing;
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row)
    if (std::any_of(models.begin(), models.end(),
                    [&](const ModelResult& m) { return m.predicted[row] != models[0].predicted[row]; }))
      differing.push_back(row);
  return differing;
}

void require_same_classes(const std::string& a, const std::vector<std::string>& labels_of_a, const std::string& b,
                          const std::vector<std::string>& labels_of_b) {
  if (sorted_names(labels_of_a) == sorted_names(labels_of_b)) return;
  fail(ErrorCode::bad_model, "{} and {} do not know the same classes and cannot be compared\n  {}: {}\n  {}: {}", a, b,
       a, fmt::join(labels_of_a, ", "), b, fmt::join(labels_of_b, ", "));
}

Comparison compare_models(const std::vector<ModelRun>& runs, const std::vector<std::string>& expected,
                          double max_loss) {
  if (runs.size() < 2) fail(ErrorCode::usage, "brim compare: name at least two models");
  Comparison c;
  c.labels = runs[0].labels;
  c.max_loss = max_loss;
  c.rows = static_cast<int64_t>(runs[0].predicted.size());
  for (const ModelRun& run : runs) {
    require_same_classes(runs[0].name, c.labels, run.name, run.labels);
    BRIM_CHECK(static_cast<int64_t>(run.predicted.size()) == c.rows, "{} scored {} rows of {}", run.name,
               run.predicted.size(), c.rows);
  }
  if (!expected.empty()) {
    BRIM_CHECK(static_cast<int64_t>(expected.size()) == c.rows, "{} labels for {} rows", expected.size(), c.rows);
    for (size_t row = 0; row < expected.size(); ++row) {
      const auto label = find_label(c.labels, expected[row]);
      if (!label)
        fail(ErrorCode::bad_data, "row {}: label '{}' is none of the models': {}", row + 1, expected[row],
             fmt::join(c.labels, ", "));
      c.expected.push_back(*label);
    }
  }
  for (const ModelRun& run : runs) {
    ModelResult m;
    m.name = run.name;
    m.device = run.device;
    m.precision = run.precision;
    m.rows_per_second = run.rows_per_second;
    m.tokens_per_second = run.tokens_per_second;

    m.load_seconds = run.load_seconds;
    m.planned_bytes = run.planned_bytes;
    m.held_bytes = run.held_bytes;
    m.predicted = translated(run, c.labels);
    if (!c.expected.empty()) {
      m.metrics = classification_metrics(c.expected, m.predicted, static_cast<int32_t>(c.labels.size()));
      m.per_class = class_errors(*m.metrics);
    }
    c.models.push_back(std::move(m));
  }
  for (size_t a = 0; a < c.models.size(); ++a)
    for (size_t b = a + 1; b < c.models.size(); ++b) {
      PairResult p{a, b, agreement(c.models[a].predicted, c.models[b].predicted), std::nullopt};
      if (!c.expected.empty()) p.mcnemar = mcnemar(c.expected, c.models[a].predicted, c.models[b].predicted);
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
    fail(ErrorCode::usage, "--max-loss {}: give points of accuracy such as 1% or 0.01", text);
  return value;
}

std::string to_text(const Comparison& c) {
  size_t width = 8;
  for (const ModelResult& m : c.models) width = std::max(width, m.name.size());
  std::string out = fmt::format("{} rows · classes {}\n\n", format_count(c.rows), fmt::join(c.labels, ", "));
  const bool labelled = !c.expected.empty();
  out += fmt::format("{:<{}} ", "model", width);
  if (labelled) out += fmt::format("{:>9} {:>9} {:>9} ", "accuracy", "macro F1", "recall");
  out += fmt::format("{:>10} {:>10} {:>8} {:>12} {:>12}  {}\n", "rows/s", "tokens/s", "load s", "planned", "held",
                     "runs on");
  for (const ModelResult& m : c.models) {
    out += fmt::format("{:<{}} ", m.name, width);
    if (labelled)
      out +=
          fmt::format("{:>9.4f} {:>9.4f} {:>9.4f} ", m.metrics->accuracy, m.metrics->macro_f1, m.metrics->macro_recall);
    out += fmt::format("{:>10} {:>10} {:>8.2f} {:>12} {:>12}  {} {}\n",
                       format_count(static_cast<int64_t>(m.rows_per_second)),
                       m.tokens_per_second > 0 ? format_si(m.tokens_per_second) : "–", m.load_seconds,
                       cell(m.planned_bytes), cell(m.held_bytes), m.device, m.precision);
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
      out += fmt::format("; only the first is right {}, only the second {}, p = {:.3g} ({})",
                         format_count(p.mcnemar->only_a_right), format_count(p.mcnemar->only_b_right),
                         p.mcnemar->p_value, p.mcnemar->p_value < 0.05 ? "not luck" : "may be luck");
    out += "\n";
  }
  out +=
      fmt::format("\n{} rows on which they disagree\n", format_count(static_cast<int64_t>(c.disagreements().size())));
  return out + (labelled ? "recommended: " : "") + c.rule + "\n";
}

std::string to_json(const Comparison& c) {
  using nlohmann::json;
  const auto bytes = [](int64_t b) { return b < 0 ? json(nullptr) : json(b); };
  json j = {{"schema_version", 1},     {"rows", c.rows},         {"labels", c.labels},
            {"models", json::array()}, {"pairs", json::array()}, {"disagreements", c.disagreements().size()},
            {"max_loss", c.max_loss},  {"rule", c.rule}};
  j["recommended"] = c.expected.empty() ? json(nullptr) : json(c.models[c.recommended].name);
  for (const ModelResult& m : c.models) {
    json model = {{"name", m.name},
                  {"device", m.device},
                  {"precision", m.precision},
                  {"rows_per_second", m.rows_per_second},
                  {"tokens_per_second", m.tokens_per_second > 0 ? json(m.tokens_per_second) : json(nullptr)},
                  {"load_seconds", m.load_seconds},
                  {"planned_bytes", bytes(m.planned_bytes)},
                  {"held_bytes", bytes(m.held_bytes)}};
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

}  // namespace brim
