// SPDX-License-Identifier: Apache-2.0
// A ladder: models for one task, best first, and the rules by which one of them answers. The first rule that speaks
// decides: the model a request names, the rung it is pinned to, its source, the schedule, the default. Then load: where
// the wait of the rung so chosen is too long, a lower one may answer, if it has passed the accuracy gate. A rung that
// failed or is not there leaves its place to the next. Every choice says who answers and why. Pure logic: clocks and
// waits are handed in.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "serve/calendar.h"
#include "serve/gate.h"

namespace brim::serve {

enum class Reason : uint8_t { requested, source, schedule, load, by_default, pinned };
constexpr size_t kReasonCount = 6;
const char* reason_name(Reason reason);  // requested, source, schedule, load, default, pinned
Reason reason_of(std::string_view name);

struct RungRules {
  std::string model;
  std::optional<GateLimits> gate;  // none: the ladder's
};

struct GateRules {
  std::string data, text, label;  // labelled rows and their columns; no data: nothing is measured
  std::string against;            // empty: the best rung
  GateLimits limits;
};

struct SourceRule {
  std::vector<std::string> match;  // exact, or with * at the end a prefix; whatever the case
  std::string rung;
  bool wake = false;  // also while the schedule says the market is closed
};

struct LoadRules {
  double spill_over_ms = 250, back_under_ms = 100;
  std::string floor;  // no rung below it answers because of load; empty: the last
};

struct LadderRules {
  std::string name;
  std::string place;             // file and line it was read from; may be empty
  std::vector<RungRules> rungs;  // best first
  std::string default_rung;      // empty: the first
  GateRules gate;
  std::vector<SourceRule> sources;
  std::optional<Schedule> schedule;
  double lead_seconds =
      30;  // so long before the schedule names another rung, that one is loaded; 0: with its first text
  std::optional<LoadRules> load;
};

struct LadderRequest {
  std::string model;  // empty or the ladder's name: the ladder chooses
  std::string source;
  std::optional<double> deadline_ms;  // from now
  bool may_spill = true;              // false: one job or flush stays with one model
};

struct Choice {
  std::string model;
  Reason reason = Reason::by_default;
  std::string instead_of;  // the rung the rule named, where it cannot answer
  std::string why;         // … and what is wrong with it
};

// The moment a choice is made at.
struct Moment {
  int64_t unix_seconds = 0;  // for the schedule
  int64_t ns = 0;            // monotonic, for load
};

// What health, metrics and the dashboard show.
struct RungView {
  std::string model;
  bool available = true, spilling = false;
  std::string fault;  // why it is not available
  GateResult gate;
};
struct LadderView {
  std::string name, active;  // what a request without options gets now, load aside
  Reason reason = Reason::by_default;
  std::optional<Market> market;
  std::optional<int64_t> next_change;  // unix seconds
  std::string next;                    // the rung then
  std::vector<RungView> rungs;
  std::vector<std::string> warnings;  // health is degraded while there are any
};

class Ladder {
 public:
  // How long a new text would wait for a model, by prediction, in ms.
  using Wait = std::function<double(const std::string& model)>;

  explicit Ladder(LadderRules rules);  // throws usage where rules name rungs that are not there

  // Throws bad_model where the model a request names cannot answer, or no rung can.
  Choice choose(const LadderRequest& request, const Moment& now, const Wait& wait);

  // A model failed to load or was lost, with the reason; empty: it is there (again).
  void report_fault(const std::string& model, const std::string& fault);
  // Figures that were taken when changes() was `as_of` say nothing about a model that came since, and are dropped.
  void report_gate(const std::string& model, const std::optional<GateFigures>& figures,
                   std::optional<uint64_t> as_of = {});
  // Another model has this name now: what it loses, or the others against it, is not known.
  void forget_gate(const std::string& model);
  uint64_t changes() const;  // how often that was so

  // From now on this rung answers what names no model, whatever source, hours and load say; until it is unpinned.
  // Throws usage where it is none of the rungs.
  void pin(const std::string& model);
  void unpin();
  std::optional<std::string> pinned() const;

  // The rung that will answer once the schedule changes, from `lead_seconds` before that moment on.
  struct Coming {
    std::string model;
    int64_t unix_seconds;  // of the change
  };
  std::optional<Coming> coming(int64_t unix_seconds) const;

  LadderView view(int64_t unix_seconds) const;
  const LadderRules& rules() const { return rules_; }
  bool has(const std::string& model) const;

 private:
  struct Rung {
    std::string model, fault;
    GateLimits limits;
    GateResult gate;
    bool spilling = false;
    int64_t spilling_since_ns = 0;
  };
  struct Wish {
    size_t rung;
    Reason reason;
  };
  size_t place_of(const std::string& model, const char* who) const;
  Wish wish(const std::string& source, int64_t unix_seconds) const;
  std::optional<size_t> answering(size_t wished) const;
  bool overloaded(Rung& rung, double wait_ms, const LadderRequest& request, int64_t ns);

  LadderRules rules_;
  size_t default_ = 0, floor_ = 0, against_ = 0;
  mutable std::mutex mutex_;  // guards what follows
  std::vector<Rung> rungs_;
  std::optional<size_t> pinned_;
  uint64_t changes_ = 0;
};

}  // namespace brim::serve
