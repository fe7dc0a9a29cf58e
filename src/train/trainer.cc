// SPDX-License-Identifier: Apache-2.0
#include "train/trainer.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/bounded_queue.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/timeline.h"
#include "base/units.h"
#include "io/atomic_file.h"
#include "memory/ledger.h"
#include "model/train_runner.h"
#include "monitor/host.h"
#include "ops/gemm_tuner.h"
#include "ops/loss.h"
#include "train/checkpoint.h"
#include "train/content_hash.h"
#include "train/job.h"
#include "train/loss_scale.h"
#include "train/micro_batch.h"
#include "train/run_record.h"
#include "train/schedule.h"
#include "train/step_reporter.h"
#include "train/validation.h"

namespace brim {
namespace {

uint64_t mix_seed(uint64_t seed, int64_t step, int64_t micro) {
  uint64_t x = seed * 0x9E3779B97F4A7C15ULL + static_cast<uint64_t>(step) * 0xBF58476D1CE4E5B9ULL +
               static_cast<uint64_t>(micro) + 1;
  x ^= x >> 31, x *= 0x94D049BB133111EBULL, x ^= x >> 29;
  return x;
}

// Losses and norms come back from the device a little later than they are asked for; nothing waits for them.
struct PendingStep {
  int64_t step = 0;
  double samples = 0, tagged = 0;
  int64_t tokens = 0, rows = 0, micros = 0;
  double sum_squares = 0, lr = 0;
  std::vector<int64_t> row_ids;
  std::unique_ptr<Event> begin, done;
  DeviceBuffer values;                          // page-locked: two losses a micro-batch, then the norm
  std::vector<std::unique_ptr<Event>> teacher;  // around its pass, two for each micro-batch; kept for the next step
};

// Adds the time of its scope.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() { seconds_ += seconds_since(since_); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& seconds_;
  const int64_t since_ = now_ns();
};

class Loop {
 public:
  Loop(TrainJob& job, const TrainCallbacks& callbacks)
      : job_(job),
        s_(job.settings),
        callbacks_(callbacks),
        schedule_(job.settings, job.train_set),
        state_(*job.device, job.shape, job.precision, job.plan.optimizer,
               job.plan.moments_on_host ? Moments::host : Moments::device),
        stream_(job.device->make_stream()),
        queue_(3),
        record_(job) {
    load_gemm_choices(*stream_);
    job_.plan.gemm_choices = gemm_choices(*stream_);
  }

  TrainOutcome run() {
    start();
    if (callbacks_.begins) callbacks_.begins(job_);
    std::thread producer([&] { produce(); });
    try {
      consume();
    } catch (...) {
      queue_.cancel();
      producer.join();
      throw;
    }
    queue_.cancel();
    producer.join();
    finish();
    if (callbacks_.ends) callbacks_.ends(job_, outcome_);
    return outcome_;
  }

 private:
  void start() {
    std::filesystem::path out = s_.output_dir;
    std::error_code ec;
    const bool resume = !s_.resume_from_checkpoint.empty();
    if (std::filesystem::exists(out, ec) && !std::filesystem::is_empty(out, ec) && !resume && !s_.overwrite_output_dir)
      fail(ErrorCode::cannot_write,
           Remedy{"set `resume_from_checkpoint=last` to continue, or `overwrite_output_dir=true` to start afresh"},
           "{}: exists and is not empty", out.string());
    std::filesystem::create_directories(out, ec);
    if (ec) fail(ErrorCode::cannot_write, "{}: {}", out.string(), ec.message());
    if (!resume) start_afresh(out);
    files_.config = &job_.config;
    files_.tokenizer_dir = job_.model_dir;
    files_.labels = job_.shape.sequence_classes > 0 ? job_.labels.sequence : job_.labels.token;
    files_.shape = job_.shape;
    files_.tags = job_.labels.token;
    progress_.settings = fingerprint();
    if (job_.precision == Precision::fp16) progress_.loss_scale = kFirstLossScale;
    remove_parts(out);
    if (resume) {
      this->resume();
    } else {
      if (!job_.new_tensors.empty()) say(new_head_line(job_));
      state_.upload(*stream_, job_.master);
    }
    open_pass();
    record_.open(progress_.state_json);
    reporter_ =
        std::make_unique<StepReporter>(job_, schedule_, callbacks_, record_, [this] { return counted_bytes(); });
    for (const auto& line : start_lines(job_, schedule_)) say(line);
  }

