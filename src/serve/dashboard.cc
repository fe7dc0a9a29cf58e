// SPDX-License-Identifier: Apache-2.0
#include "serve/dashboard.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"

namespace brim::serve {
namespace {

#include "serve/dashboard_page.inc"  // made by CMake: kPage, kScriptHash, kStyleHash (SHA-256 in hexadecimal)

constexpr int64_t kHistoryMs = 15 * 60 * 1000;
constexpr int64_t kHistoryStepMs = 5000;

using PageJson = nlohmann::ordered_json;

// As Content-Security-Policy wants a hash.
std::string base64_of_hex(std::string_view hex) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto value = [&](size_t i) { return static_cast<uint32_t>(hex[i] <= '9' ? hex[i] - '0' : hex[i] - 'a' + 10); };
  std::string out;
  for (size_t at = 0; at < hex.size(); at += 6) {  // three bytes
    const size_t digits = std::min<size_t>(6, hex.size() - at);
    uint32_t bits = 0;
    for (size_t i = 0; i < 6; ++i) bits = bits << 4 | (i < digits ? value(at + i) : 0);
    for (size_t i = 0; i < 4; ++i) out += i <= digits / 2 ? kDigits[bits >> (18 - 6 * i) & 63] : '=';
  }
  return out;
}

template <class T>
PageJson or_null(const std::optional<T>& value) {
  return value ? PageJson(*value) : PageJson();
}

PageJson ladder_json(const DashboardLadder& ladder) {
  const LadderView& view = ladder.view;
  PageJson json = {{"name", view.name},
                   {"active", view.active},
                   {"reason", reason_name(view.reason)},
                   {"market", view.market ? PageJson(market_name(*view.market)) : PageJson()},
                   {"next_change_unix", or_null(view.next_change)},
                   {"next", view.next},
                   {"spill_share", or_null(ladder.spill_share)},
                   {"rungs", PageJson::array()},
                   {"today", PageJson::array()}};
  for (const RungView& rung : view.rungs)
    json["rungs"].push_back({{"model", rung.model},
                             {"available", rung.available},
                             {"spilling", rung.spilling},
                             {"fault", rung.fault},
                             {"gate", verdict_name(rung.gate.verdict)},
                             {"why", rung.gate.why}});
  for (const RungSpan& span : ladder.today)
    json["today"].push_back({{"from_unix", span.from_unix}, {"to_unix", span.to_unix}, {"rung", span.rung}});
  return json;
}

PageJson model_json(const DashboardModel& model) {
  return {{"id", model.id},
          {"state", model.state},
          {"precision", model.precision},
          {"bytes", or_null(model.bytes)},
          {"token_budget", or_null(model.token_budget)},
          {"texts_s", or_null(model.texts_s)},
          {"p99_ms", or_null(model.p99_ms)},
          {"keep_alive_s", or_null(model.keep_alive_s)}};
}

}  // namespace

std::string_view dashboard_html() { return {kPage, sizeof kPage - 1}; }

const std::string& dashboard_policy() {
  static const std::string policy = fmt::format(
      "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; img-src data:; "
      "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
      base64_of_hex(kScriptHash), base64_of_hex(kStyleHash));
  return policy;
}

std::vector<RungSpan> schedule_of_day(const Ladder& ladder, int64_t unix_seconds) {
  const auto& schedule = ladder.rules().schedule;
  if (!schedule) return {};
  namespace chr = std::chrono;
  const TimeZone& zone = schedule->zone();
  const auto day = chr::floor<chr::days>(chr::sys_seconds(chr::seconds(zone.local(unix_seconds))));
  const auto midnight = [&](chr::sys_days date) {
    const LocalSeconds local = chr::sys_seconds(date).time_since_epoch().count();
    const std::vector<int64_t> moments = zone.moments_of(local);
    return moments.empty() ? local - zone.offset_at(local) : moments.front();  // clocks that skip midnight
  };
  const int64_t end = midnight(day + chr::days(1));
  const std::string& otherwise =
      ladder.rules().default_rung.empty() ? ladder.rules().rungs.front().model : ladder.rules().default_rung;
  std::vector<RungSpan> spans;
  for (int64_t from = midnight(day); from < end;) {
    const int64_t to = std::min(end, schedule->next_change(from).value_or(end));
    const std::string named = schedule->rung_at(from), rung = named.empty() ? otherwise : named;
    if (!spans.empty() && spans.back().rung == rung)
      spans.back().to_unix = to;
    else
      spans.push_back({from, to, rung});
    from = to;
  }
  return spans;
}

