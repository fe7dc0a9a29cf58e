// SPDX-License-Identifier: Apache-2.0
#include "jobs/doctor_sweep.h"

#include <algorithm>
#include <limits>

namespace brim::jobs {
namespace {

// Activity at one moment.
struct State {
  int device = 0, copying = 0;                                                            // device lanes
  int reading = 0, no_room = 0, tokenizing = 0, writing = 0;                              // surrounding stages
  int packing = 0, staging = 0, launching = 0, collecting = 0, starved = 0, waiting = 0;  // compute thread
  int evaluating = 0;  // training only; checkpoints count as writing

  int* counter(Zone zone, bool compute_lane, bool on_card) {
    switch (zone) {
      case Zone::device_busy:
        return &device;
      case Zone::copy:
        return &copying;
      case Zone::compute:
        return on_card ? &launching : &device;
      case Zone::read:
        return &reading;
      case Zone::wait_room:
        return &no_room;
      case Zone::tokenize:
        return &tokenizing;
      case Zone::write:
        return &writing;
      case Zone::pack:
        return &packing;
      case Zone::stage:
        return &staging;
      case Zone::collect:
        return &collecting;
      case Zone::wait_device:
        return &waiting;
      case Zone::wait_input:
        return compute_lane ? &starved : nullptr;
      case Zone::forward:
      case Zone::optimizer:
        return &launching;
      case Zone::evaluate:
        return &evaluating;
      case Zone::checkpoint:
        return &writing;
      default:
        return nullptr;
    }
  }
};

class Sweep {
 public:
  explicit Sweep(const RunTrace& trace)
      : trace_(trace), r_(trace.record), vader_(r_.model == "vader"), train_(r_.trains()) {}

  TimelineSummary run() {
    collect_edges();
    if (edges_.empty()) return swept_;
    swept_.begin_ns = edges_.front().at_ns;
    swept_.end_ns = edges_.back().at_ns;
    for (const ZoneEvent& e : trace_.events)
      if (e.end_ns > began_ns_) add_work(e);
    int64_t now = swept_.begin_ns;
    for (const Edge& edge : edges_) {
      if (edge.at_ns > now) {
        account(now, edge.at_ns);
        now = edge.at_ns;
      }
      *state_.counter(edge.zone, edge.compute_lane, r_.on_card) += edge.change;
    }
    if (r_.on_card && !train_ && r_.staging_depth == 1) charge_missing_overlap();
    for (size_t c = 0; c < swept_.charged.size(); ++c) swept_.idle += swept_.charged[c];
    swept_.idle += unknown_;
    take_out_startup();
    return swept_;
  }

 private:
  struct Edge {
    int64_t at_ns;
    int change;
    Zone zone;
    bool compute_lane;
  };

  bool is_compute_lane(int32_t lane) const {
    const std::string& name = trace_.lanes[static_cast<size_t>(lane)];
    return name == "compute" || name == "main";
  }

  void collect_edges() {
    State probe;
    // A GPU is warmed up batch by batch when the model is opened, so the run begins with its first read. Training
    // begins with its first micro-batch: by then rows are tokenized, memory is planned and the weights are on the
    // device.
    const auto begins = [&](const ZoneEvent& e) {
      return train_ ? e.zone == Zone::pack || e.zone == Zone::wait_input : e.zone == Zone::read;
    };
    const auto first = std::find_if(trace_.events.begin(), trace_.events.end(), begins);
    if (first != trace_.events.end()) began_ns_ = first->begin_ns;
    for (const ZoneEvent& e : trace_.events) {
      if (e.end_ns <= began_ns_) continue;
      const bool compute_lane = is_compute_lane(e.thread);
      if (probe.counter(e.zone, compute_lane, r_.on_card) == nullptr || e.end_ns <= e.begin_ns) continue;
      edges_.push_back({e.begin_ns, 1, e.zone, compute_lane});
      edges_.push_back({e.end_ns, -1, e.zone, compute_lane});
      const bool busy =
          vader_ ? e.zone == Zone::tokenize : e.zone == Zone::device_busy || (!r_.on_card && e.zone == Zone::compute);
      if (!busy) continue;
      if (swept_.first_busy_ns < 0) swept_.first_busy_ns = e.begin_ns;
      swept_.last_busy_ns = std::max(swept_.last_busy_ns, e.end_ns);
    }
    std::stable_sort(edges_.begin(), edges_.end(), [](const Edge& a, const Edge& b) { return a.at_ns < b.at_ns; });
  }

