// SPDX-License-Identifier: Apache-2.0
#include "train/trainer.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/bounded_queue.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/timeline.h"
#include "base/token.h"
#include "base/units.h"
#include "io/atomic_file.h"
#include "monitor/host.h"
#include "monitor/nvml.h"
#include "ops/gemm_tuner.h"
#include "ops/loss.h"
#include "plan/card_measure.h"
#include "train/checkpoint.h"
#include "train/content_hash.h"
#include "train/disk_space.h"
#include "train/fingerprint.h"
#include "train/job.h"
#include "train/loop.h"
#include "train/loss_scale.h"
#include "train/micro_batch.h"
#include "train/schedule.h"
#include "train/session.h"
#include "train/step_reporter.h"
#include "train/teacher_review.h"
#include "train/train_log.h"

namespace brim::train {

using device::DeviceKind;

namespace {

// Adds the time spent in its scope.
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

Cadence cadence_of(const TrainSettings& s) { return {s.eval_strategy, s.save_strategy, s.eval_steps, s.save_steps}; }

// Text fine-tuning: packs micro-batches ahead of the device, handles loss scale, best model and run record.
class TextProgram final : public TrainProgram {
 public:
  TextProgram(TrainJob& job, const TrainCallbacks& callbacks, monitor::ResidentGrowth& growth)
      : job_(job),
        s_(job.settings),
        callbacks_(callbacks),
        growth_(growth),
        schedule_(job.settings, job.train_set),
        session_(std::make_unique<TrainSession>(job)),
        queue_(3),
        record_(job),
        loop_(*this, cadence_of(job.settings), callbacks.stop) {}

  TrainOutcome run() {
    start();
    if (callbacks_.begins) callbacks_.begins(job_);
    others_.emplace();
    if (out_of_patience()) {
      say(fmt::format("no improvement in {}: the run has already stopped early",
                      format_count(progress_.evaluations_since_best, "evaluation")));
    } else {
      run_steps();
    }
    finish();
    if (callbacks_.ends) callbacks_.ends(job_, outcome_);
    return outcome_;
  }

  int64_t total_steps() const override { return schedule_.total_steps(); }
  bool ends_epoch(int64_t step) const override { return schedule_.ends_epoch(step); }
  int64_t unread_steps() const override { return static_cast<int64_t>(session_->unread_steps()); }
  bool needs_each_step() const override { return job_.precision == ops::Precision::fp16; }  // norm for the scale
  bool can_evaluate() const override { return session_->validation() != nullptr; }

 private:
  void start() {
    std::filesystem::path out = s_.output_dir;
    std::error_code ec;
    const bool resume = !s_.resume_from_checkpoint.empty();
    std::filesystem::create_directories(out, ec);
    if (ec) fail(ErrorCode::cannot_write, "{}: {}", out.string(), ec.message());
    if (!resume) remove_old_run(out);
    files_.config = &job_.config;
    files_.tokenizer_dir = job_.model_dir;
    files_.labels = job_.shape.sequence_classes > 0 ? job_.labels.sequence : job_.labels.token;
    files_.shape = job_.shape;
    files_.tags = job_.labels.token;
    files_.base = s_.model;
    if (job_.precision == ops::Precision::fp16) progress_.loss_scale = kFirstLossScale;
    remove_parts(out);
    open_session(resume);
    if (plan::found_larger_context(*job_.device, job_.precision, job_.plan.device.context_bytes, own_bytes(),
                                   "replanning")) {
      session_.reset();
      plan_train_job(job_, 0, std::nullopt);
      session_ = std::make_unique<TrainSession>(job_);
      open_session(resume);
    }
    job_.master = std::vector<float>();
    check_disk_space(out, disk_need(job_, schedule_, session_->state(), progress_.step, can_evaluate()));
    for (const auto& line : opening_) say(line);
    record_.open(progress_.state_json);
    reporter_ =
        std::make_unique<StepReporter>(job_, schedule_, callbacks_, record_, [this] { return counted_bytes(); });
    for (const auto& line : start_lines(job_, schedule_)) say(line);
  }

