// SPDX-License-Identifier: Apache-2.0
// Recommendations derived from the measurements, each with its numbers. Contains no general advice without a
// measurement.
#include <fmt/format.h>

#include <algorithm>

#include "base/units.h"
#include "report/profile.h"
#include "report/profile_cells.h"
#include "rows/metrics.h"

namespace brim::report {
namespace {

constexpr double kWorthBatching = 1.05, kWorthPacking = 1.15;
constexpr double kMostAccuracyLoss = 0.01;
constexpr double kSharingMatters = 0.9;

void advise_batch(const ModelProfile& m, std::vector<std::string>& out) {
  const BatchPoint *best = m.fastest_batch(), *enough = m.best_batch();
  if (best == nullptr || m.batches.size() < 2 || !m.plan) return;  // VADER has no batching
  const std::string range = fmt::format("{} texts per call: {:.2f}×, rounds {:.2f}× to {:.2f}×", best->batch_size,
                                        best->speedup, best->gain.least, best->gain.most);
  if (best->gain.surely_above(1) && enough->batch_size > 1)
    out.push_back(fmt::format("{}: fastest: {} texts per call ({}/s, {:.1f}× one at a time, {} ms per call).", m.name,
                              enough->batch_size, format_rate(enough->items_per_second), enough->speedup,
                              cell_ms(enough->seconds.p50)));
  else if (best->gain.surely_below(kWorthBatching))
    out.push_back(fmt::format("{}: batching is not faster here ({}); use single texts.", m.name, range));
  else
    out.push_back(fmt::format(
        "{}: batching: difference not significant ({}); increase `seconds` for a longer measurement.", m.name, range));
  const SizePoint* s = m.largest();
  if (s != nullptr && std::min(s->rate.low, s->rows_per_second()) > kWorthPacking * best->rate.high)
    out.push_back(fmt::format(
        "{}: for files, use brim score, which packs batches: {} texts/s over {}, {:.1f}× the best batch above.", m.name,
        format_rate(s->rows_per_second()), format_count(s->rows, "text"),
        s->rows_per_second() / best->items_per_second));
}

void advise_pipeline(const ModelProfile& m, std::vector<std::string>& out) {
  const SizePoint* s = m.largest();
  if (s == nullptr || !m.plan) return;
  if (s->run.device_busy.value_or(1) < 0.8 && s->run.stats.seconds > 0.5)
    out.push_back(fmt::format(
        "{}: the device was busy {:.0f} % of the time over {}; limited by {}. Run `brim doctor` for a diagnosis.",
        m.name, 100 * s->run.device_busy.value_or(1), format_count(s->rows, "text"), s->run.held_back_by));
  const double planned = m.plan->tokens_per_second;
  if (!m.disturbed && planned > 0 && s->tokens_per_second() > 0 && s->run.stats.seconds > 0.5) {
    const double share = s->tokens_per_second() / planned;
    if (share < 0.5 || share > 2)
      out.push_back(fmt::format("{}: predicted {} tokens/s, measured {} ({:.0f} % of the prediction){}", m.name,
                                format_si(planned), format_si(s->tokens_per_second()), 100 * share,
                                m.device_kind == device::DeviceKind::cpu && !m.plan->device.measured
                                    ? "; run `brim plan measure=true` to measure this CPU."
                                    : "."));
  }
}

// A rate above the peak means that the peak is wrong.
void advise_peak(const ModelProfile& m, std::vector<std::string>& out) {
  double most = m.largest() != nullptr ? m.largest()->run.mfu.value_or(0) : 0;
  for (const BatchPoint& b : m.batches) most = std::max(most, b.mfu.value_or(0));
  if (most <= 1 || !m.plan) return;
  out.push_back(fmt::format(
      "{}: {:.0f} % of peak compute (MFU) is impossible: the assumed peak of {} in {}, {}flop/s, is too low{}", m.name,
      100 * most, m.device, m.precision, format_si(m.plan->device.rate(m.plan->precision)),
      m.device_kind == device::DeviceKind::cpu && !m.plan->device.measured
          ? "; run `brim plan measure=true` to measure it."
          : "."));
}

void advise_loading(const ModelProfile& m, std::vector<std::string>& out) {
  if (m.cold_load_seconds > 2 * m.warm_load_seconds && m.cold_load_seconds - m.warm_load_seconds > 1)
    out.push_back(fmt::format(
        "{}: loading takes {:.1f} s from disk and {:.1f} s from memory; use a long-running process or a faster disk.",
        m.name, m.cold_load_seconds, m.warm_load_seconds));
}

double speed(const ModelProfile& m) {
  const SizePoint* s = m.largest();
  const BatchPoint* b = m.fastest_batch();
  return std::max(s != nullptr ? s->rows_per_second() : 0, b != nullptr ? b->items_per_second : 0);
}

// McNemar's test on rows for which exactly one of the models is right.
std::string significance(const ModelProfile& a, const ModelProfile& b) {
  const std::vector<int32_t> truth(a.right.size(), 1);
  if (a.right.empty() || a.right.size() != b.right.size()) return "";
  const double p = rows::mcnemar(truth, a.right, b.right).p_value;
  return p < rows::kSignificant ? "" : fmt::format("; difference not significant, p = {:.2g}", p);
}

void advise_choice(const Profile& p, std::vector<std::string>& out) {
  if (p.models.size() < 2) return;
  const ModelProfile *best = nullptr, *fastest = nullptr;
  for (const auto& m : p.models) {
    if (fastest == nullptr || speed(m) > speed(*fastest)) fastest = &m;
    if (m.accuracy && (best == nullptr || *m.accuracy > *best->accuracy)) best = &m;
  }
  if (best == nullptr) {
    out.push_back(
        fmt::format("{} is the fastest ({} texts/s). Accuracy was not measured; set `texts` to a file with labels, and "
                    "`label_column`.",
                    fastest->name, format_rate(speed(*fastest))));
    return;
  }
  for (const auto& m : p.models)
    if (m.accuracy && m.labelled_rows != best->labelled_rows) {
      out.push_back(fmt::format("no recommendation by accuracy: {} was measured on {}, but {} on {}.", best->name,
                                format_count(best->labelled_rows, "row"), m.name,
                                format_count(m.labelled_rows, "row")));
      return;
    }
  const ModelProfile *choice = best, *second = nullptr;
  for (const auto& m : p.models) {
    if (!m.accuracy || &m == best) continue;
    if (*m.accuracy >= *best->accuracy - kMostAccuracyLoss && speed(m) > speed(*choice)) choice = &m;
    if (second == nullptr || *m.accuracy > *second->accuracy) second = &m;
  }
  if (choice == best)
    out.push_back(
        fmt::format("{} is the most accurate ({:.1f} % of {}{}), and no faster model is within {:.0f} point of it.",
                    best->name, 100 * *best->accuracy, format_count(best->labelled_rows, "row"),
                    second != nullptr ? significance(*best, *second) : "", 100 * kMostAccuracyLoss));
  else
    out.push_back(
        fmt::format("{} loses {:.1f} points of accuracy to {} ({:.1f} vs. {:.1f} %{}) and is {:.1f}× as "
                    "fast.",
                    choice->name, 100 * (*best->accuracy - *choice->accuracy), best->name, 100 * *choice->accuracy,
                    100 * *best->accuracy, significance(*best, *choice), speed(*choice) / speed(*best)));
}

void advise_sharing(const Profile& p, std::vector<std::string>& out) {
  if (!p.llm || !p.llm->sharing) return;
  const SharingCost& s = *p.llm->sharing;
  const double items = s.items_alone > 0 ? s.items_together / s.items_alone : 0;
  const double tokens = p.llm->alone.overall_tokens_per_second > 0
                            ? s.together.overall_tokens_per_second / p.llm->alone.overall_tokens_per_second
                            : 0;
  const std::string numbers = fmt::format(
      "{} keeps {:.0f} % of its speed ({} of {} texts/s), {} keeps {:.0f} % ({:.1f} of {:.1f} tokens/s)",
      s.sentiment_model, 100 * items, format_rate(s.items_together), format_rate(s.items_alone), p.llm->model,
      100 * tokens, s.together.overall_tokens_per_second, p.llm->alone.overall_tokens_per_second);
  if (items >= kSharingMatters && tokens >= kSharingMatters)
    out.push_back("Together, " + numbers + ": run them concurrently.");
  else
    out.push_back(
        "Together, " + numbers +
        ": if the latency of the language model matters, score between its requests or use separate devices.");
}

}  // namespace

std::vector<std::string> recommendations(const Profile& p) {
  std::vector<std::string> out;
  advise_choice(p, out);
  for (const auto& m : p.models) {
    advise_batch(m, out);
    advise_pipeline(m, out);
    advise_peak(m, out);
    advise_loading(m, out);
  }
  advise_sharing(p, out);
  return out;
}

}  // namespace brim::report
