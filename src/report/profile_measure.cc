// SPDX-License-Identifier: Apache-2.0
#include "report/profile_measure.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/error.h"
#include "base/timeline.h"
#include "base/units.h"
#include "engine/label.h"
#include "jobs/evaluate.h"
#include "monitor/host.h"
#include "monitor/nvml.h"
#include "rows/row_writer.h"
#include "text/vader/vader.h"

namespace brim::report {

using engine::Engine;

namespace {

namespace fs = std::filesystem;

constexpr int kRounds = 7;                                 // the minimum for a verdict, plus one
constexpr int64_t kFewestSingles = 5, kMostCalls = 20000;  // per round
constexpr double kRepeatedSeconds = 3;                     // a data set is rerun until it has taken this long
constexpr double kLongestSizeSeconds = 60;                 // for sizes that were not requested explicitly
constexpr double kLeastEnergySeconds = 1.0;                // the GPU's energy counter advances in steps of up to 100 ms
constexpr int64_t kTracedRows = 2000;

struct Lengths {
  std::vector<int64_t> tokens;  // per text, over all its windows
  double mean = 0;
};

Lengths lengths_of(const Subject& subject, const ProfileTexts& texts) {
  Lengths l;
  if (subject.is_rules()) return l;
  const Engine& engine = subject.engine();
  engine::TokenizedTexts out;
  double sum = 0;
  TextRing ring(texts);
  for (size_t i = 0; i < texts.texts.size(); ++i) {
    const TextsTaken one = ring.take(1);
    out.clear();
    int64_t n = 0;
    if (!engine.tokenize(one.texts[0], one.pair(0), out, engine.text_options()))
      for (const auto& w : out.windows) n += w.length;
    l.tokens.push_back(n);
    sum += static_cast<double>(n);
  }
  l.mean = sum / static_cast<double>(std::max<size_t>(1, texts.texts.size()));
  return l;
}

struct Recorded {
  double flops = 0, bytes = 0;
  model::OpTotals ops;
};

// Work of one batch, from the same dry run that is used for planning.
Recorded work_of(const Engine& engine, double tokens, double sequences) {
  const plan::Plan& plan = engine.plan();
  model::BatchLimits b;
  b.tokens = std::clamp<int64_t>(static_cast<int64_t>(tokens + 0.5), 1, plan.token_budget);
  b.sequences = std::clamp<int64_t>(static_cast<int64_t>(sequences + 0.5), 1, b.tokens);
  b.longest = std::clamp<int64_t>((b.tokens + b.sequences - 1) / b.sequences, 1, plan.max_length);
  // On the CPU only batches small enough to run op by op are recorded completely. Assuming one thread per token makes
  // any batch small enough, and the work does not depend on the threads.
  const int threads = plan.device.kind == device::DeviceKind::cpu
                          ? static_cast<int>(std::min<int64_t>(b.tokens, 1 << 20))
                          : plan.device.threads;
  const model::ForwardPlan recorded =
      plan_forward(engine.shape(), plan.precision, plan.device.kind, plan.device.isa, threads, b, plan.output);
  return {recorded.flops, recorded.bytes, recorded.ops};
}

// Calls of one batch size, measured in rounds.
class BatchMeter {
 public:
  BatchMeter(const ProfileOptions& o, const Subject& subject, const ProfileTexts& texts, const Lengths& lengths,
             int64_t size)
      : o_(o), subject_(subject), ring_(texts), lengths_(lengths), size_(size) {
    for (int i = 0; i < 2; ++i) subject.score(ring_.take(static_cast<size_t>(size)));  // warm-up
  }
  int64_t size() const { return size_; }