  // Creates all device state of the run, including the parameters.
  void open_session(bool resume) {
    opening_.clear();
    progress_.settings = run_fingerprint(job_);
    if (!resume || !this->resume()) {
      if (!job_.new_tensors.empty()) opening_.push_back(new_head_line(job_));
      session_->state().upload(session_->stream(), job_.master);
    }
    // Assigning {} would keep the memory. On a GPU, the values may be needed again.
    if (job_.device->kind() == DeviceKind::cpu) job_.master = std::vector<float>();
    session_->open_pass();
  }

  std::optional<int64_t> own_bytes() const {
    if (job_.device->kind() != DeviceKind::cuda) return std::nullopt;
    return monitor::Nvml().own_bytes(job_.device->pci_bus_id());
  }

  // Removes an earlier run's checkpoints, which would be mistaken for this run's.
  void remove_old_run(const std::filesystem::path& out) {
    std::error_code ec;
    std::vector<std::string> sources = s_.teachers;
    sources.push_back(s_.model);
    sources.push_back(s_.adapter);
    for (const std::string& source : sources) {
      const auto dir = std::filesystem::weakly_canonical(source, ec);
      if (!source.empty() && dir.filename().string().starts_with("checkpoint-") &&
          std::filesystem::equivalent(dir.parent_path(), out, ec))
        fail(ErrorCode::usage, Remedy{"set another `output`"},
             "{}: is a checkpoint of the run that would be overwritten", source);
    }
    remove_checkpoints(out);
  }

  // Returns false if there is no checkpoint.
  bool resume() {
    auto checkpoint = load_checkpoint(s_.output_dir, s_.resume_from_checkpoint, job_.shape, progress_.settings);
    if (!checkpoint) {
      opening_.emplace_back("no checkpoint found; starting from the beginning");
      return false;
    }
    if (!checkpoint->differs.empty()) {
      const bool adapter = hub::is_adapter(checkpoint->dir);
      fail(ErrorCode::usage,
           "{0}: settings or data have changed, so this run cannot be resumed; start a new run from the checkpoint "
           "with `{1}={0}` and `output=NEW`{2}{3}",
           checkpoint->dir.string(), adapter ? "adapter" : "model",
           adapter ? " instead of the other LoRA settings" : "", checkpoint->differs);
    }
    if (!checkpoint->fault.empty()) fail(ErrorCode::bad_model, "{}", checkpoint->fault);
    progress_ = checkpoint->progress;
    seconds_before_ = progress_.seconds;
    if (job_.shape.lora)
      std::copy(checkpoint->master.begin(), checkpoint->master.end(), job_.master.begin());
    else
      job_.master = std::move(checkpoint->master);
    find_best_model(checkpoint->dir.parent_path());
    session_->state().upload(session_->stream(), job_.master);
    session_->state().upload_moments(session_->stream(), checkpoint->moments);
    const auto plan = nlohmann::json::parse(progress_.plan_json);
    const auto budget = plan.value("token_budget", int64_t{0});
    const auto level = model::recompute_from_name(plan.value("recompute", std::string("none")));
    if (budget > 0 && (budget != job_.plan.token_budget || level != job_.plan.recompute)) {
      try {
        plan_train_job(job_, budget, level);
      } catch (const Error&) {
        opening_.push_back(fmt::format(
            "the checkpoint's micro-batch of {} tokens does not fit; the resumed run will not match bit for bit",
            format_count(budget)));
      }
    }
    job_.plan.gemm_choices = plan::plan_from_json(progress_.plan_json).gemm_choices;
    use_gemm_choices(session_->stream(), job_.plan.gemm_choices);
    opening_.push_back(
        fmt::format("resuming after step {} ({})", format_count(progress_.step), checkpoint->dir.filename().string()));
    return true;
  }

