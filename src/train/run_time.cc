// SPDX-License-Identifier: Apache-2.0
#include "train/run_time.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/units.h"

namespace brim::train {
namespace {

constexpr double kBusyEnough = 0.95;

std::string part(const char* name, double seconds, double whole) {
  return fmt::format("{} {} ({:.0f} %)", name, format_duration(seconds), whole > 0 ? 100 * seconds / whole : 0);
}

// The steps setting has no effect with other strategies.
std::string less_often(const char* what, Strategy strategy) {
  if (strategy == Strategy::no) return "";
  if (strategy == Strategy::steps) return fmt::format("; increase `{}_steps`", what);
  return fmt::format("; set `{0}_strategy=steps` and a large `{0}_steps`", what);
}

}  // namespace

std::string to_text(const RunTime& t) {
  return fmt::format("{}: {}{}, {}, {}", format_duration(t.whole()),
                     t.teacher > 0 ? part("teachers", t.teacher, t.whole()) + ", " : "",
                     part("steps", t.steps, t.whole()), part("evaluation", t.evaluation, t.whole()),
                     part("saving", t.saving, t.whole()));
}

std::string limited_by(const RunTime& t, int threads, const monitor::OtherProcesses::Load& others,
                       const Cadence& cadence) {
  if (t.teacher > t.steps && t.teacher >= t.evaluation && t.teacher >= t.saving)
    return fmt::format("teachers ({} of {}); their scores are cached for the next run", format_duration(t.teacher),
                       format_duration(t.whole()));
  if (t.evaluation > t.steps && t.evaluation >= t.saving)
    return fmt::format("evaluation ({} of {}){}", format_duration(t.evaluation), format_duration(t.whole()),
                       less_often("eval", cadence.evaluate));
  if (t.saving > t.steps)
    return fmt::format("saving ({} of {}){}", format_duration(t.saving), format_duration(t.whole()),
                       less_often("save", cadence.save));
  if (threads > 0 && others.disturbs()) return others.text();
  const double idle = std::max(0.0, t.steps - t.busy);
  if (t.busy >= kBusyEnough * t.steps) {
    if (threads == 0) return "compute (GPU busy during steps)";
    if (threads < others.usable_cores)
      return fmt::format("compute with {} of {} cores (`threads`)", threads, others.usable_cores);
    return fmt::format("compute ({} busy during steps)", threads == 1 ? "core" : "all cores");
  }
  if (t.waited > idle / 2) return fmt::format("packing: micro-batches were late ({})", format_duration(t.waited));
  return fmt::format("gaps between steps ({} idle){}", format_duration(idle),
                     threads == 0 ? "; a larger batch hides launch and read-back latency" : "");
}

}  // namespace brim::train
