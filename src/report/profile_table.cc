// SPDX-License-Identifier: Apache-2.0
// The profile in a terminal: models side by side, then each by texts per call and by size of the data set.
#include <fmt/format.h>

#include <algorithm>

#include "base/units.h"
#include "report/html.h"
#include "report/profile.h"
#include "report/profile_cells.h"

namespace brim::report {
namespace {

// Columns as wide as their widest cell; the first one left-aligned.
std::string aligned(const std::vector<std::vector<std::string>>& rows, const std::string& indent) {
  const auto columns = [](const std::string& text) {  // terminal columns: continuation bytes take none
    return static_cast<size_t>(
        std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
  };
  std::vector<size_t> widths(rows.front().size(), 0);
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], columns(row[i]));
  std::string out;
  for (const auto& row : rows) {
    out += indent;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string space(widths[i] - columns(row[i]), ' ');
      if (i == 0)
        out += row[i] + (row.size() > 1 ? space : "");
      else if (i + 1 == row.size() && !row[i].empty() && !std::isdigit(static_cast<unsigned char>(row[i][0])))
        out += "  " + row[i];  // trailing words are left-aligned
      else
        out += "  " + space + row[i];
    }
    out += "\n";
  }
  return out;
}

std::string side_by_side(const Profile& p) {
  const bool labelled =
      std::any_of(p.models.begin(), p.models.end(), [](const auto& m) { return m.accuracy.has_value(); });
  std::vector<std::vector<std::string>> rows = {{"model", "load cold ms", "warm ms", "one text p50 ms", "p95 ms",
                                                 "p99 ms", "one at a time/s", "best batch", "best batch/s",
                                                 "whole file rows/s", "tokens/s", "compute used (MFU)", "memory"}};
  if (labelled) rows[0].push_back("accuracy");
  for (const auto& m : p.models) {
    const BatchPoint* b = m.best_batch();
    const SizePoint* s = m.largest();
    rows.push_back(
        {shortened(m.name, 28), cell_ms(m.cold_load_seconds), cell_ms(m.warm_load_seconds), cell_ms(m.single.p50),
         cell_ms(m.single.p95), cell_ms(m.single.p99), format_rate(m.single.mean > 0 ? 1 / m.single.mean : 0),
         b != nullptr ? format_count(b->batch_size) : "–", b != nullptr ? format_rate(b->items_per_second) : "–",
         s != nullptr ? format_rate(s->rows_per_second()) : "–",
         s != nullptr && s->run.stats.tokens > 0 ? format_si(s->tokens_per_second()) : "–",
         s != nullptr ? cell_mfu(s->run.mfu, s->run.mfu_note()) : "–", cell_bytes(m.own_bytes())});
    if (labelled) rows.back().push_back(m.accuracy ? fmt::format("{:.4f}", *m.accuracy) : "–");
  }
  return aligned(rows, "");
}

std::string by_batch(const ModelProfile& m) {
  if (m.batches.empty()) return "";
  std::vector<std::vector<std::string>> rows = {{"texts per call", "ms per call", "texts/s", "range", "speed-up"}};
  for (const BatchPoint& b : m.batches)
    rows.push_back({format_count(b.batch_size), cell_ms(b.seconds.p50), format_rate(b.items_per_second),
                    cell_range(b.rate), fmt::format("{:.2f}×", b.speedup)});
  return fmt::format("\n{} by texts per call (medians; range: slowest and fastest of {})\n", shortened(m.name, 28),
                     format_count(m.batches.front().rate.count, "round")) +
         aligned(rows, "  ");
}

std::string by_size(const ModelProfile& m) {
  if (m.sizes.empty()) return "";
  std::vector<std::vector<std::string>> rows = {
      {"texts", "seconds", "texts/s", "range", "tokens/s", "device busy", "compute used (MFU)", "limited by"}};
  for (const SizePoint& s : m.sizes)
    rows.push_back({format_count(s.rows), fmt::format("{:.2f}", s.run.stats.seconds), format_rate(s.rows_per_second()),
                    cell_range(s.rate), s.run.stats.tokens > 0 ? format_si(s.tokens_per_second()) : "–",
                    cell_percent(s.run.device_busy), cell_mfu(s.run.mfu, s.run.mfu_note()), cell_limit(s)});
  return fmt::format("\n{} by size of the data set, file to file\n", shortened(m.name, 28)) + aligned(rows, "  ");
}

std::string language_model(const LlmProfile& l) {
  const LlmRun& r = l.alone;
  std::string out = fmt::format(
      "{} ({}): first token p50 {} ms, p95 {} ms · {} tokens/s overall · latency p50 {} ms, p95 {} ms, p99 {} ms\n",
      l.model, l.api, cell_ms(r.first_token_s.p50), cell_ms(r.first_token_s.p95),
      format_rate(r.overall_tokens_per_second), cell_ms(r.seconds.p50), cell_ms(r.seconds.p95), cell_ms(r.seconds.p99));
  if (l.sharing)
    out += fmt::format("together: {} {} of {} texts/s · {} {} of {} tokens/s\n", l.sharing->sentiment_model,
                       format_rate(l.sharing->items_together), format_rate(l.sharing->items_alone), l.model,
                       format_rate(l.sharing->together.overall_tokens_per_second),
                       format_rate(r.overall_tokens_per_second));
  return out;
}

}  // namespace

std::string profile_table(const Profile& p) {
  std::string out;
  if (!p.models.empty()) out += side_by_side(p);
  for (const auto& m : p.models) out += by_batch(m) + by_size(m);
  if (p.llm) out += (out.empty() ? "" : "\n") + language_model(*p.llm);
  if (!p.agreement.empty()) out += "\n";
  for (const auto& a : p.agreement)
    out += fmt::format("{} and {} agree on {} of {}\n", a.a, a.b, cell_percent(a.share), format_count(a.rows, "text"));
  if (!p.recommendations.empty()) out += "\n";
  for (const auto& r : p.recommendations) out += "- " + r + "\n";
  for (const auto& note : p.notes) out += fmt::format("note: {}\n", note);
  for (const auto& m : p.models)
    for (const auto& note : m.notes) out += fmt::format("note: {}: {}\n", m.name, note);
  return out;
}

}  // namespace brim::report