  void round() {
    const int64_t fewest = size_ == 1 ? kFewestSingles : 1;
    int64_t calls = 0;
    double computing = 0;
    const int64_t started = now_ns();
    while (calls < kMostCalls && (calls < fewest || seconds_since(started) < o_.seconds / kRounds)) {
      throw_if_stopped(o_.stop);
      const size_t first = ring_.next();
      const TextsTaken taken = ring_.take(static_cast<size_t>(size_));
      const double busy_before = subject_.busy_seconds();
      const int64_t begin = now_ns();
      subject_.score(taken);
      seconds_.push_back(seconds_since(begin));
      computing += seconds_.back();
      ++calls;
      if (subject_.is_rules()) continue;
      busy_ += subject_.busy_seconds() - busy_before;
      for (int64_t i = 0; i < size_; ++i) {
        const auto n = static_cast<double>(lengths_.tokens[(first + static_cast<size_t>(i)) % lengths_.tokens.size()]);
        tokens_ += n;
        squares_ += n * n;
      }
    }
    rates_.push_back(static_cast<double>(calls * size_) / computing);
  }

  // `alone` holds the rates of single texts in the same rounds.
  BatchPoint point(const std::vector<double>& alone) const {
    BatchPoint p;
    p.batch_size = size_;
    p.seconds = jobs::spread_of(seconds_);
    p.rate = jobs::spread_of(rates_);
    p.items_per_second = p.rate.p50;
    std::vector<double> gains;
    for (size_t i = 0; i < std::min(rates_.size(), alone.size()); ++i) gains.push_back(rates_[i] / alone[i]);
    p.gain = jobs::spread_of(gains);
    p.speedup = p.gain.p50;
    if (subject_.is_rules()) return p;
    const Engine& engine = subject_.engine();
    const auto calls = static_cast<double>(seconds_.size()), texts = calls * static_cast<double>(size_);
    p.tokens_per_second = tokens_ / texts * p.items_per_second;
    p.busy_seconds = busy_ / calls;
    const double rate = engine.plan().device.rate(engine.precision());
    if (rate > 0) p.mfu = forward_flops(engine.shape(), tokens_, squares_) / texts * p.items_per_second / rate;
    const Recorded work = work_of(engine, tokens_ / calls, static_cast<double>(size_));
    p.flops = work.flops;
    p.bytes = work.bytes;
    return p;
  }
  const std::vector<double>& rates() const { return rates_; }

