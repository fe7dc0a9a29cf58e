// SPDX-License-Identifier: Apache-2.0
#include "forecast/lane_training.h"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>

#include "base/clock.h"
#include "base/thread_pool.h"
#include "base/timeline.h"
#include "device/device_spans.h"
#include "forecast/metrics.h"
#include "forecast/state_file.h"
#include "train/loop.h"

namespace brim::forecast {
namespace {

constexpr int64_t kReadSteps = 64;   // losses are read back in blocks of this many steps
constexpr int64_t kRowsAhead = 128;  // optimizer constants are uploaded in blocks of this many steps
constexpr int64_t kLookSteps = 256;  // how often the clock is checked for time-based checkpoints
constexpr double kSaveSeconds = 30;  // minimum between checkpoints, and at least 20 times the cost of writing one
constexpr double kSaveRate = 1e9;    // bytes per second, assumed until the first checkpoint is written
constexpr int kMostBadSteps = 20;

double processor_seconds() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

// Device time with work queued: sums blocks of steps from the start of the first to the end of the last.
class BusyClock {
 public:
  BusyClock(device::Device& device, device::Stream& stream) : device_(device), stream_(stream) {}
  void before_step() {
    if (!blocks_.empty() && blocks_.back().steps < kReadSteps) return;
    blocks_.push_back({make_event(device_, true), make_event(device_, true), 0});
    blocks_.back().begin->record(stream_);
  }
  void after_step() {
    blocks_.back().end->record(stream_);
    ++blocks_.back().steps;
  }
  // The oldest block has completed.
  void pass() {
    seconds_ += 1e-3 * blocks_.front().end->ms_since(*blocks_.front().begin);
    blocks_.pop_front();
  }
  double seconds() const { return seconds_; }

 private:
  struct Steps {
    std::unique_ptr<device::Event> begin, end;
    int64_t steps;
  };
  device::Device& device_;
  device::Stream& stream_;
  std::deque<Steps> blocks_;
  double seconds_ = 0;
};

class WaveProgram final : public train::TrainProgram {
 public:
  WaveProgram(device::Device& device, Wave& wave, const ForecastSettings& settings, const SeriesStore& series,
              const WaveTraining& job, std::function<void(int64_t, double)> progress)
      : wave_(wave),
        s_(settings),
        series_(series),
        job_(job),
        report_(std::move(progress)),
        bad_(static_cast<size_t>(wave.lanes())),
        last_(bad_.size(), std::numeric_limits<float>::quiet_NaN()),
        sums_(bad_.size()),
        best_(bad_.size()),
        saved_ns_(now_ns()),
        busy_(device, wave.stream()),
        spans_(device::DeviceSpans::make(device, wave.stream(), "device", Zone::device_busy)) {}

  // First step: 0, or the checkpointed step.
  int64_t start() {
    if (!resume()) begin();
    wave_.state().refresh(wave_.stream());
    wave_.state().set_step(wave_.stream(), done_);
    if (done_ % kRowsAhead != 0) put_rows(done_);
    return done_;
  }

  std::vector<TrainedLane> trained() {
    const size_t G = bad_.size();
    std::vector<TrainedLane> lanes(G);
    // First-touch page faults on gigabyte buffers cost more than the device copy, so they run in parallel; the copies
    // are sequential.
    ThreadPool pool(static_cast<int>(std::min<size_t>(G, static_cast<size_t>(std::clamp(job_.spec.threads, 1, 16)))));
    pool.parallel_for(G, [&](size_t g, int) {
      lanes[g].state.slab = best_[g].slab;
      if (best_[g].slab.empty()) lanes[g].state.slab.resize(static_cast<size_t>(wave_.state().layout().elements));
    });
    for (size_t g = 0; g < G; ++g) {
      TrainedLane& lane = lanes[g];
      lane.failed = bad_[g] >= kMostBadSteps;
      lane.last_loss = lane.failed ? std::numeric_limits<float>::quiet_NaN() : last_[g];
      for (size_t i = 0; i < sums_[g].size(); ++i) {
        const int64_t steps = std::min(kCurveSteps, read_ - static_cast<int64_t>(i) * kCurveSteps);
        lane.curve.push_back(static_cast<float>(sums_[g][i] / static_cast<double>(steps)));
      }
      if (job_.keep_moments) {
        const auto at = static_cast<int64_t>(g);
        lane.state.first = wave_.state().download_moment(wave_.stream(), at, Moment::first);
        lane.state.second = wave_.state().download_moment(wave_.stream(), at, Moment::second);
      }
      lane.best_step = best_[g].step;
      lane.best_error = best_[g].error;
      if (best_[g].slab.empty()) wave_.state().download(wave_.stream(), static_cast<int64_t>(g), lane.state.slab);
    }
    return lanes;
  }