  // The best model so far is stored next to the checkpoints, not in them; a run resumed into another directory copies
  // it.
  void find_best_model(const std::filesystem::path& run) {
    if (!s_.load_best_model_at_end || progress_.best_step < 0) return;
    std::error_code ec;
    const std::filesystem::path out = s_.output_dir;
    const bool here = std::filesystem::equivalent(run, out, ec);
    if (here ? std::filesystem::exists(out / weights_file(job_.shape), ec) : copy_model(run, out)) return;
    opening_.push_back(fmt::format("the best model so far (step {}) is missing in {}; only later models are considered",
                                   format_count(progress_.best_step), run.string()));
    progress_.best_step = -1;
    progress_.evaluations_since_best = 0;
  }

  // Also checked after a resume: the last checkpoint may be from the step that stopped the run.
  bool out_of_patience() const {
    return s_.early_stopping_patience > 0 && progress_.evaluations_since_best >= s_.early_stopping_patience;
  }

  void run_steps() {
    std::thread producer([&] { produce(); });
    try {
      loop_.run(progress_.step);
    } catch (...) {
      queue_.cancel();
      producer.join();
      throw;
    }
    queue_.cancel();
    producer.join();
  }

  // ---- producer: packs micro-batches ahead of the device ----
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

  // A step's rows split into micro-batches, and the denominators of its means.
  struct CutStep {
    std::vector<std::vector<int64_t>> micros;
    double weight = 0;
    int64_t tagged = 0;
  };
  CutStep cut(int64_t step) {
    ScopedZone zone(Zone::pack);
    CutStep c;
    const auto rows = schedule_.rows(step);
    for (const int64_t r : rows) {
      const int32_t label = job_.train_set.label[static_cast<size_t>(r)];
      // The mean is over the weights of the true classes. A multi-label row counts once, because its loss is already a
      // mean; the same holds for a row without a label.
      const bool weighted = !job_.class_weights.empty() && !job_.shape.multi_label;
      if (label != ops::kIgnoredTarget)
        c.weight += weighted && label != ops::kNoLabel ? job_.class_weights[static_cast<size_t>(label)] : 1.0;
      if (job_.shape.token_classes > 0)
        for (int64_t t = job_.train_set.begin[static_cast<size_t>(r)];
             t < job_.train_set.begin[static_cast<size_t>(r) + 1]; ++t)
          c.tagged += job_.train_set.token_label[static_cast<size_t>(t)] != ops::kIgnoredTarget;
    }
    c.micros = split_micro_batches(job_.train_set, rows, job_.plan.token_budget, job_.plan.max_sequences);
    return c;
  }

  // Passes a step's micro-batches to `take` in order until it returns false.
  template <class Take>
  bool for_each_micro(int64_t step, const Take& take) {
    const CutStep c = cut(step);
    for (size_t i = 0; i < c.micros.size(); ++i) {
      auto m = std::make_unique<MicroBatch>();
      {
        ScopedZone zone(Zone::pack);
        build_micro_batch(job_.train_set, job_.soft, c.micros[i], job_.shape, *m);
        if (job_.device->kind() == DeviceKind::cpu) job_.train_set.release_pages();
        zone.set_detail(m->packed.tokens());
      }
      m->step = step;
      m->number = static_cast<int64_t>(i);
      m->last_of_step = i + 1 == c.micros.size();
      m->step_micros = static_cast<int64_t>(c.micros.size());
      m->step_weight = c.weight;
      m->step_tagged = c.tagged;
      m->epoch = schedule_.epoch_of(step);
      if (!take(std::move(m))) return false;
    }
    return true;
  }