 private:
  const ProfileOptions& o_;
  const Subject& subject_;
  TextRing ring_;
  const Lengths& lengths_;
  const int64_t size_;
  std::vector<double> seconds_, rates_;  // per call; texts per second per round
  double busy_ = 0, tokens_ = 0, squares_ = 0;
};

// Texts as a jsonl file in memory: the pipeline parses, tokenizes, computes and formats as in `brim score`.
std::string as_jsonl(const TextsTaken& taken) {
  std::string bytes;
  for (size_t i = 0; i < taken.texts.size(); ++i) {
    nlohmann::json row = {{"text", taken.texts[i]}};
    if (const auto pair = taken.pair(i)) row["pair"] = *pair;
    bytes += row.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }
  return bytes;
}
std::string as_jsonl(const ProfileTexts& texts, int64_t rows) {
  return as_jsonl(TextRing(texts).take(static_cast<size_t>(rows)));
}

// Entities are only available through the pipeline, so a call of a token model is a separate run, including its
// threads.
void score_entities(Scorer& scorer, const TextsTaken& taken) {
  rows::RowReaderOptions reading;
  reading.format = rows::RowFormat::jsonl;
  rows::RowReader reader(io::memory_source("texts", as_jsonl(taken)), reading);
  engine::score_rows(scorer, reader, [](engine::ScoredChunk&) {}, nullptr, {});
}

engine::PipelineStats run_rows(const ProfileOptions& o, const Subject& subject, const std::string& jsonl, bool pairs,
                               size_t keep, std::vector<std::string>* predictions) {
  rows::RowReaderOptions reading;
  reading.format = rows::RowFormat::jsonl;
  if (pairs) reading.pair_column = "pair";
  rows::RowReader reader(io::memory_source("texts", jsonl), reading);
  rows::RowWriterOptions writing;
  writing.format = rows::OutputFormat::jsonl;
  writing.results[0].entities = subject.per_token();
  rows::RowWriter writer(reader.schema(), writing);
  std::string bytes;
  std::vector<rows::EntitySpan> spans;
  engine::PipelineOptions options;
  options.stop = o.stop;
  const auto sink = [&](engine::ScoredChunk& chunk) {
    bytes.clear();
    for (size_t row = 0; row < chunk.rows.size(); ++row) {
      if (chunk.error(row) != nullptr) {
        writer.null_row(bytes, chunk.rows, row);
        if (predictions != nullptr && predictions->size() < keep) predictions->emplace_back();
        continue;
      }
      rows::RowResult result;
      if (subject.per_token()) {
        spans.clear();
        for (const Entity& e : chunk.entities[row]) spans.push_back({e.group, e.score, e.word, e.start, e.end});
        result.entities = spans;
        writer.row(bytes, chunk.rows, row, result);
        continue;
      }
      const std::string& label = subject.model().labels()[static_cast<size_t>(chunk.choices[row].label)];
      result.label = label;
      result.score = chunk.choices[row].score;
      writer.row(bytes, chunk.rows, row, result);
      if (predictions != nullptr && predictions->size() < keep) predictions->push_back(label);
    }
  };
  const engine::PipelineStats stats = engine::score_rows(subject.model(), reader, sink, nullptr, options).all;
  throw_if_stopped(o.stop);
  return stats;
}

// Reruns the data set until the GPU's energy counter has advanced enough.
std::optional<double> joules_per_1000(const ProfileOptions& o, const Subject& subject, const std::string& jsonl,
                                      bool pairs, monitor::Nvml& nvml, int card) {
  const auto before = nvml.energy_mj(card);
  if (!before) return std::nullopt;
  int64_t rows = 0;
  const int64_t started = now_ns();
  do rows += std::max<int64_t>(1, run_rows(o, subject, jsonl, pairs, 0, nullptr).rows);
  while (seconds_since(started) < kLeastEnergySeconds);
  const auto after = nvml.energy_mj(card);
  if (!after) return std::nullopt;
  return static_cast<double>(*after - *before) / static_cast<double>(rows);  // mJ per text, equal to J per 1,000
}

SizePoint measure_size(const ProfileOptions& o, const Subject& subject, const ProfileTexts& texts, int64_t rows,
                       monitor::Nvml& nvml, std::vector<std::string>* predictions) {
  SizePoint p;
  p.rows = rows;
  p.repeated = rows > static_cast<int64_t>(texts.texts.size());
  const std::string jsonl = as_jsonl(texts, rows);
  const bool pairs = !texts.pairs.empty();
  const bool card = !subject.is_rules() && subject.engine().device().kind() == device::DeviceKind::cuda;
  const std::optional<int> index = card ? nvml.find(subject.model().pci_bus_id()) : std::nullopt;
  std::vector<engine::PipelineStats> runs;
  std::vector<double> rates;
  const int64_t started = now_ns();
  do {
    runs.push_back(run_rows(o, subject, jsonl, pairs, texts.texts.size(), runs.empty() ? predictions : nullptr));
    rates.push_back(static_cast<double>(runs.back().rows) / std::max(1e-9, runs.back().seconds));
  } while (runs.size() < kRounds && seconds_since(started) < std::min(1.0, o.seconds) * kRepeatedSeconds);
  p.rate = jobs::spread_of(rates);
  const auto middle = runs.begin() + static_cast<std::ptrdiff_t>((runs.size() - 1) / 2);
  std::nth_element(runs.begin(), middle, runs.end(),
                   [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
  if (index) p.joules_per_1000 = joules_per_1000(o, subject, jsonl, pairs, nvml, *index);
  p.run = subject.is_rules() ? engine::record_of(nullptr, nullptr, *middle)
                             : engine::record_of(&subject.engine().shape(), &subject.engine().plan(), *middle);
  return p;
}

bool is_stage(Zone z) {
  switch (z) {
    case Zone::read:
    case Zone::tokenize:
    case Zone::pack:
    case Zone::stage:
    case Zone::copy:
    case Zone::compute:
    case Zone::collect:
    case Zone::write:
    case Zone::device_busy:
      return true;
    default:
      return false;
  }
}

// One more run with the timeline on: activity of each stage over time, and on the CPU the time of each kind of op.
void trace_run(const ProfileOptions& o, const Subject& subject, const ProfileTexts& texts, int64_t rows,
               ModelProfile& m) {
  const std::string jsonl = as_jsonl(texts, rows);
  const bool was_on = Timeline::enabled();
  Timeline::clear();
  Timeline::enable(true);
  engine::PipelineStats stats;
  try {
    stats = run_rows(o, subject, jsonl, !texts.pairs.empty(), 0, nullptr);
  } catch (...) {
    Timeline::enable(was_on);
    throw;
  }
  Timeline::enable(was_on);
  const auto events = Timeline::events();
  const auto threads = Timeline::thread_names();
  m.timeline.title = fmt::format("{}: stages of a run over {} texts", m.name, format_count(rows));
  std::map<int32_t, size_t> lane_of;
  std::map<std::string, double> zone_seconds;
  const int64_t origin = events.empty() ? 0 : events.front().begin_ns;
  for (const ZoneEvent& e : events) {
    if (!is_stage(e.zone)) {
      zone_seconds[zone_name(e.zone)] += static_cast<double>(e.end_ns - e.begin_ns) * 1e-9;
      continue;
    }
    const auto [at, added] = lane_of.emplace(e.thread, m.timeline.lanes.size());
    if (added) {
      const auto i = static_cast<size_t>(e.thread);
      m.timeline.lanes.push_back(i < threads.size() && !threads[i].empty() ? threads[i]
                                                                           : fmt::format("thread {}", e.thread));
    }
    m.timeline.spans.push_back({at->second, static_cast<double>(e.begin_ns - origin) * 1e-9,
                                static_cast<double>(e.end_ns - origin) * 1e-9, zone_name(e.zone)});
  }
  Timeline::clear();
  if (subject.is_rules() || stats.batches == 0 || m.device_kind != device::DeviceKind::cpu) return;
  // Ops run on one core each or split over all, depending on the batch; in both cases the device's busy time is
  // attributed in proportion.
  const auto batches = static_cast<double>(stats.batches);
  const Recorded work =
      work_of(subject.engine(), static_cast<double>(stats.tokens) / batches, static_cast<double>(stats.rows) / batches);
  double all = 0;
  for (const auto& [name, total] : work.ops) all += zone_seconds.count(name) > 0 ? zone_seconds[name] : 0;
  for (const auto& [name, total] : work.ops)
    if (zone_seconds.count(name) > 0 && all > 0)
      m.ops.push_back(
          {name, total.flops * batches, total.bytes * batches, stats.compute_seconds * zone_seconds[name] / all});
  std::sort(m.ops.begin(), m.ops.end(), [](const OpPoint& a, const OpPoint& b) { return a.seconds > b.seconds; });
}

// Notes load from other processes that may have affected the results.
void note_others(monitor::OtherProcesses& others, monitor::Nvml& nvml, ModelProfile& m) {
  const monitor::OtherProcesses::Load load = others.load();
  m.disturbed = load.disturbs();
  if (m.disturbed) m.notes.push_back(load.text() + " during the measurement, which slowed it down");
  if (m.device_kind != device::DeviceKind::cuda) return;
  const auto card = nvml.sample_card(m.pci_bus_id, {.pcie_throughput = false, .processes = true, .gpm = false});
  if (!card || !card->processes) return;
  std::vector<std::string> names;
  const bool known = std::any_of(card->processes->begin(), card->processes->end(),
                                 [](const monitor::GpuProcess& p) { return p.pid == ::getpid(); });
  for (const monitor::GpuProcess& p : *card->processes)
    if (p.pid != ::getpid()) names.push_back(fmt::format("{} (pid {})", p.name.empty() ? "?" : p.name, p.pid));
  if (!known && names.size() == 1) return;  // in a container the driver's pids are not ours
  if (!names.empty()) m.notes.push_back(fmt::format("other processes used the GPU: {}", fmt::join(names, ", ")));
}

}  // namespace

void throw_if_stopped(const std::atomic<bool>* stop) {
  if (stop != nullptr && stop->load(std::memory_order_relaxed))
    fail(ErrorCode::interrupted, "interrupted; no report was written");
}

ScorerOptions profile_options(const ProfileOptions& options, const fs::path& dir) {
  ScorerOptions of_model = options.engine;
  of_model.model = dir.empty() ? "vader" : dir.string();
  return of_model;
}

TextsTaken TextRing::take(size_t count) {
  texts_.clear();
  pairs_.clear();
  for (; count > 0; --count) {
    const size_t at = next_++ % from_.texts.size();
    texts_.push_back(from_.texts[at]);
    if (!from_.pairs.empty()) pairs_.push_back(from_.pairs[at]);
  }
  return {texts_, pairs_};
}

void Subject::score(const TextsTaken& taken) const {
  if (is_rules()) {
    for (const auto text : taken.texts) (void)text::vader_scores(text);
    return;
  }
  if (per_token()) return score_entities(*model_, taken);
  Engine& engine = this->engine();
  engine::TokenizedTexts tokens;
  for (size_t i = 0; i < taken.texts.size(); ++i)
    if (auto error = engine.tokenize(taken.texts[i], taken.pair(i), tokens, engine.text_options())) throw *error;
  (void)engine.score(tokens);
}

std::optional<double> drop_from_cache(const fs::path& dir) {
  int64_t pages = 0, held = 0;
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(dir, ec)) {
    std::error_code ignored;
    if (!entry.is_regular_file(ignored)) continue;
    const int fd = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    struct stat info {};
    if (::fstat(fd, &info) == 0 && info.st_size > 0) {
      ::fdatasync(fd);  // unwritten pages cannot be dropped
      ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
      const auto size = static_cast<size_t>(info.st_size);
      const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE)), count = (size + page - 1) / page;
      void* map = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
      std::vector<unsigned char> resident(count);
      if (map != MAP_FAILED && ::mincore(map, size, resident.data()) == 0) {
        pages += static_cast<int64_t>(count);
        for (const unsigned char r : resident) held += r & 1;
      }
      if (map != MAP_FAILED) ::munmap(map, size);
    }
    ::close(fd);
  }
  return pages == 0 ? std::nullopt : std::optional(static_cast<double>(held) / static_cast<double>(pages));
}

