// SPDX-License-Identifier: Apache-2.0
// The planner. Each strategy that does not change results (recompute none, half, selective, full) is recorded at two
// sizes; bytes and work are linear in between. All sizes of a fixed grid are compared by predicted speed, and the
// chosen one is recorded again, so the bytes of a plan are always computed, never interpolated.
//
// A larger limit never gives a slower plan: the grid and its figures do not depend on the limit, a larger limit only
// adds candidates, and among those within 1 % of the fastest the smallest is taken.
#include "plan/plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/units.h"
#include "hub/gliner_config.h"
#include "hub/hf_config.h"
#include "hub/weights.h"
#include "model/staging.h"
#include "model/validation_plan.h"
#include "model/weights.h"
#include "plan/cost.h"
#include "plan/does_not_fit.h"
#include "plan/resolve.h"

namespace brim::plan {

using device::DeviceKind;
using memory::Tag;
using model::Moments;
using model::Optimizer;
using model::Recompute;
using ops::Precision;

namespace {

constexpr int kScoreStagingSlots = 3, kTrainStagingSlots = 3;
constexpr int64_t kMostCudaTokens = 98304;  // beyond this an H200 with all products tuned gains 2 % at most
constexpr int64_t kMostCudaTokensFilled = 262144;
constexpr double kEnough = 0.99;  // fraction of the best speed
// Penalty for recomputed layers, so that ties do not recompute. Selective recomputation is costed op by op.
constexpr double kRecomputeToll = 1.03;

struct Candidate {
  Recompute level = Recompute::none;
  Optimizer optimizer = Optimizer::adamw;
  Moments moments = Moments::device;
};

std::string candidate_name(const Candidate& candidate) {
  return fmt::format("recompute {}{}", recompute_name(candidate.level),
                     candidate.moments == Moments::host ? ", optimizer state on the host" : "");
}

class Solver {
 public:
  explicit Solver(const PlanRequest& request) : r_(request), cpu_(request.device.kind == DeviceKind::cpu) {
    if (cpu_ && r_.device.bandwidth == 0) {  // incomplete profile: use rough figures
      const std::string name = r_.device.name;
      r_.device = estimated_cpu(r_.device.isa, r_.device.threads, r_.device.total_bytes);
      if (!name.empty()) r_.device.name = name;
    }
    if (r_.task == Task::train && r_.precision == Precision::int8)
      fail(ErrorCode::usage, "`precision=int8`: training supports fp32, tf32, bf16, fp16 and fp8");
    if (r_.device.rate(r_.precision) <= 0 || r_.device.bandwidth <= 0)
      fail(ErrorCode::usage, "`precision={}`: {} supports {}", precision_name(r_.precision), r_.device.name,
           r_.device.precisions());
    if (r_.max_length < 1) fail(ErrorCode::usage, "`max_length={}`: must be at least 1", r_.max_length);
    typical_ =
        r_.typical_length > 0 ? std::min(r_.typical_length, r_.max_length) : std::min<int64_t>(r_.max_length, 128);
    if (r_.task == Task::score && !r_.base.empty()) {
      weights_ = layout_adapter(r_.shape, r_.precision, r_.device.kind, r_.device.isa, r_.adapter_ranks, nullptr).bytes;
      model::ModelShape encoder = r_.shape;
      encoder.sequence_classes = encoder.token_classes = encoder.adapter_width = 0;
      encoder.shares_weights = true;
      base_weights_ = layout_weights(encoder, r_.precision, r_.device.kind, r_.device.isa, r_.tables, nullptr).bytes;
    } else if (r_.task == Task::score) {
      weights_ = layout_weights(r_.shape, r_.precision, r_.device.kind, r_.device.isa, r_.tables, nullptr).bytes;
    } else {
      const model::SlabLayout slab = slab_layout(r_.shape);
      elements_ = slab.trained();
      trained_share_ = static_cast<double>(elements_) / static_cast<double>(slab.elements());
    }
  }