  // ---- consumer: called by the loop ----
  bool enqueue(int64_t step) override {
    for (;;) {
      std::optional<std::unique_ptr<MicroBatch>> next;
      {
        ScopedZone zone(Zone::wait_input);
        const int64_t since = now_ns();
        next = queue_.pop();
        wait_seconds_ += seconds_since(since);
      }
      if (!next) break;
      session_->enqueue(**next, progress_.loss_scale);
      ++outcome_.micro_batches;
      if (!(*next)->last_of_step) continue;
      update(step);
      return true;
    }
    if (producer_error_) std::rethrow_exception(producer_error_);
    return false;
  }

  void update(int64_t at) {
    model::StepSettings step;
    step.beta1 = static_cast<float>(s_.adam_beta1);
    step.beta2 = static_cast<float>(s_.adam_beta2);
    step.eps = static_cast<float>(s_.adam_epsilon);
    step.weight_decay = static_cast<float>(s_.weight_decay);
    step.max_grad_norm = static_cast<float>(s_.max_grad_norm);
    step.grad_scale = static_cast<float>(1 / progress_.loss_scale);
    step.step = at + 1 - progress_.skipped_steps;
    session_->update(learning_rate_at(s_, schedule_.peak_learning_rate(), at, schedule_.total_steps()), step);
    ++outcome_.own_steps;
    progress_.step = at + 1;
  }

  void pauses() override {
    if (device::DeviceSpans* spans = session_->spans()) spans->set_clock();
  }
  void resumes() override {
    try {
      report_record();
    } catch (const Error& e) {  // the report is written again at the end
      if (e.code() != ErrorCode::cannot_write) throw;
      if (!std::exchange(report_failed_, true)) log_warning("{}; training continues", e.what());
    }
  }
  void save() override { checkpoint(); }

  void read_step() override {
    const StepResult r = session_->read();
    ScopedZone zone(Zone::collect);
    busy_seconds_ += r.busy_seconds;
    if (job_.precision == ops::Precision::fp16) {
      if (!adjust_loss_scale(progress_, r.norm))
        say(fmt::format("gradient overflow: update skipped, loss scale now {}", progress_.loss_scale));
    } else if (!std::isfinite(r.loss) || !std::isfinite(r.norm)) {
      diverged(r);
    }
    if (job_.precision == ops::Precision::fp16 && !std::isfinite(r.loss)) diverged(r);
    outcome_.final_loss = r.loss;
    reporter_->step_done({r.step + 1, r.rows, r.tokens, r.sum_squares, r.loss, r.norm, r.lr, busy_seconds_,
                          wait_seconds_, r.sequence_loss, r.token_loss},
                         loop_.seconds_at(r.done_ns));
  }