int64_t steps_per_model(const ProfileOptions& o) { return static_cast<int64_t>(3 + kRounds + o.sizes.size()); }

namespace {

// Loads the model twice; VADER has nothing to load except built-in tables, which the first text touches.
std::shared_ptr<Scorer> load_model(const ProfileOptions& o, const fs::path& dir, const ProfileTexts& texts,
                                   const Step& step, ModelProfile& m) {
  const ScorerOptions options = profile_options(o, dir);
  step("loading cold");
  int64_t begin = now_ns();
  if (dir.empty()) {
    (void)text::vader_scores(texts.texts[0]);
    m.cold_load_seconds = m.warm_load_seconds = seconds_since(begin);
    step("loading warm");
    return Scorer::open(options);
  }
  m.dir = dir.string();
  m.cached_share = drop_from_cache(dir);
  begin = now_ns();
  std::shared_ptr<Scorer> scorer = Scorer::open(options);
  m.cold_load_seconds = seconds_since(begin);
  scorer.reset();
  throw_if_stopped(o.stop);
  step("loading warm");
  begin = now_ns();
  scorer = Scorer::open(options);
  m.warm_load_seconds = seconds_since(begin);
  if (m.cached_share && *m.cached_share > 0.05)
    m.notes.push_back(
        fmt::format("{:.0f} % of the model files stayed in the page cache, so the cold load is not fully cold",
                    *m.cached_share * 100));
  return scorer;
}

void describe(const Subject& subject, ModelProfile& m) {
  const Scorer& scorer = subject.model();
  m.device = scorer.device();
  m.precision = scorer.precision();
  m.precision_reason = scorer.precision_reason();
  m.pci_bus_id = scorer.pci_bus_id();
  m.labels = scorer.labels();
  m.family = "vader";
  if (subject.is_rules()) return;
  const Engine& engine = subject.engine();
  m.type = subject.per_token() ? "entities" : "sentiment";
  m.family = family_name(engine.shape().family);
  m.device_kind = engine.device().kind();
  m.parameters = param_count(engine.shape());
  m.plan = engine.plan();
}

// Batch sizes in interleaved rounds; returns texts per second of the best size.
double measure_batches(const ProfileOptions& o, const Subject& subject, const ProfileTexts& texts,
                       const Lengths& lengths, const Step& step, ModelProfile& m) {
  std::vector<BatchMeter> meters;
  meters.emplace_back(o, subject, texts, lengths, 1);
  for (const int64_t size : o.batch_sizes)
    if (size > 1) meters.emplace_back(o, subject, texts, lengths, size);
  for (int round = 1; round <= kRounds; ++round) {
    step(fmt::format("batches, round {} of {}", round, kRounds));
    for (BatchMeter& meter : meters) meter.round();
  }
  const BatchPoint single = meters.front().point(meters.front().rates());
  m.single = single.seconds;
  for (const int64_t size : o.batch_sizes)
    for (const BatchMeter& meter : meters)
      if (meter.size() == size) m.batches.push_back(size == 1 ? single : meter.point(meters.front().rates()));
  const BatchPoint* best = m.best_batch();
  return best != nullptr ? best->items_per_second : single.items_per_second;
}

// `rate`: texts per second, to leave out sizes that take too long.
void measure_sizes(const ProfileOptions& o, const Subject& subject, const ProfileTexts& texts, double rate,
                   monitor::Nvml& nvml, const Step& step, ModelProfile& m) {
  for (size_t i = 0; i < o.sizes.size(); ++i) {
    step(fmt::format("{} texts", format_count(o.sizes[i])));
    if (!o.sizes_given && i > 0 && static_cast<double>(o.sizes[i]) / rate > kLongestSizeSeconds) {
      m.notes.push_back(fmt::format("{} texts were skipped: they would take about {}; set `sizes` to include them",
                                    format_count(o.sizes[i]), format_duration(static_cast<double>(o.sizes[i]) / rate)));
      continue;
    }
    m.predictions.clear();
    m.sizes.push_back(measure_size(o, subject, texts, o.sizes[i], nvml, &m.predictions));
  }
  std::sort(m.sizes.begin(), m.sizes.end(), [](const SizePoint& a, const SizePoint& b) { return a.rows < b.rows; });
}

}  // namespace