  int64_t total_steps() const override { return job_.steps; }
  bool ends_epoch(int64_t) const override { return false; }
  bool enqueue(int64_t step) override {
    if (std::all_of(bad_.begin(), bad_.end(), [](int bad) { return bad >= kMostBadSteps; })) return false;
    const ScopedZone zone(Zone::forward);
    if (step % kRowsAhead == 0) put_rows(step);
    busy_.before_step();
    if (spans_) spans_->begin();
    wave_.step();
    if (spans_) spans_->end(wave_.lanes());
    busy_.after_step();
    done_ = step + 1;
    return true;
  }
  // Losses stay on the device until a block of steps is read.
  int64_t unread_steps() const override { return (done_ - read_ + kReadSteps - 1) / kReadSteps; }
  void read_step() override {
    const ScopedZone zone(Zone::wait_device);
    const int64_t count = std::min(kReadSteps, done_ - read_);
    const std::vector<float> losses = wave_.state().losses(wave_.stream(), read_, count),
                             norms = wave_.state().norms(wave_.stream(), read_, count);
    const size_t G = bad_.size();
    for (size_t i = 0; i < losses.size(); ++i) {
      const size_t g = i % G, block = (static_cast<size_t>(read_) + i / G) / kCurveSteps;
      sums_[g].resize(std::max(sums_[g].size(), block + 1));
      sums_[g][block] += static_cast<double>(losses[i]);
      if (bad_[g] >= kMostBadSteps) continue;
      bad_[g] = std::isfinite(losses[i]) && std::isfinite(norms[i]) ? 0 : bad_[g] + 1;
      last_[g] = losses[i];
    }
    read_ += count;
    busy_.pass();
    if (spans_) spans_->record_completed();
    double sum = 0;
    size_t lanes = 0;
    for (size_t g = 0; g < G; ++g) {
      if (bad_[g] >= kMostBadSteps) continue;
      sum += static_cast<double>(last_[g]);
      ++lanes;
    }
    if (report_ && lanes > 0) report_(read_, sum / static_cast<double>(lanes));
  }
  bool needs_each_step() const override { return false; }
  bool can_evaluate() const override { return !job_.validation.empty(); }
  // Lanes are evaluated independently: a lane without recent improvement idles, keeping its best weights, until all
  // have stopped.
  bool evaluate() override {
    const ScopedZone zone(Zone::evaluate);
    const std::vector<double> errors = validation_errors();
    bool goes_on = false;
    for (size_t g = 0; g < best_.size(); ++g) {
      Best& best = best_[g];
      if (best.since >= s_.early_stop_patience) continue;
      if (std::isfinite(errors[g]) && (best.step < 0 || errors[g] < best.error)) {
        best = {done_, errors[g], 0, wave_.state().download(wave_.stream(), static_cast<int64_t>(g))};
      } else {
        ++best.since;
      }
      goes_on = goes_on || best.since < s_.early_stop_patience;
    }
    return goes_on;
  }
  void save() override {
    if (job_.checkpoint.empty()) return;
    const bool stopping = stop_ != nullptr && stop_->load(std::memory_order_relaxed);
    const double expected = 3.0 * static_cast<double>(wave_.lanes() * wave_.state().layout().elements) * 4 / kSaveRate;
    const double wait = std::max(kSaveSeconds, 20 * (save_seconds_ > 0 ? save_seconds_ : expected));
    if (s_.save_steps == 0 && !stopping && seconds_since(saved_ns_) < wait) return;
    const ScopedZone zone(Zone::checkpoint);
    const int64_t began = now_ns();
    StateWriter file(job_.checkpoint, job_.owner);
    file.list(job_.lanes);
    file.put(job_.steps);
    file.put(done_);
    file.list(bad_);
    file.list(last_);
    for (const auto& sums : sums_) file.list(sums);
    for (const Best& best : best_) {
      file.put(best.step);
      file.put(best.error);
      file.put(best.since);
      file.list(best.slab);
    }
    for (int64_t g = 0; g < wave_.lanes(); ++g) file.list(wave_.state().download(wave_.stream(), g));
    // One lane at a time: copying all at once would double the memory on a CPU.
    file.length(static_cast<uint64_t>(2 * wave_.lanes() * wave_.state().layout().elements));
    for (const Moment which : {Moment::first, Moment::second})
      for (int64_t g = 0; g < wave_.lanes(); ++g) file.part(wave_.state().download_moment(wave_.stream(), g, which));
    file.commit();
    saved_ns_ = now_ns();
    save_seconds_ = seconds_since(began);
  }
  void pauses() override {}
  void resumes() override {}
  void stop_by(const std::atomic<bool>* stop) { stop_ = stop; }
  double busy_seconds() const { return busy_.seconds(); }

