// SPDX-License-Identifier: Apache-2.0
#include "serve/ladder_preview.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/settings.h"
#include "rows/timestamps.h"

namespace brim::serve {
namespace {

constexpr int64_t kMicroseconds = 1'000'000;

std::string time_text(const Ladder& ladder, int64_t unix_seconds) {
  const auto& schedule = ladder.rules().schedule;
  const LocalSeconds local = schedule ? schedule->zone().local(unix_seconds) : unix_seconds;
  const rows::TimeStyle style{.kind = rows::TimeStyle::Kind::minute};
  return fmt::format("{} {}", rows::format_time(local * kMicroseconds, style),
                     schedule ? schedule->zone().name() : "UTC");
}

std::string choice_text(Ladder& ladder, const std::string& source, int64_t unix_seconds) {
  LadderRequest request;
  request.source = source;
  request.may_spill = false;  // load is unknown
  try {
    const Choice choice = ladder.choose(request, {unix_seconds, 0}, [](const std::string&) { return 0.0; });
    std::string text = fmt::format("{} ({})", choice.model, reason_name(choice.reason));
    if (!choice.instead_of.empty()) text += fmt::format(" instead of {}: {}", choice.instead_of, choice.why);
    return text;
  } catch (const Error& error) {  // no rung is available
    return error.what();
  }
}

}  // namespace

int64_t parse_preview_time(std::string_view text, const Ladder& ladder) {
  const std::optional<rows::Timestamp> time = rows::parse_timestamp(text);
  if (!time || time->style.kind < rows::TimeStyle::Kind::minute)
    throw BadValue{"must be a time such as \"2026-11-23 10:00\" or 2026-11-23T15:00Z"};
  const int64_t civil = time->value / kMicroseconds;
  if (time->style.zone) return civil - int64_t{*time->style.zone} * 60;
  const auto& schedule = ladder.rules().schedule;
  if (!schedule) return civil;
  const std::vector<int64_t> moments = schedule->zone().moments_of(civil);
  if (moments.empty())
    throw BadValue{fmt::format("does not exist in {} (daylight saving time)", schedule->zone().name())};
  return moments.front();
}

std::vector<std::string> preview_lines(Ladder& ladder, int64_t unix_seconds) {
  const LadderView view = ladder.view(unix_seconds);
  const std::string market = view.market ? fmt::format(", market {}", market_name(*view.market)) : "";
  std::vector<std::string> lines;
  lines.push_back(fmt::format("ladder {} at {}{}: {}", view.name, time_text(ladder, unix_seconds), market,
                              choice_text(ladder, "", unix_seconds)));
  if (view.next_change)
    lines.push_back(
        fmt::format("ladder {}: next change at {}: {}", view.name, time_text(ladder, *view.next_change), view.next));
  for (const SourceRule& rule : ladder.rules().sources)
    lines.push_back(fmt::format("ladder {}: source {}: {}", view.name, fmt::join(rule.match, ", "),
                                choice_text(ladder, rule.match.front(), unix_seconds)));
  return lines;
}

}  // namespace brim::serve