  // An earlier run's checkpoints would be taken for this one's.
  void start_afresh(const std::filesystem::path& out) {
    std::error_code ec;
    for (const std::string& source : {s_.model, s_.teacher}) {
      const auto dir = std::filesystem::weakly_canonical(source, ec);
      if (!source.empty() && dir.filename().string().starts_with("checkpoint-") &&
          std::filesystem::equivalent(dir.parent_path(), out, ec))
        fail(ErrorCode::usage, Remedy{"choose another `output`"}, "{}: a checkpoint of the run to be overwritten",
             source);
    }
    remove_checkpoints(out);
  }

  // What a pass needs, once the state is on the device.
  void open_pass() {
    job_.master = std::vector<float>();  // the device has it; = {} would keep the memory
    place_token_set(job_);
    stream_->name_ops(job_.plan.token_budget >= named_from_tokens(job_.plan, job_.shape.layers));
    pass_plan_ = plan_train_pass(job_.shape, job_.precision, job_.plan.recompute, job_.device->kind(), best_isa(),
                                 job_.threads, job_.plan.limits());
    if (job_.validation_set.rows() > 0) validation_ = std::make_unique<Validator>(job_, state_);
    const int64_t arena = std::max(pass_plan_.arena_bytes(), validation_ ? validation_->arena_bytes() : 0);
    const bool resident = job_.token_placement == TokenPlacement::resident;
    const auto ids = job_.train_set.ids;
    // One allocation for both: a driver rounds each up on its own, and the plan counts bytes.
    TagBytes bytes;
    bytes[Tag::activations] = align_up(arena);
    if (resident) bytes[Tag::token_set] = align_up(static_cast<int64_t>(ids.size_bytes()));
    arena_ = Ledger::allocate(*job_.device, nullptr, bytes, "training pass");
    spans_ = DeviceSpans::make(*job_.device, *stream_, "device", Zone::device_busy);
    if (validation_) {
      validation_->use_arena(*stream_, arena_.data());
      validation_->use_spans(spans_.get());
    }
    TensorView token_set;
    if (resident) {
      token_set =
          TensorView(static_cast<char*>(arena_.data()) + align_up(arena), DType::i32, {job_.train_set.tokens()});
      stream_->copy(token_set.data, ids.data(), ids.size_bytes());
      stream_->synchronize();
    }
    stager_ =
        std::make_unique<BatchStager>(*job_.device, job_.shape, job_.plan.limits(), job_.plan.staging_depth, token_set);
    if (!job_.class_weights.empty()) {
      weights_ = Ledger::allocate(*job_.device, nullptr, Tag::workspace, "class weights",
                                  static_cast<int64_t>(job_.class_weights.size() * 4));
      stream_->copy(weights_.data(), job_.class_weights.data(), job_.class_weights.size() * 4);
      stream_->synchronize();
    }
    if (!s_.teacher.empty()) open_teacher();
  }