ModelProfile measure_model(const ProfileOptions& o, const std::string& name, const fs::path& dir,
                           const ProfileTexts& texts, monitor::Nvml& nvml, const Step& step) {
  ModelProfile m;
  m.name = name;
  ::malloc_trim(0);  // memory left in the heap by the previous model is not counted for this one
  m.before_bytes = monitor::own_resident_bytes();
  const Subject subject(load_model(o, dir, texts, step, m));
  ::malloc_trim(0);
  engine::reset_peak_resident();
  if (!texts.pairs.empty()) {
    if (auto problem = subject.model().why_no_pairs()) throw *problem;
  }
  describe(subject, m);
  const Lengths lengths = lengths_of(subject, texts);
  m.mean_tokens = lengths.mean;
  monitor::OtherProcesses others;
  const double rate = measure_batches(o, subject, texts, lengths, step, m);
  measure_sizes(o, subject, texts, rate, nvml, step, m);
  m.held_bytes = subject.is_rules() ? monitor::peak_resident_bytes() : engine::held_bytes(subject.engine().device());
  note_others(others, nvml, m);
  step("timeline");
  trace_run(o, subject, texts, std::min<int64_t>(kTracedRows, m.sizes.empty() ? 100 : m.sizes.front().rows), m);
  if (m.single.count < 100)
    m.notes.push_back(fmt::format("p99 is based on {} only; increase `seconds` for more",
                                  format_count(m.single.count, "single text")));
  return m;
}

}  // namespace brim::report
