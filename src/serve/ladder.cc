// SPDX-License-Identifier: Apache-2.0
#include "serve/ladder.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/units.h"

namespace brim::serve {
namespace {

constexpr int64_t kMinSpillNs = 5'000'000'000;

bool source_matches(const SourceRule& rule, const std::string& source) {
  return std::any_of(rule.match.begin(), rule.match.end(), [&](const std::string& pattern) {
    if (!pattern.ends_with('*')) return same_word(pattern, source);
    const size_t length = pattern.size() - 1;
    return source.size() >= length &&
           same_word(std::string_view(pattern).substr(0, length), std::string_view(source).substr(0, length));
  });
}

}  // namespace

const char* reason_name(Reason reason) {
  static constexpr const char* kNames[] = {"requested", "source", "schedule", "load", "default", "pinned"};
  return kNames[static_cast<size_t>(reason)];
}

Reason reason_of(std::string_view name) {
  for (const Reason reason : {Reason::requested, Reason::source, Reason::schedule, Reason::load, Reason::pinned})
    if (name == reason_name(reason)) return reason;
  return Reason::by_default;
}

Ladder::Ladder(LadderRules rules) : rules_(std::move(rules)) {
  if (rules_.rungs.empty()) fail(ErrorCode::usage, "ladder {}: no rungs", rules_.name);
  for (const RungRules& rung : rules_.rungs) {
    if (has(rung.model)) fail(ErrorCode::usage, "ladder {}: duplicate rung {}", rules_.name, rung.model);
    Rung state;
    state.model = rung.model;
    state.limits = rung.gate.value_or(rules_.gate.limits);
    state.gate = judge({}, state.limits, "");
    rungs_.push_back(std::move(state));
  }
  default_ = rules_.default_rung.empty() ? 0 : index_of(rules_.default_rung, "default");
  against_ = rules_.gate.against.empty() ? 0 : index_of(rules_.gate.against, "gate");
  floor_ = rules_.load && !rules_.load->floor.empty() ? index_of(rules_.load->floor, "load") : rungs_.size() - 1;
  for (const SourceRule& rule : rules_.sources) index_of(rule.rung, "sources");
  if (rules_.schedule)
    for (const std::string& rung : rules_.schedule->rungs()) index_of(rung, "schedule");
  if (rules_.load && rules_.load->back_under_ms > rules_.load->spill_over_ms)
    fail(ErrorCode::usage, "ladder {}: `back_under_ms={}` exceeds `spill_over_ms={}`", rules_.name,
         rules_.load->back_under_ms, rules_.load->spill_over_ms);
}

bool Ladder::has(const std::string& model) const {
  return std::any_of(rungs_.begin(), rungs_.end(), [&](const Rung& rung) { return rung.model == model; });
}

size_t Ladder::index_of(const std::string& model, const char* context) const {
  std::vector<std::string> names;
  for (size_t i = 0; i < rungs_.size(); ++i) {
    if (rungs_[i].model == model) return i;
    names.push_back(rungs_[i].model);
  }
  const std::string near = nearest_name(model, names);
  fail(ErrorCode::usage, "ladder {}: {}: unknown rung {} (rungs: {}){}", rules_.name, context, model,
       fmt::join(names, ", "), near.empty() ? "" : fmt::format("; did you mean {}?", near));
}

Ladder::Selection Ladder::select(const std::string& source, int64_t unix_seconds) const {
  if (pinned_) return {*pinned_, Reason::pinned};
  const bool closed = rules_.schedule && rules_.schedule->market_at(unix_seconds) == Market::closed;
  if (!source.empty())
    for (const SourceRule& rule : rules_.sources)
      if ((rule.wake || !closed) && source_matches(rule, source))
        return {index_of(rule.rung, "sources"), Reason::source};
  if (rules_.schedule)
    if (const std::string rung = rules_.schedule->rung_at(unix_seconds); !rung.empty())
      return {index_of(rung, "schedule"), Reason::schedule};
  return {default_, Reason::by_default};
}

// The rung itself, else the nearest available one below, else the nearest above.
std::optional<size_t> Ladder::available(size_t selected) const {
  for (size_t i = selected; i < rungs_.size(); ++i)
    if (rungs_[i].fault.empty()) return i;
  for (size_t i = selected; i-- > 0;)
    if (rungs_[i].fault.empty()) return i;
  return std::nullopt;
}

// Hysteresis: starts above one bound and ends below a lower one, so that traffic does not oscillate.
bool Ladder::overloaded(Rung& rung, double wait_ms, const LadderRequest& request, int64_t ns) {
  const LoadRules& load = *rules_.load;
  if (!rung.spilling && wait_ms > load.spill_over_ms) {
    rung.spilling = true;
    rung.spilling_since_ns = ns;
  } else if (rung.spilling && wait_ms < load.back_under_ms && ns - rung.spilling_since_ns >= kMinSpillNs) {
    rung.spilling = false;
  }
  return rung.spilling || (request.deadline_ms && wait_ms > *request.deadline_ms);
}

Choice Ladder::choose(const LadderRequest& request, const Moment& now, const Wait& wait) {
  const std::lock_guard lock(mutex_);
  if (!request.model.empty() && request.model != rules_.name) {
    const Rung& rung = rungs_[index_of(request.model, "request")];
    if (!rung.fault.empty()) fail(ErrorCode::bad_model, "model {} is unavailable: {}", rung.model, rung.fault);
    return {rung.model, Reason::requested, "", ""};
  }
  const Selection selected = select(request.source, now.unix_seconds);
  const std::optional<size_t> index = available(selected.rung);
  if (!index)
    fail(ErrorCode::bad_model, "ladder {}: no rung is available; {}: {}", rules_.name, rungs_[selected.rung].model,
         rungs_[selected.rung].fault);
  Choice choice{rungs_[*index].model, selected.reason, "", ""};
  if (*index != selected.rung) {
    choice.instead_of = rungs_[selected.rung].model;
    choice.why = rungs_[selected.rung].fault;
  }
  if (!rules_.load || !request.may_spill || pinned_) return choice;
  if (!overloaded(rungs_[*index], wait(choice.model), request, now.ns)) return choice;
  for (size_t i = *index + 1; i <= floor_; ++i) {
    Rung& lower = rungs_[i];
    if (!lower.fault.empty() || lower.gate.verdict != Verdict::passed) continue;
    if (overloaded(lower, wait(lower.model), request, now.ns)) continue;
    choice.model = lower.model;
    choice.reason = Reason::load;
    break;
  }
  return choice;
}

void Ladder::update_load(int64_t ns, const Wait& wait) {
  const std::lock_guard lock(mutex_);
  for (Rung& rung : rungs_)
    if (rung.spilling && rung.fault.empty()) overloaded(rung, wait(rung.model), {}, ns);
}

std::string Ladder::fault(const std::string& model) const {
  const std::lock_guard lock(mutex_);
  return rungs_[index_of(model, "request")].fault;
}

// Why an overloaded rung has no lower rung to answer; empty if there is one, or if the floor is not lower.
std::string Ladder::blocked_spill(size_t active) const {
  if (!rules_.load || pinned_ || !rungs_[active].spilling || active >= floor_) return "";
  std::vector<std::string> reasons;
  for (size_t i = active + 1; i <= floor_; ++i) {
    const Rung& lower = rungs_[i];
    if (lower.fault.empty() && lower.gate.verdict == Verdict::passed) return "";
    reasons.push_back(
        fmt::format("{} {}", lower.model, lower.fault.empty() ? lower.gate.why : std::string("is unavailable")));
  }
  return fmt::format("ladder {}: {} is overloaded and no lower rung may answer: {}", rules_.name, rungs_[active].model,
                     fmt::join(reasons, "; "));
}

void Ladder::report_fault(const std::string& model, const std::string& fault) {
  const std::lock_guard lock(mutex_);
  Rung& rung = rungs_[index_of(model, "report")];
  rung.fault = fault;
  if (!fault.empty()) rung.spilling = false;  // no request reaches it, so update_load() would never end its overload
}

void Ladder::report_gate(const std::string& model, const std::optional<GateFigures>& figures,
                         std::optional<uint64_t> as_of) {
  const std::lock_guard lock(mutex_);
  if (as_of && *as_of != changes_) return;
  Rung& rung = rungs_[index_of(model, "report")];
  rung.gate = judge(figures, rung.limits, rungs_[against_].model);
}

void Ladder::forget_gate(const std::string& model) {
  const std::lock_guard lock(mutex_);
  const size_t index = index_of(model, "report");
  for (size_t i = 0; i < rungs_.size(); ++i)
    if (i == index || index == against_) rungs_[i].gate = judge({}, rungs_[i].limits, "");
  ++changes_;
}

uint64_t Ladder::changes() const {
  const std::lock_guard lock(mutex_);
  return changes_;
}

void Ladder::pin(const std::string& model) {
  const std::lock_guard lock(mutex_);
  pinned_ = index_of(model, "pin");
}

void Ladder::unpin() {
  const std::lock_guard lock(mutex_);
  pinned_.reset();
}

std::optional<std::string> Ladder::pinned() const {
  const std::lock_guard lock(mutex_);
  return pinned_ ? std::optional(rungs_[*pinned_].model) : std::nullopt;
}

std::optional<Ladder::Coming> Ladder::coming(int64_t unix_seconds) const {
  const std::lock_guard lock(mutex_);
  if (!rules_.schedule || pinned_ || rules_.lead_seconds <= 0) return std::nullopt;
  const std::optional<int64_t> change = rules_.schedule->next_change(unix_seconds);
  if (!change || static_cast<double>(*change - unix_seconds) > rules_.lead_seconds) return std::nullopt;
  const std::optional<size_t> index = available(select("", *change).rung);
  return index ? std::optional(Coming{rungs_[*index].model, *change}) : std::nullopt;
}

LadderView Ladder::view(int64_t unix_seconds) const {
  const std::lock_guard lock(mutex_);
  LadderView view;
  view.name = rules_.name;
  const Selection selected = select("", unix_seconds);
  view.reason = selected.reason;
  const std::optional<size_t> active = available(selected.rung);
  if (active) view.active = rungs_[*active].model;
  if (rules_.schedule) {
    view.market = rules_.schedule->market_at(unix_seconds);
    view.next_change = rules_.schedule->next_change(unix_seconds);
    if (view.next_change) view.next = rungs_[select("", *view.next_change).rung].model;
  }
  for (size_t i = 0; i < rungs_.size(); ++i) {
    const Rung& rung = rungs_[i];
    view.rungs.push_back({rung.model, rung.fault.empty(), rung.spilling, rung.fault, rung.gate});
    if (!rung.fault.empty())
      view.warnings.push_back(fmt::format("ladder {}: {} is unavailable: {}", rules_.name, rung.model, rung.fault));
  }
  if (active)
    if (std::string blocked = blocked_spill(*active); !blocked.empty()) view.warnings.push_back(std::move(blocked));
  if (view.active.empty()) view.warnings.push_back(fmt::format("ladder {}: no rung is available", rules_.name));
  return view;
}

}  // namespace brim::serve