  // What must be equal for a resumed run to be the same run.
  std::string fingerprint() const {
    nlohmann::ordered_json j = {{"data", job_.data_hash},
                                {"precision", precision_name(job_.precision)},
                                {"optimizer", optimizer_name(job_.plan.optimizer)},
                                {"device", device_kind_name(job_.device->kind())},
                                {"layers", job_.shape.layers},
                                {"labels", job_.labels.sequence},
                                {"tags", job_.labels.token}};
    for (const SettingRow& row : setting_rows(s_))
      if (row.repeats) j[row.name] = row.value;
    if (!s_.teacher.empty()) {  // wherever it lies: what counts is what it says
      ContentHash weights;
      for (const auto& file : WeightSource::open(s_.teacher)->files()) weights.add_file(file);
      j["teacher_weights"] = weights.hex();
    }
    return j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

  static std::string difference(const std::string& then, const std::string& now) {
    const auto a = nlohmann::json::parse(then), b = nlohmann::json::parse(now);
    std::string text;
    for (const auto& [key, value] : b.items())
      if (!a.contains(key) || a[key] != value)
        text += fmt::format("\n  {}: then {}, now {}", key, a.contains(key) ? a[key].dump() : "unknown", value.dump());
    for (const auto& [key, value] : a.items())
      if (!b.contains(key)) text += fmt::format("\n  {}: then {}, now none", key, value.dump());
    return text;
  }

  void resume() {
    auto checkpoint = load_checkpoint(s_.output_dir, s_.resume_from_checkpoint, job_.shape);
    if (!checkpoint) {
      say("no checkpoint to continue from; starting at the beginning");
      if (!job_.new_tensors.empty()) say(new_head_line(job_));
      state_.upload(*stream_, job_.master);
      return;
    }
    if (checkpoint->progress.settings != progress_.settings)
      fail(
          ErrorCode::usage,
          "{0}: made with other settings or data, so it cannot be continued as this run; to train longer or otherwise, "
          "start a new run from it: `model={0} output=NEW`{1}",
          checkpoint->dir.string(), difference(checkpoint->progress.settings, progress_.settings));
    progress_ = checkpoint->progress;
    job_.master = std::vector<float>();
    find_best_model(checkpoint->dir.parent_path());
    state_.upload(*stream_, checkpoint->master);
    state_.upload_moments(*stream_, checkpoint->moments);
    const auto plan = nlohmann::json::parse(progress_.plan_json);
    const auto budget = plan.value("token_budget", int64_t{0});
    const auto level = recompute_from_name(plan.value("recompute", std::string("none")));
    if (budget > 0 && (budget != job_.plan.token_budget || level != job_.plan.recompute)) {
      try {
        plan_train_job(job_, budget, level);
      } catch (const Error&) {
        say(fmt::format(
            "the checkpoint's micro-batch of {} tokens does not fit here: the run continues, but not bit for bit",
            format_count(budget)));
      }
    }
    job_.plan.gemm_choices = plan_from_json(progress_.plan_json).gemm_choices;
    use_gemm_choices(*stream_, job_.plan.gemm_choices);
    say(fmt::format("resuming after step {} ({})", format_count(progress_.step), checkpoint->dir.filename().string()));
  }

  // The best model so far lies beside the checkpoints, not in them; a run resumed into another directory takes it
  // along.
  void find_best_model(const std::filesystem::path& run) {
    if (!s_.load_best_model_at_end || progress_.best_step < 0) return;
    std::error_code ec;
    const std::filesystem::path out = s_.output_dir;
    const bool here = std::filesystem::equivalent(run, out, ec);
    if (here ? std::filesystem::exists(out / "model.safetensors", ec) : copy_model(run, out)) return;
    say(fmt::format("the best model so far, of step {}, is not in {}: the best from here on is kept",
                    format_count(progress_.best_step), run.string()));
    progress_.best_step = -1;
    progress_.evaluations_since_best = 0;
  }

  void open_teacher();

  // ---- the producer: micro-batches ahead of the device ----
  void produce() {
    Timeline::name_thread("packer");
    try {
      for (int64_t step = progress_.step; step < schedule_.total_steps(); ++step)
        if (!for_each_micro(step, [&](std::unique_ptr<MicroBatch> m) { return queue_.push(std::move(m)); })) return;
    } catch (...) {
      producer_error_ = std::current_exception();
    }
    queue_.close();
  }

  // A step's rows, cut; and what its means are taken over.
  struct CutStep {
    std::vector<std::vector<int64_t>> micros;
    double weight = 0;
    int64_t tagged = 0, samples = 0;
  };
  CutStep cut(int64_t step) {
    ScopedZone zone(Zone::pack);
    CutStep c;
    const auto rows = schedule_.rows(step);
    for (const int64_t r : rows) {
      const int32_t label = job_.train_set.label[static_cast<size_t>(r)];
      // The mean is over the weights of the true classes; a multi-label row counts once, its loss is a mean of its
      // own.
      const bool weighted = !job_.class_weights.empty() && !job_.shape.multi_label;
      if (label != kIgnoredTarget) {
        ++c.samples;
        c.weight += weighted ? job_.class_weights[static_cast<size_t>(label)] : 1.0;
      }
      if (job_.shape.token_classes > 0)
        for (int64_t t = job_.train_set.begin[static_cast<size_t>(r)];
             t < job_.train_set.begin[static_cast<size_t>(r) + 1]; ++t)
          c.tagged += job_.train_set.token_label[static_cast<size_t>(t)] != kIgnoredTarget;
    }
    c.micros = split_micro_batches(job_.train_set, rows, job_.plan.token_budget, job_.plan.max_sequences);
    return c;
  }

  // A step's micro-batches in order, for as long as `take` says true.
  template <class Take>
  bool for_each_micro(int64_t step, const Take& take) {
    const CutStep c = cut(step);
    for (size_t i = 0; i < c.micros.size(); ++i) {
      auto m = std::make_unique<MicroBatch>();
      {
        ScopedZone zone(Zone::pack);
        build_micro_batch(job_.train_set, c.micros[i], job_.shape, *m);
        if (job_.device->kind() == DeviceKind::cpu) job_.train_set.release_pages();
        zone.set_detail(m->packed.tokens());
      }
      m->step = step;
      m->number = static_cast<int64_t>(i);
      m->last_of_step = i + 1 == c.micros.size();
      m->step_micros = static_cast<int64_t>(c.micros.size());
      m->step_samples = c.samples;
      m->step_weight = c.weight;
      m->step_tagged = c.tagged;
      m->epoch = schedule_.epoch_of(step);
      if (!take(std::move(m))) return false;
    }
    return true;
  }

  // ---- the consumer ----
  void consume() {
    others_.emplace();
    training_since_ = now_ns();
    for (;;) {
      std::optional<std::unique_ptr<MicroBatch>> next;
      {
        ScopedZone zone(Zone::wait_input);
        const int64_t since = now_ns();
        next = queue_.pop();
        wait_seconds_ += seconds_since(since);
      }
      if (!next) break;
      micro_step(**next);
      if (!(*next)->last_of_step) continue;
      end_step(**next);
      if (outcome_.stopped_early || outcome_.interrupted) return;
    }
    if (producer_error_) std::rethrow_exception(producer_error_);
  }

  void micro_step(const MicroBatch& m) {
    if (m.number == 0) begin_step(m);
    const StagedBatch staged = stager_->stage(m, *stream_);
    TrainPass pass{job_.shape, state_.params(), job_.plan.recompute, {}, {}, staged.sorted, staged.sorted_positions};
    const auto scale = static_cast<float>(progress_.loss_scale);
    pass.loss.label_smoothing = static_cast<float>(s_.label_smoothing);
    pass.loss.sequence_scale = scale / static_cast<float>(std::max(1e-9, m.step_weight));
    pass.loss.token_scale = scale / static_cast<float>(std::max<int64_t>(1, m.step_tagged));
    pass.dropout.on = job_.shape.hidden_dropout > 0 || job_.shape.attention_dropout > 0 || job_.shape.head_dropout > 0;
    pass.dropout.seed = mix_seed(static_cast<uint64_t>(s_.seed), m.step, m.number);
    TrainTargets targets = staged.targets;
    if (spans_) spans_->begin();
    if (weights_)
      targets.class_weights =
          TensorView(weights_.data(), DType::f32, {static_cast<int64_t>(job_.class_weights.size())});
    if (m.number == 0) pending_.back()->begin->record(*stream_);
    if (teacher_) {
      targets.teacher_sequence = run_teacher(staged.batch);
      pass.loss.temperature = static_cast<float>(s_.temperature);
      pass.loss.hard_weight = static_cast<float>(s_.hard_weight);
      pass.loss.soft_weight = static_cast<float>(1 - s_.hard_weight);
    }
    TrainResult result;
    {
      ScopedZone zone(Zone::forward, m.packed.tokens());
      result = run_train_pass(*stream_, arena_.data(), pass_plan_, pass, staged.batch, targets, job_.threads);
    }
    stager_->mark_used(*stream_);
    PendingStep& p = *pending_.back();
    stream_->copy(static_cast<float*>(p.values.data()) + 2 * p.micros, result.loss.data, 8);
    if (spans_) spans_->end(m.packed.tokens());
    ++p.micros;
    ++outcome_.micro_batches;
    p.tokens += m.packed.tokens();
    p.rows += m.packed.sequences();
    p.sum_squares += m.packed.sum_squares;
    for (const uint64_t t : m.packed.tickets) p.row_ids.push_back(static_cast<int64_t>(t));
  }

  TensorView run_teacher(const BatchView& batch) {
    PendingStep& p = *pending_.back();
    const auto at = static_cast<size_t>(2 * p.micros);
    while (p.teacher.size() < at + 2) p.teacher.push_back(make_event(*job_.device, true));
    p.teacher[at]->record(*stream_);
    const TensorView scores = teacher_->run(*stream_, batch);
    p.teacher[at + 1]->record(*stream_);
    return scores;
  }

  void begin_step(const MicroBatch& m) {
    if (pending_.size() > 1) read_oldest();
    auto p = free_.empty() ? std::make_unique<PendingStep>() : std::move(free_.back());
    if (!free_.empty()) free_.pop_back();
    if (!p->done) {
      p->begin = make_event(*job_.device, true);
      p->done = make_event(*job_.device, true);
    }
    if (const auto bytes = static_cast<size_t>(2 * m.step_micros + 1) * 4; p->values.bytes() < bytes)
      p->values = job_.device->allocate_host(bytes);
    p->step = m.step;
    p->samples = m.step_weight;
    p->tagged = static_cast<double>(m.step_tagged);
    p->tokens = p->rows = p->micros = 0;
    p->sum_squares = 0;
    p->row_ids.clear();
    pending_.push_back(std::move(p));
  }

  void end_step(const MicroBatch& m) {
    PendingStep& p = *pending_.back();
    StepSettings step;
    p.lr = learning_rate_at(s_, schedule_.peak_learning_rate(), m.step, schedule_.total_steps());
    step.lr = static_cast<float>(p.lr);
    step.beta1 = static_cast<float>(s_.adam_beta1);
    step.beta2 = static_cast<float>(s_.adam_beta2);
    step.eps = static_cast<float>(s_.adam_epsilon);
    step.weight_decay = static_cast<float>(s_.weight_decay);
    step.max_grad_norm = static_cast<float>(s_.max_grad_norm);
    step.grad_scale = static_cast<float>(1 / progress_.loss_scale);
    step.step = m.step + 1 - progress_.skipped_steps;
    if (spans_) spans_->begin();
    {
      ScopedZone zone(Zone::optimizer);
      state_.step(*stream_, step, job_.threads);
    }
    stream_->copy(static_cast<float*>(p.values.data()) + 2 * p.micros, state_.norm().data, 4);
    if (spans_) spans_->end();
    ++outcome_.own_steps;
    p.done->record(*stream_);
    progress_.step = m.step + 1;
    if (job_.precision == Precision::fp16) read_all();  // the loss scale depends on this step's norm
    const bool epoch_end = schedule_.ends_epoch(m.step), last = progress_.step == schedule_.total_steps();
    const bool evaluate = validation_ && s_.eval_strategy != "no" &&
                          (last || (s_.eval_strategy == "epoch" ? epoch_end : progress_.step % s_.eval_steps == 0));
    const bool save = s_.save_strategy != "no" && !last &&
                      (s_.save_strategy == "epoch" ? epoch_end : progress_.step % s_.save_steps == 0);
    const bool stop = callbacks_.stop != nullptr && callbacks_.stop->load(std::memory_order_relaxed);
    if (evaluate || save || stop)
      pause([&] {
        if (evaluate) this->evaluate();
        if (save || stop) checkpoint();
        tell_record();
      });
    if (stop) outcome_.interrupted = true;
  }

  // Reads what the device has finished; training time stops while `fn` runs.
  template <class Fn>
  void pause(Fn&& fn) {
    read_all();
    outcome_.seconds += seconds_since(training_since_);
    if (spans_) spans_->set_clock();
    fn();
    training_since_ = now_ns();
  }

  void read_all() {
    while (!pending_.empty()) read_oldest();
  }

  void read_oldest() {
    std::unique_ptr<PendingStep> p = std::move(pending_.front());
    pending_.erase(pending_.begin());
    {
      ScopedZone zone(Zone::wait_device);
      p->done->synchronize();
    }
    ScopedZone zone(Zone::collect);
    busy_seconds_ += p->done->ms_since(*p->begin) * 1e-3;
    for (size_t i = 0; teacher_ && i < static_cast<size_t>(p->micros); ++i)
      outcome_.time.teacher += p->teacher[2 * i + 1]->ms_since(*p->teacher[2 * i]) * 1e-3;
    if (spans_) spans_->tell();
    const auto* values = static_cast<const float*>(p->values.data());
    double sequence = 0, token = 0;
    for (int64_t i = 0; i < p->micros; ++i) {
      sequence += values[2 * i];
      token += values[2 * i + 1];
    }
    const double norm = values[2 * p->micros];
    double loss = 0;
    if (job_.shape.sequence_classes > 0 && p->samples > 0) loss += sequence / p->samples;
    if (job_.shape.token_classes > 0 && p->tagged > 0) loss += token / p->tagged;
    if (job_.precision == Precision::fp16) {
      if (!adjust_loss_scale(progress_, norm))
        say(fmt::format("a gradient overflowed: update skipped, loss scale now {}", progress_.loss_scale));
    } else if (!std::isfinite(loss) || !std::isfinite(norm)) {
      diverged(*p, loss, norm);
    }
    if (job_.precision == Precision::fp16 && !std::isfinite(loss)) diverged(*p, loss, norm);
    outcome_.final_loss = loss;
    reporter_->step_done(
        {p->step + 1, p->rows, p->tokens, p->sum_squares, loss, norm, p->lr, busy_seconds_, wait_seconds_},
        outcome_.seconds + seconds_since(training_since_));
    free_.push_back(std::move(p));
  }

  [[noreturn]] void diverged(const PendingStep& p, double loss, double norm) {
    const auto path = std::filesystem::path(s_.output_dir) / fmt::format("diverged-step-{}.json", p.step + 1);
    nlohmann::ordered_json j = {{"step", p.step + 1},
                                {"loss", fmt::format("{}", loss)},
                                {"grad_norm", fmt::format("{}", norm)},
                                {"learning_rate", p.lr},
                                {"rows", nlohmann::ordered_json::array()}};
    const TrainSet& set = job_.train_set;
    for (const int64_t r : p.row_ids) {
      const auto row = static_cast<size_t>(r);
      j["rows"].push_back(
          {{"row", r},
           {"from", place(r)},
           {"label", set.label[row]},
           {"ids", std::vector<int32_t>(set.ids.begin() + set.begin[row], set.ids.begin() + set.begin[row + 1])}});
    }
    write_file_atomically(path, j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
    fail(ErrorCode::diverged,
         "step {}: the loss is {} and the gradient norm {}; its {}, the first of them {}, are saved in {}; try a "
         "smaller learning_rate or a warm-up",
         p.step + 1, loss, norm, format_count(static_cast<int64_t>(p.row_ids.size()), "row"),
         p.row_ids.empty() ? "none" : place(p.row_ids[0]), path.string());
  }

  std::string place(int64_t row) const {
    const auto file = static_cast<size_t>(job_.train_set.file[static_cast<size_t>(row)]);
    const std::string& name = file < s_.train_files.size() ? s_.train_files[file] : s_.token_train_file;
    return fmt::format("{}:{}", name, job_.train_set.line[static_cast<size_t>(row)]);
  }

  // What this run allocated of what was planned, on a GPU with the context; on the CPU texts, tokens and the program
  // itself are not in the plan.
  // On the CPU the whole process counts, as the limit is for it.
  int64_t counted_bytes() const {
    if (job_.device->kind() == DeviceKind::cpu) return peak_resident_bytes();
    return job_.device->allocated_bytes() + job_.plan.bytes[Tag::context];
  }

  void evaluate() {
    const double saved = outcome_.time.saving;
    {
      Stopwatch watch(outcome_.time.evaluation);
      evaluate_now();
    }
    outcome_.time.evaluation -= outcome_.time.saving - saved;  // the best model, written within
  }

  void evaluate_now() {
    ScopedZone zone(Zone::evaluate);
    const ValidationResult v = validation_->run(*stream_);
    const std::string metric = metric_name();
    const double value = v.value(metric);
    const bool lower = metric == "loss";
    const bool better =
        progress_.best_step < 0 || (lower ? value < progress_.best_metric : value > progress_.best_metric);
    LogRow row = {{"step", static_cast<double>(progress_.step)}, {"epoch", schedule_.epochs_done(progress_.step)}};
    for (const auto& [name, number] : v.values) row.emplace_back("eval_" + name, number);
    record_.add(row);
    std::string text;
    for (const auto& [name, number] : v.values) text += fmt::format(" · {} {:.4f}", name, number);
    say(fmt::format("epoch {:.2f} · step {}{}{}", schedule_.epochs_done(progress_.step), format_count(progress_.step),
                    text, better ? " · best so far" : ""));
    if (better) {
      progress_.best_metric = value;
      progress_.best_step = progress_.step;
      progress_.evaluations_since_best = 0;
      if (s_.load_best_model_at_end) {
        ScopedZone writing(Zone::checkpoint);
        Stopwatch watch(outcome_.time.saving);
        write_trained_model();
      }
    } else if (++progress_.evaluations_since_best >= s_.early_stopping_patience && s_.early_stopping_patience > 0) {
      say(fmt::format("no improvement in {}: stopping early",
                      format_count(progress_.evaluations_since_best, "evaluation")));
      outcome_.stopped_early = true;
    }
  }

  std::string metric_name() const { return best_metric(s_, job_.task); }

  RunFacts facts() const {
    RunFacts f;
    f.step = progress_.step;
    f.total_steps = schedule_.total_steps();
    f.best_step = progress_.best_step;
    f.epoch = progress_.step > 0 ? schedule_.epochs_done(progress_.step) : 0;
    f.best_metric = progress_.best_metric;
    f.seconds = outcome_.seconds;
    f.samples = reporter_->samples();
    f.tokens = reporter_->tokens();
    f.metric = metric_name();
    return f;
  }

  void tell_record() {
    if (!callbacks_.record) return;
    ScopedZone zone(Zone::write);
    Stopwatch watch(outcome_.time.saving);
    callbacks_.record(record_.report_json(facts()));
  }

  void checkpoint() {
    ScopedZone zone(Zone::checkpoint);
    Stopwatch watch(outcome_.time.saving);
    progress_.state_json = record_.state_json(facts());
    progress_.plan_json = to_json(job_.plan);
    std::vector<float> master;
    std::vector<std::byte> moments;
    write_checkpoint(s_.output_dir, files_, state_.layout(), state_.on_host(*stream_, master),
                     state_.moments_on_host(*stream_, moments), progress_, s_.save_total_limit);
  }

  void write_trained_model() {
    std::vector<float> master;
    write_trained(s_.output_dir, files_, state_.layout(), state_.on_host(*stream_, master));
  }

  void finish() {
    read_all();
    stager_->tell_copies();
    ScopedZone zone(Zone::write);
    outcome_.seconds += seconds_since(training_since_);
    outcome_.steps = progress_.step;
    outcome_.best_metric = progress_.best_metric;
    outcome_.best_step = progress_.best_step;
    outcome_.best_metric_name = metric_name();
    tell_stats();
    tell_record();
    if (outcome_.interrupted) return;
    Stopwatch watch(outcome_.time.saving);
    const bool best_written = s_.load_best_model_at_end && progress_.best_step >= 0;
    if (!best_written) write_trained_model();
    const std::filesystem::path out = s_.output_dir;
    write_file_atomically(out / "trainer_state.json", record_.state_json(facts()));
    write_file_atomically(out / "README.md", record_.card(facts()));
  }

  void tell_stats() {
    const double seconds = std::max(1e-9, outcome_.seconds);
    outcome_.samples = reporter_->samples();
    outcome_.tokens = reporter_->tokens();
    const double share = reporter_->mfu(seconds);
    outcome_.mfu = std::isnan(share) ? -1 : share;
    outcome_.mfu_note = job_.plan.device.mfu_note();
    outcome_.device_busy = std::min(1.0, busy_seconds_ / seconds);
    outcome_.planned_bytes = job_.plan.peak_bytes;
    outcome_.limit_bytes = job_.plan.limit_bytes;
    outcome_.held_bytes = reporter_->held_bytes();
    outcome_.on_card = job_.device->kind() == DeviceKind::cuda;
    outcome_.time.steps = outcome_.seconds;
    outcome_.time.busy = busy_seconds_;
    outcome_.time.waited = wait_seconds_;
    outcome_.others = others_->load();
    const bool on_card = job_.device->kind() == DeviceKind::cuda;
    outcome_.held_back_by = limited_by(outcome_.time, on_card ? 0 : job_.threads, outcome_.others);
  }

  void say(const std::string& line) {
    if (callbacks_.say) callbacks_.say(line);
  }

  TrainJob& job_;
  const TrainSettings& s_;
  const TrainCallbacks& callbacks_;
  StepSchedule schedule_;
  TrainState state_;
  std::unique_ptr<Stream> stream_;
  TrainPassPlan pass_plan_;
  DeviceBuffer arena_, weights_;
  std::unique_ptr<BatchStager> stager_;
  std::unique_ptr<Validator> validation_;
  std::unique_ptr<Teacher> teacher_;
  BoundedQueue<std::unique_ptr<MicroBatch>> queue_;
  std::exception_ptr producer_error_;
  std::vector<std::unique_ptr<PendingStep>> pending_, free_;
  ModelFiles files_;
  TrainProgress progress_;
  TrainOutcome outcome_;
  RunRecord record_;
  std::unique_ptr<StepReporter> reporter_;
  double busy_seconds_ = 0, wait_seconds_ = 0;
  std::optional<OtherProcesses> others_;
  std::unique_ptr<DeviceSpans> spans_;  // of the device's work; null without a timeline
  int64_t training_since_ = 0;
};

void Loop::open_teacher() { teacher_ = std::make_unique<Teacher>(job_, s_.teacher); }

}  // namespace

TrainOutcome train(const TrainSettings& settings, const TrainCallbacks& callbacks) {
  TrainJob job = open_train_job(settings, [&](const std::string& line) {
    if (callbacks.say) callbacks.say(line);
  });
  return Loop(job, callbacks).run();
}

}  // namespace brim