  [[noreturn]] void diverged(const StepResult& r) {
    const auto path = std::filesystem::path(s_.output_dir) / fmt::format("diverged-step-{}.json", r.step + 1);
    nlohmann::ordered_json j = {{"step", r.step + 1},
                                {"loss", fmt::format("{}", r.loss)},
                                {"grad_norm", fmt::format("{}", r.norm)},
                                {"learning_rate", r.lr},
                                {"rows", nlohmann::ordered_json::array()}};
    const TrainSet& set = job_.train_set;
    for (const int64_t id : r.row_ids) {
      const auto row = static_cast<size_t>(id);
      std::vector<int32_t> ids;
      for (auto at = set.begin[row]; at < set.begin[row + 1]; ++at)
        ids.push_back(id_of(set.ids[static_cast<size_t>(at)]));
      j["rows"].push_back({{"row", id}, {"from", location(id)}, {"label", set.label[row]}, {"ids", ids}});
    }
    io::write_file_atomically(path, j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
    fail(ErrorCode::diverged,
         "step {}: loss is {}, gradient norm is {}; {} of this step (first: {}) saved in {}; try a smaller "
         "learning_rate or a warm-up",
         r.step + 1, r.loss, r.norm, format_count(static_cast<int64_t>(r.row_ids.size()), "row"),
         r.row_ids.empty() ? "none" : location(r.row_ids[0]), path.string());
  }

  std::string location(int64_t row) const {
    const auto file = static_cast<size_t>(job_.train_set.file[static_cast<size_t>(row)]);
    const std::string& name = file < s_.train_files.size() ? s_.train_files[file] : s_.token_train_file;
    return fmt::format("{}:{}", name, job_.train_set.line[static_cast<size_t>(row)]);
  }

  // Planned memory that this run has allocated, on a GPU including the context. On the CPU it is the whole process,
  // because the limit covers it, although texts, tokens and the program itself are not in the plan. In a process of
  // another program, such as Python, the memory that it had before does not count.
  int64_t counted_bytes() const {
    if (job_.device->kind() == DeviceKind::cpu)
      return plan::shares_process() ? growth_.peak_bytes() : monitor::peak_resident_bytes().value_or(0);
    return job_.device->allocated_bytes() + job_.plan.bytes[memory::Tag::context];
  }

  bool evaluate() override {
    const double saved = outcome_.time.saving;
    bool continues = true;
    {
      Stopwatch watch(outcome_.time.evaluation);
      continues = evaluate_now();
    }
    outcome_.time.evaluation -= outcome_.time.saving - saved;  // evaluation includes writing the best model
    return continues;
  }

  // Returns false if the metric has not improved for as long as the settings allow.
  bool evaluate_now() {
    ScopedZone zone(Zone::evaluate);
    const ValidationResult v = session_->validation()->run(session_->stream());
    const std::string metric = metric_name();
    const double value = v.value(metric);
    const bool lower = metric == "loss" || metric == "mse";
    const bool better = progress_.improved_by(value, lower);
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
    } else if (++progress_.evaluations_since_best; out_of_patience()) {
      say(fmt::format("no improvement in {}: stopping early",
                      format_count(progress_.evaluations_since_best, "evaluation")));
      return false;
    }
    return true;
  }

  std::string metric_name() const { return best_metric(s_, job_.task); }

  RunFacts facts() const {
    RunFacts f;
    f.step = progress_.step;
    f.total_steps = schedule_.total_steps();
    f.best_step = progress_.best_step;
    f.epoch = progress_.step > 0 ? schedule_.epochs_done(progress_.step) : 0;
    f.best_metric = progress_.best_metric;
    f.seconds_before = seconds_before_;
    f.seconds = loop_.seconds();
    f.samples = reporter_->samples();
    f.tokens = reporter_->tokens();
    f.metric = metric_name();
    return f;
  }

  void report_record() {
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
    progress_.seconds = seconds_before_ + loop_.seconds();
    std::vector<float> master;
    std::vector<std::byte> moments;
    const model::TrainState& state = session_->state();
    write_checkpoint(s_.output_dir, files_, state.layout(), state.on_host(session_->stream(), master),
                     state.moments_on_host(session_->stream(), moments), progress_, s_.save_total_limit);
  }

  void write_trained_model() {
    std::vector<float> master;
    const model::TrainState& state = session_->state();
    write_trained_or_rescue(s_.output_dir, files_, state.layout(), state.on_host(session_->stream(), master));
  }

  void finish() {
    session_->report_copies();
    ScopedZone zone(Zone::write);
    outcome_.seconds = loop_.seconds();
    outcome_.stopped_early = out_of_patience();
    outcome_.interrupted = loop_.interrupted();
    outcome_.steps = progress_.step;
    outcome_.best_metric = progress_.best_metric;
    if (progress_.best_step >= 0) outcome_.best_step = progress_.best_step;
    outcome_.best_metric_name = metric_name();
    report_stats();
    // The model is written before the record, which may fail on a full disk.
    const bool best_written = s_.load_best_model_at_end && progress_.best_step >= 0;
    if (!outcome_.interrupted && !best_written) {
      Stopwatch watch(outcome_.time.saving);
      write_trained_model();
    }
    if (!outcome_.interrupted && !job_.soft.empty()) {
      session_.reset();  // the student is scored in the memory of the training state
      job_.review_json = review_student(job_, s_.output_dir, {callbacks_.say, callbacks_.progress, callbacks_.stop});
    }
    report_record();
    if (outcome_.interrupted) return;
    Stopwatch watch(outcome_.time.saving);
    const std::filesystem::path out = s_.output_dir;
    io::write_file_atomically(out / "trainer_state.json", record_.state_json(facts()));
    io::write_file_atomically(out / "README.md", record_.card(facts()));
  }