nlohmann::ordered_json to_json(const DashboardSnapshot& s) {
  PageJson buckets = PageJson::array(), tags = PageJson::object(), idle = PageJson::object();
  for (const LatencyBucket& bucket : s.buckets) buckets.push_back({{"le_ms", bucket.le_ms}, {"stages", bucket.stages}});
  for (const auto& [tag, bytes] : s.device.tags) tags[tag] = bytes;
  for (const auto& [cause, share] : s.batches.idle) idle[cause] = share;
  PageJson batch_tokens = PageJson::array();
  for (const auto& [bound, n] : s.batches.tokens) batch_tokens.push_back({{"le", or_null(bound)}, {"batches", n}});
  PageJson json = {
      {"schema_version", 1},
      {"t_unix_ms", s.t_unix_ms},
      {"state", s.state},
      {"version", s.version},
      {"uptime_s", s.uptime_s},
      {"model", s.model},
      {"reason", s.reason},
      {"rates",
       {{"texts_s", or_null(s.texts_s)}, {"tokens_s", or_null(s.tokens_s)}, {"requests_s", or_null(s.requests_s)}}},
      {"totals", {{"texts", s.texts}, {"tokens", s.tokens}, {"requests", s.requests}}},
      {"latency_ms",
       {{"p50", or_null(s.p50_ms)}, {"p95", or_null(s.p95_ms)}, {"p99", or_null(s.p99_ms)}, {"buckets", buckets}}},
      {"queue",
       {{"wait_ms", or_null(s.queue.wait_ms)},
        {"limit_ms", or_null(s.queue.limit_ms)},
        {"tokens", {{"interactive", s.queue.interactive_tokens}, {"bulk", s.queue.bulk_tokens}}},
        {"rejected", s.queue.rejected},
        {"cancelled", s.queue.cancelled},
        {"late", s.queue.late}}},
      {"device",
       {{"name", s.device.name},
        {"busy", or_null(s.device.busy)},
        {"mfu", or_null(s.device.mfu)},
        {"memory",
         {{"planned", or_null(s.device.planned)},
          {"held", or_null(s.device.held)},
          {"limit", or_null(s.device.limit)},
          {"tags", tags}}},
        {"gpu", s.device.gpu}}},
      {"batches",
       {{"fill", or_null(s.batches.fill)},
        {"graph_share", or_null(s.batches.graph_share)},
        {"mean_tokens", or_null(s.batches.mean_tokens)},
        {"batches_s", or_null(s.batches.batches_s)},
        {"batches", s.batches.batches},
        {"tokens", batch_tokens},
        {"idle", idle}}},
      {"models", PageJson::array()},
      {"ladders", PageJson::array()},
      {"queues", s.queues},
      {"jobs", s.jobs},
      {"switches", PageJson::array()},
      {"warnings", s.warnings}};
  for (const DashboardModel& model : s.models) json["models"].push_back(model_json(model));
  for (const DashboardLadder& ladder : s.ladders) json["ladders"].push_back(ladder_json(ladder));
  for (const auto& change : s.switches)
    json["switches"].push_back({{"t_unix_ms", change.t_unix_ms}, {"text", change.text}});
  return json;
}

void DashboardHistory::add(const DashboardSnapshot& snapshot) {
  const std::lock_guard lock(mutex_);
  if (!moments_.empty() && snapshot.t_unix_ms - moments_.back().first < kHistoryStepMs) return;
  moments_.emplace_back(snapshot.t_unix_ms, to_json(snapshot).dump(-1, ' ', false, PageJson::error_handler_t::replace));
  while (snapshot.t_unix_ms - moments_.front().first > kHistoryMs) moments_.pop_front();
}

std::string DashboardHistory::json(int64_t minutes) const {
  const std::lock_guard lock(mutex_);
  std::string list = "[";
  const int64_t from = moments_.empty() ? 0 : moments_.back().first - std::clamp<int64_t>(minutes, 0, 15) * 60'000;
  for (const auto& [ms, text] : moments_) {
    if (ms < from) continue;
    list += list.size() > 1 ? "," : "";
    list += text;
  }
  return list + "]";
}

}  // namespace brim::serve