 private:
  void begin() {
    const NbeatsState& state = wave_.state();
    wave_.upload([&](size_t g) {
      if (!job_.start.empty() && !job_.start[g].slab.empty()) return job_.start[g].slab;
      const ops::LaneSpec& lane = job_.spec.lanes[g];
      return draw_lane(state.shape(), state.layout(), lane.seed, lane.lookback);
    });
    for (size_t g = 0; g < job_.start.size(); ++g) {
      const LaneState& from = job_.start[g];
      if (from.first.empty()) continue;
      wave_.state().upload_moment(wave_.stream(), static_cast<int64_t>(g), Moment::first, from.first);
      wave_.state().upload_moment(wave_.stream(), static_cast<int64_t>(g), Moment::second, from.second);
    }
  }

  bool resume() {
    if (job_.checkpoint.empty()) return false;
    auto file = StateReader::open(job_.checkpoint, job_.owner);
    if (!file || file->list<int64_t>() != job_.lanes || file->get<int64_t>() != job_.steps) return false;
    done_ = read_ = file->get<int64_t>();
    bad_ = file->list<int>();
    last_ = file->list<float>();
    for (auto& sums : sums_) sums = file->list<double>();
    for (Best& best : best_) {
      best.step = file->get<int64_t>();
      best.error = file->get<double>();
      best.since = file->get<int64_t>();
      best.slab = file->list<float>();
    }
    for (int64_t g = 0; g < wave_.lanes(); ++g) wave_.state().upload(wave_.stream(), g, file->list<float>());
    const size_t each = file->length<float>() / (2 * static_cast<size_t>(wave_.lanes()));
    for (const Moment which : {Moment::first, Moment::second})
      for (int64_t g = 0; g < wave_.lanes(); ++g)
        wave_.state().upload_moment(wave_.stream(), g, which, file->part<float>(each));
    return true;
  }

  // Per lane, over the validation windows.
  std::vector<double> validation_errors() {
    const size_t G = bad_.size(), B = static_cast<size_t>(job_.spec.validation_windows);
    const NbeatsShape& shape = wave_.state().shape();
    const auto H = static_cast<size_t>(shape.horizon), Q = static_cast<size_t>(shape.quantiles);
    std::vector<Mean> errors(G);
    size_t most = 0;
    for (const auto& windows : job_.validation) most = std::max(most, windows.size());
    for (size_t first = 0; first < most; first += B) {
      const size_t n = std::min(B, most - first);
      std::vector<std::vector<ops::WindowPick>> part;
      for (const auto& windows : job_.validation) {
        part.emplace_back();
        for (size_t i = first; i < first + n; ++i) part.back().push_back(windows[std::min(i, windows.size() - 1)]);
      }
      if (spans_) spans_->begin();
      const std::vector<float> got = wave_.predict(part);
      if (spans_) spans_->end();
      for (size_t g = 0; g < G; ++g) {
        const auto& windows = job_.validation[job_.validation.size() == 1 ? 0 : g];
        for (size_t i = 0; i < n && first + i < windows.size(); ++i) {
          const auto values = series_.series(windows[first + i].series);
          const auto cut = static_cast<size_t>(windows[first + i].cut);
          const double scale = seasonal_scale(values.first(cut), 1);
          const float* forecast = &got[((g * n + i) * Q + Q / 2) * H];
          for (size_t h = 0; h < H && cut + h < values.size(); ++h)
            errors[g].add(std::abs(static_cast<double>(forecast[h]) - static_cast<double>(values[cut + h])) / scale);
        }
      }
    }
    std::vector<double> means;
    for (const Mean& error : errors) means.push_back(error.value());
    return means;
  }

