// SPDX-License-Identifier: Apache-2.0
// A ladder: models for one task, best first, and the rules that choose one for a request. The first matching rule
// decides: the requested model, the pinned rung, the source, the schedule, the default. Under load, a lower rung that
// has passed the accuracy gate may answer instead. Unavailable rungs are replaced by the next one. Each choice carries
// its reason. Pure logic: clocks and predicted waits are arguments.
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
  std::optional<GateLimits> gate;  // empty: as the ladder's
};

struct GateRules {
  std::string data, text, label;  // labelled rows and their columns; no data: no measurement
  std::string against;            // empty: the best rung
  GateLimits limits;
};

struct SourceRule {
  std::vector<std::string> match;  // exact, or a prefix if it ends with *; ignores case
  std::string rung;
  bool wake = false;  // applies even while the market is closed
};

struct LoadRules {
  double spill_over_ms = 250, back_under_ms = 100;
  std::string floor;  // lowest rung used because of load; empty: the last
};

struct LadderRules {
  std::string name;
  std::string location;          // file and line, for messages; may be empty
  std::vector<RungRules> rungs;  // best first
  std::string default_rung;      // empty: the first
  GateRules gate;
  std::vector<SourceRule> sources;
  std::optional<Schedule> schedule;
  double lead_seconds = 30;  // load a scheduled rung this long before its time; 0: on its first request
  std::optional<LoadRules> load;
};

struct LadderRequest {
  std::string model;  // empty or the ladder's name: let the ladder choose
  std::string source;
  std::optional<double> deadline_ms;  // from now
  bool may_spill = true;              // false: one job or flush stays with one model
};

struct Choice {
  std::string model;
  Reason reason = Reason::by_default;
  std::string instead_of;  // the selected rung, if it is unavailable
  std::string why;         // its fault
};

// Time of a choice.
struct Moment {
  int64_t unix_seconds = 0;  // for the schedule
  int64_t ns = 0;            // monotonic, for load
};

// Views for health, metrics and the dashboard.
struct RungView {
  std::string model;
  bool available = true, spilling = false;
  std::string fault;  // reason if not available
  GateResult gate;
};
struct LadderView {
  std::string name, active;  // rung for requests without options, ignoring load
  Reason reason = Reason::by_default;
  std::optional<Market> market;
  std::optional<int64_t> next_change;  // Unix time
  std::string next;                    // rung after that change
  std::vector<RungView> rungs;
  std::vector<std::string> warnings;  // any warning degrades the health status
};

class Ladder {
 public:
  // Predicted queue time of a new text for a model, in ms.
  using Wait = std::function<double(const std::string& model)>;

  explicit Ladder(LadderRules rules);  // throws usage for unknown rungs in the rules

  // Throws bad_model if the requested model, or every rung, is unavailable.
  Choice choose(const LadderRequest& request, const Moment& now, const Wait& wait);
  // Ends the overload of rungs whose wait has fallen, which otherwise only a request does. Call every second.
  void update_load(int64_t ns, const Wait& wait);

  // Marks a model as unavailable, with the reason; empty: available.
  void report_fault(const std::string& model, const std::string& fault);
  std::string fault(const std::string& model) const;
  // Sets a rung's gate figures. They are dropped if models have changed since changes() was `as_of`.
  void report_gate(const std::string& model, const std::optional<GateFigures>& figures,
                   std::optional<uint64_t> as_of = {});
  // Discards figures that involve this model, because its weights have changed.
  void forget_gate(const std::string& model);
  uint64_t changes() const;  // number of forget_gate() calls

  // Makes this rung answer all requests that name no model, ignoring source, schedule and load, until unpin(). Throws
  // usage for an unknown rung.
  void pin(const std::string& model);
  void unpin();
  std::optional<std::string> pinned() const;

  // The rung after the next schedule change, from `lead_seconds` before the change on.
  struct Coming {
    std::string model;
    int64_t unix_seconds;  // time of the change
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
  struct Selection {
    size_t rung;
    Reason reason;
  };
  size_t index_of(const std::string& model, const char* context) const;
  Selection select(const std::string& source, int64_t unix_seconds) const;
  std::optional<size_t> available(size_t selected) const;
  bool overloaded(Rung& rung, double wait_ms, const LadderRequest& request, int64_t ns);
  std::string blocked_spill(size_t active) const;

  LadderRules rules_;
  size_t default_ = 0, floor_ = 0, against_ = 0;
  mutable std::mutex mutex_;  // guards the members below
  std::vector<Rung> rungs_;
  std::optional<size_t> pinned_;
  uint64_t changes_ = 0;
};

}  // namespace brim::serve