  void add_work(const ZoneEvent& e) {
    const double seconds = static_cast<double>(e.end_ns - e.begin_ns) * 1e-9;
    switch (e.zone) {
      case Zone::read:
        swept_.read += seconds, ++swept_.chunks;
        break;
      case Zone::tokenize:
        if (swept_.tokenize == 0) swept_.first_tokenize = seconds;
        swept_.tokenize += seconds;
        break;
      case Zone::pack:
        if (train_)
          swept_.pack += seconds;  // on a separate thread
        else
          swept_.host += seconds;
        break;
      case Zone::stage:
      case Zone::collect:
        swept_.host += seconds;
        break;
      case Zone::forward:
      case Zone::optimizer:
        swept_.launch += seconds;
        break;
      case Zone::evaluate:
        swept_.evaluate += seconds, ++swept_.evaluations;
        break;
      case Zone::checkpoint:
        swept_.save += seconds, ++swept_.saves;
        break;
      case Zone::compute:
        if (r_.on_card) swept_.host += seconds, swept_.launch += seconds;
        break;
      case Zone::copy:
        swept_.copy += seconds;
        break;
      case Zone::write:
        swept_.write += seconds;
        break;
      default:
        break;
    }
  }

  void account(int64_t from, int64_t to) {
    const double seconds = static_cast<double>(to - from) * 1e-9;
    const int ready =
        (state_.device > 0 && !r_.on_card ? r_.threads : 0) + state_.tokenizing + (train_ ? state_.packing : 0);
    swept_.crowded += seconds * std::max(0, ready - r_.cores);
    if (state_.writing > 0)
      swept_.saving += seconds;
    else if (state_.evaluating > 0)
      swept_.evaluating += seconds;
    if (vader_) return account_rules(from, seconds);
    if (state_.device > 0) {
      swept_.busy += seconds;
      if (state_.evaluating > 0) swept_.evaluate_busy += seconds;
      return;
    }
    charge(train_ ? cause_in_training() : cause_of_idle(), from, seconds);
  }

  // VADER: the cores are the device; a core without a tokenizer thread, or with a waiting one, is idle.
  void account_rules(int64_t from, double seconds) {
    const auto cores = static_cast<double>(std::max(1, r_.cores));
    const double working = std::min<double>(state_.tokenizing, cores),
                 threads = std::min<double>(r_.stats.tokenizers, cores);
    swept_.busy += seconds * working / cores;
    if (threads < cores) charge(working > 0 ? Cause::tokenizer : upstream(), from, seconds * (cores - threads) / cores);
    if (working < threads) charge(upstream(), from, seconds * (threads - working) / cores);
  }

  void charge(Cause cause, int64_t at, double seconds) {
    if (cause == Cause::count) {
      unknown_ += seconds;
      return;
    }
    swept_.charged[index_of(cause)] += seconds;
    if (swept_.first_busy_ns < 0 || at < swept_.first_busy_ns)
      swept_.before[index_of(cause)] += seconds;
    else if (at >= swept_.last_busy_ns)
      swept_.after[index_of(cause)] += seconds;
  }

  // With one batch in flight the device waits for all host work for the next batch. More batches would hide that work
  // behind the device's, up to the device's duration: that part is attributed to the missing overlap, the rest to the
  // work itself.
  void charge_missing_overlap() {
    constexpr Cause kHost[] = {Cause::packer, Cause::launch, Cause::sync};
    double waited = 0;
    for (const Cause cause : kHost) waited += swept_.charged[index_of(cause)];
    const double hidden = waited - std::max(0.0, swept_.host - swept_.busy);
    if (hidden <= 0) return;
    for (auto* charges : {&swept_.charged, &swept_.before, &swept_.after})
      for (const Cause cause : kHost) {
        const double part = (*charges)[index_of(cause)] * hidden / waited;
        (*charges)[index_of(cause)] -= part;
        (*charges)[index_of(Cause::copy)] += part;
      }
  }