  std::vector<Candidate> candidates(Optimizer optimizer) const {
    if (r_.task == Task::score) return {{Recompute::none, optimizer}};
    std::vector<Candidate> all;
    for (const auto moments : {Moments::device, Moments::host}) {
      if (moments == Moments::host && (cpu_ || optimizer != Optimizer::adamw || r_.device.host_bandwidth <= 0)) break;
      if (r_.moments && *r_.moments != moments) continue;
      for (const auto level : model::kRecomputeLevels)
        if (!r_.recompute || *r_.recompute == level) all.push_back({level, optimizer, moments});
    }
    return all;
  }

  // A recorded batch of exactly this size.
  struct SizedPlan {
    Plan plan;
    model::OpTotals ops;
  };
  SizedPlan size(const Candidate& candidate, int64_t tokens) const {
    SizedPlan s;
    Plan& p = s.plan;
    p.task = r_.task;
    p.device = r_.device;
    p.precision = r_.precision;
    p.output = r_.output;
    p.limit_bytes = r_.limit_bytes;
    p.max_length = r_.max_length;
    p.token_budget = tokens;
    p.max_sequences = model::most_sequences(tokens);
    p.recompute = candidate.level;
    p.optimizer = candidate.optimizer;
    p.moments_on_host = candidate.moments == Moments::host;
    p.bytes[Tag::context] = p.peak_bytes = r_.device.context_bytes;
    if (r_.task == Task::score) {
      p.staging_depth = cpu_ ? 1 : kScoreStagingSlots;
      const model::ForwardPlan f = forward(p.limits(), r_.output);
      p.add(memory::Tag::weights, r_.base.empty() ? "model" : "adapter", weights_);
      p.add(memory::Tag::weights, kBaseWeights + r_.base, base_weights_);
      p.add(f.arena_tags(), kForwardPass);
      p.add(memory::Tag::activations, kLoading, std::max<int64_t>(0, r_.load_bytes - f.arena_bytes()));
      if (!cpu_) {
        p.add(memory::Tag::staging, kBatchesInFlight, p.staging_depth * staged_batch_bytes(p.limits()));
        // A model with both heads has graphs for two passes.
        const int passes = r_.output == model::Output::token_scores_and_logits ? 2 : 1;
        if (r_.output != model::Output::word_scores)
          p.add(memory::Tag::graphs, "small batches", passes * model::kSmallBatchBytes);
      }
      s.ops = f.ops;
    } else {
      p.staging_depth = kTrainStagingSlots;
      const model::TrainPassPlan pass = plan_train_pass(r_.shape, r_.precision, candidate.level, r_.device.kind,
                                                        r_.device.isa, r_.device.threads, p.limits());
      p.add(train_state_bytes(r_.shape, r_.precision, candidate.optimizer, candidate.moments, r_.device.kind,
                              r_.device.isa),
            "training state");
      p.add(pass.placement.at_peak, "training pass");
      // Evaluation alternates with training in the same arena and enlarges it if it needs more. Loading happens before
      // either.
      const int64_t evaluation = plan_validation(r_.shape, r_.precision, r_.device.kind, r_.device.isa,
                                                 r_.device.threads, p.limits())
                                     .arena_bytes(),
                    others = std::max(evaluation, r_.load_bytes);
      p.add(Tag::activations, others > evaluation ? "loading" : "evaluation",
            std::max<int64_t>(0, others - pass.arena_bytes()));
      if (!cpu_)
        p.add(Tag::staging, "micro-batches in flight",
              p.staging_depth * staged_micro_batch_bytes(r_.shape, p.limits(), r_.soft_labels));
      if (r_.global_batch_tokens > 0)
        p.accumulation_steps = std::max<int64_t>(1, (r_.global_batch_tokens + tokens - 1) / tokens);
      s.ops = pass.ops;
    }
    const char* const tokenizer = r_.task == Task::score ? "tokenizer" : "tokenizer and token sets";
    p.add(Tag::context, r_.base.empty() ? tokenizer : kBaseWeights + r_.base, r_.tokenizer_bytes);
    if (r_.output != model::Output::word_scores) {
      if (cpu_) p.add(Tag::context, "head on the host", r_.head_bytes);
    } else {
      p.add(Tag::weights, kWordHead, r_.head_weight_bytes);
      p.add(Tag::activations, kWordHead, r_.head_bytes);
    }
    return s;
  }