  // Uploads optimizer constants from this step to the end of its block.
  void put_rows(int64_t first) {
    std::vector<ops::AdamWRow> rows;
    const int64_t end = std::min((first / kRowsAhead + 1) * kRowsAhead, job_.steps);
    for (int64_t step = first; step < end; ++step)
      rows.insert(rows.end(), bad_.size(),
                  ops::adamw_row(static_cast<float>(rate_of(s_, step, job_.steps)), static_cast<float>(s_.adam_beta1),
                                 static_cast<float>(s_.adam_beta2), static_cast<float>(s_.adam_epsilon),
                                 static_cast<float>(s_.weight_decay), job_.steps_before + step + 1));
    wave_.state().put_rows(wave_.stream(), first, rows);
  }

  Wave& wave_;
  const ForecastSettings& s_;
  const SeriesStore& series_;
  const WaveTraining& job_;
  const std::function<void(int64_t step, double loss)> report_;
  const std::atomic<bool>* stop_ = nullptr;
  std::vector<int> bad_;  // consecutive steps with non-finite gradients, per lane
  std::vector<float> last_;
  std::vector<std::vector<double>> sums_;  // loss sums per lane and block of steps
  struct Best {
    int64_t step = -1;
    double error = 0;
    int64_t since = 0;  // evaluations without improvement
    std::vector<float> slab;
  };
  std::vector<Best> best_;
  int64_t done_ = 0, read_ = 0, saved_ns_;
  double save_seconds_ = 0;
  BusyClock busy_;
  const std::unique_ptr<device::DeviceSpans> spans_;  // null without a timeline
};

}  // namespace

double rate_of(const ForecastSettings& s, int64_t step, int64_t steps) {
  return s.learning_rate * std::pow(0.5, std::floor(static_cast<double>(step) * static_cast<double>(s.num_lr_decays) /
                                                    static_cast<double>(steps)));
}

TrainedWave train_wave(device::Device& device, const ForecastSettings& s, const SeriesStore& series,
                       const WaveTraining& job, memory::PlannedMemory* planned,
                       const std::function<void(int64_t, double)>& progress, const std::atomic<bool>* stop) {
  auto ready = std::make_unique<ScopedZone>(Zone::wait_input);  // the timeline of a run starts here
  Wave wave(device, job.spec, series, job.cutoffs, s.sampling, planned);
  WaveProgram program(device, wave, s, series, job, progress);
  program.stop_by(stop);
  train::Cadence cadence;
  if (!job.checkpoint.empty()) cadence.save = train::Strategy::steps;
  if (!job.validation.empty()) cadence.evaluate = train::Strategy::steps;
  cadence.evaluate_steps = s.val_check_steps;
  cadence.save_steps = s.save_steps > 0 ? s.save_steps : kLookSteps;
  train::TrainLoop loop(program, cadence, stop);
  const int64_t first = program.start();
  ready.reset();
  const double processor = processor_seconds();
  loop.run(first);
  TrainedWave trained;
  trained.seconds = loop.seconds();
  // GPU time comes from device events; on a CPU, process CPU time is used because waiting threads do not compute.
  trained.busy_seconds = device.kind() == device::DeviceKind::cpu
                             ? (processor_seconds() - processor) / std::max(1, job.spec.threads)
                             : program.busy_seconds();
  trained.interrupted = loop.interrupted();
  if (!trained.interrupted) trained.lanes = program.trained();
  return trained;
}

std::vector<int64_t> checkpointed_lanes(const std::filesystem::path& checkpoint, const std::string& owner) {
  auto file = StateReader::open(checkpoint, owner);
  return file ? file->list<int64_t>() : std::vector<int64_t>();
}

}  // namespace brim::forecast