  Cause cause_of_idle() const {
    // The GPU is copying: a batch waits for its tokens or for previous results, regardless of host activity.
    if (state_.copying > 0) return Cause::copy;
    if (state_.packing > 0 || state_.collecting > 0) return Cause::packer;
    if (state_.staging > 0) return Cause::copy;
    if (state_.waiting > 0) return Cause::sync;
    if (state_.launching > 0) return Cause::launch;
    return upstream();
  }

  // The loop waits for a micro-batch, submits one, launches, reads back, or is stopped for an evaluation or a
  // checkpoint.
  Cause cause_in_training() const {
    if (state_.writing > 0) return Cause::writer;
    if (state_.evaluating > 0) return Cause::evaluation;
    if (state_.copying > 0) return Cause::copy;
    if (state_.starved > 0) return Cause::packer;
    if (state_.staging > 0) return Cause::copy;
    if (state_.waiting > 0 || state_.collecting > 0) return Cause::sync;
    if (r_.stats.batches == 0) return Cause::count;
    return r_.on_card ? Cause::launch : Cause::packer;  // hand-over between two zones
  }

  // The compute thread has no input (or has not started, or has ended).
  Cause upstream() const {
    if (!vader_ && state_.tokenizing > 0 && state_.tokenizing >= r_.stats.tokenizers) return Cause::tokenizer;
    if (state_.no_room > 0) {  // all chunks are in use downstream: find the stage that holds them
      if (state_.writing > 0) return Cause::writer;
      return state_.tokenizing > 0 ? Cause::tokenizer : Cause::packer;
    }
    if (state_.reading > 0) return Cause::reader;
    if (state_.tokenizing > 0) return Cause::tokenizer;
    if (state_.writing > 0) return Cause::writer;
    if (state_.starved > 0) return Cause::reader;  // between two reads: hand-over between stages
    return r_.stats.batches > 0 || vader_ ? Cause::packer : Cause::count;
  }

  // The time for the first and the last chunk is unavoidable in any run.
  void take_out_startup() {
    const double chunks = std::max<double>(1, static_cast<double>(swept_.chunks));
    const auto move = [&](Cause cause, double charged, double most) {
      const double part = std::min(charged, most);
      swept_.charged[index_of(cause)] -= part;
      swept_.charged[index_of(Cause::startup)] += part;
    };
    if (train_) {  // making the first micro-batch and writing the model are unavoidable in any run
      for (size_t c = 0; c < index_of(Cause::startup); ++c)
        move(static_cast<Cause>(c), swept_.before[c], swept_.before[c]);
      move(Cause::writer, swept_.after[index_of(Cause::writer)], swept_.after[index_of(Cause::writer)]);
      return;
    }
    move(Cause::reader, swept_.before[index_of(Cause::reader)], r_.stats.read_cpu_seconds / chunks);
    move(Cause::tokenizer, swept_.before[index_of(Cause::tokenizer)], swept_.first_tokenize);
    move(Cause::packer, swept_.before[index_of(Cause::packer)],
         swept_.host / static_cast<double>(std::max<int64_t>(1, r_.stats.batches)));
    move(Cause::writer, swept_.after[index_of(Cause::writer)], r_.stats.sink_cpu_seconds / chunks);
  }

  const RunTrace& trace_;
  const RunRecord& r_;
  const bool vader_, train_;
  std::vector<Edge> edges_;
  State state_;
  TimelineSummary swept_;
  int64_t began_ns_ = std::numeric_limits<int64_t>::min();
  double unknown_ = 0;
};

}  // namespace

TimelineSummary sweep(const RunTrace& trace) { return Sweep(trace).run(); }

}  // namespace brim::jobs