  // One strategy at all sizes.
  struct SizeCurve {
    Candidate candidate;
    SizedPlan small, large;
    PassCost cost;
    int64_t estimate(int64_t tokens) const {  // live bytes are convex in tokens, so the chord is an upper bound
      const int64_t t1 = small.plan.token_budget, t2 = large.plan.token_budget;
      if (t1 == t2) return small.plan.peak_bytes;
      const double slope =
          static_cast<double>(large.plan.peak_bytes - small.plan.peak_bytes) / static_cast<double>(t2 - t1);
      return small.plan.peak_bytes + static_cast<int64_t>(std::ceil(slope * static_cast<double>(tokens - t1)));
    }
  };
  SizeCurve curve(const Candidate& candidate, int64_t small, int64_t large) const {
    SizeCurve c{candidate, size(candidate, small), {}, {}};
    c.large = small == large ? c.small : size(candidate, large);
    if (cpu_ && r_.task == Task::score) {
      c.cost = cpu_forward_cost();
      return c;
    }
    const Plan& most = c.large.plan;
    c.cost = PassCost(c.small.ops, c.small.plan.token_budget, c.large.ops, most.token_budget,
                      static_cast<double>(most.token_budget) / static_cast<double>(most.max_sequences),
                      static_cast<double>(typical_));
    return c;
  }

  // All chunks of a layer share its weights in cache, so weights are read from memory once per batch regardless of the
  // number of chunks. Two passes small enough to always run op by op separate weight traffic from activation traffic.
  PassCost cpu_forward_cost() const {
    constexpr int64_t kFew = 24, kMore = 48;
    const auto ops = [&](int64_t tokens) {
      return forward({tokens, model::most_sequences(tokens), std::min(tokens, r_.max_length)}, r_.output).ops;
    };
    return PassCost(ops(kFew), kFew, ops(kMore), kMore, static_cast<double>(kFew / model::most_sequences(kFew)),
                    static_cast<double>(typical_));
  }

  // Seconds and tokens of one batch, or of one optimizer step with its micro-batches.
  std::pair<double, double> step(const SizeCurve& c, int64_t tokens) const {
    const auto seconds = [&](int64_t n) { return n > 0 ? c.cost.seconds(r_.device, r_.precision, n) : 0.0; };
    if (r_.task == Task::score) return {seconds(tokens), static_cast<double>(tokens)};
    const int64_t batch = r_.global_batch_tokens > 0 ? r_.global_batch_tokens : tokens;
    const int64_t whole = batch / tokens, rest = batch % tokens;
    const memory::TagBytes& bytes = c.small.plan.bytes;
    const bool on_host = c.candidate.moments == Moments::host;
    const double update =
        optimizer_seconds(r_.device, elements_, on_host ? 8 * elements_ : bytes[Tag::optimizer],
                          static_cast<int64_t>(trained_share_ * static_cast<double>(bytes[Tag::weights])), on_host);
    const double toll = c.candidate.level == Recompute::full ? kRecomputeToll : 1;
    return {toll * (static_cast<double>(whole) * seconds(tokens) + seconds(rest)) + update, static_cast<double>(batch)};
  }
  double speed(const SizeCurve& c, int64_t tokens) const {
    const auto [seconds, n] = step(c, tokens);
    return n / seconds;
  }

