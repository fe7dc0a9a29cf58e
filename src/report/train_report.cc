// SPDX-License-Identifier: Apache-2.0
#include "report/train_report.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/units.h"
#include "io/atomic_file.h"
#include "io/json_text.h"
#include "report/html.h"
#include "report/plot.h"

namespace brim::report {
namespace {

using Json = nlohmann::ordered_json;

// Rows that have `key`, by step. Null is a gap.
Series series(const Json& history, const char* key, std::string name, double factor = 1) {
  Series s;
  s.name = std::move(name);
  for (const Json& row : history) {
    if (!row.contains(key) || !row.contains("step")) continue;
    s.x.push_back(row["step"].get<double>());
    s.y.push_back(row[key].is_number() ? factor * row[key].get<double>() : NAN);
  }
  return s;
}

std::string folder_name(const std::string& path) {
  const std::filesystem::path p = std::filesystem::path(path).lexically_normal();
  return (p.has_filename() ? p.filename() : p.parent_path().filename()).string();
}

bool has_values(const Series& s) {
  for (const double y : s.y)
    if (std::isfinite(y)) return true;
  return false;
}

void add_plot(std::vector<std::string>& drawn, LinePlot plot) {
  std::erase_if(plot.series, [](const Series& s) { return !has_values(s); });
  if (plot.series.empty()) return;
  plot.x_label = "step";
  drawn.push_back(svg(plot));
}

std::string text_of(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_null()) return "–";
  return value.dump();
}

std::string names(const Json& list) {
  std::string out;
  for (const Json& item : list) out += (out.empty() ? "" : ", ") + text_of(item);
  return out.empty() ? "none" : out;
}

void add_curves(HtmlPage& page, const Json& history) {
  std::vector<std::string> drawn;
  add_plot(drawn, {.title = "Loss",
                   .y_label = "loss",
                   .series = {series(history, "loss", "training"), series(history, "eval_loss", "validation")}});
  add_plot(drawn, {.title = "Loss by head",
                   .y_label = "loss",
                   .series = {series(history, "sequence_loss", "classifier, training"),
                              series(history, "eval_sequence_loss", "classifier, validation"),
                              series(history, "token_loss", "tagger, training"),
                              series(history, "eval_token_loss", "tagger, validation")}});
  add_plot(
      drawn,
      {.title = "Metrics on the validation set",
       .y_label = "share",
       .series = {series(history, "eval_accuracy", "accuracy"), series(history, "eval_macro_f1", "macro F1"),
                  series(history, "eval_macro_recall", "macro recall"), series(history, "eval_entity_f1", "entity F1"),
                  series(history, "eval_pearson", "Pearson"), series(history, "eval_spearman", "Spearman")},
       .y_unit = Unit::share});
  add_plot(drawn, {.title = "Throughput",
                   .y_label = "tokens/s",
                   .series = {series(history, "tokens_per_second", "tokens/s")},
                   .y_from_zero = true});
  add_plot(drawn, {.title = "Samples",
                   .y_label = "rows/s",
                   .series = {series(history, "samples_per_second", "rows/s")},
                   .y_from_zero = true});
  add_plot(drawn, {.title = "Memory",
                   .y_label = "bytes",
                   .series = {series(history, "memory_used_bytes", "this run"),
                              series(history, "memory_planned_bytes", "planned"),
                              series(history, "gpu_memory_used_bytes", "whole GPU")},
                   .y_unit = Unit::bytes,
                   .y_from_zero = true});
  add_plot(drawn, {.title = "Learning rate",
                   .y_label = "rate",
                   .series = {series(history, "learning_rate", "learning rate")},
                   .y_from_zero = true});
  add_plot(drawn, {.title = "Gradient norm",
                   .y_label = "norm",
                   .series = {series(history, "grad_norm", "before clipping")},
                   .y_from_zero = true});
  add_plot(drawn, {.title = "Device utilisation",
                   .y_label = "share",
                   .series = {series(history, "mfu", "MFU"), series(history, "gpu_utilization", "time busy")},
                   .y_unit = Unit::share,
                   .y_from_zero = true});
  add_plot(drawn, {.title = "Temperature", .y_label = "°C", .series = {series(history, "gpu_temperature_c", "GPU")}});
  add_plot(drawn,
           {.title = "Power", .y_label = "W", .series = {series(history, "gpu_power_w", "GPU")}, .y_from_zero = true});
  page.heading("Curves");
  if (drawn.empty())
    page.paragraph("No log entries yet.");
  else
    page.plots(drawn);
}

void add_plan(HtmlPage& page, const Json& plan) {
  page.heading("Memory plan");
  StackedBar bar{.title = "Planned bytes by tag",
                 .x_label = "bytes",
                 .rows = {{.name = "plan", .parts = {}, .marks = {}}},
                 .unit = Unit::bytes};
  for (const auto& [tag, bytes] : plan.at("bytes").items())
    if (bytes.is_number() && bytes.get<double>() > 0) bar.rows[0].parts.emplace_back(tag, bytes.get<double>());
  bar.rows[0].marks.emplace_back("limit", plan.at("limit_bytes").get<double>());
  page.svg(svg(bar));
  HtmlTable table{.caption = "The plan", .header = {"item", "value"}, .rows = {}};
  for (const auto& [key, value] : plan.items())
    if (value.is_primitive())
      table.rows.push_back(
          {key, key.ends_with("_bytes") && value.is_number() ? format_bytes(value.get<int64_t>()) : text_of(value)});
  page.table(table);
}

void add_evaluations(HtmlPage& page, const Json& state) {
  HtmlTable table{.caption = "Evaluations", .header = {"step"}, .rows = {}};
  for (const Json& row : state.at("log_history")) {
    if (!row.contains("eval_loss")) continue;
    std::vector<std::string> cells = {text_of(row["step"]) +
                                      (row["step"] == state["best_global_step"] ? " (best)" : "")};
    for (const auto& [key, value] : row.items()) {
      if (key.rfind("eval_", 0) != 0) continue;
      if (table.rows.empty()) table.header.push_back(key.substr(5));
      cells.push_back(value.is_number() ? fmt::format("{:.4f}", value.get<double>()) : "–");
    }
    table.rows.push_back(cells);
  }
  if (table.rows.empty()) return;
  page.heading("Evaluations");
  page.table(table);
}

void add_teachers(HtmlPage& page, const Json& r) {
  const auto percent = [](const Json& value) {
    return value.is_number() ? fmt::format("{:.1f} %", 100 * value.get<double>()) : std::string("–");
  };
  page.heading("Teachers");
  page.figures({{"agreement of the student", percent(r.at("agreement"))},
                {"texts compared", format_count(r.at("rows_compared").get<int64_t>())},
                {"mean confidence of the teachers", fmt::format("{:.3f}", r.at("mean_confidence").get<double>())},
                {"teachers' mean equal to the labels", percent(r.at("label_agreement"))}});
  HtmlTable teachers{
      .caption = "Teachers", .header = {"teacher", "weight", "student agrees", "equal to the labels"}, .rows = {}};
  for (const Json& t : r.at("teachers"))
    teachers.rows.push_back({folder_name(text_of(t.at("model"))), fmt::format("{:.3g}", t.at("weight").get<double>()),
                             percent(t.value("agreement", Json())), percent(t.value("label_agreement", Json()))});
  page.table(teachers);
  const Json& bins = r.at("confidence");
  HtmlTable confidence{
      .caption = "Confidence of the teachers", .header = {"score of the label", "texts", "share"}, .rows = {}};
  const double width = 1.0 / static_cast<double>(bins.size());
  for (size_t i = 0; i < bins.size(); ++i)
    confidence.rows.push_back(
        {fmt::format("{:.1f} to {:.1f}", static_cast<double>(i) * width, static_cast<double>(i + 1) * width),
         format_count(bins[i].get<int64_t>()),
         percent(bins[i].get<double>() / std::max(1.0, r.at("rows").get<double>()))});
  page.table(confidence);
  if (r.at("to_label").empty()) return;
  HtmlTable rows{.caption = "Rows most worth labelling by hand (to_label.csv)",
                 .header = {"text", "from", "teachers", "student", "reason"},
                 .rows = {}};
  const auto decision = [](const Json& row, const char* label, const char* score) {
    const std::string name = text_of(row.at(label));
    return fmt::format("{}{}{:.3f}", name, name.empty() ? "" : " ", row.at(score).get<double>());
  };
  for (const Json& row : r.at("to_label"))
    rows.rows.push_back({shortened(text_of(row.at("text")), 160), text_of(row.at("from")),
                         decision(row, "teacher_label", "teacher_score"),
                         decision(row, "student_label", "student_score"), text_of(row.at("reason"))});
  page.table(rows);
}

std::string draw(const Json& r) {
  const Json& state = r.at("state");
  const Json& data = r.at("data");
  HtmlPage page("Training " + folder_name(text_of(r.at("model"))),
                fmt::format("{} in {}, {} parameters", text_of(r.at("device")), text_of(r.at("precision")),
                            format_count(r.at("parameters").get<int64_t>())));
  const double seconds = std::max(1e-9, r.at("seconds").get<double>());
  std::vector<std::pair<std::string, std::string>> figures = {
      {"steps", fmt::format("{} of {}", format_count(state.at("global_step").get<int64_t>()),
                            format_count(state.at("max_steps").get<int64_t>()))},
      {"epochs", fmt::format("{:.2f}", state.at("epoch").get<double>())},
      {"training time", format_duration(seconds + r.value("seconds_before", 0.0))},
      {"rows/s", format_count(static_cast<int64_t>(r.at("samples").get<double>() / seconds))},
      {"tokens/s", format_si(r.at("tokens").get<double>() / seconds)}};
  if (state.at("best_metric").is_number())
    figures.emplace_back(
        "best " + text_of(state.at("best_metric_name")),
        fmt::format("{:.4f} at step {}", state["best_metric"].get<double>(), text_of(state["best_global_step"])));
  page.figures(figures);
  add_curves(page, state.at("log_history"));
  add_evaluations(page, state);
  if (r.contains("teachers")) add_teachers(page, r["teachers"]);
  add_plan(page, r.at("plan"));
  page.heading("Data and settings");
  page.table({.caption = "Data",
              .header = {"item", "value"},
              .rows = {{"training files", names(data.at("train"))},
                       {"validation files", names(data.at("validation"))},
                       {"training rows", format_count(data.at("rows").get<int64_t>())},
                       {"training tokens", format_count(data.at("tokens").get<int64_t>())},
                       {"token set", data.at("token_set").get<std::string>()},
                       {"validation rows", format_count(data.at("validation_rows").get<int64_t>())},
                       {"truncated texts", format_count(data.at("truncated").get<int64_t>())}}});
  HtmlTable table{.caption = "Settings", .header = {"key", "value"}, .rows = {}};
  for (const auto& [key, value] : r.at("settings").items()) table.rows.push_back({key, text_of(value)});
  page.table(table);
  return page.html();
}

}  // namespace

std::string train_report_html(const std::string& record_json) {
  try {
    return draw(Json::parse(record_json));
  } catch (const Json::exception& e) {
    fail(ErrorCode::bad_data, "invalid record of a training run: {}", io::json_reason(e.what()));
  }
}

void write_train_report(const std::filesystem::path& path, const std::string& record_json) {
  io::write_file_atomically(path, train_report_html(record_json));
}

}  // namespace brim::report