  void report_stats() {
    const double seconds = std::max(1e-9, outcome_.seconds);
    outcome_.samples = reporter_->samples();
    outcome_.tokens = reporter_->tokens();
    outcome_.mfu = reporter_->mfu(seconds);
    outcome_.mfu_note = job_.plan.device.mfu_note();
    outcome_.device_busy = std::min(1.0, busy_seconds_ / seconds);
    outcome_.planned_bytes = job_.plan.peak_bytes;
    outcome_.limit_bytes = job_.plan.limit_bytes;
    outcome_.held_bytes = reporter_->held_bytes();
    outcome_.on_card = job_.device->kind() == DeviceKind::cuda;
    // Library kernels are loaded when a step first needs them.
    plan::found_larger_context(*job_.device, job_.precision, job_.plan.device.context_bytes, own_bytes(),
                               "the next plan will use this size");
    outcome_.time.steps = outcome_.seconds;
    outcome_.time.busy = busy_seconds_;
    outcome_.time.waited = wait_seconds_;
    outcome_.time.teacher = job_.soft.seconds;
    outcome_.others = others_->load();
    const bool on_card = job_.device->kind() == DeviceKind::cuda;
    outcome_.held_back_by = limited_by(outcome_.time, on_card ? 0 : job_.threads, outcome_.others, cadence_of(s_));
  }

  void say(const std::string& line) {
    if (callbacks_.say) callbacks_.say(line);
  }

  TrainJob& job_;
  const TrainSettings& s_;
  const TrainCallbacks& callbacks_;
  monitor::ResidentGrowth& growth_;
  StepSchedule schedule_;
  std::unique_ptr<TrainSession> session_;
  std::vector<std::string> opening_;  // lines for display about the opened job
  BoundedQueue<std::unique_ptr<MicroBatch>> queue_;
  std::exception_ptr producer_error_;
  ModelFiles files_;
  TrainProgress progress_;
  TrainOutcome outcome_;
  TrainLog record_;
  std::unique_ptr<StepReporter> reporter_;
  double busy_seconds_ = 0, wait_seconds_ = 0;
  bool report_failed_ = false;
  double seconds_before_ = 0;  // training time before the checkpoint this run resumed from
  std::optional<monitor::OtherProcesses> others_;
  TrainLoop loop_;
};

// Before the teachers run, which may take long.
void check_output_dir(const TrainSettings& s) {
  std::error_code ec;
  if (!std::filesystem::exists(s.output_dir, ec) || std::filesystem::is_empty(s.output_dir, ec)) return;
  if (!s.resume_from_checkpoint.empty() || s.overwrite_output_dir) return;
  fail(ErrorCode::cannot_write,
       Remedy{"set `resume_from_checkpoint=last` to continue, or `overwrite_output_dir=true` to start over"},
       "{}: directory is not empty", s.output_dir);
}

}  // namespace

TrainOutcome train(const TrainSettings& settings, const TrainCallbacks& callbacks) {
  check_output_dir(settings);
  monitor::ResidentGrowth growth;  // before the data and the model are read
  TrainJob job = open_train_job(settings, {callbacks.say, callbacks.progress, callbacks.stop});
  return TextProgram(job, callbacks, growth).run();
}

}  // namespace brim::train