  int64_t most_tokens() const {
    if (r_.token_budget > 0) return r_.token_budget;
    int64_t most = cpu_ ? (r_.task == Task::score ? 4096 : 2048) * r_.device.threads : kMostCudaTokens;
    if (r_.task == Task::train && r_.global_batch_tokens > 0) most = std::min(most, r_.global_batch_tokens);
    if (whole_input()) most = std::min(most, r_.most_tokens);
    return std::max(most, r_.max_length);
  }
  // Prefer one batch over two with nearly the same speed and slightly less memory.
  bool whole_input() const { return r_.most_tokens > 0 && r_.most_tokens <= kMostCudaTokens / 2 && !r_.fill; }
  int64_t most_filled() const {
    return std::max(most_tokens(), cpu_ ? 16384 * r_.device.threads : kMostCudaTokensFilled);
  }
  int64_t fewest_tokens() const { return r_.token_budget > 0 ? r_.token_budget : r_.max_length; }

  std::optional<Plan> best(Optimizer optimizer) const {
    std::vector<SizeCurve> curves;
    for (const Candidate& candidate : candidates(optimizer)) {
      const auto same_pass = std::find_if(curves.begin(), curves.end(),
                                          [&](const SizeCurve& c) { return c.candidate.level == candidate.level; });
      if (same_pass == curves.end()) {
        curves.push_back(curve(candidate, fewest_tokens(), most_tokens()));
        continue;
      }
      SizeCurve moved = *same_pass;  // only the placement of the moments differs, no need to record again
      moved.candidate = candidate;
      const int64_t bytes = train_state_bytes(r_.shape, r_.precision, candidate.optimizer, candidate.moments,
                                              r_.device.kind, r_.device.isa)[Tag::optimizer];
      for (SizedPlan* s : {&moved.small, &moved.large}) {
        s->plan.moments_on_host = candidate.moments == Moments::host;
        s->plan.add(Tag::optimizer, "training state", bytes - s->plan.bytes[Tag::optimizer]);
      }
      curves.push_back(std::move(moved));
    }
    auto plan = r_.fill && r_.token_budget == 0 ? filled(curves) : chosen(curves);
    if (plan) explain(*plan, curves);
    return plan;
  }

  const PlanRequest& request() const { return r_; }
  int64_t typical() const { return typical_; }

 private:
  model::ForwardPlan forward(model::BatchLimits limits, model::Output output) const {
    return plan_forward(r_.shape, r_.precision, r_.device.kind, r_.device.isa, r_.device.threads, limits, output);
  }

  std::vector<int64_t> grid() const {
    std::vector<int64_t> sizes = {fewest_tokens()};
    const int64_t most = most_tokens();
    for (int64_t t = (sizes[0] / 128 + 1) * 128; t < most; t += std::max<int64_t>(128, t / 24 / 128 * 128))
      sizes.push_back(t);
    if (most > sizes.back()) sizes.push_back(most);
    return sizes;
  }

  std::optional<Plan> chosen(const std::vector<SizeCurve>& curves) const {
    struct Choice {
      const SizeCurve* curve;
      int64_t tokens, peak;
      double speed;
    };
    std::vector<Choice> all;
    for (const SizeCurve& c : curves)
      for (const int64_t t : grid()) all.push_back({&c, t, c.estimate(t), speed(c, t)});
    for (;;) {
      double fastest = 0;
      for (const Choice& c : all)
        if (c.peak <= r_.limit_bytes) fastest = std::max(fastest, c.speed);
      Choice* pick = nullptr;
      for (Choice& c : all) {
        if (c.peak > r_.limit_bytes || (c.speed < kEnough * fastest && !whole_input())) continue;
        if (pick == nullptr || (whole_input() ? c.tokens > pick->tokens : c.peak < pick->peak)) pick = &c;
      }
      if (pick == nullptr) return std::nullopt;
      Plan plan = size(pick->curve->candidate, pick->tokens).plan;
      if (plan.peak_bytes > r_.limit_bytes) {  // placement at this size is slightly worse than for its neighbours
        pick->peak = plan.peak_bytes;
        continue;
      }
      predict(plan, *pick->curve);
      return plan;
    }
  }

