// SPDX-License-Identifier: Apache-2.0
// The profile as an HTML page: results first, then plots, then all numbers.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/units.h"
#include "report/html.h"
#include "report/plot_axis.h"
#include "report/profile.h"
#include "report/profile_cells.h"

namespace brim::report {
namespace {

void key_figures(HtmlPage& page, const Profile& p) {
  std::vector<std::pair<std::string, std::string>> figures;
  if (p.models.size() == 1) {
    const ModelProfile& m = p.models[0];
    figures = {{"one text, p50", cell_ms(m.single.p50) + " ms"}, {"one text, p99", cell_ms(m.single.p99) + " ms"}};
    if (const SizePoint* s = m.largest()) {
      figures.emplace_back("texts per second", format_rate(s->rows_per_second()));
      if (s->run.stats.tokens > 0) figures.emplace_back("tokens per second", format_si(s->tokens_per_second()));
      if (s->run.mfu) figures.emplace_back("share of peak compute (MFU)", cell_mfu(s->run.mfu, s->run.mfu_note()));
      if (s->joules_per_1000) figures.emplace_back("energy, 1,000 texts", fmt::format("{:.1f} J", *s->joules_per_1000));
    }
    figures.emplace_back("memory", cell_bytes(m.own_bytes()));
    figures.emplace_back("load, cold", format_duration(m.cold_load_seconds));
  } else {
    for (const auto& m : p.models)
      figures.emplace_back(m.name + ", texts per second",
                           m.largest() != nullptr ? format_rate(m.largest()->rows_per_second()) : "–");
  }
  if (p.llm) {
    figures.emplace_back(p.llm->model + ", tokens per second", format_rate(p.llm->alone.overall_tokens_per_second));
    figures.emplace_back(p.llm->model + ", first token p50", cell_ms(p.llm->alone.first_token_s.p50) + " ms");
  }
  page.figures(figures);
}

// One column per model, so that compared values are in one row.
void overview(HtmlPage& page, const Profile& p) {
  HtmlTable t;
  t.header = {""};
  for (const auto& m : p.models) t.header.push_back(m.name);
  const auto line = [&](const std::string& what, const std::function<std::string(const ModelProfile&)>& value) {
    std::vector<std::string> row = {what};
    for (const auto& m : p.models) row.push_back(value(m));
    if (std::any_of(row.begin() + 1, row.end(), [](const std::string& v) { return v != "–"; }))
      t.rows.push_back(std::move(row));
  };
  const auto run = [](const std::function<std::string(const SizePoint&)>& value) {
    return [value](const ModelProfile& m) { return m.largest() == nullptr ? std::string("–") : value(*m.largest()); };
  };
  line("Device", [](const auto& m) { return m.device; });
  line("Precision", [](const auto& m) { return m.precision == "exact" ? "rules" : m.precision; });
  line("Parameters",
       [](const auto& m) { return m.parameters > 0 ? format_si(static_cast<double>(m.parameters)) : "–"; });
  line("Load, cold", [](const auto& m) { return cell_ms(m.cold_load_seconds) + " ms"; });
  line("Load, warm", [](const auto& m) { return cell_ms(m.warm_load_seconds) + " ms"; });
  line("One text, p50", [](const auto& m) { return cell_ms(m.single.p50) + " ms"; });
  line("One text, p95", [](const auto& m) { return cell_ms(m.single.p95) + " ms"; });
  line("One text, p99", [](const auto& m) { return cell_ms(m.single.p99) + " ms"; });
  line("Texts/s, one at a time", [](const auto& m) { return format_rate(m.single.mean > 0 ? 1 / m.single.mean : 0); });
  line("Best batch",
       [](const auto& m) { return m.best_batch() != nullptr ? format_count(m.best_batch()->batch_size) : "–"; });
  line("Texts/s in it",
       [](const auto& m) { return m.best_batch() != nullptr ? format_rate(m.best_batch()->items_per_second) : "–"; });
  line("Texts/s, whole data set", run([](const SizePoint& s) { return format_rate(s.rows_per_second()); }));
  line("Tokens/s",
       run([](const SizePoint& s) { return s.run.stats.tokens > 0 ? format_si(s.tokens_per_second()) : "–"; }));
  line("Share of peak compute (MFU)", run([](const SizePoint& s) { return cell_mfu(s.run.mfu, s.run.mfu_note()); }));
  line("Device busy", run([](const SizePoint& s) { return cell_percent(s.run.device_busy); }));
  line("Memory, measured", [](const auto& m) { return cell_bytes(m.own_bytes()); });
  line("Energy, 1,000 texts",
       run([](const SizePoint& s) { return s.joules_per_1000 ? fmt::format("{:.1f} J", *s.joules_per_1000) : "–"; }));
  line("Accuracy", [](const auto& m) { return m.accuracy ? cell_percent(*m.accuracy) : "–"; });
  page.table(t);
}

void speed_plots(HtmlPage& page, const Profile& p) {
  LinePlot throughput{"Throughput by batch size", "texts per call", "texts per second"},
      latency{"Time per call by batch size", "texts per call", "time, median"};
  LinePlot speedup{"Speed-up over one text at a time", "texts per call", "times"},
      sizes{"Whole data sets, file to file", "texts", "texts per second"};
  throughput.log_x = latency.log_x = speedup.log_x = sizes.log_x = latency.log_y = true;
  latency.y_unit = Unit::seconds;
  speedup.y_from_zero = true;
  double least = INFINITY, most = 0;
  for (const auto& m : p.models) {
    Series a{m.name}, b{m.name}, c{m.name}, d{m.name};
    for (const auto& point : m.batches) {
      const auto x = static_cast<double>(point.batch_size);
      a.x.push_back(x);
      a.y.push_back(point.items_per_second);
      b.x.push_back(x);
      b.y.push_back(point.seconds.p50);
      c.x.push_back(x);
      c.y.push_back(point.speedup);
      least = std::min(least, point.items_per_second);
      most = std::max(most, point.items_per_second);
    }
    for (const auto& point : m.sizes) {
      d.x.push_back(static_cast<double>(point.rows));
      d.y.push_back(point.rows_per_second());
    }
    throughput.series.push_back(a);
    latency.series.push_back(b);
    speedup.series.push_back(c);
    sizes.series.push_back(d);
  }
  throughput.log_y = sizes.log_y = most > 20 * least;  // VADER next to a transformer differs by orders of magnitude
  throughput.y_from_zero = sizes.y_from_zero = true;
  std::vector<std::string> drawn;
  for (const LinePlot* plot : {&throughput, &latency, &speedup, &sizes})
    if (std::any_of(plot->series.begin(), plot->series.end(), [](const Series& s) { return s.x.size() > 1; }))
      drawn.push_back(svg(*plot));
  if (!drawn.empty()) page.plots(drawn);
}

void batch_tables(HtmlPage& page, const Profile& p) {
  for (const auto& m : p.models) {
    HtmlTable t{m.name,
                {"Texts per call", "Mean ms", "p50 ms", "p95 ms", "p99 ms", "Texts/s", "Rounds", "Tokens/s", "Speed-up",
                 "MFU", "Calls"},
                {}};
    for (const auto& b : m.batches)
      t.rows.push_back({format_count(b.batch_size), cell_ms(b.seconds.mean), cell_ms(b.seconds.p50),
                        cell_ms(b.seconds.p95), cell_ms(b.seconds.p99), format_rate(b.items_per_second),
                        cell_range(b.rate), b.tokens_per_second > 0 ? format_si(b.tokens_per_second) : "–",
                        fmt::format("{:.2f}", b.speedup), cell_mfu(b.mfu, m.plan ? m.plan->device.mfu_note() : ""),
                        format_count(b.seconds.count)});
    page.table(t);
    HtmlTable d{m.name + ", whole data sets",
                {"Texts", "Seconds", "Texts/s", "Runs", "Tokens/s", "MFU", "Device busy", "J per 1,000", "Limited by"},
                {}};
    for (const auto& s : m.sizes)
      d.rows.push_back({format_count(s.rows), fmt::format("{:.2f}", s.run.stats.seconds),
                        format_rate(s.rows_per_second()), cell_range(s.rate),
                        s.run.stats.tokens > 0 ? format_si(s.tokens_per_second()) : "–",
                        cell_mfu(s.run.mfu, s.run.mfu_note()), cell_percent(s.run.device_busy),
                        s.joules_per_1000 ? fmt::format("{:.1f}", *s.joules_per_1000) : "–", cell_limit(s)});
    page.table(d);
  }
}

void memory_section(HtmlPage& page, const Profile& p) {
  StackedBar bar{"Memory by purpose: planned and measured", "bytes"};
  HtmlTable t{"",
              {"Model", "Planned", "Measured", "Limit", "Predicted tokens/s", "Measured tokens/s", "Speed ÷ predicted"},
              {}};
  for (const auto& m : p.models) {
    if (!m.plan) continue;
    StackedBar::Row row{m.name, {}, {}};
    for (int tag = 0; tag < memory::kTagCount; ++tag)
      if (m.plan->bytes.bytes[static_cast<size_t>(tag)] > 0)
        row.parts.emplace_back(tag_name(static_cast<memory::Tag>(tag)),
                               static_cast<double>(m.plan->bytes.bytes[static_cast<size_t>(tag)]));
    if (const auto own = m.own_bytes()) row.marks.emplace_back("measured", static_cast<double>(*own));
    bar.rows.push_back(row);
    const double measured = m.largest() != nullptr ? m.largest()->tokens_per_second() : 0,
                 planned = m.plan->tokens_per_second;
    t.rows.push_back({m.name, format_bytes(m.plan->peak_bytes), cell_bytes(m.own_bytes()),
                      format_bytes(m.plan->limit_bytes), planned > 0 ? format_si(planned) : "–", format_si(measured),
                      planned > 0 ? fmt::format("{:.2f}", measured / planned) : "–"});
  }
  if (bar.rows.empty()) return;
  page.heading("Memory");
  page.svg(svg(bar));
  page.table(t);
  const bool host = std::any_of(p.models.begin(), p.models.end(),
                                [](const auto& m) { return m.plan && m.device_kind == device::DeviceKind::cpu; });
  if (host)
    page.paragraph(
        "On the CPU, measured memory is the increase in resident memory. It includes mapped model files, row buffers "
        "and the tokenizer, which are not planned.");
}

void roofline_section(HtmlPage& page, const Profile& p) {
  std::vector<std::string> drawn;
  for (const auto& m : p.models) {
    if (!m.plan) continue;
    RooflinePlot r{fmt::format("{}: roofline", m.name)};
    r.peak_flops = m.plan->device.rate(m.plan->precision);
    r.bandwidth = m.plan->device.bandwidth;
    r.peak_name = fmt::format("{}flop/s, {}{}", format_value(r.peak_flops, Unit::plain), m.precision,
                              m.plan->device.measured ? "" : " (estimated)");
    r.bandwidth_name = fmt::format("{}B/s", format_value(r.bandwidth, Unit::plain));
    std::vector<RooflinePlot::Point> calls;
    for (const auto& b : m.batches)
      if (b.bytes > 0 && b.busy_seconds > 0)
        calls.push_back({fmt::format("call of {}", b.batch_size), b.flops / b.bytes, b.flops / b.busy_seconds});
    if (calls.size() > 3) calls = {calls.front(), calls[calls.size() / 2], calls.back()};
    r.points = calls;
    for (const auto& op : m.ops)
      if (op.bytes > 0 && op.seconds > 0 && r.points.size() < 8)
        r.points.push_back({op.name, op.flops / op.bytes, op.flops / op.seconds});
    if (!r.points.empty()) drawn.push_back(svg(r));
  }
  if (drawn.empty()) return;
  page.heading("Roofline");
  page.paragraph(
      "Each mark combines the measured time with the minimum work and memory traffic according to the plan. Below the "
      "slope, memory is the limit; below the flat roof, arithmetic is. "
      "Traffic that stays in caches can lift a mark above the slope.");
  page.plots(drawn);
}

void timeline_section(HtmlPage& page, const Profile& p) {
  bool begun = false;
  for (const auto& m : p.models) {
    if (m.timeline.spans.empty()) continue;
    if (!begun) page.heading("Stages over time");
    begun = true;
    page.svg(svg(m.timeline));
  }
}

void agreement_section(HtmlPage& page, const Profile& p) {
  if (p.agreement.empty() &&
      std::none_of(p.models.begin(), p.models.end(), [](const auto& m) { return m.accuracy.has_value(); }))
    return;
  page.heading("Labels");
  HtmlTable quality{"", {"Model", "Accuracy", "Macro F1", "Rows"}, {}};
  BarPlot bars{"Accuracy", "model", "share of rows", {}, {{"accuracy", {}}, {"macro F1", {}}}, Unit::share};
  for (const auto& m : p.models)
    if (m.accuracy) {
      quality.rows.push_back(
          {m.name, cell_percent(*m.accuracy), fmt::format("{:.4f}", *m.macro_f1), format_count(m.labelled_rows)});
      bars.groups.push_back(m.name);
      bars.series[0].values.push_back(*m.accuracy);
      bars.series[1].values.push_back(*m.macro_f1);
    }
  if (!quality.rows.empty()) {
    page.svg(svg(bars));
    page.table(quality);
  }
  HtmlTable t{"Agreement between models", {"Models", "Agreement", "Rows"}, {}};
  for (const auto& a : p.agreement)
    t.rows.push_back({a.a + " and " + a.b, cell_percent(a.share), format_count(a.rows)});
  if (!t.rows.empty()) page.table(t);
}

void llm_section(HtmlPage& page, const Profile& p) {
  if (!p.llm) return;
  const LlmProfile& l = *p.llm;
  page.heading("Language model");
  page.paragraph(fmt::format("{} through {} at {}, {} of at most {} tokens, sequential.", l.model, l.api, l.url,
                             format_count(l.alone.calls + l.alone.failed, "request"), l.max_tokens));
  HtmlTable t{"",
              {"Run", "First token p50", "p95", "Latency p50", "p95", "p99", "Tokens/s while generating",
               "Tokens/s overall", "Failed"},
              {}};
  const auto row = [&](const std::string& name, const LlmRun& r) {
    t.rows.push_back({name, cell_ms(r.first_token_s.p50) + " ms", cell_ms(r.first_token_s.p95) + " ms",
                      cell_ms(r.seconds.p50) + " ms", cell_ms(r.seconds.p95) + " ms", cell_ms(r.seconds.p99) + " ms",
                      r.tokens_per_second.count > 0 ? format_rate(r.tokens_per_second.p50) : "–",
                      format_rate(r.overall_tokens_per_second), format_count(r.failed)});
  };
  row("alone", l.alone);
  if (l.sharing) {
    const SharingCost& s = *l.sharing;
    row("together with " + s.sentiment_model, s.together);
    page.table(t);
    BarPlot bars{"Cost of sharing: relative speed",     "",
                 "share of the speed when alone",       {s.sentiment_model + " (texts/s)", l.model + " (tokens/s)"},
                 {{"alone", {1, 1}}, {"together", {}}}, Unit::share};
    bars.series[1].values = {s.items_alone > 0 ? s.items_together / s.items_alone : NAN,
                             l.alone.overall_tokens_per_second > 0
                                 ? s.together.overall_tokens_per_second / l.alone.overall_tokens_per_second
                                 : NAN};
    page.svg(svg(bars));
    page.table({"",
                {"", "Alone", "Together"},
                {{s.sentiment_model + ", texts/s", format_rate(s.items_alone), format_rate(s.items_together)},
                 {l.model + ", tokens/s", format_rate(l.alone.overall_tokens_per_second),
                  format_rate(s.together.overall_tokens_per_second)}}});
  } else {
    page.table(t);
  }
  if (l.vram) {
    HtmlTable v{"GPU memory by process", {"Process", "PID", "Memory"}, {}};
    for (const auto& process : *l.vram)
      v.rows.push_back({process.ours ? "brim" : process.name, std::to_string(process.pid), cell_bytes(process.bytes)});
    page.table(v);
  }
  page.list(l.notes);
}

}  // namespace

std::string profile_html(const Profile& p) {
  HtmlPage page("Brim profile", fmt::format("{} · {} · texts: {} ({})", p.generated_at, p.device_name(), p.texts_source,
                                            format_count(p.texts)));
  key_figures(page, p);
  if (!p.recommendations.empty()) {
    page.heading("Recommendations");
    page.list(p.recommendations);
  }
  if (!p.models.empty()) {
    page.heading("Speed");
    overview(page, p);
    speed_plots(page, p);
    memory_section(page, p);
    roofline_section(page, p);
    timeline_section(page, p);
    agreement_section(page, p);
  }
  llm_section(page, p);
  if (!p.models.empty()) {
    page.heading("All measurements");
    batch_tables(page, p);
  }
  page.heading("Machine");
  page.list({fmt::format("CPU: {}, {}", p.machine.cpu, format_count(p.machine.cores, "core")),
             "Memory: " + format_bytes(p.machine.memory_bytes), "System: " + p.machine.system,
             p.machine.gpu ? fmt::format("GPU: {}, driver {}", p.machine.gpu->name, p.machine.gpu->driver)
                           : "GPU: none (" + p.machine.why_no_gpu + ")"});
  for (const auto& note : p.notes) page.paragraph(note);
  for (const auto& m : p.models)
    for (const auto& note : m.notes) page.paragraph(m.name + ": " + note);
  return page.html();
}

}  // namespace brim::report
