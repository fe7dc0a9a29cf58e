// SPDX-License-Identifier: Apache-2.0
#include "train/session.h"

#include <algorithm>

#include "base/clock.h"
#include "base/timeline.h"
#include "memory/ledger.h"
#include "ops/gemm_tuner.h"

namespace brim::train {
namespace {

uint64_t mix_seed(uint64_t seed, int64_t step, int64_t micro) {
  uint64_t x = seed * 0x9E3779B97F4A7C15ULL + static_cast<uint64_t>(step) * 0xBF58476D1CE4E5B9ULL +
               static_cast<uint64_t>(micro) + 1;
  x ^= x >> 31;
  x *= 0x94D049BB133111EBULL;
  x ^= x >> 29;
  return x;
}

}  // namespace

// Losses and norms are read back from the device asynchronously; nothing waits for them.
struct TrainSession::Step {
  StepResult result;
  int64_t micros = 0;
  double samples = 0, tagged = 0;
  std::unique_ptr<device::Event> begin, done;
  device::DeviceBuffer values;  // page-locked: two losses per micro-batch, then the norm
};

TrainSession::TrainSession(TrainJob& job)
    : job_(job),
      state_(*job.device, job.shape, job.precision, job.plan.optimizer,
             job.plan.moments_on_host ? model::Moments::host : model::Moments::device, &job.memory),
      stream_(job.device->make_stream()) {
  ops::load_gemm_choices(*stream_);
  job_.plan.gemm_choices = ops::gemm_choices(*stream_);
}

TrainSession::~TrainSession() = default;

void TrainSession::open_pass() {
  place_token_set(job_);
  stream_->name_ops(job_.plan.token_budget >= named_from_tokens(job_.plan, job_.shape.layers));
  pass_plan_ = plan_train_pass(job_.shape, job_.precision, job_.plan.recompute, job_.device->kind(), device::best_isa(),
                               job_.threads, job_.plan.limits());
  if (job_.validation_set.rows() > 0) validation_ = std::make_unique<Validator>(job_, state_);
  const int64_t pass = pass_plan_.arena_bytes(),
                arena = std::max(pass, validation_ ? memory::align_up(validation_->arena_bytes()) : 0);
  const bool resident = job_.token_placement == TokenPlacement::resident;
  const auto ids = job_.train_set.ids;
  // A single block, because the driver rounds up each allocation separately.
  memory::TagBytes bytes = pass_plan_.placement.at_peak;
  bytes[memory::Tag::activations] += arena - pass;
  if (resident) bytes[memory::Tag::token_set] = memory::align_up(static_cast<int64_t>(ids.size_bytes()));
  arena_ = memory::Ledger::allocate(*job_.device, &job_.memory, bytes, "training pass");
  spans_ = device::DeviceSpans::make(*job_.device, *stream_, "device", Zone::device_busy);
  if (validation_) {
    validation_->use_arena(arena_.data());
    validation_->use_spans(spans_.get());
  }
  tensor::TensorView token_set;
  if (resident) {
    token_set =
        tensor::TensorView(static_cast<char*>(arena_.data()) + arena, tensor::DType::i32, {job_.train_set.tokens()});
    stream_->copy(token_set.data, ids.data(), ids.size_bytes());
    stream_->synchronize();
  }
  stager_ = std::make_unique<BatchStager>(*job_.device, job_.shape, job_.plan.limits(), job_.plan.staging_depth,
                                          !job_.soft.empty(), token_set, &job_.memory);
  if (!job_.class_weights.empty()) state_.set_class_weights(*stream_, job_.class_weights);
  last_done_ = make_event(*job_.device, true);
  last_done_->record(*stream_);
  last_done_->synchronize();
  last_done_ns_ = now_ns();
}

void TrainSession::begin_step(const MicroBatch& m) {
  auto p = free_.empty() ? std::make_unique<Step>() : std::move(free_.back());
  if (!free_.empty()) free_.pop_back();
  if (!p->done) {
    p->begin = make_event(*job_.device, true);
    p->done = make_event(*job_.device, true);
  }
  if (const auto bytes = static_cast<size_t>(2 * m.step_micros + 1) * 4; p->values.bytes() < bytes)
    p->values = job_.device->allocate_host(bytes);
  p->result = {.step = m.step};
  p->samples = m.step_weight;
  p->tagged = static_cast<double>(m.step_tagged);
  p->micros = 0;
  unread_.push_back(std::move(p));
}

void TrainSession::enqueue(const MicroBatch& m, double loss_scale) {
  const TrainSettings& s = job_.settings;
  if (m.number == 0) begin_step(m);
  const StagedBatch staged = stager_->stage(m, *stream_);
  model::TrainPass pass{
      state_.architecture(), state_.params(), job_.plan.recompute, {}, {{}, staged.sorted, staged.sorted_positions}};
  const StepScales scales = step_scales(m, job_.shape, loss_scale);
  pass.loss.label_smoothing = static_cast<float>(s.label_smoothing);
  pass.loss.sequence_scale = scales.sequence;
  pass.loss.token_scale = scales.token;
  pass.training.dropout.on = job_.shape.has_dropout();
  pass.training.dropout.seed = mix_seed(static_cast<uint64_t>(s.seed), m.step, m.number);
  model::TrainTargets targets = staged.targets;
  if (spans_) spans_->begin();
  targets.class_weights = state_.class_weights();
  Step& p = *unread_.back();
  if (m.number == 0) p.begin->record(*stream_);
  if (targets.teacher_sequence) {
    pass.loss.temperature = static_cast<float>(s.temperature);
    pass.loss.hard_weight = static_cast<float>(s.hard_weight);
    pass.loss.soft_weight = static_cast<float>(1 - s.hard_weight);
  }
  model::TrainResult result;
  {
    ScopedZone zone(Zone::forward, m.packed.tokens());
    const auto run = [&] {
      return run_train_pass(*stream_, arena_.data(), pass_plan_, pass, staged.batch, targets, job_.threads);
    };
    if (m.number == 0) {
      const int passes = state_.needs_calibration() ? model::kFp8CalibrationPasses : 0;
      for (int i = 0; i < passes; ++i) {
        state_.begin_step(*stream_, scales.unit);
        run();
        state_.end_calibration(*stream_);
      }
      state_.begin_step(*stream_, scales.unit);
    }
    result = run();
  }
  stager_->mark_used(*stream_);
  stream_->copy(static_cast<float*>(p.values.data()) + 2 * p.micros, result.loss.data, 8);
  if (spans_) spans_->end(m.packed.tokens());
  ++p.micros;
  p.result.tokens += m.packed.tokens();
  p.result.rows += m.packed.sequences();
  p.result.sum_squares += m.packed.sum_squares;
  for (const uint64_t t : m.packed.tickets) p.result.row_ids.push_back(static_cast<int64_t>(t));
}

void TrainSession::update(double lr, model::StepSettings step) {
  Step& p = *unread_.back();
  p.result.lr = lr;
  step.lr = static_cast<float>(lr);
  if (spans_) spans_->begin();
  {
    ScopedZone zone(Zone::optimizer);
    state_.step(*stream_, step, job_.threads);
  }
  stream_->copy(static_cast<float*>(p.values.data()) + 2 * p.micros, state_.norm().data, 4);
  if (spans_) spans_->end();
  p.done->record(*stream_);
}

// Waits for the end of a step. Steps may be read long after they are done, so their ends come from the device's clock;
// the host's clock is more exact only if it had to wait.
int64_t TrainSession::done_time(Step& step) {
  const bool waits = !step.done->done();
  {
    ScopedZone zone(Zone::wait_device);
    step.done->synchronize();
  }
  const int64_t now = now_ns(), since_last = static_cast<int64_t>(step.done->ms_since(*last_done_) * 1e6);
  last_done_ns_ = waits ? now : std::min(now, last_done_ns_ + since_last);
  return last_done_ns_;
}

StepResult TrainSession::read() {
  std::unique_ptr<Step> p = std::move(unread_.front());
  unread_.erase(unread_.begin());
  const int64_t done_ns = done_time(*p);
  StepResult r = std::move(p->result);
  r.done_ns = done_ns;
  r.busy_seconds = p->done->ms_since(*p->begin) * 1e-3;
  if (spans_) spans_->record_completed();
  const auto* values = static_cast<const float*>(p->values.data());
  double sequence = 0, token = 0;
  for (int64_t i = 0; i < p->micros; ++i) {
    sequence += values[2 * i];
    token += values[2 * i + 1];
  }
  r.norm = values[2 * p->micros];
  if (job_.shape.sequence_classes > 0 && p->samples > 0) r.loss += r.sequence_loss = sequence / p->samples;
  if (job_.shape.token_classes > 0 && p->tagged > 0) r.loss += r.token_loss = token / p->tagged;
  std::swap(last_done_, p->done);
  free_.push_back(std::move(p));
  return r;
}

}  // namespace brim::train