  // As many tokens as fit, using the strategy that is fastest when full.
  std::optional<Plan> filled(const std::vector<SizeCurve>& curves) const {
    std::optional<Plan> best;
    for (const SizeCurve& c : curves) {
      if (c.small.plan.peak_bytes > r_.limit_bytes) continue;
      const int64_t cap = most_filled();
      int64_t fits = c.small.plan.token_budget, too_many = cap + 128;
      Plan plan = c.small.plan;
      const auto attempt = [&](int64_t tokens) {
        Plan p = size(c.candidate, tokens).plan;
        const bool ok = p.peak_bytes <= r_.limit_bytes;
        if (ok) {
          fits = tokens;
          plan = std::move(p);
        } else
          too_many = tokens;
        return ok;
      };
      if (!attempt(cap)) {
        while (too_many - fits > 256) attempt(std::max(fits + 1, (fits + too_many) / 2 / 128 * 128));
      }
      predict(plan, c);
      if (!best || plan.tokens_per_second > best->tokens_per_second) best = std::move(plan);
    }
    return best;
  }

  void predict(Plan& plan, const SizeCurve& c) const {
    const auto [seconds, tokens] = step(c, plan.token_budget);
    plan.step_seconds = seconds;
    plan.tokens_per_second = tokens / seconds;
  }

  void explain(Plan& plan, const std::vector<SizeCurve>& curves) const {
    const SizeCurve* own = nullptr;
    for (const SizeCurve& c : curves)
      if (c.candidate.level == plan.recompute && (c.candidate.moments == Moments::host) == plan.moments_on_host)
        own = &c;
    const std::string budget = fmt::format("token budget {}", format_count(plan.token_budget));
    const int64_t most = most_tokens();
    if (r_.token_budget > 0) {
      plan.why.push_back(budget + ": as requested");
    } else if (r_.fill) {
      plan.why.push_back(budget + (plan.token_budget == most_filled()
                                       ? ": the maximum batch size; `fill` would allow more"
                                       : ": the maximum under the limit (`fill`)"));
    } else if (r_.task == Task::train && r_.global_batch_tokens > 0 && plan.accumulation_steps == 1 &&
               plan.token_budget == most) {
      plan.why.push_back(budget + ": the whole global batch in one micro-batch");
    } else if (whole_input() && plan.token_budget >= r_.most_tokens) {
      plan.why.push_back(budget + ": the whole input is one batch");
    } else if (plan.token_budget == most) {
      plan.why.push_back(budget + ": the largest useful size on this device");
    } else if (own->estimate(plan.token_budget + std::max<int64_t>(128, plan.token_budget / 24)) <= r_.limit_bytes) {
      plan.why.push_back(budget + ": larger budgets that fit gain less than 1 %");
    } else {
      plan.why.push_back(budget + ": within 1 % of the fastest under the limit");
    }
    if (r_.task == Task::train) {
      if (r_.recompute) plan.why.push_back(fmt::format("recompute {}: as requested", recompute_name(plan.recompute)));
      for (const SizeCurve& c : curves) {
        if (&c == own || (c.candidate.moments == Moments::host && own->candidate.moments == Moments::device)) continue;
        const int64_t bytes = c.estimate(plan.token_budget);
        const double rate = speed(c, plan.token_budget);
        std::string other = fmt::format("run at {} tokens/s", format_si(rate));
        if (bytes > r_.limit_bytes)
          other = fmt::format("need {} at this budget", format_bytes(bytes));
        else if (rate >= plan.tokens_per_second && kEnough * rate < plan.tokens_per_second)
          other = fmt::format("need {} and gain less than 1 %", format_bytes(bytes));
        plan.why.push_back(fmt::format("{} instead of {}, which would {}", candidate_name(own->candidate),
                                       candidate_name(c.candidate), other));
      }
      if (plan.moments_on_host)
        plan.notes.push_back(fmt::format(
            "AdamW's moments stay in page-locked host memory ({}) and cross the bus each step; results do not change",
            format_bytes(8 * elements_)));
    }
    if (r_.task == Task::train && r_.precision == Precision::fp8) plan.why.push_back(fp8_products(r_.shape));
    plan.why.push_back(fmt::format("speed is predicted for texts of {} tokens from {} rates", typical_,
                                   plan.device.measured ? "measured" : "data-sheet"));
    if (!plan.device.runnable)
      plan.notes.push_back(fmt::format("this build does not support {} (sm_{}); sm_75 or newer is required",
                                       plan.device.name, plan.device.compute_capability));
  }

