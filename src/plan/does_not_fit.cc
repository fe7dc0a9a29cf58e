// SPDX-License-Identifier: Apache-2.0
#include "plan/does_not_fit.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/units.h"

namespace brim::plan {

using device::DeviceKind;
using memory::Tag;
using model::Optimizer;
using model::Recompute;
using ops::Precision;

namespace {

struct Alternative {
  std::string settings;  // "optim=adamw_8bit recompute=full"
  int64_t bytes;
};

// Settings close to the requested ones, with the minimum memory of each.
std::vector<Alternative> alternatives(const PlanRequest& r) {
  std::vector<Alternative> all;
  const auto consider = [&](const std::string& settings, const PlanRequest& changed) {
    all.push_back({settings, smallest_limit(changed)});
  };
  PlanRequest all_at_once = r;
  std::string settings;
  const auto both = [&](const std::string& more) { settings += (settings.empty() ? "" : " ") + more; };
  if (r.task == Task::train) {
    if (r.optimizer == Optimizer::adamw) {
      PlanRequest c = r;
      c.optimizer = all_at_once.optimizer = Optimizer::adamw_8bit;
      consider("optim=adamw_8bit", c);
      both("optim=adamw_8bit");
    }
    if (r.recompute && *r.recompute != Recompute::full) {
      PlanRequest c = r;
      c.recompute = all_at_once.recompute = Recompute::full;
      consider("recompute=full", c);
      both("recompute=full");
    }
  }
  const bool wide = r.precision == Precision::fp32 || r.precision == Precision::tf32;
  std::vector<Precision> narrower;
  if (r.device.kind == DeviceKind::cuda && wide) narrower.push_back(r.device.bf16 ? Precision::bf16 : Precision::fp16);
  if (r.task == Task::score) narrower.push_back(r.device.kind == DeviceKind::cpu ? Precision::int8 : Precision::fp8);
  for (const Precision p : narrower) {
    if (p == r.precision || r.device.rate(p) <= 0) continue;
    PlanRequest c = r;
    c.precision = all_at_once.precision = p;
    consider(fmt::format("precision={}", precision_name(p)), c);
  }
  if (all_at_once.precision != r.precision) both(fmt::format("precision={}", precision_name(all_at_once.precision)));
  if (settings.find(' ') != std::string::npos) consider(settings, all_at_once);
  // Shorter texts, alone or combined with all of the above, are listed only if they fit.
  if (r.token_budget > 0) return all;
  for (const bool together : {false, true}) {
    const bool fits_already =
        std::any_of(all.begin(), all.end(), [&](const Alternative& a) { return a.bytes <= r.limit_bytes; });
    if (together && (settings.empty() || fits_already)) break;
    for (int64_t length = r.max_length / 2; length >= 16; length /= 2) {
      PlanRequest c = together ? all_at_once : r;
      c.max_length = length;
      const int64_t bytes = smallest_limit(c);
      if (bytes > r.limit_bytes) continue;
      all.push_back({fmt::format("{}{}max_length={}", together ? settings : "", together ? " " : "", length), bytes});
      break;
    }
  }
  return all;
}

// Description of a tag for messages.
const char* part_words(Tag tag, DeviceKind kind) {
  switch (tag) {
    case Tag::master:
      return "the fp32 copy of the weights";
    case Tag::optimizer:
      return "the optimizer's state";
    case Tag::context:
      return kind == DeviceKind::cpu ? "the program, its tokenizer and rows in flight"
                                     : "the memory of driver and libraries";
    default:
      return tag_name(tag);
  }
}

}  // namespace

void fail_does_not_fit(const PlanRequest& r, const Plan& smallest) {
  std::string table;
  Tag largest = Tag::weights;
  for (int t = 0; t < memory::kTagCount; ++t) {
    const auto tag = static_cast<Tag>(t);
    if (smallest.bytes[tag] == 0) continue;
    table += fmt::format("\n  {:<12} {:>12}", tag_name(tag), format_bytes(smallest.bytes[tag]));
    if (smallest.bytes[tag] > smallest.bytes[largest]) largest = tag;
  }
  std::string fits, least;
  int64_t least_bytes = smallest.peak_bytes;
  for (const Alternative& a : alternatives(r)) {
    if (a.bytes <= r.limit_bytes)
      fits += fmt::format("\n  `{}` (needs {})", a.settings, format_bytes(a.bytes));
    else if (a.bytes < least_bytes) {
      least_bytes = a.bytes;
      least = a.settings;
    }
  }
  // Do not suggest a limit beyond the device's memory.
  std::string would = fmt::format("Smallest limit that works: {} ({})", format_bytes(smallest.peak_bytes),
                                  r.limit_origin.setting(smallest.peak_bytes));
  if (r.device.total_bytes > 0 && smallest.peak_bytes > r.device.total_bytes) {
    would = fmt::format("{} has {}, so no limit works", r.device.name, format_bytes(r.device.total_bytes));
    if (r.device.kind == DeviceKind::cuda)
      for (const DeviceProfile& card : known_cards())
        if (card.runnable && card.total_bytes - card.total_bytes / 20 >= smallest.peak_bytes) {
          would += fmt::format("; a GPU with {} is sufficient ({})", format_bytes(card.total_bytes), card.name);
          break;
        }
  }
  std::string advice;
  if (!fits.empty())
    advice = "\nsettings that fit:" + fits;
  else if (!least.empty())
    advice = fmt::format("\nclosest: `{}` (needs {})", least, format_bytes(least_bytes));
  const LimitOrigin& origin = r.limit_origin;
  fail(ErrorCode::does_not_fit,
       "{}does not fit in {} on {}. The smallest batch ({}) needs{}\n  {:<12} {:>12}\nLargest part: {} ({}). {}{}",
       origin.where.empty() ? "" : origin.name("") + ": ", format_bytes(r.limit_bytes), r.device.name,
       r.token_budget > 0 ? format_count(r.token_budget) + " tokens"
                          : fmt::format("one text of {} tokens", r.max_length),
       table, "total", format_bytes(smallest.peak_bytes), part_words(largest, r.device.kind),
       format_bytes(smallest.bytes[largest]), would, advice);
}

}  // namespace brim::plan