  PlanRequest r_;
  bool cpu_;
  int64_t typical_ = 0, weights_ = 0, base_weights_ = 0, elements_ = 0;  // elements: trained parameters
  double trained_share_ = 1;
};

// Plan with the fewest bytes for these settings.
Plan smallest_plan(const PlanRequest& r) {
  const Solver solver(r);
  std::optional<Plan> best;
  for (const Candidate& candidate : solver.candidates(r.optimizer)) {
    Plan p = solver.size(candidate, solver.fewest_tokens()).plan;
    if (!best || p.peak_bytes < best->peak_bytes) best = std::move(p);
  }
  return *best;
}

}  // namespace

void add_host_memory(PlanRequest& r, const hub::ModelFiles& files) {
  if (r.device.kind != DeviceKind::cpu) return;
  const model::ModelShape& s = r.shape;
  if (r.task == Task::train) {
    r.load_bytes = 4 * slab_layout(s).elements();  // a second copy of all parameters until they are moved to the state
  } else {
    r.tables = table_types(s, r.device.kind);
    try {
      r.tables = table_types(*hub::open_model(files).weights, s, r.device.kind);
    } catch (const Error&) {  // the config alone is enough for planning
    }
    r.load_bytes = load_bytes(s, r.device.threads);
  }
  // Measured with BERT, RoBERTa and SentencePiece tokenizers: vocabulary, tries and caches take up to three times the
  // size of the files.
  int64_t largest = 0;
  for (const auto& file : hub::tokenizer_files(hub::tokenizer_dir(files.dir))) {
    std::error_code ec;
    const auto bytes = std::filesystem::file_size(file, ec);
    if (!ec) largest = std::max(largest, static_cast<int64_t>(bytes));
  }
  constexpr int64_t kAnyTokenizer = int64_t{4} << 20;
  r.tokenizer_bytes = kAnyTokenizer + 3 * largest;
}

Plan solve(const PlanRequest& request) {
  const Solver solver(request);
  if (auto plan = solver.best(request.optimizer)) return *plan;
  if (request.task == Task::train && request.optimizer == Optimizer::adamw && !request.keep_optimizer)
    if (auto plan = solver.best(Optimizer::adamw_8bit)) {
      plan->notes.push_back(fmt::format(
          "using 8-bit AdamW because AdamW does not fit in {}; results differ slightly; set {} to keep AdamW",
          format_bytes(request.limit_bytes), request.limit_origin.setting(smallest_limit(request))));
      return *plan;
    }
  fail_does_not_fit(solver.request(), smallest_plan(solver.request()));
}

int64_t smallest_limit(const PlanRequest& request) { return smallest_plan(request).peak_bytes; }

int64_t least_limit(const PlanRequest& request) {
  int64_t least = smallest_limit(request);
  if (request.task != Task::train || request.keep_optimizer || request.optimizer == Optimizer::adamw_8bit) return least;
  PlanRequest exchanged = request;
  exchanged.optimizer = Optimizer::adamw_8bit;
  return std::min(least, smallest_limit(exchanged));
}

int64_t named_from_tokens(const Plan& plan, int64_t layers) {
  const double ops = static_cast<double>(layers) * (plan.task == Task::train ? 24 : 8);
  return static_cast<int64_t>(50e-6 * ops * plan.tokens_per_second);
}

}  // namespace brim::plan
